"""Which GPUs the node has and which of them ail, from one scan to the next: pure rules.

A GPU that was seen once stays known, with its last facts, until it has been absent for ``devices.removeAfter``. GPUs
are told apart by UUID alone, so a renumbering moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from nvdp.model.health import Ailment
from nvdp.model.inventory import Driver, Fault, Gpu, GpuRef, Inventory, UnreadableGpu
from nvdp.model.platforms import Platform
from nvdp.model.reasons import Cause
from nvdp.model.topology import Connection
from nvdp.planning.last_facts import forget_faults, recall_connections, recall_driver, recall_facts

# NVML's word for a GPU that is counted but out of reach; every other failing call is just that.
_CAUSES = {"GpuIsLost": Cause.LOST}
_VANISHED = "NVML does not count it any more"


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """A known GPU. ``absent_since`` (monotonic seconds) is set while scans do not find it at all."""

    gpu: Gpu
    ailment: Ailment | None = None
    absent_since: float | None = None


class Silenced(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that scans leave out, because ``call`` about it did not return or crashed the NVML child.

    ``ref`` is how a scan recognises it before that call, ``uuid`` who it is, None if that was never learned.
    """

    ref: GpuRef
    uuid: str | None
    cause: Cause
    call: str
    text: str


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known. ``sightings`` are in list order: by NVML index, the absent ones where they used to be.

    ``connections`` are those between GPUs that are known.
    """

    driver: Driver
    platform: Platform = Platform.NVML
    sightings: tuple[Sighting, ...] = ()
    unreadable: tuple[UnreadableGpu, ...] = ()
    connections: tuple[Connection, ...] = ()

    @property
    def inventory(self) -> Inventory:
        gpus = tuple(sighting.gpu for sighting in self.sightings)
        return Inventory(
            driver=self.driver,
            platform=self.platform,
            gpus=gpus,
            unreadable=self.unreadable,
            connections=self.connections,
        )

    @property
    def ailments(self) -> dict[str, Ailment]:
        return {sighting.gpu.uuid: sighting.ailment for sighting in self.sightings if sighting.ailment is not None}


def identify(presence: Presence | None, ref: GpuRef) -> str | None:
    """The UUID of a GPU of which perhaps only the slot or the place in NVML's numbering is known."""
    if ref.uuid is not None or presence is None:
        return ref.uuid
    return _find_uuid({sighting.gpu.uuid: sighting for sighting in presence.sightings}, ref.pci, ref.index)


def merge_scan(
    before: Presence | None, scanned: Inventory, silenced: Iterable[Silenced], *, now: float, wall: float
) -> Presence:
    """What is known after a complete scan that left out the ``silenced`` GPUs.

    ``now`` is monotonic, ``wall`` is seconds since the epoch: when a new ailment began.
    """
    known = {sighting.gpu.uuid: sighting for sighting in before.sightings} if before is not None else {}
    merged = {gpu.uuid: _meet(known.get(gpu.uuid), gpu, wall) for gpu in scanned.gpus}
    unreadable = []
    for entry in silenced:
        fault = Fault(call=entry.call, kind=entry.cause.value, text=entry.text)
        if entry.uuid is None:
            unreadable.append(UnreadableGpu(index=entry.ref.index, pci=entry.ref.pci, fault=fault))
        elif entry.uuid not in merged:
            gpu = Gpu(uuid=entry.uuid, index=entry.ref.index, pci=entry.ref.pci, fault=fault)
            merged[entry.uuid] = _meet(known.get(entry.uuid), gpu, wall, cause=entry.cause)
    for found in scanned.unreadable:
        missing = {uuid: sighting for uuid, sighting in known.items() if uuid not in merged}
        uuid = _find_uuid(missing, found.pci, found.index)
        if uuid is None:
            unreadable.append(found)
        else:
            gpu = Gpu(uuid=uuid, index=found.index, pci=found.pci, fault=found.fault)
            merged[uuid] = _meet(known[uuid], gpu, wall)
    absent = [_miss(sighting, now, wall) for uuid, sighting in known.items() if uuid not in merged]
    return Presence(
        driver=recall_driver(before.driver if before is not None else None, scanned.driver),
        platform=scanned.platform,
        sightings=_order(merged.values(), absent),
        unreadable=tuple(sorted(unreadable, key=lambda gpu: gpu.index)),
        connections=recall_connections(before.connections if before is not None else (), scanned, {*known, *merged}),
    )


def silence(before: Presence, entry: Silenced, *, wall: float) -> Presence:
    """Mark a GPU whose call has just failed to return, without waiting for the scan to be complete."""
    return msgspec.structs.replace(
        before,
        sightings=tuple(
            msgspec.structs.replace(sighting, ailment=_ail(sighting.ailment, entry.cause, entry.text, wall))
            if sighting.gpu.uuid == entry.uuid
            else sighting
            for sighting in before.sightings
        ),
    )


def lose_driver(before: Presence, text: str, *, wall: float) -> Presence:
    """NVML failed as a whole: every GPU keeps its facts and is out of order until a scan succeeds.

    One that had vanished before stays so: its index may be another's.
    """
    return _mark_all(before, Cause.DRIVER_LOST, text, wall)


def let_go(before: Presence, text: str, *, wall: float) -> Presence:
    """The driver is let go of by order: as when it is lost."""
    return _mark_all(before, Cause.DRIVER_PAUSED, text, wall)


def recall(inventory: Inventory) -> Presence:
    """What a predecessor knew, to be merged with the first scan, or shown while nobody may look.

    Mark it (``let_go``) before it is shown.
    """
    sightings = tuple(Sighting(gpu=forget_faults(gpu)) for gpu in inventory.gpus)
    return Presence(
        driver=inventory.driver,
        platform=inventory.platform,
        sightings=sightings,
        unreadable=inventory.unreadable,
        connections=inventory.connections,
    )


def _mark_all(before: Presence, cause: Cause, text: str, wall: float) -> Presence:
    return msgspec.structs.replace(
        before,
        sightings=tuple(
            msgspec.structs.replace(sighting, ailment=_ail(sighting.ailment, cause, text, wall))
            if sighting.absent_since is None
            else sighting
            for sighting in before.sightings
        ),
    )


def expire(before: Presence, *, now: float, remove_after_s: float) -> Presence:
    """Forget the GPUs that have been absent for ``remove_after_s``."""
    kept = tuple(
        sighting
        for sighting in before.sightings
        if sighting.absent_since is None or now - sighting.absent_since < remove_after_s
    )
    if len(kept) == len(before.sightings):
        return before
    uuids = {sighting.gpu.uuid for sighting in kept}
    connections = tuple(one for one in before.connections if one.a in uuids and one.b in uuids)
    return msgspec.structs.replace(before, sightings=kept, connections=connections)


def find_next_expiry(presence: Presence, *, remove_after_s: float) -> float | None:
    """When the next absent GPU is to be forgotten, in monotonic seconds."""
    times = [sighting.absent_since for sighting in presence.sightings if sighting.absent_since is not None]
    return min(times) + remove_after_s if times else None


def _meet(before: Sighting | None, gpu: Gpu, wall: float, *, cause: Cause | None = None) -> Sighting:
    """A GPU that was found, cleanly or not: facts that could not be read now keep their last value."""
    if before is not None:
        gpu = recall_facts(before.gpu, gpu)
    if gpu.fault is None:
        return Sighting(gpu=gpu)
    cause = cause or _CAUSES.get(gpu.fault.kind, Cause.CALL_FAILED)
    return Sighting(gpu=gpu, ailment=_ail(before.ailment if before else None, cause, gpu.fault.text, wall))


def _miss(before: Sighting, now: float, wall: float) -> Sighting:
    return Sighting(
        gpu=forget_faults(before.gpu),
        ailment=_ail(before.ailment, Cause.VANISHED, _VANISHED, wall),
        absent_since=now if before.absent_since is None else before.absent_since,
    )


def _ail(before: Ailment | None, cause: Cause, text: str, wall: float) -> Ailment:
    """A GPU that ails already keeps the time at which it began."""
    return Ailment(cause=cause, text=text, since=wall if before is None else before.since)


def _find_uuid(known: Mapping[str, Sighting], pci: str | None, index: int) -> str | None:
    """The known GPU in a slot, or, where the slot could not be read, the one last seen under that index."""
    for uuid, sighting in known.items():
        if sighting.gpu.pci == pci if pci is not None else sighting.gpu.index == index:
            return uuid
    return None


def _order(present: Iterable[Sighting], absent: Sequence[Sighting]) -> tuple[Sighting, ...]:
    """By NVML index; absent GPUs stand before the first one with a higher PCI address, as they did."""
    ordered = sorted(present, key=lambda sighting: sighting.gpu.index)
    for sighting in sorted(absent, key=lambda sighting: (_slot(sighting), sighting.gpu.uuid)):
        slot = _slot(sighting)
        place = next((n for n, other in enumerate(ordered) if _slot(other) > slot), len(ordered))
        ordered.insert(place, sighting)
    return tuple(ordered)


def _slot(sighting: Sighting) -> tuple[bool, int, str]:
    """Sorts by PCI address, whose domain may have more digits; without one last."""
    pci = sighting.gpu.pci or ""
    return not pci, len(pci), pci
