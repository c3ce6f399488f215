"""What is worth telling when GPUs are cut otherwise than before, and who holds what is gone: ``MIGLayoutChanged``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from nvdp.model.held import Holding
from nvdp.model.inventory import Gpu, Inventory, MigMode
from nvdp.model.reasons import Reason
from nvdp.planning.devices import Device, list_instances
from nvdp.planning.ledger import uuid_of_id
from nvdp.planning.plan import Plan
from nvdp.planning.wording import Announcement, join_some, list_fields, name_device


def announce_layouts(
    before: Inventory | None, after: Inventory, *, untold: Collection[str], holders: Iterable[Holding]
) -> Iterator[Announcement]:
    """The GPUs whose layout changed, but those that are ``untold``, with the pods whose MIG devices are gone."""
    known = {gpu.uuid: gpu for gpu in before.gpus} if before is not None else {}
    pods = _group_pods(holders)
    for gpu in after.gpus:
        old = known.get(gpu.uuid)
        if old is None or gpu.uuid in untold or not (_is_known(old) and _is_known(gpu)):
            continue
        gone = {one.uuid for one in list_instances(old)} - {one.uuid for one in list_instances(gpu)}
        came = {one.uuid for one in list_instances(gpu)} - {one.uuid for one in list_instances(old)}
        if not gone and not came and _is_cut(old) is _is_cut(gpu):
            continue
        text = f"{name_device(gpu.uuid, Device(gpu=gpu))}: {describe_layout(old)} → {describe_layout(gpu)}"
        users = {uuid: sorted(pods[uuid]) for uuid in sorted(gone) if uuid in pods}
        if users:
            text += (
                f"; gone, and still held: {join_some([f'{uuid} by {join_some(who)}' for uuid, who in users.items()])}"
            )
        fields = {
            "device": gpu.uuid,
            "pods": sorted({pod for who in users.values() for pod in who}),
            **list_fields(Device(gpu=gpu)),
        }
        yield Announcement(Reason.MIG_LAYOUT_CHANGED, text, fields)


def announce_late_holders(before: Plan | None, after: Plan) -> Iterator[Announcement]:
    """The pods whose MIG devices are gone that were not named with that: nobody could tell, or it was before our start.

    An answer about holders may be half a minute old, and the pod younger.
    """
    known = _find_gone(before) if before is not None else {}
    devices = before.devices if before is not None else ()
    just_gone = {one.uuid for device in devices for one in list_instances(device.gpu)}  # told with the layout
    by_uuid = {device.gpu.uuid: device.gpu for device in after.devices}
    for uuid, pods in _find_gone(after).items():
        new = sorted(pods - known.get(uuid, set()))
        if not new or uuid in just_gone:
            continue
        gpu = Device(gpu=by_uuid[after.parents[uuid]])
        text = f"{name_device(gpu.uuid, gpu)}: {uuid} is gone, and still held by {join_some(new)}"
        yield Announcement(Reason.MIG_LAYOUT_CHANGED, text, {"device": gpu.uuid, "pods": new, **list_fields(gpu)})


def announce_unread_memory(before: Plan | None, after: Plan) -> Iterator[Announcement]:
    """That profiles are named without the memory of their GPUs, which most containers may not read: once, as advice."""
    unread = _find_unread(after)
    if unread and (before is None or not _find_unread(before)):
        text = (
            f"{join_some(unread)}: nothing is missing: MIG devices are on offer under the profiles that the driver "
            "names, as this container may not read the memory of a GPU in MIG mode. To have nvdp compute the profiles "
            "itself, give the container NVIDIA_MIG_MONITOR_DEVICES=all and the capability SYS_ADMIN"
        )
        yield Announcement(Reason.MIG_LAYOUT_CHANGED, text, {"devices": unread})


def describe_layout(gpu: Gpu) -> str:
    """``whole``, or its MIG devices by profile: ``3 × 2g.20gb, 1 × 1g.10gb``."""
    if not _is_cut(gpu):
        return "whole"
    counts = Counter(one.profile or "unknown" for one in list_instances(gpu))
    return ", ".join(f"{count} × {profile}" for profile, count in counts.items()) or "no MIG devices"


def _find_gone(plan: Plan) -> dict[str, set[str]]:
    """The MIG devices that are not there any more, of GPUs whose layout is known, each with the pods that hold it."""
    there = {device.gpu.uuid: device.gpu for device in plan.devices if _is_known(device.gpu)}
    live = {one.uuid for gpu in there.values() for one in list_instances(gpu)}
    pods = _group_pods(holding for held in plan.holders.values() for holding in held.values())
    return {
        uuid: pods.get(uuid, set())
        for uuid, parent in sorted(plan.parents.items())
        if parent in there and uuid not in live
    }


def _find_unread(plan: Plan) -> list[str]:
    """The GPUs of MIG devices on offer whose memory could not be read, though nothing failed."""
    return sorted(
        {
            device.gpu.uuid
            for device in plan.devices
            if device.instance is not None and device.gpu.memory_bytes is None and device.gpu.fault is None
        }
    )


def _group_pods(holders: Iterable[Holding]) -> dict[str, set[str]]:
    """Who holds each device."""
    pods: dict[str, set[str]] = {}
    for holding in holders:
        pods.setdefault(uuid_of_id(holding.device_id), set()).add(holding.holder)
    return pods


def _is_cut(gpu: Gpu) -> bool:
    return gpu.mig is MigMode.ENABLED


def _is_known(gpu: Gpu) -> bool:
    """Whether what it is cut into could be read."""
    return gpu.mig is not None and (not _is_cut(gpu) or gpu.instances is not None)
