"""What is worth telling when one plan follows another: each change of state once, in a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from nvdp.model.health import Ailment
from nvdp.model.held import Holding
from nvdp.model.inventory import Gpu, Inventory
from nvdp.model.listing import ResourceList, Strategy
from nvdp.model.reasons import Cause, Reason
from nvdp.model.status import EXCLUDED
from nvdp.planning.assignment import Form, Withheld
from nvdp.planning.indices import Renumbered
from nvdp.planning.plan import ModeChange, Plan

_MAX_NAMED = 5  # devices or pods in one sentence


class Announcement(msgspec.Struct, frozen=True):
    """One log line: its reason, its sentence and its fields."""

    reason: Reason
    text: str
    fields: Mapping[str, object] = {}


Ailments: TypeAlias = Mapping[str, Ailment]


def announce_plan(before: Plan | None, after: Plan, inventory: Inventory) -> tuple[Announcement, ...]:
    """Mode changes that begin to wait or are through, cordons, GPUs that take no new pods for their index, entries
    withheld, and shared resources that are new.
    """
    found: list[Announcement] = []
    waited = {_key(change): change for change in before.changes} if before is not None else {}
    waits = {_key(change): change for change in after.changes}
    found += _together([change for key, change in waits.items() if change.holder and waited.get(key) != change])
    through = [change for change in waited.values() if _is_through(change, after)]
    found += _together([msgspec.structs.replace(change, holder="") for change in through])

    withheld_before = before.withheld if before is not None else {}
    fresh = {
        uuid: held
        for uuid, held in after.withheld.items()
        if held.reason != EXCLUDED and not _is_same(held, withheld_before.get(uuid))
    }
    gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
    found += _announce_cordons(before.cordoned if before is not None else {}, after, gpus)
    found += _announce_renumbered(before.renumbered if before is not None else {}, after, gpus)
    for text in dict.fromkeys((held.path, held.text) for held in fresh.values()):
        uuids = [uuid for uuid, held in fresh.items() if (held.path, held.text) == text]
        path, why = text
        found.append(
            Announcement(
                Reason.ENTRY_WITHHELD, f"{path}: {why}; not on offer: {_some(uuids)}", {"path": path, "devices": uuids}
            )
        )
    shared_before = {} if before is None else before.lists
    for resource, listed in after.lists.items():
        facts = listed.facts
        known = shared_before.get(resource)
        if facts.strategy is Strategy.TIME_SLICING and (known is None or known.facts.strategy is not facts.strategy):
            found.append(_unisolated(resource, listed, inventory))
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


def announce_health(
    before: Ailments,
    after: Ailments,
    *,
    gpus: Mapping[str, Gpu],
    plan: Plan | None,
    holders: Iterable[Holding],
    recoveries: Mapping[str, str],
    wall: float,
) -> tuple[Announcement, ...]:
    """Devices that turned Unhealthy, with the pods concerned, and devices that are Healthy again.

    Not those of a pause, which is told as one thing.
    """
    found = []
    pods: dict[str, set[str]] = {}
    for holding in holders:
        pods.setdefault(holding.device_id.partition("::")[0], set()).add(holding.holder)
    for uuid, ailment in after.items():
        if (uuid in before and before[uuid].cause is ailment.cause) or ailment.cause is Cause.DRIVER_PAUSED:
            continue
        users = sorted(pods.get(uuid, ()))
        offered = _offered(plan, uuid)
        text = f"{_name(uuid, gpus.get(uuid))}: {ailment.text}"
        text += f"; {sum(offered.values())} devices of {', '.join(offered)} withdrawn" if offered else ""
        text += f"; used by {_some(users)}" if users else ""
        fields = {"device": uuid, "cause": ailment.cause.value, "pods": users, **_place(gpus.get(uuid))}
        fields |= {"xid": ailment.xid} if ailment.xid is not None else {}
        fields |= {"action": ailment.action} if ailment.action else {}
        found.append(Announcement(Reason.DEVICE_UNHEALTHY, text, fields))
    for uuid, ailment in before.items():
        if uuid not in after and uuid in gpus and ailment.cause is not Cause.DRIVER_PAUSED:
            why = f"{recoveries[uuid]}; " if recoveries.get(uuid) else ""
            former = ailment.cause.value if ailment.xid is None else f"XID {ailment.xid}"
            text = f"{_name(uuid, gpus[uuid])}: {why}was Unhealthy for {max(0.0, wall - ailment.since):.0f}s ({former})"
            fields = {"device": uuid, "cause": ailment.cause.value, **_place(gpus[uuid])}
            found.append(Announcement(Reason.DEVICE_RECOVERED, text, fields))
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


def _announce_cordons(before: Mapping[str, str], after: Plan, gpus: Mapping[str, Gpu]) -> list[Announcement]:
    found = []
    for uuid in after.cordoned.keys() - before.keys():
        text = f"{_name(uuid, gpus.get(uuid))}: {after.cordoned[uuid]}; takes no new pods, running ones are left alone"
        found.append(Announcement(Reason.DEVICE_CORDONED, text, {"device": uuid, **_place(gpus.get(uuid))}))
    for uuid in (before.keys() - after.cordoned.keys()) & gpus.keys():
        text = f"{_name(uuid, gpus[uuid])}: no longer cordoned"
        found.append(Announcement(Reason.DEVICE_UNCORDONED, text, {"device": uuid, **_place(gpus[uuid])}))
    return sorted(found, key=lambda announcement: announcement.text)


def _announce_renumbered(before: Mapping[str, Renumbered], after: Plan, gpus: Mapping[str, Gpu]) -> list[Announcement]:
    """At once, and once more with its name where the pod was just admitted and could not be seen yet."""
    found = []
    for uuid in sorted(after.renumbered.keys() & after.assignments.keys()):
        one, known = after.renumbered[uuid], before.get(uuid)
        if known is not None and (known.pods or not one.pods):
            continue
        text = f"{_name(uuid, gpus.get(uuid))}: {one.text}; takes no new pods until these have ended"
        fields = {"device": uuid, "cause": Cause.HELD.value, "pods": list(one.pods), **_place(gpus.get(uuid))}
        found.append(Announcement(Reason.DEVICE_UNHEALTHY, text, fields))
    for uuid in sorted(before.keys() - after.renumbered.keys()):
        if _offered(after, uuid):  # else something else keeps it from being on offer
            text = f"{_name(uuid, gpus.get(uuid))}: the pods that it waited for have ended, or NVML counts as before"
            found.append(Announcement(Reason.DEVICE_RECOVERED, text, {"device": uuid, "cause": Cause.HELD.value}))
    return found


def _key(change: ModeChange) -> tuple[str, object, object]:
    return change.gpu_uuid, change.before, change.after


def _is_through(change: ModeChange, after: Plan) -> bool:
    """Whether the GPU has its new form now: it may also have been given up, by an edit or by the GPU's end."""
    assignment = after.assignments.get(change.gpu_uuid)
    waits = any(other.gpu_uuid == change.gpu_uuid for other in after.changes)
    return not waits and assignment is not None and assignment.form == change.after


def _together(changes: list[ModeChange]) -> list[Announcement]:
    """One announcement for all GPUs that change in the same way and wait for the same pod (for none: are through)."""
    groups: dict[tuple[Form, Form, str], list[str]] = {}
    for change in changes:
        groups.setdefault((change.before, change.after, change.holder), []).append(change.gpu_uuid)
    found = []
    for (before, after, holder), gpus in groups.items():
        names = (before.resource, after.resource) if before.resource != after.resource else (before, after)
        text = f"{_some(gpus)}: {names[0]} → {names[1]}"
        if holder:
            fields = {"devices": gpus, "pod": holder}
            found.append(Announcement(Reason.MODE_CHANGE_WAITING, f"{text} waits for {holder}", fields))
        else:
            found.append(Announcement(Reason.MODE_CHANGED, text, {"devices": gpus}))
    return found


def _unisolated(resource: str, listed: ResourceList, inventory: Inventory) -> Announcement:
    uuids = {gpu.uuid for gpu in listed.facts.gpus}
    sizes = {gpu.memory_bytes for gpu in inventory.gpus if gpu.uuid in uuids and gpu.memory_bytes}
    size = f"the {min(sizes) / 2**30:.0f} GiB of one GPU" if len(sizes) == 1 else "the memory of one GPU"
    text = f"{resource}: {listed.facts.replicas[-1]} containers share {size}; no memory limit is enforced"
    return Announcement(Reason.SHARING_UNISOLATED, text, {"resource": resource})


def _offered(plan: Plan | None, uuid: str) -> dict[str, int]:
    if plan is None:
        return {}
    counts = {name: len(listed.healthy_by_gpu.get(uuid, ())) for name, listed in plan.lists.items()}
    return {name: count for name, count in counts.items() if count}


def _name(uuid: str, gpu: Gpu | None) -> str:
    return uuid if gpu is None else f"{uuid} (index {gpu.index}{f', {gpu.pci}' if gpu.pci else ''})"


def _place(gpu: Gpu | None) -> dict[str, object]:
    return {} if gpu is None else {"index": gpu.index, "pci": gpu.pci or ""}


def _some(names: list[str]) -> str:
    rest = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
