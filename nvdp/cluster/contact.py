"""Whether the API server is heard from: told once for all watches of a process, when it is lost and when it is back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from nvdp.errors import ClusterFault
from nvdp.log import Log
from nvdp.model.reasons import Reason
from nvdp.model.status import Trouble

PATIENCE_S: Final = 60.0
NOT_FOLLOWED: Final = "the node stays as it is, and what changes in the cluster is not followed meanwhile"
_STAYS: Final = "The node stays as it is, and the API server is asked again"


class _Trouble(msgspec.Struct, frozen=True):
    since: float
    fault: ClusterFault
    text: str


class Contact:
    """Each watch tells under its own name how it fares. Any thread; blocks as long as the log does.

    A server that does not answer is lost after a minute; one that refuses us is told at once, for somebody has to act.
    Of what fails for the same reason the first is told; of a refusal, each object once.
    """

    def __init__(
        self, log: Log, *, patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._patience_s = patience_s
        self._clock = clock
        self._lock = threading.Lock()
        self._troubles: dict[str, _Trouble] = {}
        self._told: set[str] = set()  # whose refusal was
        self._lost_since: float | None = None

    @property
    def trouble(self) -> Trouble | None:
        """Why the server is lost, as long as it is: what somebody has to act on before anything else."""
        with self._lock:
            if self._lost_since is None or not self._troubles:
                return None
            shown = min(self._troubles.values(), key=lambda one: (one.fault is not ClusterFault.DENIED, one.since))
        return Trouble(reason=Reason.API_SERVER_LOST.word, text=f"{shown.text}; {NOT_FOLLOWED}")

    def find_due(self) -> float | None:
        """When ``look`` has something to tell, in seconds of the clock, if nothing changes."""
        with self._lock:
            if self._lost_since is not None or not self._troubles:
                return None
            return min(trouble.since for trouble in self._troubles.values()) + self._patience_s

    def note_failed(self, name: str, fault: ClusterFault, text: str) -> None:
        """The watch of this name has no contact; ``text`` is the sentence about why."""
        with self._lock:
            before = self._troubles.get(name)
            since = before.since if before is not None else self._clock()
            self._troubles[name] = _Trouble(since, fault, text)
        self.look()

    def note_heard(self, name: str) -> None:
        """The server answers this watch."""
        with self._lock:
            self._troubles.pop(name, None)
            self._told.discard(name)
            if self._troubles or self._lost_since is None:
                return
            away_s, self._lost_since = self._clock() - self._lost_since, None
            self._told.clear()
        self._log(
            Reason.API_SERVER_REACHED, f"the API server answers again, after {away_s:.0f} s", seconds=round(away_s)
        )

    def look(self) -> None:
        """Tell what is due."""
        for name, trouble in self._take_due():
            self._log(Reason.API_SERVER_LOST, f"{trouble.text}. {_STAYS}", error=trouble.fault.value, watch=name)

    def _take_due(self) -> list[tuple[str, _Trouble]]:
        with self._lock:
            refused = [
                (name, trouble)
                for name, trouble in self._troubles.items()
                if trouble.fault is ClusterFault.DENIED and name not in self._told
            ]
            self._told |= {name for name, _ in refused}
            due = refused
            if not due and self._lost_since is None:
                now = self._clock()
                due = [one for one in self._troubles.items() if now - one[1].since >= self._patience_s][:1]
            if due and self._lost_since is None:
                self._lost_since = min(trouble.since for _, trouble in due)
            return due
