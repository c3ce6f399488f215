"""When a service whose thread died is started again: soon, then with back-off, and never given up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

FIRST_DELAY_S: Final = 0.1
MOST_DELAY_S: Final = 30.0
FORGIVEN_S: Final = 600.0
"""A service that ran this long before it died again is started again as if for the first time."""


class _Crash(msgspec.Struct, frozen=True):
    at: float
    delay_s: float


class Restarts:
    """The services that are to be started again, by the names of their threads. Belongs to the main thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._crashes: dict[str, _Crash] = {}
        self._due: dict[str, float] = {}

    def note_crash(self, thread: str) -> float:
        """The thread died; in how many seconds its service is to be started again."""
        now, last = self._clock(), self._crashes.get(thread)
        again = last is not None and now - last.at < FORGIVEN_S
        delay_s = min(MOST_DELAY_S, 2 * last.delay_s) if last is not None and again else FIRST_DELAY_S
        self._crashes[thread] = _Crash(now, delay_s)
        self._due[thread] = now + delay_s
        return delay_s

    @property
    def next_at(self) -> float | None:
        """When the next one is due, in seconds of the clock."""
        return min(self._due.values(), default=None)

    def take_due(self) -> list[str]:
        """The threads whose service is to be started now; they are not due any more."""
        due = [thread for thread, at in self._due.items() if at <= self._clock()]
        for thread in due:
            del self._due[thread]
        return due
