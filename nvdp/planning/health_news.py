"""What is worth telling when the health of devices changes: each change once, in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from nvdp.model.health import Ailment
from nvdp.model.held import Holding
from nvdp.model.reasons import Cause, Reason
from nvdp.planning.ailing import Ailments, Parts, join_parts, list_parts
from nvdp.planning.devices import Device
from nvdp.planning.ledger import uuid_of_id
from nvdp.planning.means import OBSTACLES
from nvdp.planning.plan import Plan
from nvdp.planning.vitals import describe_action
from nvdp.planning.wording import Announcement, join_some, list_fields, name_device


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What is known besides. ``devices`` are the GPUs and MIG devices of which is told, by UUID."""

    devices: Mapping[str, Device]
    plan: Plan | None
    holders: Iterable[Holding]
    recoveries: Mapping[str, str]
    wall: float


def announce_health(before: Ailments, after: Ailments, around: Around) -> tuple[Announcement, ...]:
    """Devices that turned Unhealthy, with the pods concerned, and devices that are Healthy again.

    A fault is told at once, and once more, in full, when the driver asks for something: it is asked only after that.
    What all MIG devices of a GPU have is told of the GPU, and what is in the way of several devices alike is told once.
    """
    parts = list_parts(around.devices.values())
    return (*_announce_ailing(before, after, parts, around), *_announce_recovered(before, after, parts, around))


def keep_actions(told: Ailments, ailing: Ailments, parts: Parts) -> dict[str, Ailment]:
    """Who ails now, for the next ``before``: what the driver was told to ask for stays told as long as that fault does.

    Each report of it has the driver asked anew, and there may be hundreds a second.
    """
    kept = {
        uuid: msgspec.structs.replace(ailing[uuid], action=known.action)
        for uuid, known in join_parts(told, parts).items()
        if uuid in ailing and (known.cause, known.xid) == (ailing[uuid].cause, ailing[uuid].xid)
        if describe_action(known.action) and not describe_action(ailing[uuid].action)
    }
    return {**ailing, **kept}


def _announce_ailing(before: Ailments, after: Ailments, parts: Parts, around: Around) -> Iterator[Announcement]:
    told = join_parts(before, parts)
    pods: dict[str, set[str]] = {}
    for holding in around.holders:
        pods.setdefault(uuid_of_id(holding.device_id), set()).add(holding.holder)
    told_alike: dict[tuple[str, ...], list[str]] = {}
    again = set()
    ailing = join_parts(after, parts)
    for uuid, ailment in ailing.items():
        device = around.devices.get(uuid)
        known = told.get(uuid) or (told.get(device.parent_uuid) if device is not None else None)
        if known is None or known.cause is not ailment.cause:
            key = (ailment.cause.value, ailment.text) if ailment.cause in OBSTACLES else (uuid,)
            told_alike.setdefault(key, []).append(uuid)
        elif describe_action(ailment.action) and not describe_action(known.action):
            told_alike[uuid,] = [uuid]
            again.add(uuid)
    for uuids in told_alike.values():
        ailment = ailing[uuids[0]]
        concerned = [one for uuid in uuids for one in (uuid, *parts.get(uuid, ()))]
        users = sorted({pod for one in concerned for pod in pods.get(one, ())})
        taken = ailment.cause if uuids[0] in again else None
        offered = count_offered(around.plan, concerned, taken=taken)
        text = f"{_name(uuids, around)}: {ailment.text}"
        text += f"; {sum(offered.values())} devices of {', '.join(offered)} withdrawn" if offered else ""
        text += f"; used by {join_some(users)}" if users else ""
        fields = {**_list_fields(uuids, around), "cause": ailment.cause.value, "pods": users}
        fields |= {"xid": ailment.xid} if ailment.xid is not None else {}
        fields |= {"action": ailment.action} if ailment.action else {}
        yield Announcement(Reason.DEVICE_UNHEALTHY, text, fields)


def _announce_recovered(before: Ailments, after: Ailments, parts: Parts, around: Around) -> Iterator[Announcement]:
    well = {uuid: ailment for uuid, ailment in before.items() if uuid not in after and uuid in around.devices}
    told_alike: dict[tuple[str, ...], list[str]] = {}
    for uuid, ailment in join_parts(well, parts).items():
        reason = around.recoveries.get(uuid) or around.recoveries.get(around.devices[uuid].parent_uuid)
        former = ailment.cause.value if ailment.xid is None else f"XID {ailment.xid}"
        text = f"{max(0.0, around.wall - ailment.since):.0f}s ({former})"
        key = ("", text, "") if ailment.cause in OBSTACLES else (f"{reason}; " if reason else "", text, uuid)
        told_alike.setdefault(key, []).append(uuid)
    for (reason, text, _), uuids in told_alike.items():
        was = "was" if len(uuids) == 1 else "were"
        fields = {**_list_fields(uuids, around), "cause": well[uuids[0]].cause.value}
        yield Announcement(
            Reason.DEVICE_RECOVERED, f"{_name(uuids, around)}: {reason}{was} Unhealthy for {text}", fields
        )


def _name(uuids: Sequence[str], around: Around) -> str:
    """One device in full, several by their indices."""
    if len(uuids) == 1:
        return name_device(uuids[0], around.devices.get(uuids[0]))
    places = [around.devices[uuid].index if uuid in around.devices else uuid for uuid in uuids]
    return f"{len(uuids)} devices (index {join_some(places)})"


def _list_fields(uuids: Sequence[str], around: Around) -> dict[str, object]:
    if len(uuids) > 1:
        return {"devices": list(uuids)}
    return {"device": uuids[0], **list_fields(around.devices.get(uuids[0]))}


def count_offered(plan: Plan | None, uuids: Sequence[str], *, taken: Cause | None = None) -> dict[str, int]:
    """How many Healthy IDs of these devices each resource has. With those that are Unhealthy for ``taken``, if given:
    that looks at each ID, and is for when the list is out.
    """
    if plan is None:
        return {}
    counts = {
        name: sum(len(listed.healthy_by_gpu.get(uuid, ())) for uuid in uuids)
        + (sum(one.cause is taken and one.gpu_uuid in uuids for one in listed.devices) if taken is not None else 0)
        for name, listed in plan.lists.items()
    }
    return {name: count for name, count in counts.items() if count}
