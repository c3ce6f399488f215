"""What a run of the bench found, as values: figures with their floors and aims. As JSON they are its output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

Unit = Literal["s", "MiB", "percent of a core", "count"]


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one thing, measured ``count`` times. Percentiles are nearest ranks: each is a value that occurred."""

    count: int
    least: float
    p50: float
    p99: float
    most: float


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """What the figure cannot go below: something bare that was measured, in the same unit, in the same run."""

    text: str
    value: Spread


class Aim(msgspec.Struct, frozen=True, kw_only=True):
    """What was to be reached: the median, or its ratio to the floor's, under ``limit``."""

    of: Literal["p50", "ratio"]
    limit: float
    met: bool


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. ``key`` is for programs and stays, ``text`` is for people."""

    key: str
    group: str
    text: str
    unit: Unit
    value: Spread
    floor: Floor | None = None
    ratio: float | None = None
    aim: Aim | None = None


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """A group of figures that could not be taken, or not to its end, and why."""

    group: str
    why: str


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where it was measured. Load averages are those of the kernel, over one minute, at begin and end."""

    cpu: str
    cores: int
    kernel: str
    python: str
    grpc: str
    load_before: float
    load_after: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of one run. ``at`` is UTC.

    ``driver`` is what the NVML child had loaded while XIDs and memory were measured; everything else is measured on a
    simulated one. ``compiled`` tells whether the dependencies are byte-compiled, as in the image.
    """

    nvdp: str
    at: str
    quick: bool
    seconds: float
    driver: Literal["compiled", "simulated"]
    compiled: bool
    machine: Machine
    figures: tuple[Figure, ...]
    missing: tuple[Missing, ...]


def build_spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    ranked = sorted(values)

    def rank(share: float) -> float:
        return ranked[max(0, math.ceil(share * len(ranked)) - 1)]

    return Spread(count=len(ranked), least=ranked[0], p50=rank(0.5), p99=rank(0.99), most=ranked[-1])


def build_figure(
    key: str,
    text: str,
    values: Sequence[float],
    *,
    group: str,
    unit: Unit,
    floor: Floor | None = None,
    under: float | None = None,
    under_floors: float | None = None,
) -> Figure:
    """A figure of at least one value; ``under`` aims at the median, ``under_floors`` at its ratio to the floor's."""
    value = build_spread(values)
    ratio = value.p50 / floor.value.p50 if floor is not None and floor.value.p50 > 0 else None
    aim = None
    if under is not None:
        aim = Aim(of="p50", limit=under, met=value.p50 < under)
    elif under_floors is not None:
        aim = Aim(of="ratio", limit=under_floors, met=ratio is not None and ratio < under_floors)
    return Figure(key=key, group=group, text=text, unit=unit, value=value, floor=floor, ratio=ratio, aim=aim)
