"""What a configuration would change against what runs on the node now, and which pods that waits for. Pure.

What runs now is told by the daemon itself, or by the kubelet; the kubelet knows Healthy devices and those that pods
hold, and not who offers them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping

import msgspec

from nvdp.config.schema import ModeChange
from nvdp.model.listing import Strategy
from nvdp.model.mps import DaemonSpec
from nvdp.model.reasons import Cause
from nvdp.model.status import MpsDaemonStatus, Status
from nvdp.planning.assignment import Assignment, Form
from nvdp.planning.ledger import form_of_id, is_ours, uuid_of_id
from nvdp.planning.mps_pending import build_name, describe_next
from nvdp.planning.preview import Preview

IdsByResource = Mapping[str, frozenset[str]]


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """What is advertised now: each GPU's form and replicas, by UUID, and the number of devices by resource.

    ``daemons`` are the control daemons of MPS that run, by resource, as far as anybody tells. ``is_partial``: devices
    that are Unhealthy and that no pod holds are missing.
    """

    forms: Mapping[str, tuple[Form, int]] = {}
    counts: Mapping[str, int] = {}
    daemons: Mapping[str, DaemonSpec] = {}
    is_partial: bool = False


class How(enum.Enum):
    """What becomes of a GPU whose form changes, while pods hold it or not; or of a control daemon of MPS."""

    AT_ONCE = "at-once"
    WAITS = "waits"
    SHARED_AT_ONCE = "shared-at-once"
    LINGERS = "lingers"
    ENDS_CLIENTS = "ends-clients"


class DeviceChange(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU that gets another form, or fewer replicas than pods hold. No form is: not on offer.

    ``holders`` are pods that hold it as it was. It WAITS for them to end; or, by ``allocation.modeChange: immediate``,
    it is SHARED_AT_ONCE with them; or it LINGERS: what they hold stays listed, Unhealthy, until they end.

    A GPU that nobody holds waits for the pods of ``daemon``, a resource, if the control daemon of that is to have it no
    longer, or to have it as well: it is started anew for that, and not while it is in use.
    """

    gpu_uuid: str
    before: Form | None
    after: Form | None
    how: How
    holders: tuple[str, ...] = ()
    daemon: str = ""


class DaemonChange(msgspec.Struct, frozen=True, kw_only=True):
    """A control daemon of MPS that becomes another one, by a new start: ``text`` says what that changes.

    It WAITS for the pods that use it, ``holders``; or, by ``allocation.modeChange: immediate``, it ENDS_CLIENTS.
    """

    resource: str
    text: str
    how: How
    holders: tuple[str, ...] = ()


class CountChange(msgspec.Struct, frozen=True, kw_only=True):
    """A resource whose number of devices changes. ``after`` is the goal."""

    resource: str
    before: int
    after: int


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """All changes. ``counts`` is None where nothing is known of what runs now."""

    devices: tuple[DeviceChange, ...]
    counts: tuple[CountChange, ...] | None
    daemons: tuple[DaemonChange, ...] = ()


def build_running(status: Status) -> Running:
    """What the daemon itself says."""
    offered = [device for device in status.devices if device.resource]
    return Running(
        forms={
            one.uuid: (Form(one.resource, shared=one.replicas > 1, mps=one.strategy is Strategy.MPS), one.replicas)
            for one in offered
        },
        counts={one.name: one.planned for one in status.resources if one.planned},
        daemons={one.resource: _build_spec(one) for one in status.mps.daemons if one.gpus},
    )


def _build_spec(daemon: MpsDaemonStatus) -> DaemonSpec:
    return DaemonSpec(
        resource=daemon.resource,
        gpus=daemon.gpus,
        thread_percent=daemon.thread_percent,
        memory_mib={one.gpu_uuid: one.mib for one in daemon.memory},
        multi_user=daemon.multi_user,
    )


def build_running_of_ids(ids: IdsByResource, preview: Preview) -> Running:
    """What the kubelet says: ``ids`` are those of Healthy devices. What pods hold is added, and what is not ours left.

    A GPU that is Healthy in one form and held in another is offered in the former.
    """
    healthy = find_ours(ids, preview)
    held = {resource: frozenset(holdings) for resource, holdings in preview.holders.items()}
    forms: dict[str, dict[Form, int]] = {}
    for source in (healthy, {resource: each - healthy.get(resource, frozenset()) for resource, each in held.items()}):
        for resource, device_ids in source.items():
            for device_id in sorted(device_ids):
                uuid = uuid_of_id(device_id)
                known = forms.setdefault(uuid, {})
                form = form_of_id(resource, device_id, preview.node.by_mps)
                known[form] = known.get(form, 0) + 1
    joined = _join(healthy, held)
    return Running(
        forms={uuid: next(iter(known.items())) for uuid, known in forms.items()},
        counts={resource: len(device_ids) for resource, device_ids in joined.items() if device_ids},
        is_partial=True,
    )


def find_ours(ids: IdsByResource, preview: Preview) -> dict[str, frozenset[str]]:
    """Those that can only be GPUs, by the rule by which holders are told apart."""
    names = preview.node.names.union(preview.plan.planned)
    found = {
        resource: frozenset(one for one in device_ids if is_ours(resource, one, names=names))
        for resource, device_ids in ids.items()
    }
    return {resource: device_ids for resource, device_ids in found.items() if device_ids}


def find_changes(preview: Preview, running: Running | None) -> Changes:
    """Without ``running`` only what pods hold tells of the past."""
    held = _hold_by_gpu(preview)
    uuids = dict.fromkeys(device.uuid for device in preview.plan.devices)
    if running is not None:
        uuids |= dict.fromkeys(sorted(running.forms))
    uuids |= dict.fromkeys(sorted(held))
    clients = _find_clients(held)
    devices = [change for uuid in uuids for change in _change(uuid, preview, running, held.get(uuid, {}), clients)]
    return Changes(
        devices=tuple(devices),
        counts=None if running is None else _count(preview, running),
        daemons=() if running is None else tuple(_change_daemons(preview, running, clients)),
    )


def _find_clients(held: Mapping[str, Mapping[Form, Mapping[str, str]]]) -> dict[str, tuple[str, ...]]:
    """The pods that use the control daemon of each resource."""
    found: dict[str, dict[str, str]] = {}
    for forms in held.values():
        for form, holders in forms.items():
            if form.mps:
                found.setdefault(form.resource, {}).update(holders)
    return {resource: _name(holders) for resource, holders in found.items()}


def _change_daemons(
    preview: Preview, running: Running, clients: Mapping[str, tuple[str, ...]]
) -> Iterator[DaemonChange]:
    for resource, spec in sorted(running.daemons.items()):
        grant = preview.plan.grants.resources.get(resource)
        text = describe_next(spec, grant.wanted if grant is not None else None, build_name(preview.plan))
        if text:
            holders = clients.get(resource, ())
            in_use = How.ENDS_CLIENTS if _is_immediate(preview) else How.WAITS
            yield DaemonChange(resource=resource, text=text, how=in_use if holders else How.AT_ONCE, holders=holders)


def _is_immediate(preview: Preview) -> bool:
    return preview.config.allocation.mode_change is ModeChange.IMMEDIATE


def _change(
    uuid: str,
    preview: Preview,
    running: Running | None,
    held: Mapping[Form, Mapping[str, str]],
    clients: Mapping[str, tuple[str, ...]],
) -> Iterator[DeviceChange]:
    plan, assignment = preview.plan, preview.plan.assignments.get(uuid)
    after = assignment.form if assignment is not None else None
    before = running.forms[uuid][0] if running is not None and uuid in running.forms else None
    waits = [change for change in plan.changes if change.gpu_uuid == uuid]
    foreign = [form for form in held if form != after]
    for change in waits:  # of a GPU and its MIG devices one may wait for who holds the other
        holders = _name(held.get(change.before, {})) or tuple(filter(None, [change.holder]))
        yield DeviceChange(gpu_uuid=uuid, before=change.before, after=after, how=How.WAITS, holders=holders)
    for form in foreign if not waits else ():
        how = How.LINGERS if after is None else How.SHARED_AT_ONCE
        yield DeviceChange(gpu_uuid=uuid, before=form, after=after, how=how, holders=_name(held.get(form, {})))
    if waits or foreign:
        return
    dropped = _find_dropped(preview, after, held)
    if dropped:
        yield DeviceChange(gpu_uuid=uuid, before=after, after=after, how=How.LINGERS, holders=_name(dropped))
    elif before != after and running is not None and running.forms and not _is_untold(uuid, preview, running):
        daemon = "" if _is_immediate(preview) else _find_daemon(before, after, running, clients)
        how = How.WAITS if daemon else How.AT_ONCE
        pods = clients.get(daemon, ())
        yield DeviceChange(gpu_uuid=uuid, before=before, after=after, how=how, holders=pods, daemon=daemon)


def _find_daemon(
    before: Form | None, after: Form | None, running: Running, clients: Mapping[str, tuple[str, ...]]
) -> str:
    """The resource whose control daemon pods keep from giving the GPU up, or from taking it; empty if none do."""
    for form in (before, after):
        if form is not None and form.mps and form.resource in clients:
            runs = form is before or any(one.mps and one.resource == form.resource for one, _ in running.forms.values())
            if runs:
                return form.resource
    return ""


def _find_dropped(preview: Preview, form: Form | None, held: Mapping[Form, Mapping[str, str]]) -> dict[str, str]:
    """Held IDs of the form that it keeps, and which are listed only until they are free: the pods by ID."""
    listed = preview.plan.lists.get(form.resource) if form is not None else None
    if form is None or listed is None:
        return {}
    going = {device.id for device in listed.devices if device.cause is Cause.WITHDRAWING}
    return {device_id: pod for device_id, pod in held.get(form, {}).items() if device_id in going}


def _is_untold(uuid: str, preview: Preview, running: Running) -> bool:
    """Whether it may be listed now as it will be, Unhealthy, which the kubelet does not tell."""
    return running.is_partial and _takes_none(uuid, preview) and uuid not in running.forms


def _takes_none(uuid: str, preview: Preview) -> bool:
    """Whether it takes no new pods, and would not if it were listed already."""
    plan = preview.plan
    return uuid in preview.node.ailments or uuid in plan.cordoned or uuid in plan.renumbered


def _count(preview: Preview, running: Running) -> tuple[CountChange, ...]:
    after: dict[str, int] = {}
    for uuid, assignment in preview.plan.assignments.items():
        resource = assignment.form.resource
        after[resource] = after.get(resource, 0) + _count_told(uuid, assignment, preview, running)
    found = [
        CountChange(resource=resource, before=running.counts.get(resource, 0), after=after.get(resource, 0))
        for resource in sorted(running.counts.keys() | after.keys())
    ]
    return tuple(one for one in found if one.before != one.after)


def _count_told(uuid: str, assignment: Assignment, preview: Preview, running: Running) -> int:
    """Its devices, as far as who tells of what runs now would tell of them, should nothing change."""
    if _is_untold(uuid, preview, running):
        return 0
    takes_none = _takes_none(uuid, preview)
    form, count = running.forms.get(uuid, (None, 0))
    return count if running.is_partial and takes_none and form == assignment.form else assignment.replicas


def _hold_by_gpu(preview: Preview) -> dict[str, dict[Form, dict[str, str]]]:
    """Who holds each GPU: pods by form and ID."""
    found: dict[str, dict[Form, dict[str, str]]] = {}
    for resource, holdings in preview.holders.items():
        for device_id, holding in holdings.items():
            form = form_of_id(resource, device_id, preview.node.by_mps)
            found.setdefault(uuid_of_id(device_id), {}).setdefault(form, {})[device_id] = holding.holder
    return found


def _name(holders: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sorted(holders.values())))


def _join(healthy: IdsByResource, held: IdsByResource) -> dict[str, frozenset[str]]:
    nothing: frozenset[str] = frozenset()
    return {
        resource: healthy.get(resource, nothing) | held.get(resource, nothing)
        for resource in dict.fromkeys((*healthy, *held))
    }
