"""When labels are written: not again and again, and not sooner than the API server bears.

Pure: times are seconds of one clock and come from outside. The first write of all is put off by ``start_spread``.
"""

from __future__ import annotations

import random
from typing import Final

from nvdp.errors import ClusterFault

_RETRY_S: Final = (1.0, 60.0)  # the first delay and the largest
_SLOW_RETRY_S: Final = (10.0, 900.0)  # of what a person has to put right: about a hundred tries a day
_CHANGE_GAP_S: Final = (1.0, 60.0)  # from a write to the next, where labels change often
_REPAIR_GAP_S: Final = (5.0, 900.0)  # the same where somebody else changes what we wrote
_CALM_S: Final = 300.0  # without a change: the next one is as if it were the first
_PEACE_S: Final = 3600.0  # the same of what had to be put back
_REPAIR_SPREAD_S: Final = 5.0  # by chance, since many nodes may lose their labels at once
_RENEWED_S: Final = 5.0  # what was asked for has changed: the wait for a person is at most this
_SLOW: Final = frozenset({ClusterFault.DENIED, ClusterFault.REFUSED})


class LabelPace:
    """When the next write may be tried. One thread at a time."""

    def __init__(self, *, first_at: float, rng: random.Random) -> None:
        self._first_at = first_at
        self._rng = rng
        self._failures = 0
        self._is_slow = False
        self._retry_at = float("-inf")
        self._damaged_at = float("-inf")
        self._changes = _Gap(*_CHANGE_GAP_S, calm_s=_CALM_S)
        self._repairs = _Gap(*_REPAIR_GAP_S, calm_s=_PEACE_S)

    @property
    def look_at(self) -> float:
        """When it may be looked at what is there."""
        return max(self._first_at, self._retry_at)

    @property
    def change_at(self) -> float:
        """When labels that have changed may be written."""
        return max(self.look_at, self._changes.over_at)

    @property
    def repair_at(self) -> float:
        """When labels that somebody else changed may be put back."""
        return max(self.change_at, self._repairs.over_at, self._damaged_at)

    def saw_damage(self, now: float) -> None:
        """Somebody else changed labels of ours, or may have."""
        if self._damaged_at <= now:
            self._damaged_at = now + self._rng.uniform(0.0, _REPAIR_SPREAD_S)

    def wrote(self, now: float, *, is_repair: bool) -> None:
        """Something was written."""
        self._changes.begin(now)
        if is_repair:
            self._repairs.begin(now)

    def succeeded(self) -> None:
        """All is as it should be, whether anything was written for that or not."""
        self._failures = 0
        self._retry_at = float("-inf")

    def failed(self, now: float, fault: ClusterFault | None, *, retry_after_s: float | None = None) -> None:
        """A try failed; ``fault`` is None where it was not the cluster's. The next waits, by chance, twice as long."""
        self._is_slow = fault in _SLOW
        first_s, limit_s = _SLOW_RETRY_S if self._is_slow else _RETRY_S
        most_s = min(limit_s, first_s * 2.0 ** min(self._failures, 30))
        self._failures += 1
        least_s = most_s / 2 if self._is_slow else 0.1
        self._retry_at = now + (retry_after_s or 0.0) + self._rng.uniform(least_s, most_s)

    def renew(self, now: float) -> None:
        """Something else is asked for now, which may do where a person had to act."""
        if self._is_slow:
            self._retry_at = min(self._retry_at, now + _RENEWED_S)


class _Gap:
    """The time that must pass between two of a kind: twice as long after each, up to a limit, until there is calm."""

    def __init__(self, first_s: float, limit_s: float, *, calm_s: float) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._calm_s = calm_s
        self._gap_s = 0.0
        self._begun_at = float("-inf")

    @property
    def over_at(self) -> float:
        return self._begun_at + self._gap_s

    def begin(self, now: float) -> None:
        again = now < self.over_at + self._calm_s
        self._gap_s = min(self._limit_s, self._gap_s * 2) if again and self._gap_s else self._first_s
        self._begun_at = now
