"""When to look at the GPUs anew because their events are not heard any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from nvdp.nvml.frames import WAIT_S, Watch, WatchFailed
from nvdp.nvml.outcomes import Died
from nvdp.services.nvml_counts import GpuObserver

_FIRST_DELAY_S: Final = 1.0
_LONGEST_DELAY_S: Final = 60.0
# The driver may be late by a little; a wait that is late by as much as this will not return.
_LONGEST_SILENCE_S: Final = 3 * WAIT_S


class WatchEnded(msgspec.Struct, frozen=True):
    """A session, known by the process ID of its child, tells no more events."""

    session: int
    why: WatchFailed | Died


class Watching:
    """Follows how sessions wait for events. Used by one thread.

    The first failure is answered by a look at once: who is lost shall be known, and who is not be heard again. While
    no wait has worked since, the next ones are answered after 1, 2, 4 … 60 seconds.
    """

    def __init__(self, observer: GpuObserver, *, clock: Callable[[], float]) -> None:
        self._observer = observer
        self._clock = clock
        self._failures = 0
        self.due_at: float | None = None

    def take_end(self, end: WatchEnded, session: int | None) -> None:
        """``session`` is the one in use: others have been replaced, and are of no interest."""
        if end.session != session:
            return
        if isinstance(end.why, WatchFailed):
            self._observer.nvml_failed("nvmlEventSetWait", end.why.kind)
        self._fail()

    def follow(self, watch: Watch) -> None:
        """What a scan tells of the session in use. One that can have no events at all is left in peace."""
        if watch.failed or watch.silent_s > _LONGEST_SILENCE_S:
            self._fail()
            return
        self.due_at = None
        if watch.waits:
            self._failures = 0

    def take_due(self) -> bool:
        """Whether it is time to look; then the next failure counts anew."""
        is_due = self.due_at is not None and self.due_at <= self._clock()
        if is_due:
            self.due_at = None
        return is_due

    def _fail(self) -> None:
        if self.due_at is not None:
            return
        delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(self._failures - 1, 10)) if self._failures else 0.0
        self._failures += 1
        self.due_at = self._clock() + delay_s
