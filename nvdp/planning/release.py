"""When the driver is let go of by itself, so that a GPU that asks for a reset can get one: ``health.releaseForReset``.

A reset needs that nobody has the GPU open, and a device plugin always has. Nothing here resets anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

RELEASED_S: Final = 60.0
_FIRST_BREAK_S: Final = 300.0
_LONGEST_BREAK_S: Final = 3600.0
_MOST_DOUBLINGS: Final = 10
RESETS: Final = frozenset({"GPUReset", "DrainAndReset", "BusReset"})
"""What the driver may ask for (``Ailment.action``) that somebody could do while the driver is let go of."""


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """``ends_at`` is when the driver is taken back, None while it is not let go of; ``next_at`` is the soonest next
    time to let go. All monotonic seconds. ``tries`` have been in vain since a GPU began to ask.
    """

    tries: int = 0
    ends_at: float | None = None
    next_at: float = float("-inf")


def asks_for_reset(actions: Iterable[str]) -> bool:
    """Whether one of these wishes of the driver can be met while it is let go of."""
    return not RESETS.isdisjoint(actions)


def end_release(before: Release, *, now: float) -> Release:
    """The driver is taken back, at whoever's word: if a GPU asks still, it is not let go of again before the break."""
    if before.ends_at is None:
        return before
    pause_s = min(_LONGEST_BREAK_S, _FIRST_BREAK_S * 2.0 ** min(before.tries, _MOST_DOUBLINGS))
    return Release(tries=before.tries + 1, next_at=now + pause_s)


def advance_release(before: Release, *, now: float, asked: bool | None, idle: bool, held: bool) -> Release:
    """The state now. ``asked`` is whether a GPU asks for a reset, None while nobody knows.

    ``idle`` is whether nobody computes on any GPU, ``held`` whether pods have any, or may. One minute is given, less if
    a pod got a GPU in the last moment, then there is a look at the GPUs. If one asks still, there is a break of 5
    minutes before the next time, doubled up to an hour: new pods cannot start while the driver is let go of.
    """
    if before.ends_at is not None:
        return end_release(before, now=now) if held or now >= before.ends_at else before
    if asked is None:
        return before
    if not asked:
        return Release()
    if idle and not held and now >= before.next_at:
        return Release(tries=before.tries, ends_at=now + RELEASED_S, next_at=before.next_at)
    return before
