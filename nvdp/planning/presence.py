"""Which GPUs the node has and which of them ail, from one scan to the next: pure rules.

A GPU that was seen once stays known, with its last facts, until it has been absent for ``devices.removeAfter``. GPUs
are told apart by UUID alone, so a renumbering moves nothing. Of one whose UUID cannot be read the slot tells who it is;
where that cannot be read either, its index does while NVML counts as many as before, and else ``planning/places``.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec

from nvdp.model.health import Ailment
from nvdp.model.inventory import Driver, Fault, Gpu, GpuRef, Inventory, UnreadableGpu
from nvdp.model.platforms import Platform
from nvdp.model.reasons import Cause
from nvdp.model.topology import Connection
from nvdp.planning.last_facts import forget_faults, recall_connections, recall_driver, recall_facts
from nvdp.planning.places import Missing, Occupants, Place, Silenced, Was, find_occupants, is_named, list_places

# NVML's word for a GPU that is counted but out of reach; every other failing call is just that.
_CAUSES = {"GpuIsLost": Cause.LOST}
_VANISHED = "NVML does not count it any more"


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """A known GPU. ``absent_since`` (monotonic seconds) is set while scans do not find it at all.

    ``by_place``: it is known by its place alone, since neither its slot nor its UUID could be read. ``doubted``: it was
    not found, but may be at a place of which nobody knows whose it is.
    """

    gpu: Gpu
    ailment: Ailment | None = None
    absent_since: float | None = None
    by_place: bool = False
    doubted: bool = False

    @property
    def has_index(self) -> bool:
        """Whether its index is NVML's of the last scan. If not, that one may be another's now."""
        return self.absent_since is None and not self.doubted


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known. ``sightings`` are in list order: by NVML index, the absent ones where they used to be.

    ``connections`` are those between GPUs that are known. ``count`` is how many GPUs NVML counted, None if unknown: an
    index means the same GPU while it counts as many.
    """

    driver: Driver
    platform: Platform = Platform.NVML
    count: int | None = None
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
    return _find_uuid(presence.sightings, ref.pci, ref.index if ref.count == presence.count else None)


def rename(presence: Presence, entry: Silenced) -> Silenced:
    """``entry`` with the UUID that the complete scan in which it was met gives it."""
    return entry if is_named(entry.ref) else msgspec.structs.replace(entry, uuid=identify(presence, entry.ref))


def merge_scan(
    before: Presence | None,
    scanned: Inventory,
    silenced: Iterable[Silenced],
    *,
    count: int | None = None,
    now: float,
    wall: float,
) -> Presence:
    """What is known after a complete scan that left out the ``silenced`` GPUs.

    ``count``: see ``Presence``. ``now`` is monotonic, ``wall`` is seconds since the epoch: when a new ailment began.
    """
    known = {sighting.gpu.uuid: sighting for sighting in before.sightings} if before is not None else {}
    merged = {gpu.uuid: _meet(known.get(gpu.uuid), gpu, wall) for gpu in scanned.gpus}
    is_same_count = before is not None and count is not None and count == before.count

    def identify_as(place: Place, uuid: str) -> None:
        gpu = Gpu(uuid=uuid, index=place.index, pci=place.pci, fault=place.fault)
        met = _meet(known.get(uuid), gpu, wall, cause=place.cause)
        merged[uuid] = msgspec.structs.replace(met, by_place=place.is_bare)

    unreadable = []
    for place in sorted(list_places(scanned, silenced), key=lambda place: (place.is_bare, place.index)):
        missing = [sighting for uuid, sighting in known.items() if uuid not in merged]
        uuid = place.uuid or _find_uuid(missing, place.pci, place.index if is_same_count else None)
        if uuid is None:
            unreadable.append(place)
        elif uuid not in merged:
            identify_as(place, uuid)
    nameless = [place for place in unreadable if place.is_bare]
    found = _find_occupants(before, merged, nameless)
    for number, uuid in found.certain.items():
        unreadable.remove(nameless[number])
        identify_as(nameless[number], uuid)
    lacking = [
        _doubt(sighting, nameless[found.doubted[uuid]], wall) if uuid in found.doubted else _miss(sighting, now, wall)
        for uuid, sighting in known.items()
        if uuid not in merged
    ]
    return Presence(
        driver=recall_driver(before.driver if before is not None else None, scanned.driver),
        platform=scanned.platform,
        count=count,
        sightings=_order(merged.values(), lacking),
        unreadable=tuple(place.show() for place in sorted(unreadable, key=lambda place: place.index)),
        connections=recall_connections(before.connections if before is not None else (), scanned, {*known, *merged}),
    )


def silence(before: Presence, entry: Silenced, *, wall: float) -> Presence:
    """Mark a GPU whose call has just failed to return, without waiting for the scan to be complete."""
    by_place = not is_named(entry.ref)
    return msgspec.structs.replace(
        before,
        sightings=tuple(
            msgspec.structs.replace(
                sighting, ailment=_ail(sighting.ailment, entry.cause, entry.text, wall), by_place=by_place
            )
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
            if sighting.has_index
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
    cause = cause or _tell_cause(gpu.fault)
    return Sighting(gpu=gpu, ailment=_ail(before.ailment if before else None, cause, gpu.fault.text, wall))


def _tell_cause(fault: Fault) -> Cause:
    return _CAUSES.get(fault.kind, Cause.CALL_FAILED)


def _miss(before: Sighting, now: float, wall: float, text: str = _VANISHED) -> Sighting:
    return Sighting(
        gpu=forget_faults(before.gpu),
        ailment=_ail(before.ailment, Cause.VANISHED, text, wall),
        absent_since=now if before.absent_since is None else before.absent_since,
    )


def _doubt(before: Sighting, place: Place, wall: float) -> Sighting:
    text = f"{_VANISHED}, or it is the GPU that cannot be read at index {place.index}: {place.fault.text}"
    return msgspec.structs.replace(_miss(before, 0, wall, text), absent_since=None, doubted=True)


def _ail(before: Ailment | None, cause: Cause, text: str, wall: float) -> Ailment:
    """A GPU that ails already keeps the time at which it began."""
    return Ailment(cause=cause, text=text, since=wall if before is None else before.since)


def _find_occupants(before: Presence | None, merged: Mapping[str, Sighting], nameless: Sequence[Place]) -> Occupants:
    if before is None:
        return Occupants()
    met = [sighting for sighting in before.sightings if sighting.gpu.uuid in merged]
    indices = [merged[sighting.gpu.uuid].gpu.index for sighting in met]
    if indices != sorted(indices):
        met, indices = [], []  # counted in another order, which tells nothing
    causes = {place.cause or _tell_cause(place.fault) for place in nameless} - {Cause.LOST}
    gaps = accumulate((sighting in met for sighting in before.sightings), initial=0)
    missing = [
        Missing(uuid=one.gpu.uuid, was=_tell_former(one, causes), gap=gap)
        for one, gap in zip(before.sightings, gaps, strict=False)
        if one.gpu.uuid not in merged
    ]
    unread = before.unreadable if before.count is not None else ()  # a predecessor may have been in doubt
    return find_occupants(
        [bisect(indices, place.index) for place in nameless],
        strangers=[sum(one.gpu.index < gpu.index for one in met) for gpu in unread if gpu.pci is None],
        missing=missing,
    )


def _tell_former(sighting: Sighting, causes: Collection[Cause]) -> Was:
    if not sighting.has_index:
        return Was.DOUBTED if sighting.doubted else Was.AWAY
    if not sighting.by_place:
        return Was.THERE
    return Was.UNREACHED if sighting.ailment is not None and sighting.ailment.cause in causes else Was.LOST


def _find_uuid(known: Iterable[Sighting], pci: str | None, index: int | None) -> str | None:
    """The known GPU in a slot, or, where the slot could not be read, the one that had this index, if it means much."""
    for sighting in known:
        gpu = sighting.gpu
        if gpu.pci == pci if pci is not None else (sighting.has_index and gpu.index == index):
            return gpu.uuid
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
