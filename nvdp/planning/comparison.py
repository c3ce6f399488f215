"""What a configuration would change against what another plugin advertises on this node now: the rehearsal of a move.

ID by ID, for the kubelet knows nothing else: pods that run keep their IDs, and what is listed under the same ID is the
same device to it. Pure.
"""

from __future__ import annotations

import enum

import msgspec

from nvdp.model.listing import ListedDevice
from nvdp.model.reasons import Cause
from nvdp.planning.changes import IdsByResource, find_ours
from nvdp.planning.ledger import order_of_id, uuid_of_id
from nvdp.planning.preview import Preview


class Fate(enum.Enum):
    """What becomes of an ID that a pod holds: it is listed no longer than the pod runs, or stays and is Unhealthy."""

    GOES = "goes"
    UNHEALTHY = "unhealthy"


class ResourceComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One resource, in IDs. ``now`` are those that are Healthy or held, which is all that the kubelet tells.

    ``same`` stay as they are; ``unhealthy`` stay and take no new pods from then on; ``fresh`` come, ``gone`` go.
    """

    resource: str
    now: int
    after: int
    same: int
    unhealthy: int
    fresh: int
    gone: int


class HeldId(msgspec.Struct, frozen=True, kw_only=True):
    """An ID that a pod holds and that does not stay as it is. ``text`` says why."""

    resource: str
    device_id: str
    holder: str
    fate: Fate
    text: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. ``vanishing`` are resources of which nothing is offered any more: who asks for one stays Pending."""

    resources: tuple[ResourceComparison, ...]
    held: tuple[HeldId, ...]
    vanishing: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Whether every ID that there is now stays as it is, and no other comes."""
        return all(one.now == one.after == one.same for one in self.resources)


def compare(preview: Preview, advertised: IdsByResource) -> Comparison:
    """``advertised`` are the IDs of Healthy devices by resource, as the kubelet has them; GPUs' alone count."""
    healthy = find_ours(advertised, preview)
    names = sorted(healthy.keys() | preview.holders.keys() | preview.plan.planned.keys())
    told = {uuid_of_id(one) for ids in (*healthy.values(), *preview.holders.values()) for one in ids}
    resources = tuple(_compare(name, preview, healthy.get(name, frozenset()), told) for name in names)
    held = [
        HeldId(resource=resource, device_id=device_id, holder=holding.holder, fate=fate[0], text=fate[1])
        for resource, holdings in sorted(preview.holders.items())
        for device_id, holding in sorted(holdings.items(), key=lambda item: order_of_id(item[0]))
        if (fate := _find_fate(preview, resource, device_id)) is not None
    ]
    vanishing = tuple(one.resource for one in resources if one.now and not one.after)
    return Comparison(resources=resources, held=tuple(held), vanishing=vanishing)


def _compare(resource: str, preview: Preview, healthy: frozenset[str], told: set[str]) -> ResourceComparison:
    """``told`` are the GPUs of which the kubelet knows anything."""
    now = healthy.union(preview.holders.get(resource, ()))
    wanted = _find_wanted(preview, resource)
    refused = {device_id for device_id, device in wanted.items() if not device.healthy}
    # What ails or is cordoned, and not in use, may be listed now as well, Unhealthy: the kubelet does not tell.
    untold = {device_id for device_id in refused if uuid_of_id(device_id) not in told}
    return ResourceComparison(
        resource=resource,
        now=len(now),
        after=len(wanted.keys() - untold),
        same=len((now & wanted.keys()) - refused),
        unhealthy=len(now & refused),
        fresh=len(wanted.keys() - now - untold),
        gone=len(now - wanted.keys()),
    )


def _find_wanted(preview: Preview, resource: str) -> dict[str, ListedDevice]:
    """What is listed in the end, by ID: without what only leaves."""
    listed = preview.plan.lists.get(resource)
    devices = listed.devices if listed is not None else ()
    return {device.id: device for device in devices if device.cause is not Cause.WITHDRAWING}


def _find_fate(preview: Preview, resource: str, device_id: str) -> tuple[Fate, str] | None:
    listed = preview.plan.lists.get(resource)
    device = listed.by_id.get(device_id) if listed is not None else None
    if device is None or device.cause is Cause.WITHDRAWING:
        return Fate.GOES, "listed as Unhealthy until the pod ends"
    if device.cause is None:
        return None
    return Fate.UNHEALTHY, f"listed as Unhealthy: {device.cause.value}, {device.text}"
