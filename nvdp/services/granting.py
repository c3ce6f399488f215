"""Tells ``nvdp mps`` what the plan wants of it: the grants, written by a thread of its own, as a disk may be stuck.

``nvdp mps`` goes on with what it was told last, so that grants which cannot be written harm nobody who runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from nvdp.errors import HostError
from nvdp.log import Log
from nvdp.model.mps import MpsGrants
from nvdp.model.reasons import Reason
from nvdp.model.status import Trouble
from nvdp.service_thread import ServiceThread
from nvdp.services.events import GrantsWritten, Post

_RETRY_S: Final = 5.0
_SLOW_S: Final = 10.0


class GrantService:
    """Has the newest grants written, and again after a failure; the first ones always, whatever is there from before.

    Every ``retry_s`` ``is_kept``, which raises nothing, says whether they are still there: they are written again if
    somebody removed them, for without them ``nvdp mps`` would go by its configuration alone after a restart.

    Posts ``GrantsWritten`` with each that is written. ``found`` is what a predecessor told, if any. ``write`` may raise
    HostError: that is told once, and shown while it lasts, if there is anything for ``nvdp mps`` in what cannot be
    written or in what was written last. One thread, ``mps-grants``; the methods may be called from any and do not
    block. An exception that nobody expected ends the thread; ``start`` may then be called again.
    """

    THREAD: Final = "mps-grants"

    def __init__(
        self,
        post: Post,
        write: Callable[[MpsGrants], None],
        *,
        is_kept: Callable[[], bool],
        found: MpsGrants | None = None,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
        retry_s: float = _RETRY_S,
        slow_s: float = _SLOW_S,
    ) -> None:
        self.found = found or MpsGrants()
        self._post = post
        self._write = write
        self._is_kept = is_kept
        self._log = log
        self._clock = clock
        self._retry_s = retry_s
        self._slow_s = slow_s
        self._changed = threading.Condition()  # guards what follows
        self._wanted: MpsGrants | None = None
        self._written = self.found
        self._owes = False
        self._retry_at = float("-inf")
        self._problem = ""
        self._began_at: float | None = None
        self._thread: ServiceThread | None = None

    def start(self) -> None:
        """Begin to write what is wanted. Nothing happens if it does already."""
        if self._thread is None or not self._thread.is_at_work:
            self._thread = ServiceThread(self._run, name=self.THREAD)
            self._thread.start()

    def want(self, grants: MpsGrants) -> None:
        """These from now on. Nothing if they are the same."""
        with self._changed:
            if grants != self._wanted:
                self._wanted, self._owes, self._retry_at = grants, True, float("-inf")
                self._changed.notify_all()

    @property
    def trouble(self) -> Trouble | None:
        """Why ``nvdp mps`` does not know what is wanted of it."""
        with self._changed:
            problem, began_at = self._problem, self._began_at
            if began_at is not None and self._matters and self._clock() >= began_at + self._slow_s:
                problem = f"a write for nvdp mps has taken more than {self._slow_s:g}s, as if a disk did not answer"
            return Trouble(reason=Reason.STATE_DAMAGED.word, text=problem) if problem else None

    @property
    def _matters(self) -> bool:
        return any(grants.resources for grants in (self._wanted, self._written) if grants is not None)

    def _run(self) -> None:
        while True:
            grants = self._take()
            if grants is None:
                self._look()
                continue
            problem = ""
            try:
                self._write(grants)
            except HostError as error:
                problem = f"{error}; nvdp mps goes on with what it was told before"
            finally:
                self._began_at = None
            self._settle(grants, problem)

    def _take(self) -> MpsGrants | None:
        """The grants, once there are new ones, or it is time to try again; None if it is time to look for them."""
        with self._changed:
            look_at = self._clock() + self._retry_s
            while self._wanted is None or self._clock() < (self._retry_at if self._owes else look_at):
                due_at = self._retry_at if self._owes else look_at
                self._changed.wait(None if self._wanted is None else due_at - self._clock())
            if not self._owes:
                return None
            self._began_at = self._clock()
            return self._wanted

    def _look(self) -> None:
        if not self._is_kept():
            with self._changed:
                self._owes = True

    def _settle(self, grants: MpsGrants, problem: str) -> None:
        with self._changed:
            is_newest = self._wanted is grants
            if not problem:
                self._written, self._owes = grants, not is_newest
            elif is_newest:
                self._retry_at = self._clock() + self._retry_s
            told, self._problem = self._problem, problem if self._matters else ""
        if not problem:
            self._post(GrantsWritten(grants=grants, at=self._clock()))
        if self._problem and not told:
            self._log(Reason.STATE_DAMAGED, self._problem, error=self._problem)
