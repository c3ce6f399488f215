"""What was asked of the server, for counting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

_LIMIT_S: Final = 10.0


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
    """Any thread. A request is in it before its answer is sent, and for whom sees in the store what it has changed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._changed = threading.Condition()
        self._clock = clock
        self._entries: list[Entry] = []
        self._under_way = 0

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """A request changes the store and is then added: who looks meanwhile waits for it."""
        with self._changed:
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def add(self, **fields) -> None:
        with self._changed:
            self._entries.append(Entry(at=self._clock(), **fields))

    def of(self, **wanted) -> list[Entry]:
        """The entries whose fields are these."""
        with self._changed:
            self._wait_added()
            entries = list(self._entries)
        return [entry for entry in entries if all(getattr(entry, key) == value for key, value in wanted.items())]

    @property
    def verbs(self) -> set[tuple[str, str]]:
        """Every verb that was used on every resource."""
        return {(entry.verb, entry.resource) for entry in self.of()}

    def clear(self) -> None:
        with self._changed:
            self._wait_added()
            self._entries.clear()

    def _wait_added(self) -> None:
        assert self._changed.wait_for(lambda: not self._under_way, _LIMIT_S), "a request does not come to its end"
