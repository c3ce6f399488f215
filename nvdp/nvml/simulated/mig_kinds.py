"""The GPU instance profiles that cards offer: two families, and what a node file makes up beyond them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from nvdp.model.mig import MigProfile, build_gb
from nvdp.nvml.simulated.node import InstanceKind

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_EIGHTHS: Final = 8
# Numbers and IDs that NVML has not given yet.
_NEXT_NUMBER: Final = 18
_NEXT_ID: Final = 200


class Kind(msgspec.Struct, frozen=True):
    """A profile of a family: NVML's number and ID, slices, eighths of the card's memory, engines."""

    number: int
    id: int
    slices: int
    eighths: int
    attribute: str
    engines: tuple[int, int, int, int, int]


# As of A100, H100, H200 and B200.
SEVEN_SLICES: Final = (
    Kind(0, 19, 1, 1, "", (1, 1, 0, 1, 0)),
    Kind(7, 20, 1, 1, "+me", (1, 1, 0, 1, 1)),
    Kind(9, 15, 1, 2, "", (1, 1, 0, 1, 0)),
    Kind(1, 14, 2, 2, "", (2, 2, 0, 2, 0)),
    Kind(2, 9, 3, 4, "", (3, 3, 0, 3, 0)),
    Kind(3, 5, 4, 4, "", (4, 4, 0, 4, 0)),
    Kind(4, 0, 7, 8, "", (8, 7, 0, 7, 1)),
)
# As of RTX PRO 6000.
FOUR_SLICES: Final = (
    Kind(0, 14, 1, 2, "", (1, 1, 1, 1, 0)),
    Kind(7, 21, 1, 2, "+me", (1, 1, 1, 1, 1)),
    Kind(10, 47, 1, 2, "+gfx", (1, 1, 1, 1, 0)),
    Kind(13, 67, 1, 2, "-me", (1, 0, 0, 0, 0)),
    Kind(15, 65, 1, 2, "+me.all", (1, 4, 4, 4, 1)),
    Kind(1, 5, 2, 4, "", (2, 2, 2, 2, 0)),
    Kind(11, 35, 2, 4, "+gfx", (2, 2, 2, 2, 0)),
    Kind(14, 66, 2, 4, "-me", (2, 0, 0, 0, 0)),
    Kind(16, 64, 2, 4, "+me.all", (2, 4, 4, 4, 1)),
    Kind(3, 0, 4, 8, "", (4, 4, 4, 4, 1)),
    Kind(12, 32, 4, 8, "+gfx", (4, 4, 4, 4, 1)),
)


def build_kinds(
    family: Sequence[Kind], profiles: Sequence[MigProfile], *, total_bytes: int
) -> tuple[InstanceKind, ...]:
    """What a card with this memory offers: its family's profiles, and those among ``profiles`` that are none of them.

    Those have numbers that only a driver to come knows.
    """
    kinds = []
    for kind in family:
        memory_mib = _build_memory_mib(kind.eighths, total_bytes)
        gb = build_gb(memory_mib, total_bytes)
        profile = MigProfile(slices=kind.slices, compute_slices=kind.slices, gb=gb, attribute=kind.attribute)
        kinds.append(
            InstanceKind(number=kind.number, id=kind.id, profile=profile, memory_mib=memory_mib, engines=kind.engines)
        )
    known = {kind.profile for kind in kinds}
    others = sorted({build_whole(profile) for profile in profiles} - known)
    return (*kinds, *(_build_other(profile, n, total_bytes) for n, profile in enumerate(others)))


def build_whole(profile: MigProfile) -> MigProfile:
    """The profile of the GPU instance in which a compute instance of ``profile`` is."""
    return msgspec.structs.replace(profile, compute_slices=profile.slices)


def _build_other(profile: MigProfile, place: int, total_bytes: int) -> InstanceKind:
    return InstanceKind(
        number=_NEXT_NUMBER + place,
        id=_NEXT_ID + place,
        profile=profile,
        memory_mib=_find_memory_mib(profile.gb, total_bytes),
        engines=(profile.slices, 0, 0, 0, 0),
    )


def _find_memory_mib(gb: int, total_bytes: int) -> int:
    """The memory that is called ``gb`` on a card with this memory, or, where none is, so many GiB."""
    parts = (_build_memory_mib(eighths, total_bytes) for eighths in range(1, _EIGHTHS + 1) if total_bytes)
    return next((memory_mib for memory_mib in parts if build_gb(memory_mib, total_bytes) == gb), gb * _GIB // _MIB)


def _build_memory_mib(eighths: int, total_bytes: int) -> int:
    """A little less than its share, as the driver leaves it."""
    return total_bytes * eighths * 19 // (_EIGHTHS * 20 * _MIB) // 128 * 128
