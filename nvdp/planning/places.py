"""Places in NVML's numbering of which scans cannot say, or must not ask, which GPU is there: pure rules.

Whose is a place where neither slot nor UUID can be read? NVML keeps GPUs in their order, so it is of one that was
between the same neighbours. And between two scans one thing happens rather than two: who could not be reached before is
still the one that cannot, else it is one that was there and is not found now; one that had been away comes last. Where
that leaves several, it may be any of them, and none of them is known to be gone.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec

from nvdp.model.inventory import Fault, GpuRef, Inventory, UnreadableGpu
from nvdp.model.reasons import Cause


class Silenced(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that scans leave out, because ``call`` about it did not return or crashed the NVML child.

    ``ref`` is how a scan recognises it before that call, ``uuid`` who it is, None if that was never learned.
    """

    ref: GpuRef
    uuid: str | None
    cause: Cause
    call: str
    text: str


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that NVML counts and whose UUID could not be read. ``uuid`` is who it is, as far as that is known anyway.

    ``cause`` is None where the fault says it.
    """

    index: int
    pci: str | None
    fault: Fault
    uuid: str | None = None
    cause: Cause | None = None

    @property
    def is_bare(self) -> bool:
        """Whether the place is all that is known."""
        return self.uuid is None and self.pci is None

    def show(self) -> UnreadableGpu:
        return UnreadableGpu(index=self.index, pci=self.pci, fault=self.fault)


class Was(enum.Enum):
    """What a GPU that a scan has not found was at the scan before."""

    UNREACHED = "at a place that was known for its own, where it could not be read for a cause that there still is"
    LOST = "at such a place, for another cause, or lost: then it often goes"
    DOUBTED = "perhaps at a place that was not known for its own"
    THERE = "found"
    AWAY = "gone"


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """A known GPU that a scan has not found. ``gap`` is how many of those that it has found come before it."""

    uuid: str
    was: Was
    gap: int


class Occupants(msgspec.Struct, frozen=True, kw_only=True):
    """Who is at which place (``certain``), and who may be, where others may be too: place and UUID, UUID and place."""

    certain: dict[int, str] = {}
    doubted: dict[str, int] = {}


def relocate(entries: Iterable[Silenced], skipped: Collection[GpuRef]) -> list[Silenced]:
    """Those of the ``entries`` that a scan has met, each at the place where it did (``Scanned.skipped``)."""
    return [
        msgspec.structs.replace(entry, ref=ref)
        for entry in entries
        if (ref := next((ref for ref in skipped if _is_same(entry.ref, ref)), None)) is not None
    ]


def list_places(scanned: Inventory, silenced: Iterable[Silenced]) -> Iterable[Place]:
    """Of a complete scan that left out the ``silenced``."""
    for entry in silenced:
        fault = Fault(call=entry.call, kind=entry.cause.value, text=entry.text)
        uuid = entry.uuid if is_named(entry.ref) else None
        yield Place(index=entry.ref.index, pci=entry.ref.pci, fault=fault, uuid=uuid, cause=entry.cause)
    for found in scanned.unreadable:
        yield Place(index=found.index, pci=found.pci, fault=found.fault)


def find_occupants(places: Sequence[int], *, strangers: Sequence[int], missing: Sequence[Missing]) -> Occupants:
    """Who of the ``missing``, who are in list order, is at these ``places``, and who may be.

    A place is told by its gap, and so are the places at the scan before that were known for nobody's (``strangers``).
    Where a gap has a place too many and another one too few, GPUs are not in the order in which they were.
    """
    stayed = [one for one in missing if one.was in {Was.UNREACHED, Was.LOST, Was.THERE}]
    has_more = any(spare > 0 for spare in _count_spare(places, strangers, missing))
    is_ordered = not has_more or not any(spare < 0 for spare in _count_spare(places, strangers, stayed))
    if not is_ordered:
        places, strangers = [0] * len(places), [0] * len(strangers)
        missing = [msgspec.structs.replace(one, gap=0) for one in missing]
    certain: dict[int, str] = {}
    doubted: dict[str, int] = {}
    for gap in sorted(set(places)):
        there = [number for number, other in enumerate(places) if other == gap]
        unknown = strangers.count(gap)
        chosen = _choose(len(there) - unknown, [one for one in missing if one.gap == gap])
        uuids = [one.uuid for one in chosen]
        # Of several it is the order that tells whose each is. One that is back may as well be a card that is new.
        kinds = {one.was for one in chosen}
        is_told = Was.DOUBTED not in kinds and (len(there) == 1 or (is_ordered and Was.AWAY not in kinds))
        if is_told and not unknown and len(uuids) == len(there):
            certain |= zip(there, uuids, strict=True)
        else:
            doubted |= dict.fromkeys(uuids, there[0])
    return Occupants(certain=certain, doubted=doubted)


def _choose(places: int, missing: Sequence[Missing]) -> list[Missing]:
    """Who of the missing of one gap may be at so many places, which strangers do not need."""
    counts = Counter(one.was for one in missing)
    fresh = places - counts[Was.UNREACHED]
    chosen = {Was.UNREACHED, Was.LOST, Was.DOUBTED}
    if fresh > 0:
        chosen.add(Was.THERE)
    if fresh > counts[Was.THERE]:
        chosen.add(Was.AWAY)
    return [one for one in missing if one.was in chosen]


def _count_spare(places: Sequence[int], strangers: Sequence[int], missing: Iterable[Missing]) -> Iterable[int]:
    """How many places each gap has more than strangers and missing GPUs."""
    spare = Counter(places)
    spare.subtract(strangers)
    spare.subtract(one.gap for one in missing)
    return spare.values()


def is_named(ref: GpuRef) -> bool:
    """Whether more is known of it than its place."""
    return ref.pci is not None or ref.uuid is not None


def _is_same(entry: GpuRef, ref: GpuRef) -> bool:
    """Whether a GPU that was met is that of a skip entry, wherever both are."""
    return (entry.pci, entry.uuid) == (ref.pci, ref.uuid) if is_named(entry) else entry == ref
