"""Tries of one kind of write to the cluster: when the next is due, and what is told of those that fail.

What a person has to put right is told once. A server that cannot be reached is told by who watches it; here it is only
shown as trouble, and nothing else suffers.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Final

from nvdp.errors import ClusterError, ClusterFault
from nvdp.log import Log
from nvdp.model.reasons import Reason
from nvdp.model.status import Trouble
from nvdp.planning.write_pacing import FOR_A_PERSON, Backoff

_PERSON_TEXT: Final = "10m to 20m, and at SIGHUP"
_SHOWN_AFTER: Final = 3  # failures; fewer are of no interest to anybody


class WriteAttempts:
    """``what`` begins the sentence: ``events of the node cannot be written``. ``trouble`` may be read from any thread.

    The rest belongs to one thread. ``first_delay_s``: how long the first try after a start waits, for nodes that start
    at once. ``next_at`` is in seconds of ``clock``.
    """

    def __init__(
        self, what: str, *, first_delay_s: float, log: Log, rng: random.Random, clock: Callable[[], float]
    ) -> None:
        self._what = what
        self._log = log
        self._clock = clock
        self._first_at = clock() + first_delay_s
        self._backoff = Backoff(rng)
        self._lock = threading.Lock()
        self._failures = 0
        self._fault: ClusterFault | None = None  # of the last try
        self._told = ""
        self._text = ""

    @property
    def next_at(self) -> float:
        """The next try may not come before this."""
        return max(self._first_at, self._backoff.next_at)

    @property
    def trouble(self) -> Trouble | None:
        """Why nothing is written, while that lasts."""
        with self._lock:
            return Trouble(reason=Reason.NODE_WRITE_FAILED.word, text=self._text) if self._text else None

    @property
    def is_refused(self) -> bool:
        """Whether the last try was refused, so that the next is a long time off. Any thread."""
        return self._fault in FOR_A_PERSON

    def fail(self, error: ClusterError) -> None:
        """Another try failed."""
        self._backoff.fail(error.fault, retry_after_s=error.retry_after_s, now=self._clock())
        with self._lock:
            self._failures, self._fault = self._failures + 1, error.fault
        self._show(error, f"tried again in {_PERSON_TEXT}")

    def refuse(self, error: ClusterError) -> None:
        """The server does not want this one, which is given up; others need not wait for that."""
        self._show(error, "it is given up")

    def _show(self, error: ClusterError, then: str) -> None:
        needs_person = error.fault in FOR_A_PERSON
        text = f"{self._what}: {error}"
        with self._lock:
            if needs_person or self._failures >= _SHOWN_AFTER:
                self._text = text
        if needs_person and self._told != error.fault.value:
            self._told = error.fault.value
            self._log(Reason.NODE_WRITE_FAILED, f"{text}; {then}", error=str(error))

    def hurry(self) -> None:
        """Somebody asks for another try now."""
        self._backoff.reset()

    def succeed(self) -> None:
        """It is written."""
        self._backoff.reset()
        self._told = ""
        with self._lock:
            self._failures, self._fault, self._text = 0, None, ""
