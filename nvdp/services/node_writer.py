"""What everything that writes to the own Node has: a thread, tries that are paced, and who tells it of Node and status.

Nobody waits for a server: the methods for others block for no request.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

from nvdp.errors import ClusterError
from nvdp.model.cluster import ObjectSeen
from nvdp.model.status import Status, Trouble
from nvdp.service_thread import ServiceThread
from nvdp.services.write_attempts import WriteAttempts

Write = TypeVar("Write")


class NodeWriter(ABC):
    """One thread, named ``THREAD``; the methods without an underscore may be called from any, and do not block.

    ``attempts`` are ours from here on.
    """

    THREAD: ClassVar[str]

    def __init__(self, attempts: WriteAttempts) -> None:
        self._attempts = attempts
        self._stopping = False
        self._thread: ServiceThread | None = None
        self._is_in_sight = False  # the Node

    @property
    def trouble(self) -> Trouble | None:
        """Why nothing is written, while that lasts."""
        return self._attempts.trouble

    def start(self) -> None:
        """Begin to write. Nothing if it does already; after a crash it goes on with what is left."""
        if self._thread is None or not self._thread.is_at_work:
            self._thread = ServiceThread(self._run, name=self.THREAD)
            self._thread.start()

    def stop(self) -> None:
        """Write no more. Does not wait."""
        self._stopping = True
        self._wake()

    def see(self, seen: ObjectSeen) -> None:
        """The Node as it is now: from whoever watches it. Those who override it take it in first, and call this then.

        Once it is in sight again, what was refused in the meantime is tried again: a token that had expired is renewed
        by then, and a Node that was deleted is there.
        """
        was_in_sight, self._is_in_sight = self._is_in_sight, seen.object is not None and not seen.problem
        if self._is_in_sight and not was_in_sight and self._attempts.is_refused:
            self.look()

    @abstractmethod
    def follow(self, status: Status) -> None:
        """The state of now: from the main thread, after every turn."""

    @abstractmethod
    def look(self) -> None:
        """Try again now what waits for another try."""

    @abstractmethod
    def _wake(self) -> None:
        """Have the thread look whether there is something to do."""

    @abstractmethod
    def _run(self) -> None:
        """The thread: until ``_stopping``."""


class NodeReconciler(NodeWriter, Generic[Write]):
    """Brings the Node to what is wanted, by one write at a time: each is chosen when it is due and may be tried."""

    def __init__(self, attempts: WriteAttempts, *, clock: Callable[[], float]) -> None:
        super().__init__(attempts)
        self._clock = clock
        self._changed = threading.Condition()  # guards what ``_find_due`` goes by

    def look(self) -> None:
        with self._changed:
            self._attempts.hurry()
            self._changed.notify_all()

    @abstractmethod
    def _find_due(self, now: float) -> tuple[Write, float] | None:
        """What to write and when, tries apart; None if only news bring it. Called with ``_changed`` held."""

    @abstractmethod
    def _write(self, write: Write) -> None:
        """Write it, and keep what follows from that. Blocks for a request at most; raises ClusterError."""

    def _fail(self, error: ClusterError) -> None:
        self._attempts.fail(error)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        while (write := self._wait_due()) is not None:
            try:
                self._write(write)
            except ClusterError as error:
                self._fail(error)  # it logs: nobody's turn waits for that
            else:
                self._attempts.succeed()

    def _wait_due(self) -> Write | None:
        """What to write, once it is time; None to stop."""
        with self._changed:
            while not self._stopping:
                now = self._clock()
                due = self._find_due(now)
                if due is None:
                    self._changed.wait()
                    continue
                write, at = due[0], max(due[1], self._attempts.next_at)
                if at <= now:
                    return write
                self._changed.wait(at - now)
            return None
