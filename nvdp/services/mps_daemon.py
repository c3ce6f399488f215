"""The control daemon of one resource, by an actor with a thread of its own: whatever hangs holds up this one alone.

The main thread says what the daemon shall be; when and how is decided here: looking for what is in the way, starting,
asking every second, starting anew after an end that nobody ordered, ending.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from nvdp.errors import HostError
from nvdp.log import Log
from nvdp.model.mps import DaemonSpec, Phase
from nvdp.model.reasons import Reason
from nvdp.mps.control import ControlPipe
from nvdp.mps.places import Places
from nvdp.mps.process import DaemonProcess
from nvdp.planning.daemon_course import Stage
from nvdp.services.mps_asking import Asking, Clients
from nvdp.services.mps_card import Adopted, Card, describe_spec
from nvdp.services.mps_events import MpsPost, Order
from nvdp.services.mps_failures import Failures
from nvdp.services.mps_obstacles import Obstacles
from nvdp.services.mps_running import (
    NotUpError,
    Program,
    Times,
    bring_up,
    describe_exit,
    end_daemon,
    read_last_lines,
    set_limits,
)

_ENDING: Final = frozenset({Stage.END, Stage.NOTHING})
_LONG_S: Final = 3600.0
_STUCK_S: Final = 10.0  # between tries to end a daemon that no signal ends


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """What all actors have in common. ``find_own_pids`` are the daemons of all of them."""

    mps_dir: Path
    program: Program
    post: MpsPost
    log: Log
    find_own_pids: Callable[[], Collection[int]]
    is_client_alive: Callable[[int], bool]
    times: Times = Times()
    clock: Callable[[], float] = time.monotonic


class _Ended(msgspec.Struct, frozen=True):
    process: DaemonProcess


class _Close(msgspec.Struct, frozen=True):
    pass


_Message: TypeAlias = Order | _Ended | _Close


class DaemonActor:
    """``start`` it, then ``order``; it posts ``DaemonSeen`` whenever something changed, at first at once.

    All methods may be called from any thread and none blocks. The threads are named ``mps RESOURCE`` and ``mps-end
    RESOURCE``. An exception that nobody expected ends one of them; ``start`` goes on from what is known. After
    ``close`` the thread ends, and a daemon that runs is left alone. ``answered_at`` is when the daemon answered last,
    monotonic seconds.
    """

    def __init__(self, resource: str, node: Node, *, adopted: Adopted | None = None) -> None:
        self.resource = resource
        self._node = node
        self._log = node.log
        self._times = node.times
        self._clock = node.clock
        self._places = Places(node.mps_dir, resource)
        self._pipe = ControlPipe(node.program.name, self._places.pipe_dir, limit_s=node.times.question_s)
        self._asking = Asking(
            resource,
            self._places,
            self._pipe,
            log=node.log,
            is_client_alive=node.is_client_alive,
            times=node.times,
            clock=node.clock,
        )
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._order = Order(stage=Stage.WAIT)
        self._process = adopted.process if adopted is not None else None
        self._card = Card(resource, node.post, adopted)
        self._obstacles = Obstacles(
            resource, self._places, find_own_pids=node.find_own_pids, log=node.log, times=node.times
        )
        self._owes_limits = adopted is not None and adopted.report.phase is not Phase.READY
        self._starts = adopted.report.restarts + 1 if adopted is not None else 0
        self._due_at = self._check_due_at = self.answered_at = self._clock()
        self._failures = Failures(resource, log=node.log, times=node.times, clock=node.clock)
        self._thread: threading.Thread | None = None
        self._watcher: threading.Thread | None = None

    @property
    def threads(self) -> tuple[str, str]:
        """The names by which a crash of it is known."""
        return f"mps {self.resource}", f"mps-end {self.resource}"

    @property
    def pid(self) -> int | None:
        """Of the control daemon that runs."""
        process = self._process
        return process.pid if process is not None else None

    def start(self) -> None:
        """Start what is not running of its threads."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name=self.threads[0], daemon=True)
            self._thread.start()
        process = self._process
        if process is not None and (self._watcher is None or not self._watcher.is_alive()):
            self._watch(process)

    def order(self, order: Order) -> None:
        """Do this from now on."""
        self._inbox.put(order)

    def close(self) -> None:
        """End the thread, once it has nothing else to do."""
        self._inbox.put(_Close())

    # What follows runs in the actor's thread, but for what _watch starts.

    def _run(self) -> None:
        self._card.show()
        while self._wait():
            self._turn()
            self._card.show()

    def _wait(self) -> bool:
        """Until something is due or comes in; False at the end."""
        try:
            timeout_s: float | None = max(0.0, self._due_at - self._clock())
            while True:
                message = self._inbox.get(timeout=timeout_s) if timeout_s != 0.0 else self._inbox.get_nowait()
                if isinstance(message, _Close):
                    return False
                self._take(message)
                timeout_s = 0.0
        except queue.Empty:
            return True

    def _take(self, message: Order | _Ended) -> None:
        if isinstance(message, Order):
            self._order = message
            self._card.change(order=message.number, is_gone=False)
            self._due_at = self._check_due_at = self._clock()
            return
        if message.process is self._process:
            self._note_end(message.process)
        message.process.close()

    def _turn(self) -> None:
        now = self._clock()
        if now < self._due_at:
            return
        self._due_at = now + self._times.probe_s
        if self._process is None:
            self._prepare(now)
        elif self._order.stage not in _ENDING or not self._end(self._process):
            self._tend(self._process, now)

    def _prepare(self, now: float) -> None:
        """What is to be done without a daemon."""
        match self._order.stage:
            case Stage.NOTHING:
                self._remove()
            case Stage.CHECK:
                self._check(now)
                self._due_at = self._check_due_at
            case Stage.START if self._order.target is not None:
                if now < self._failures.retry_at:
                    self._due_at = self._failures.retry_at
                else:
                    self._start(self._order.target, now)
            case _:
                self._due_at = now + _LONG_S

    def _tend(self, process: DaemonProcess, now: float) -> None:
        """What is to be done with a daemon that runs."""
        running = self._card.daemon.running
        assert running is not None
        silence = self._asking.find_silence()
        if silence:
            self._bear(process, silence)
            return
        if self._owes_limits:
            try:
                set_limits(self._pipe, running)
            except HostError:
                return  # it is asked again in a second
            self._owes_limits = False
        self.answered_at = self._clock()
        if self._card.daemon.phase is not Phase.READY:
            self._failures.note_ready()
            self._card.report(phase=Phase.READY, text="")
            self._log(Reason.MPS_DAEMON_READY, f"control daemon {process.pid} answers", resource=self.resource)
        else:
            self._failures.note_steady()
        self._asking.look(running, at_clients=self._order.watches_clients)
        self._show_asked()
        if self._order.stage is Stage.CHECK and self._check_due_at <= now:
            self._check(now)

    def _bear(self, process: DaemonProcess, silence: str) -> None:
        """It does not answer: say so, and replace it. If it has clients, they may be served on: not soon, then."""
        if not process.is_alive:
            self._note_end(process)
            return
        since, clients = self._asking.silent_since, self._asking.clients or Clients()
        assert since is not None
        silent_s = self._clock() - since
        patience_s = self._times.patience_s if clients.count else 0.0
        if self._card.daemon.phase is not Phase.FAILED:
            lines = read_last_lines(self._places)
            rest = f"it has {clients.count} clients and gets {patience_s:g} s" if patience_s else "it is replaced"
            self._fail(f"{silence}; {rest}", lines=lines)
            self._card.show()
        if silent_s >= patience_s and self._finish(process, hears=False):
            self._note_failure()

    def _check(self, now: float) -> None:
        """Look for what would be in the way of the target."""
        assert self._order.target is not None
        gpus = self._order.target.gpus
        refused = self._obstacles.look(gpus)
        self._card.change(cleared=frozenset() if refused else frozenset(gpus), refused=refused)
        self._check_due_at = now + self._times.in_the_way_s
        if self._process is None and refused:
            self._card.report(phase=Phase.REFUSED, text=refused)
        elif self._card.daemon.phase is Phase.REFUSED:
            self._card.report(phase=Phase.WAITING, text="")

    def _start(self, target: DaemonSpec, now: float) -> None:
        self._check(now)
        if self._card.seen.refused:
            self._due_at = self._check_due_at
            return
        self._card.report(phase=Phase.STARTING, text="it is being started", restarts=self._starts)
        self._starts += 1
        self._card.show()
        try:
            process = self._bring_up(target)
        except HostError as error:
            self._forget()
            exit_code, lines = (error.exit_code, error.last_lines) if isinstance(error, NotUpError) else (None, ())
            self._note_failure()
            self._fail(str(error), exit_code=exit_code, lines=lines)
            return
        running = self._card.daemon.running
        assert running is not None
        self.answered_at = self._clock()
        self._failures.note_ready()
        self._card.report(phase=Phase.READY, text="")
        self._watch(process)
        self._log(
            Reason.MPS_DAEMON_READY,
            f"control daemon {process.pid} answers: {describe_spec(running)}",
            resource=self.resource,
            pid=process.pid,
            gpus=list(running.gpus),
        )

    def _bring_up(self, target: DaemonSpec) -> DaemonProcess:
        """Start it; without multi-user mode if it does not come up with it. Raises HostError."""
        try:
            return self._try_to_bring_up(target)
        except NotUpError:
            if not target.multi_user:
                raise
        process = self._try_to_bring_up(msgspec.structs.replace(target, multi_user=False))
        self._card.change(lacks_multi_user=True)
        text = "the control daemon of this driver starts without multiUser only: pods of several users wait for another"
        self._log(Reason.MPS_UNSUPPORTED, text, resource=self.resource)
        return process

    def _try_to_bring_up(self, spec: DaemonSpec) -> DaemonProcess:
        def note(process: DaemonProcess) -> None:
            self._process, self._owes_limits = process, False
            self._asking.begin()
            self._card.change(cleared=frozenset())
            self._card.report(running=spec, pid=process.pid, started=process.started)
            self._card.show()

        return bring_up(self._node.program, spec, self._places, on_process=note, times=self._times)

    def _end(self, process: DaemonProcess) -> bool:
        """End it as ordered; False if it stays for clients that are not to be ended, or because nothing ends it."""
        if not self._order.by_force:
            self._asking.look_at_clients()
            self._show_asked()
            if self._card.daemon.clients:
                return False
        self._card.report(phase=Phase.STOPPING, text="it is being ended")
        self._card.show()
        if not self._finish(process, hears=True):
            return False
        self._failures.forget()
        self._card.report(phase=Phase.WAITING, text="")
        return True

    def _finish(self, process: DaemonProcess, *, hears: bool) -> bool:
        """Have it gone; False if it stays, which is tried again later. ``hears``: it may be told by its pipe."""
        if not end_daemon(process, self._pipe if hears else None, times=self._times):
            self._due_at = self._clock() + _STUCK_S
            self._fail(f"no signal ends process {process.pid}: it sleeps in the driver; see dmesg for messages of NVRM")
            return False
        self._forget()
        self._due_at = self._clock()
        return True

    def _note_end(self, process: DaemonProcess) -> None:
        """It has ended, and nobody ordered that."""
        process.kill()  # its servers: the next one could not use their GPUs
        self._forget()
        self._note_failure()
        code = process.exit_code
        text = f"control daemon {process.pid} has ended, {describe_exit(code)}"
        self._fail(text, exit_code=code, lines=read_last_lines(self._places))

    def _forget(self) -> None:
        """There is no process any more."""
        self._process = None
        self._asking.begin()
        self._card.report(running=None, pid=None, started=None)
        self._show_asked()

    def _note_failure(self) -> None:
        """The next start has to wait: by how long depends on how many failures there were."""
        self._failures.note()
        self._due_at = self._clock()

    def _fail(self, text: str, *, exit_code: int | None = None, lines: tuple[str, ...] = ()) -> None:
        """Say what went wrong, and when it is started anew, unless it still runs."""
        if self._process is None:
            text = self._failures.describe(text)
        self._card.report(phase=Phase.FAILED, text=text, exit_code=exit_code, last_lines=lines)
        self._failures.tell(text, exit_code=exit_code, lines=lines)

    def _remove(self) -> None:
        """Take away what is left of a resource that is no more."""
        self._due_at = self._clock() + _LONG_S
        try:
            self._places.remove()
        except HostError as error:
            self._log(Reason.STATE_DAMAGED, str(error), resource=self.resource)
        self._card.report(phase=Phase.WAITING, text="")
        self._card.change(is_gone=True, cleared=frozenset(), refused="")

    def _watch(self, process: DaemonProcess) -> None:
        """Have the end of the process noticed at once."""

        def wait() -> None:
            while not process.wait(_LONG_S):
                pass
            self._inbox.put(_Ended(process))

        self._watcher = threading.Thread(target=wait, name=self.threads[1], daemon=True)
        self._watcher.start()

    def _show_asked(self) -> None:
        self._card.report_clients(self._asking.clients, self._asking.waiting_users)
