"""The control daemon of one resource, by an actor with a thread of its own: whatever hangs holds up this one alone.

The main thread says what the daemon shall be; when and how is decided by the actor (``services.mps_work``).
"""

from __future__ import annotations

import queue
from typing import Final, TypeAlias

import msgspec

from nvdp.errors import HostError
from nvdp.model.reasons import Reason
from nvdp.mps.places import Places
from nvdp.mps.process import DaemonProcess
from nvdp.planning.daemon_course import Stage
from nvdp.service_thread import ServiceThread
from nvdp.services.mps_events import Order
from nvdp.services.mps_left import Adopted
from nvdp.services.mps_node import Node
from nvdp.services.mps_work import DaemonWork

_CUT_S: Final = 1.0


class _Ended(msgspec.Struct, frozen=True):
    process: DaemonProcess


class _Close(msgspec.Struct, frozen=True):
    pass


_Message: TypeAlias = Order | _Ended | _Close


class DaemonActor:
    """``start`` it, then ``order``; it posts ``DaemonSeen`` whenever something changed, at first at once.

    All methods may be called from any thread and none blocks. The threads are named ``mps RESOURCE`` and ``mps-end
    RESOURCE``. An exception that nobody expected is a failure of the daemon, which is told and tried again; one that
    ends a thread all the same: ``start`` goes on from what is known. After ``close`` the thread ends, and a daemon that
    runs is left alone.
    """

    def __init__(self, resource: str, node: Node, *, adopted: Adopted | None = None) -> None:
        self.resource = resource
        self._clock = node.clock
        self._log = node.log
        self._watched = Places(node.mps_dir, resource)
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._latest = Order(stage=Stage.WAIT)
        self._work = DaemonWork(resource, node, adopted=adopted, on_up=self._watch, is_over=self._is_over)
        self._thread: ServiceThread | None = None
        self._watcher: ServiceThread | None = None

    @property
    def threads(self) -> tuple[str, str]:
        """The names by which a crash of it is known."""
        return f"mps {self.resource}", f"mps-end {self.resource}"

    @property
    def pid(self) -> int | None:
        """Of the control daemon that runs."""
        process = self._work.process
        return process.pid if process is not None else None

    @property
    def answered_at(self) -> float:
        """When the daemon answered last, monotonic seconds."""
        return self._work.answered_at

    def start(self) -> None:
        """Start what is not running of its threads."""
        if self._thread is None or not self._thread.is_at_work:
            self._thread = ServiceThread(self._run, name=self.threads[0])
            self._thread.start()
        process = self._work.process
        if process is not None and (self._watcher is None or not self._watcher.is_at_work):
            self._watch(process)

    def order(self, order: Order) -> None:
        """Do this from now on."""
        self._latest = order
        self._inbox.put(order)

    def close(self) -> None:
        """End the thread, once it has nothing else to do."""
        self._inbox.put(_Close())

    def _run(self) -> None:
        self._work.show()
        while self._wait():
            try:
                self._work.turn()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next turn may go well
                self._work.note_defect(error)
            self._work.show()

    def _is_over(self) -> bool:
        """Whether an end was ordered that waits for nobody, whatever is being done just now."""
        return self._latest.by_force and self._latest.is_end

    def _wait(self) -> bool:
        """Until something is due or comes in; False at the end."""
        timeout_s = max(0.0, self._work.due_at - self._clock())
        try:
            while True:
                message = self._inbox.get(timeout=timeout_s) if timeout_s else self._inbox.get_nowait()
                if isinstance(message, _Close):
                    return False
                self._take(message)
                timeout_s = 0.0
        except queue.Empty:
            return True

    def _take(self, message: Order | _Ended) -> None:
        if isinstance(message, Order):
            self._work.take(message)
            return
        if message.process is self._work.process:
            self._work.note_end(message.process)
        message.process.close()

    def _watch(self, process: DaemonProcess) -> None:
        """Have the end of the process noticed at once, and its logs cut until then: one that hangs may write on."""

        def wait() -> None:
            while not process.wait(_CUT_S):
                self._cut_logs()
            self._inbox.put(_Ended(process))

        self._watcher = ServiceThread(wait, name=self.threads[1])
        self._watcher.start()

    def _cut_logs(self) -> None:
        try:
            self._watched.cut_logs()
        except HostError as error:
            self._log(Reason.STATE_DAMAGED, str(error), resource=self.resource)
