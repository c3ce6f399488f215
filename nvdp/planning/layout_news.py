"""What is worth telling when GPUs are cut otherwise than before: ``MIGLayoutChanged``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from nvdp.model.held import Holding
from nvdp.model.inventory import Gpu, Inventory, MigMode
from nvdp.model.reasons import Reason
from nvdp.planning.devices import Device, list_instances
from nvdp.planning.ledger import uuid_of_id
from nvdp.planning.wording import Announcement, join_some, list_fields, name_device


def announce_layouts(
    before: Inventory | None, after: Inventory, *, untold: Collection[str], holders: Iterable[Holding]
) -> Iterator[Announcement]:
    """The GPUs whose layout changed, but those that are ``untold``, with the pods whose MIG devices are gone."""
    known = {gpu.uuid: gpu for gpu in before.gpus} if before is not None else {}
    pods: dict[str, set[str]] = {}
    for holding in holders:
        pods.setdefault(uuid_of_id(holding.device_id), set()).add(holding.holder)
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


def describe_layout(gpu: Gpu) -> str:
    """``whole``, or its MIG devices by profile: ``3 × 2g.20gb, 1 × 1g.10gb``."""
    if not _is_cut(gpu):
        return "whole"
    counts = Counter(one.profile or "unknown" for one in list_instances(gpu))
    return ", ".join(f"{count} × {profile}" for profile, count in counts.items()) or "no MIG devices"


def _is_cut(gpu: Gpu) -> bool:
    return gpu.mig is MigMode.ENABLED


def _is_known(gpu: Gpu) -> bool:
    """Whether what it is cut into could be read."""
    return gpu.mig is not None and (not _is_cut(gpu) or gpu.instances is not None)
