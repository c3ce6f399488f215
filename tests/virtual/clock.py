"""Time that passes only when somebody waits: the supervisor's event queue turns it."""

from __future__ import annotations

import heapq
import itertools
import queue
from collections import deque
from collections.abc import Callable

from nvdp.services.events import Event


class Pause(BaseException):
    """The time that a test wanted to see has passed."""


class Clock:
    """Virtual seconds, and what is to happen at which of them. It is the supervisor's queue as well."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.until = self.now
        self.waits = 0
        self.idle: Callable[[], None] = lambda: None
        self._events: deque[Event] = deque()
        self._scheduled: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._scheduled, (self.now + seconds, next(self._count), call))

    def forget(self) -> None:
        """Nothing of what was on its way happens any more."""
        self._events.clear()
        self._scheduled.clear()

    def put(self, event: Event) -> None:
        self._events.append(event)

    def get_nowait(self) -> Event:
        if not self._events:
            raise queue.Empty
        return self._events.popleft()

    def qsize(self) -> int:
        return len(self._events)

    def get(self, timeout: float | None = None) -> Event:
        """As of ``queue.SimpleQueue``; ``Pause`` when the time of the test is up."""
        self.idle()
        self.waits += 1
        end = float("inf") if timeout is None else self.now + timeout
        while not self._events:
            at = min(end, self.until, self._scheduled[0][0] if self._scheduled else float("inf"))
            self.now = max(self.now, at)
            if self._scheduled and self._scheduled[0][0] <= self.now:
                heapq.heappop(self._scheduled)[2]()
            elif self.now >= self.until:
                raise Pause
            elif self.now >= end:
                raise queue.Empty
        return self._events.popleft()
