"""What the kubelet was given, and since when it knows: the memory on which withdrawals and mode changes rest.

Frozen values with the time passed in. ``Given`` is made anew for each list that is given out (``give``) and whenever
the kubelet has taken one (``note_taken``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

import msgspec

from nvdp.model.held import Held, Holding
from nvdp.model.listing import AllocateTrace, ListedDevice, ResourceList
from nvdp.model.reasons import Cause
from nvdp.model.replica import parse_replica_id
from nvdp.planning.assignment import Form

OUR_DOMAIN = "nvidia.com/"
ByMps: TypeAlias = Mapping[str, Collection[str]]
"""By resource the UUIDs of devices whose IDs were last on offer by MPS (``by_mps``)."""


class Refusal(msgspec.Struct, frozen=True):
    """Since when one ID is not on offer.

    ``version`` is the version of the list that said so first, ``refused_at`` when it was given out: from then on
    Allocate refuses the ID. ``known_at`` is when every open stream had taken it: from then on the kubelet knows.
    """

    version: int
    refused_at: float
    known_at: float | None = None


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What one resource was last given out: the list, its version, and the refusals of its Unhealthy IDs."""

    listed: ResourceList
    version: int = 0
    taken_version: int = 0
    refusals: Mapping[str, Refusal] = {}
    allocations: Mapping[str, AllocateTrace] = {}


def give(before: Given | None, listed: ResourceList, *, version: int, now: float) -> Given:
    """The record of ``listed``, given out now as ``version``. An ID that was Unhealthy before keeps its refusal."""
    refusals = {}
    known = before.refusals if before is not None else {}
    for device in listed.devices:
        if device.cause is not None:
            refusals[device.id] = known.get(device.id) or Refusal(version, now)
    return Given(
        listed=listed,
        version=version,
        taken_version=before.taken_version if before is not None else 0,
        refusals=refusals,
        allocations=before.allocations if before is not None else {},
    )


def note_taken(given: Given, *, version: int, now: float) -> Given:
    """The record once every open stream has taken ``version`` (or when no stream is open: nobody offers the IDs)."""
    if all(refusal.known_at is not None or refusal.version > version for refusal in given.refusals.values()):
        return given if given.taken_version == version else msgspec.structs.replace(given, taken_version=version)
    refusals = {
        device_id: Refusal(refusal.version, refusal.refused_at, now)
        if refusal.known_at is None and refusal.version <= version
        else refusal
        for device_id, refusal in given.refusals.items()
    }
    return msgspec.structs.replace(given, refusals=refusals, taken_version=version)


def begin_anew(given: Given, *, now: float) -> Given:
    """The record for an actor that takes the place of a dead one: versions begin again, and nobody has an old list."""
    known = note_taken(given, version=given.version, now=now)
    refusals = {
        device_id: Refusal(0, refusal.refused_at, refusal.known_at) for device_id, refusal in known.refusals.items()
    }
    return msgspec.structs.replace(given, version=0, taken_version=0, refusals=refusals)


def restore(held: Held, *, names: frozenset[str], now: float) -> dict[str, Given]:
    """What the kubelet must have been given by a predecessor: the IDs of ours that pods hold, all Unhealthy.

    The predecessor is gone and so are its streams: nothing is on offer, and what was never seen counts from now.
    """
    given: dict[str, Given] = {}
    for resource, held_ids in our_holdings(held, names=names).items():
        devices = tuple(
            ListedDevice(
                id=device_id,
                gpu_uuid=uuid_of_id(device_id),
                numa_node=held_ids[device_id].numa_node,
                cause=Cause.WITHDRAWING,
            )
            for device_id in sorted(held_ids, key=order_of_id)
        )
        refusals = {device.id: Refusal(0, now, now) for device in devices}
        given[resource] = Given(listed=ResourceList(resource=resource, devices=devices), refusals=refusals)
    return given


def our_holdings(held: Held, *, names: frozenset[str]) -> dict[str, dict[str, Holding]]:
    """Holdings of devices that can only be ours (``is_ours``), by resource and ID."""
    found: dict[str, dict[str, Holding]] = {}
    for holding in held.holdings:
        if is_ours(holding.resource, holding.device_id, names=names):
            found.setdefault(holding.resource, {})[holding.device_id] = holding
    return found


def is_ours(resource: str, device_id: str, *, names: frozenset[str]) -> bool:
    """Whether it is an ID in our format under ``nvidia.com/`` or a name that we advertise or once did (``names``)."""
    return (resource.startswith(OUR_DOMAIN) or resource in names) and parse_replica_id(device_id) is not None


def find_known(
    given: Mapping[str, Given], holders: Mapping[str, Mapping[str, Holding]], by_mps: ByMps
) -> dict[str, dict[Form, list[str]]]:
    """All IDs that the kubelet may know of each GPU, by form: those given out, and then others that pods hold."""
    known: dict[str, dict[Form, dict[str, None]]] = {}

    def note(resource: str, ids: Iterable[str]) -> None:
        clients = frozenset(by_mps.get(resource, ()))
        for device_id in ids:
            uuid = uuid_of_id(device_id)
            form = Form(resource, shared=device_id != uuid, mps=uuid in clients)
            known.setdefault(uuid, {}).setdefault(form, {})[device_id] = None

    for resource, record in given.items():
        note(resource, (device.id for device in record.listed.devices))
    for resource, holdings in holders.items():
        note(resource, sorted(holdings, key=order_of_id))
    return {gpu: {form: list(ids) for form, ids in forms.items()} for gpu, forms in known.items()}


def form_of_id(resource: str, device_id: str, by_mps: ByMps) -> Form:
    """The form in which an ID in our format was last on offer."""
    uuid = uuid_of_id(device_id)
    return Form(resource, shared=device_id != uuid, mps=uuid in by_mps.get(resource, ()))


def find_leaving(given: Given) -> frozenset[str]:
    """The IDs that were given out last only because they may not leave yet."""
    return frozenset(device.id for device in given.listed.devices if device.cause is Cause.WITHDRAWING)


def uuid_of_id(device_id: str) -> str:
    """The device of an ID in our format."""
    return device_id.partition("::")[0]


def number_of_id(device_id: str) -> int:
    """The replica number of an ID in our format; -1 for the device itself."""
    number = device_id.partition("::")[2]
    return int(number) if number else -1


def order_of_id(device_id: str) -> tuple[str, int]:
    """The order of IDs in our format: by device, the device itself first, then its replicas by number."""
    return uuid_of_id(device_id), number_of_id(device_id)
