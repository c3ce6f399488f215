"""The check before a container starts: its GPUs, if it has them for itself, must have no process of anybody else.

``allocation.preStartCheck: idle``. A pod's last process may need seconds to go, with its memory: so a container waits
for that, and is refused only if it does not happen. What cannot be found out never keeps a container from starting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from nvdp.host.processes import NodeProcesses
from nvdp.log import Log
from nvdp.model.listing import ResourceList
from nvdp.model.reasons import Reason
from nvdp.model.status import Trouble
from nvdp.nvml.children import NvmlChildren
from nvdp.nvml.frames import ComputeProcess
from nvdp.planning.idleness import Checked, choose_checked
from nvdp.services.idle_verdicts import Verdicts
from nvdp.services.nvml_counts import GpuObserver
from nvdp.services.process_reading import ProcessReader, Reading, Unanswered

_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 1.0
_BLIND: Final = (
    "the check before a container starts sees no process of other containers: nvdp is not in the host's PID namespace; "
    "set hostPID: true in its pod"
)


class IdleWait:
    """One container that is about to start. ``wait`` is for the thread of its call, ``end`` for any.

    ``turn`` guards it and tells of changes; whoever calls ``take``, or reads ``pending``, holds it. ``pending`` are the
    GPUs that are not known to be idle yet, with the processes last seen there.
    """

    def __init__(
        self, listed: ResourceList, checked: Checked, *, turn: threading.Condition, verdicts: Verdicts
    ) -> None:
        self._listed = listed
        self._turn = turn
        self._verdicts = verdicts
        self._began_at = time.monotonic()
        self._unanswered = dict(checked.unanswered)
        self.pending: dict[str, tuple[ComputeProcess, ...]] = dict.fromkeys(checked.asked, ())
        self.ended = False

    @property
    def call_limit_s(self) -> float:
        return self._listed.facts.call_timeout_s

    def wait(self) -> bool:
        """Block until the container may start; False if it was ended before, by ``end``.

        Raises AllocationError (``not_idle``), in one line for the pod's events, after ``preStartTimeout``.
        """
        timeout_s = self._listed.facts.pre_start_timeout_s
        with self._turn:
            remaining_s = self._began_at + timeout_s - time.monotonic()
            self._turn.wait_for(lambda: self.ended or not self.pending, remaining_s)
            was_ended = self.ended
            self._finish()
        if was_ended:
            return False
        busy = {uuid: processes for uuid, processes in self.pending.items() if processes}
        silent = [uuid for uuid in self.pending if uuid not in busy]
        unanswered = self._unanswered | dict.fromkeys(silent, f"the driver did not answer within {timeout_s:g}s")
        if unanswered:
            self._verdicts.warn(self._listed, unanswered)
        if busy:
            raise self._verdicts.refuse(self._listed, busy)
        return True

    def end(self) -> None:
        """The container does not start, or nobody asks any more: let ``wait`` return False now."""
        with self._turn:
            self._finish()

    def take(self, uuid: str, reading: Reading, *, asked_at: float) -> None:
        """What the driver said when it was asked at that time (monotonic); what it was asked before is too old."""
        if uuid not in self.pending or asked_at < self._began_at:
            return
        if reading and not isinstance(reading, Unanswered):
            self.pending[uuid] = reading
            return
        del self.pending[uuid]
        if isinstance(reading, Unanswered):
            self._unanswered[uuid] = reading.text

    def _finish(self) -> None:
        self.ended = True
        self._turn.notify_all()


class IdleCheck:
    """The one of the process; ``begin`` is for any thread. All who wait share one thread, one child and its answers.

    The thread is named ``idle-check`` and is there, with its child, only while somebody waits. ``sees_all``: whether
    the driver tells us of the processes of all containers.
    """

    THREAD: Final = "idle-check"

    def __init__(
        self,
        children: NvmlChildren,
        *,
        log: Log,
        observer: GpuObserver,
        processes: NodeProcesses,
        sees_all: bool,
    ) -> None:
        self._children = children
        self._log = log
        self._observer = observer
        self._sees_all = sees_all
        self._verdicts = Verdicts(processes, log=log)
        self._turn = threading.Condition()  # guards all below, and the waits
        self._waits: list[IdleWait] = []
        self._thread: threading.Thread | None = None
        self._hurried = False
        self.trouble: Trouble | None = None

    def begin(self, listed: ResourceList, device_ids: Sequence[str]) -> IdleWait:
        """A container with these devices of ``listed`` is about to start. Does not block; ``wait`` does."""
        self._tell_blindness()
        checked = choose_checked(listed, device_ids)
        wait = IdleWait(listed, checked, turn=self._turn, verdicts=self._verdicts)
        if checked.asked:
            with self._turn:
                self._waits.append(wait)
                self._hurried = True
                self._turn.notify_all()
                self._ensure_thread()
        return wait

    def start(self) -> None:
        """Go on after a crash of the thread; nothing if nobody waits."""
        with self._turn:
            if self._list_waiting():
                self._ensure_thread()

    def _ensure_thread(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name=self.THREAD, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # as good as a driver that does not answer
            for wait in self._list_waiting():
                for uuid in list(wait.pending):
                    wait.take(uuid, Unanswered(f"no thread can be started ({error})"), asked_at=time.monotonic())
        else:
            self._thread = thread

    def _tell_blindness(self) -> None:
        with self._turn:
            if self._sees_all or self.trouble is not None:
                return
            self.trouble = Trouble(reason=Reason.DEVICE_NOT_IDLE.word, text=_BLIND)
        self._log(Reason.DEVICE_NOT_IDLE, _BLIND)

    def _list_waiting(self) -> Sequence[IdleWait]:
        """Those who wait for an answer; the caller holds the turn."""
        self._waits = [wait for wait in self._waits if wait.pending and not wait.ended]
        return self._waits

    # What follows runs in the thread "idle-check".

    def _run(self) -> None:
        reader = ProcessReader(self._children, observer=self._observer, clock=time.monotonic)
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                wanted = self._list_wanted()
                for uuid, limit_s in wanted.items():
                    asked_at = time.monotonic()
                    self._tell(uuid, reader.read(uuid, limit_s=limit_s), asked_at)
                if not wanted:
                    reader.close()
                    if self._leave():
                        return
                elif self._is_hurried(pause_s):
                    pause_s = _FIRST_PAUSE_S
                else:
                    pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
        finally:
            reader.close()
            with self._turn:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _list_wanted(self) -> Mapping[str, float]:
        """The GPUs that somebody waits for, with the shortest limit for a call."""
        with self._turn:
            self._hurried = False
            wanted: dict[str, float] = {}
            for wait in self._list_waiting():
                for uuid in wait.pending:
                    wanted[uuid] = min(wanted.get(uuid, wait.call_limit_s), wait.call_limit_s)
            return wanted

    def _tell(self, uuid: str, reading: Reading, asked_at: float) -> None:
        with self._turn:
            for wait in self._list_waiting():
                wait.take(uuid, reading, asked_at=asked_at)
            self._turn.notify_all()

    def _is_hurried(self, pause_s: float) -> bool:
        """Let time pass, until somebody new waits, which is true, or nobody does any more."""
        with self._turn:
            self._turn.wait_for(lambda: self._hurried or not self._list_waiting(), pause_s)
            return self._hurried

    def _leave(self) -> bool:
        """Whether nobody waits; from then on the next one to come starts another thread."""
        with self._turn:
            if self._list_waiting():
                return False
            self._thread = None
            return True
