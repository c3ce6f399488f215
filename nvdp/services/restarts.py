"""When a service whose thread died is started again: soon, then with back-off, and never given up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from nvdp.log import Log, describe_exception
from nvdp.model.reasons import Reason
from nvdp.services.events import ServiceCrashed

FIRST_DELAY_S: Final = 0.1
MOST_DELAY_S: Final = 30.0
FORGIVEN_S: Final = 600.0
"""A service that ran this long before it died again is started again as if for the first time."""


class _Crash(msgspec.Struct, frozen=True):
    at: float
    delay_s: float
    text: str


class Restarts:
    """The services that are to be started again, by the names of their threads. Belongs to the main thread.

    ``restart`` starts a service anew and is false for a name that it does not know; RuntimeError out of it says that
    no thread can be started just now, and counts as another crash. ``count`` hears of each restart that is due.
    """

    def __init__(
        self,
        *,
        restart: Callable[[str], bool],
        count: Callable[[str], None],
        log: Log,
        clock: Callable[[], float],
    ) -> None:
        self._restart = restart
        self._count = count
        self._log = log
        self._clock = clock
        self._crashes: dict[str, _Crash] = {}
        self._due: dict[str, float] = {}

    @property
    def next_at(self) -> float | None:
        """When the next one is due, in seconds of the clock."""
        return min(self._due.values(), default=None)

    @property
    def recent(self) -> Iterator[tuple[float, str]]:
        """When, in seconds of the clock, and what: the last crash of each service that is not forgiven yet."""
        forgiven = self._clock() - FORGIVEN_S
        return ((crash.at, crash.text) for crash in self._crashes.values() if crash.at > forgiven)

    def note(self, event: ServiceCrashed) -> None:
        """The thread died: tell, and start its service again when its delay is over."""
        now, last = self._clock(), self._crashes.get(event.thread)
        again = last is not None and now - last.at < FORGIVEN_S
        delay_s = min(MOST_DELAY_S, 2 * last.delay_s) if last is not None and again else FIRST_DELAY_S
        text = f"{event.thread}: {event.error}; started again in {delay_s:.1f}s"
        self._crashes[event.thread] = _Crash(now, delay_s, text)
        self._due[event.thread] = now + delay_s
        self._log(Reason.SERVICE_RESTARTED, text, thread=event.thread, error=event.error, trace=event.trace)

    def start_due(self) -> None:
        """Start the services that are due; they are not due any more."""
        for thread in [thread for thread, at in self._due.items() if at <= self._clock()]:
            del self._due[thread]
            self._count(thread)
            try:
                known = self._restart(thread)
            except RuntimeError as error:
                self.note(ServiceCrashed(thread=thread, **describe_exception(error)))
                continue
            if not known:
                self._log(Reason.SERVICE_RESTARTED, f"{thread}: no service of that name; it stays away")
