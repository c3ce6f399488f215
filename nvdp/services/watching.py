"""When to look at the GPUs anew because their events are not heard any more, and why they are not, if that lasts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import msgspec

from nvdp.log import Log
from nvdp.model.status import Trouble
from nvdp.nvml.frames import WAIT_S, Scanned, Watch, WatchFailed
from nvdp.nvml.outcomes import Died
from nvdp.services.deafness import Deafness, Unheard
from nvdp.services.nvml_counts import GpuObserver

_FIRST_DELAY_S: Final = 1.0
_LONGEST_DELAY_S: Final = 60.0
# The driver may be late by a little; a wait that is late by as much as this will not return.
_LONGEST_SILENCE_S: Final = 3 * WAIT_S
# One failure is a lost GPU's, as a rule, and over in the next session.
_FAILURES_THAT_LAST: Final = 2


class WatchEnded(msgspec.Struct, frozen=True):
    """A session, known by the process ID of its child, tells no more events."""

    session: int
    why: WatchFailed | Died


class Watching:
    """Follows how sessions wait for events. Used by one thread.

    The first failure is answered by a look at once: who is lost shall be known, and who is not be heard again. While
    no wait has worked since, the next ones are answered after 1, 2, 4 … 60 seconds, and ``unheard`` says why.
    """

    def __init__(
        self, observer: GpuObserver, *, log: Log, clock: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._observer = observer
        self._clock = clock
        self._deafness = Deafness(log, wall=wall)
        self._failures = 0
        self.due_at: float | None = None
        self.unheard: Unheard | None = None

    @property
    def trouble(self) -> Trouble | None:
        """What was told last of events that are not heard, while that is so."""
        return self._deafness.trouble

    def take_end(self, end: WatchEnded, session: int | None) -> None:
        """``session`` is the one in use: others have been replaced, and are of no interest."""
        if end.session != session:
            return
        if isinstance(end.why, WatchFailed):
            self._observer.nvml_failed("nvmlEventSetWait", end.why.kind)
            self._fail(Unheard(text=end.why.text, error=end.why.kind))
        else:
            self._fail(Unheard(text=end.why.text, error="ChildDied"))

    def follow(self, watch: Watch) -> None:
        """What a scan tells of the session in use. One that can have no events at all is left in peace."""
        if watch.failed:
            self._fail(Unheard(text=watch.problem, error=watch.kind))
            return
        if watch.silent_s > _LONGEST_SILENCE_S:
            self._fail(Unheard(text="nvmlEventSetWait does not return", error="CallTimeout"))
            return
        self.due_at = None
        if watch.waits:
            self._failures = 0
        if watch.problem:
            self.unheard = Unheard(text=watch.problem, error=watch.kind)
        elif self._failures < _FAILURES_THAT_LAST:
            self.unheard = None

    def tell(self, scanned: Scanned, *, known: Collection[str]) -> None:
        """Say, where that has changed, whose events are not heard; ``known``: see ``Deafness.follow``."""
        self._deafness.follow(scanned, self.unheard, known=known)

    def take_due(self) -> bool:
        """Whether it is time to look; then the next failure counts anew."""
        is_due = self.due_at is not None and self.due_at <= self._clock()
        if is_due:
            self.due_at = None
        return is_due

    def _fail(self, why: Unheard) -> None:
        if self.due_at is not None:
            return
        delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(self._failures - 1, 10)) if self._failures else 0.0
        self._failures += 1
        if self._failures >= _FAILURES_THAT_LAST:
            self.unheard = why
        self.due_at = self._clock() + delay_s
