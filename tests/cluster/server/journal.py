"""What was asked of the server, for counting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple


class Entry(NamedTuple):
    """One request. ``at`` is monotonic; ``resource`` has its subresource (``nodes/status``); a code of 0: no answer."""

    at: float
    verb: str
    resource: str
    namespace: str
    name: str
    code: int
    user: str
    agent: str
    version: str  # that a watch goes on from
    connection: int


class Journal:
    """Any thread. A request is in it before its answer is sent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._entries: list[Entry] = []

    def add(self, **fields) -> None:
        with self._lock:
            self._entries.append(Entry(at=self._clock(), **fields))

    def of(self, **wanted) -> list[Entry]:
        """The entries whose fields are these."""
        with self._lock:
            entries = list(self._entries)
        return [entry for entry in entries if all(getattr(entry, key) == value for key, value in wanted.items())]

    @property
    def verbs(self) -> set[tuple[str, str]]:
        """Every verb that was used on every resource."""
        return {(entry.verb, entry.resource) for entry in self.of()}

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
