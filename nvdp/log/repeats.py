"""Folds the repeats of a warning: the first is written, then one line in ten minutes tells how many there were.

A warning is a repeat if it has the same reason, concerns the same device or resource and says the same, figures apart,
and nothing but warnings was heard of that subject since: a driver that is missing again, after it was ready, is news.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from nvdp.model.reasons import Reason

WINDOW_S = 600.0
_CAPACITY = 256  # warnings remembered; beyond it the oldest is forgotten, and may then be written once more
_FIGURES = re.compile(r"\d+")

# Each refusal is the answer to one request, and the person who made the request looks for it.
_WRITTEN_BEFORE_FOLDING = {Reason.ALLOCATION_REFUSED: 10}


class Folded(msgspec.Struct, kw_only=True):
    """A warning that was written at ``since`` (seconds of the log's clock) and came ``count`` times after that."""

    reason: Reason
    subject: str
    since: float
    written: int = 1
    count: int = 0
    msg: str = ""
    fields: Mapping[str, object] = {}

    def describe(self, now: float) -> str:
        return f"{self.msg} (again {self.count} times in {format_seconds(now - self.since)})"


class Repeats:
    """Remembers the warnings of the last ten minutes. Not thread-safe: the log calls it under its lock."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Reason, str, str], Folded] = {}
        self._next_due = float("inf")

    def is_repeat(self, now: float, reason: Reason, msg: str, *, subject: str, fields: Mapping[str, object]) -> bool:
        """Whether this warning is one to fold; it is remembered either way."""
        key = (reason, subject, _FIGURES.sub("#", msg))
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= _CAPACITY:
                del self._seen[next(iter(self._seen))]
            self._seen[key] = Folded(reason=reason, subject=subject, since=now)
            self._next_due = min(self._next_due, now + WINDOW_S)
            return False
        if seen.written < _WRITTEN_BEFORE_FOLDING.get(reason, 1):
            seen.written += 1
            return False
        seen.count, seen.msg, seen.fields = seen.count + 1, msg, fields
        return True

    def take_due(self, now: float) -> list[Folded]:
        """What was folded and has waited for its ten minutes; another ten begin. A quiet warning is forgotten."""
        if now < self._next_due:
            return []
        due = {key: seen for key, seen in self._seen.items() if now >= seen.since + WINDOW_S}
        for key, seen in due.items():
            del self._seen[key]
            if seen.count:
                self._seen[key] = Folded(reason=seen.reason, subject=seen.subject, since=now, written=seen.written)
        self._next_due = min((seen.since + WINDOW_S for seen in self._seen.values()), default=float("inf"))
        return [seen for seen in due.values() if seen.count]

    def forget(self, subject: str | None) -> list[Folded]:
        """Forget the warnings of one subject (None: of all), and give what was folded of them."""
        if not self._seen:
            return []
        gone = {key: seen for key, seen in self._seen.items() if subject is None or seen.subject == subject}
        for key in gone:
            del self._seen[key]
        return [seen for seen in gone.values() if seen.count]


def format_seconds(seconds: float) -> str:
    """``45s``, ``10m``, ``3h``: a length of time for people, rounded."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{round(seconds / size)}{unit}"
    return f"{max(0, round(seconds))}s"
