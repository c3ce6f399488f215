"""How often something may be written to the API server: an allowance for what succeeds, a back-off for what does not.

Pure: times are monotonic seconds that the caller passes in.
"""

from __future__ import annotations

import random
from typing import Final

from nvdp.errors import ClusterFault

_FIRST_S: Final = 1.0
_MOST_S: Final = 60.0
_LEAST_S: Final = 0.2
_TOO_MANY: Final = 16  # doublings
PERSON_S: Final = 600.0
"""Where only a person can help, by rights, by an object or by another version, it is tried again this often."""

FOR_A_PERSON: Final = frozenset({ClusterFault.DENIED, ClusterFault.MISSING, ClusterFault.REFUSED})


class Allowance:
    """A burst, then one at a time: at most ``burst`` at once and one more for each ``every_s`` seconds."""

    def __init__(self, *, burst: int, every_s: float) -> None:
        self._burst = burst
        self._every_s = every_s
        self._full_at = float("-inf")

    def next_at(self, now: float) -> float:
        """When one may be used: ``now``, or later."""
        return max(now, self._full_at - (self._burst - 1) * self._every_s)

    def use(self, now: float) -> None:
        """One is used."""
        self._full_at = max(self._full_at, now) + self._every_s


class Backoff:
    """When to try again what failed: by chance within a limit that doubles from 1 s to 60 s, so that nodes spread.

    Never sooner than the server asked for. Where only a person can help, ten to twenty minutes.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures = 0
        self.next_at = float("-inf")

    def fail(self, fault: ClusterFault, *, retry_after_s: float | None, now: float) -> None:
        """Another try failed at ``now``."""
        limit_s = min(_MOST_S, _FIRST_S * 2.0 ** min(self._failures, _TOO_MANY))
        self._failures += 1
        if fault in FOR_A_PERSON:
            delay_s = self._rng.uniform(PERSON_S, 2 * PERSON_S)
        else:
            delay_s = max(_LEAST_S, self._rng.uniform(0.0, limit_s))
        if retry_after_s is not None:
            delay_s = max(delay_s, retry_after_s + self._rng.uniform(0.0, limit_s))
        self.next_at = now + delay_s

    def reset(self) -> None:
        """It succeeded."""
        self._failures = 0
        self.next_at = float("-inf")
