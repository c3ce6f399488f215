"""How much is measured: all of it for people, or next to nothing to see that the bench works."""

from __future__ import annotations

import msgspec


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of runs, calls and seconds; ``xids`` is at most that of the GPUs.

    ``shares`` are replicas of each GPU at which calls are measured.
    """

    starts: int
    restarts: int
    gap_s: float
    edits: int
    xids: int
    shares: tuple[int, ...]
    allocate_calls: int
    preferred_calls: int
    choices: int
    idle_s: float
    load_calls: int
    load_reconnects: int


FULL = Scale(
    starts=10,
    restarts=10,
    gap_s=0.3,
    edits=20,
    xids=8,
    shares=(1, 10, 100, 1000),
    allocate_calls=1000,
    preferred_calls=300,
    choices=20,
    idle_s=15.0,
    load_calls=10_000,
    load_reconnects=1000,
)
QUICK = Scale(
    starts=1,
    restarts=1,
    gap_s=0.05,
    edits=1,
    xids=1,
    shares=(1, 1000),
    allocate_calls=20,
    preferred_calls=5,
    choices=1,
    idle_s=0.5,
    load_calls=100,
    load_reconnects=10,
)
