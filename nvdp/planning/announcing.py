"""What is worth telling when one plan follows another: each change of state once, in a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from nvdp.model.listing import ResourceList, Strategy
from nvdp.model.platforms import ALL_THERE_IS
from nvdp.model.reasons import Cause, Reason
from nvdp.model.status import EXCLUDED
from nvdp.planning.ailing import Ailments
from nvdp.planning.assignment import Form, Withheld
from nvdp.planning.devices import Device
from nvdp.planning.health_news import count_offered
from nvdp.planning.indices import Renumbered
from nvdp.planning.plan import ModeChange, Plan
from nvdp.planning.wording import Announcement, join_some, list_fields, name_device

_REASON_WITHHELD: Final = {one.word: one for one in (Reason.MIG_INVALID, Reason.MPS_UNSUPPORTED)}
"""What is told in a word of its own, by ``Withheld.reason``."""


def announce_plan(before: Plan | None, after: Plan) -> tuple[Announcement, ...]:
    """Mode changes that begin to wait or are through, cordons, GPUs that take no new pods for their index, what is
    withheld, shared resources that are new, another MPS root, and what containers do without.
    """
    found: list[Announcement] = []
    waited = {_key(change): change for change in before.changes} if before is not None else {}
    waits = {_key(change): change for change in after.changes}
    found += _together([change for key, change in waits.items() if change.holder and waited.get(key) != change])
    through = [change for change in waited.values() if _is_through(change, after)]
    found += _together([msgspec.structs.replace(change, holder="") for change in through])
    found += _announce_given_back(before, after) if before is not None else []

    withheld_before = before.withheld if before is not None else {}
    fresh = {
        uuid: held
        for uuid, held in after.withheld.items()
        if held.reason != EXCLUDED and not _is_same(held, withheld_before.get(uuid))
    }
    devices = {device.uuid: device for device in after.devices}
    found += _announce_cordons(before.cordoned if before is not None else {}, after, devices)
    found += _announce_renumbered(before.renumbered if before is not None else {}, after, devices)
    for text in dict.fromkeys((held.path, held.text) for held in fresh.values()):
        uuids = [uuid for uuid, held in fresh.items() if (held.path, held.text) == text]
        path, why = text
        one = fresh[uuids[0]]
        reason = _REASON_WITHHELD.get(one.reason, Reason.ENTRY_WITHHELD)
        fields: dict[str, object] = {"path": path, "devices": uuids}
        if one.minimum:
            fields |= {"device": one.device, "minimum": one.minimum}
        found.append(Announcement(reason, f"{path}: {why}; not on offer: {join_some(uuids)}", fields))
    shared_before = {} if before is None else before.lists
    for resource, listed in after.lists.items():
        facts = listed.facts
        known = shared_before.get(resource)
        if facts.strategy is Strategy.TIME_SLICING and (known is None or known.facts.strategy is not facts.strategy):
            found.append(_unisolated(resource, listed, devices))
    found += _announce_root(before, after) if before is not None else []
    unmet_before = before.unmet if before is not None else ()
    found += [Announcement(Reason.CONFIG_REFERENCE_UNMATCHED, text) for text in after.unmet if text not in unmet_before]
    return tuple(found)


def announce_emptied(before: Plan | None, after: Plan, ailments: Ailments) -> tuple[Announcement, ...]:
    """Resources that an edit leaves without one device that could ever be Healthy, though they had some.

    What only waits for pods to end is told as a mode change.
    """
    usable: Counter[str] = Counter()
    for uuid, assignment in after.assignments.items():
        if uuid not in after.cordoned and uuid not in ailments:
            usable[assignment.form.resource] += assignment.replicas
    found = []
    for resource, listed in before.lists.items() if before is not None else ():
        count = listed.healthy_count
        if count and not usable[resource]:
            text = f"{resource}: {count} healthy devices → 0; pods that ask for it will stay Pending"
            found.append(Announcement(Reason.RESOURCE_EMPTIED, text, {"resource": resource}))
    return tuple(found)


def describe_changes(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """What changed in the planned devices of each resource: ``nvidia.com/gpu: 32 → 80``."""
    counts = [
        f"{resource}: {before.get(resource, 0)} → {after.get(resource, 0)}"
        for resource in sorted(before.keys() | after.keys())
        if before.get(resource, 0) != after.get(resource, 0)
    ]
    return ", ".join(counts) or "the same number of devices"


def _is_same(withheld: Withheld, before: Withheld | None) -> bool:
    return before is not None and (before.path, before.text) == (withheld.path, withheld.text)


def _announce_cordons(before: Mapping[str, str], after: Plan, devices: Mapping[str, Device]) -> list[Announcement]:
    found = []
    for uuid in after.cordoned.keys() - before.keys():
        name = name_device(uuid, devices.get(uuid))
        text = f"{name}: {after.cordoned[uuid]}; takes no new pods, running ones are left alone"
        found.append(Announcement(Reason.DEVICE_CORDONED, text, {"device": uuid, **list_fields(devices.get(uuid))}))
    for uuid in (before.keys() - after.cordoned.keys()) & devices.keys():
        text = f"{name_device(uuid, devices[uuid])}: no longer cordoned, as it was by {before[uuid]}"
        found.append(Announcement(Reason.DEVICE_UNCORDONED, text, {"device": uuid, **list_fields(devices[uuid])}))
    return sorted(found, key=lambda announcement: announcement.text)


def _announce_renumbered(
    before: Mapping[str, Renumbered], after: Plan, devices: Mapping[str, Device]
) -> list[Announcement]:
    """At once, and once more with its name where the pod was just admitted and could not be seen yet."""
    found = []
    for uuid in sorted(after.renumbered.keys() & after.assignments.keys()):
        one, known = after.renumbered[uuid], before.get(uuid)
        if known is not None and (known.pods or not one.pods):
            continue
        text = f"{name_device(uuid, devices.get(uuid))}: {one.text}; takes no new pods until these have ended"
        fields = {"device": uuid, "cause": Cause.HELD.value, "pods": list(one.pods), **list_fields(devices.get(uuid))}
        found.append(Announcement(Reason.DEVICE_UNHEALTHY, text, fields))
    for uuid in sorted(before.keys() - after.renumbered.keys()):
        if count_offered(after, (uuid,)):  # else something else keeps it from being on offer
            name = name_device(uuid, devices.get(uuid))
            text = f"{name}: the pods that it waited for have ended, or NVML counts as before"
            found.append(Announcement(Reason.DEVICE_RECOVERED, text, {"device": uuid, "cause": Cause.HELD.value}))
    return found


def _key(change: ModeChange) -> tuple[str, object, object]:
    return change.gpu_uuid, change.before, change.after


def _is_through(change: ModeChange, after: Plan) -> bool:
    """Whether the GPU has its new form now: it may also have been given up, by an edit or by the GPU's end."""
    assignment = after.assignments.get(change.gpu_uuid)
    waits = any(other.gpu_uuid == change.gpu_uuid for other in after.changes)
    waits = waits or change.gpu_uuid in after.kept or _waits_for_daemon(change.gpu_uuid, after)
    return not waits and assignment is not None and assignment.form == change.after


def _waits_for_daemon(uuid: str, plan: Plan) -> bool:
    """Whether MPS is to have it, and its daemon is not started anew for it while pods hold something of that."""
    assignment = plan.assignments.get(uuid)
    resource = assignment.form.resource if assignment is not None and assignment.form.mps else ""
    grant, listed = plan.grants.resources.get(resource), plan.lists.get(resource)
    devices = listed.devices if listed is not None else ()
    lacks = any(one.gpu_uuid == uuid and one.cause in {Cause.MPS_DAEMON_FAILED, Cause.HELD} for one in devices)
    return lacks and grant is not None and bool(grant.held)


def _announce_given_back(before: Plan, after: Plan) -> Iterator[Announcement]:
    """What is on offer otherwise now that MPS has let go of it."""
    gpus: dict[str, list[str]] = {}
    for uuid in before.kept.keys() - after.kept.keys():
        was, now = before.assignments.get(uuid), after.assignments.get(uuid)
        if was is not None and now is not None and was.form == now.form and not now.form.mps:
            gpus.setdefault(now.form.resource, []).append(uuid)
    for resource, uuids in sorted(gpus.items()):
        text = f"{join_some(sorted(uuids))}: MPS has given back its GPU; {resource} from now on"
        yield Announcement(Reason.MODE_CHANGED, text, {"devices": sorted(uuids)})


def _announce_root(before: Plan, after: Plan) -> Iterator[Announcement]:
    """Containers are given what the file names; who makes that directory is told by other means."""
    roots = {(_find_root(before, resource), _find_root(after, resource)) for resource in after.lists}
    for old, new in sorted(roots):
        if old and new and old != new:
            text = (
                f"flags.mpsRoot: {old} → {new}: new containers are given directories below {new}; the pods of nvdp and "
                f"nvdp-mps must mount that as their MPS root too, or its daemons stay in {old} and nobody reaches them"
            )
            yield Announcement(Reason.CONFIG_REFERENCE_UNMATCHED, text)


def _find_root(plan: Plan, resource: str) -> str:
    listed = plan.lists.get(resource)
    mps = listed.facts.mps if listed is not None else None
    return mps.host_shm.rpartition("/")[0] if mps is not None else ""


def _together(changes: list[ModeChange]) -> list[Announcement]:
    """One announcement for all GPUs that change in the same way and wait for the same pod (for none: are through)."""
    groups: dict[tuple[Form, Form, str], list[str]] = {}
    for change in changes:
        groups.setdefault((change.before, change.after, change.holder), []).append(change.gpu_uuid)
    found = []
    for (before, after, holder), gpus in groups.items():
        text = f"{join_some(gpus)}: {_describe_change(before, after, gpus)}"
        if holder:
            fields = {"devices": gpus, "pod": holder}
            found.append(Announcement(Reason.MODE_CHANGE_WAITING, f"{text} waits for {holder}", fields))
        else:
            found.append(Announcement(Reason.MODE_CHANGED, text, {"devices": gpus}))
    return found


def _describe_change(before: Form, after: Form, uuids: Sequence[str]) -> str:
    """The names of both forms, or the forms where the name stays; it may even be of another layout of the GPU."""
    if before == after:
        how = "as the one device of this system" if {*uuids} <= {*ALL_THERE_IS} else "in the new MIG layout"
        return f"{after.resource} {how}"
    return f"{before} → {after}" if before.resource == after.resource else f"{before.resource} → {after.resource}"


def _unisolated(resource: str, listed: ResourceList, devices: Mapping[str, Device]) -> Announcement:
    mine = [devices[gpu.uuid] for gpu in listed.facts.gpus if gpu.uuid in devices]
    sizes = {device.memory_bytes for device in mine if device.memory_bytes}
    what = "GPU" if any(device.instance is None for device in mine) else "MIG device"
    size = f"the {min(sizes) / 2**30:.0f} GiB of one {what}" if len(sizes) == 1 else f"the memory of one {what}"
    text = f"{resource}: {listed.facts.replicas[-1]} containers share {size}; no memory limit is enforced"
    return Announcement(Reason.SHARING_UNISOLATED, text, {"resource": resource})
