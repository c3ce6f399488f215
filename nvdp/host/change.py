"""One thing of the file system that is watched: what it is now, when a change of it counts, and who is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

_SETTLE_LIMIT_S: Final = 2.0  # what is written without end is passed on all the same
_NEVER: Final = object()  # no fingerprint equals it


class PathWatch(Generic[T]):
    """What is watched, as four functions, all called on the watcher's thread.

    ``fingerprint`` looks: its values are compared with ``==``, and it raises for nothing that a file system can do.
    ``directories`` names where changes happen; it is asked after every look. A directory that is missing is waited for.
    ``on_change`` gets each new fingerprint, also the first; it should only pass it on, for the other watches wait.
    ``settle_s(before, after)`` says for how many seconds a change must stand still before it is passed on: none if
    omitted, and never more than 2 s in all.
    """

    def __init__(
        self,
        *,
        fingerprint: Callable[[], T],
        directories: Callable[[], Sequence[Path]],
        on_change: Callable[[T], None],
        settle_s: Callable[[T, T], float] = lambda _before, _after: 0.0,
    ) -> None:
        self.directories = directories
        self._fingerprint = fingerprint
        self._on_change = on_change
        self._settle_s = settle_s
        self._told: Any = _NEVER
        self._seen: Any = _NEVER
        self._unsettled_since = 0.0
        self._settled_at = 0.0

    def look(self, now: float) -> float | None:
        """Look, and pass on a change that has settled. ``now`` is monotonic seconds.

        The time at which to look again for a change that has not settled, None if there is none.
        """
        seen = self._fingerprint()
        if seen == self._told:
            self._seen = seen
            return None
        if seen != self._seen:
            if self._seen == self._told:
                self._unsettled_since = now
            self._seen = seen
            settle_s = 0.0 if self._told is _NEVER else self._settle_s(self._told, seen)
            self._settled_at = min(now + settle_s, self._unsettled_since + _SETTLE_LIMIT_S)
        if now < self._settled_at:
            return self._settled_at
        self._told = seen  # before the call: what makes the receiver fail must not hit it at every look
        self._on_change(seen)
        return None

    def forget(self) -> None:
        """The next look passes on what it sees, changed or not."""
        self._told = self._seen = _NEVER
