"""What the actor of a control daemon does, step by step: look for what is in the way, start, ask, bear, end.

Everything that an actor decides is here; its threads and its inbox are in ``services.mps_daemon``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

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


class DaemonWork:
    """The daemon of one resource. Used by one thread, but for ``process`` and ``answered_at``, which any may read.

    ``due_at`` is when there is something to do next, monotonic seconds. ``on_up`` hears of each daemon that is up: its
    end is to be told with ``note_end``. What it posts is put together in ``card``.
    """

    def __init__(
        self, resource: str, node: Node, *, adopted: Adopted | None, on_up: Callable[[DaemonProcess], None]
    ) -> None:
        self._resource = resource
        self._node = node
        self._log = node.log
        self._times = node.times
        self._clock = node.clock
        self._on_up = on_up
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
        self._order = Order(stage=Stage.WAIT)
        self._card = Card(resource, node.post, adopted)
        self._obstacles = Obstacles(
            resource, self._places, find_own_pids=node.find_own_pids, log=node.log, times=node.times
        )
        self._failures = Failures(resource, log=node.log, times=node.times, clock=node.clock)
        self._owes_limits = adopted is not None and adopted.report.phase is not Phase.READY
        self._starts = adopted.report.restarts + 1 if adopted is not None else 0
        self.process = adopted.process if adopted is not None else None
        self.due_at = self._check_due_at = self._clock()

    @property
    def answered_at(self) -> float:
        """When the daemon answered last, monotonic seconds."""
        return self._asking.answered_at

    def take(self, order: Order) -> None:
        """Do this from the next turn on."""
        self._order = order
        self._card.change(order=order.number, is_gone=False)
        self.due_at = self._check_due_at = self._clock()

    def show(self) -> None:
        """Post what has changed."""
        self._card.show()

    def turn(self) -> None:
        """Do what is due, and what the last order says. Blocks for a start or an end at most."""
        now = self._clock()
        if now < self.due_at:
            return
        self.due_at = now + self._times.probe_s
        if self.process is None:
            self._prepare(now)
        elif self._order.stage not in _ENDING or not self._end(self.process):
            self._tend(self.process, now)

    def _prepare(self, now: float) -> None:
        """What is to be done without a daemon."""
        match self._order.stage:
            case Stage.NOTHING:
                self._remove()
            case Stage.CHECK:
                self._check(now)
                self.due_at = self._check_due_at
            case Stage.START if self._order.target is not None:
                if now < self._failures.retry_at:
                    self.due_at = self._failures.retry_at
                else:
                    self._start(self._order.target, now)
            case _:
                self.due_at = now + _LONG_S

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
        if self._card.daemon.phase is not Phase.READY:
            self._failures.note_ready()
            self._card.report(phase=Phase.READY, text="")
            self._log(Reason.MPS_DAEMON_READY, f"control daemon {process.pid} answers", resource=self._resource)
        else:
            self._failures.note_steady()
        self._asking.look(running, at_clients=self._order.watches_clients)
        self._show_asked()
        if self._order.stage is Stage.CHECK and self._check_due_at <= now:
            self._check(now)

    def _bear(self, process: DaemonProcess, silence: str) -> None:
        """It does not answer: say so, and replace it. If pods use it, they may be served on: not soon, then.

        Nor after one question: it may be us who did not run meanwhile, as in a machine that was halted.
        """
        if not process.is_alive:
            self.note_end(process)
            return
        since, clients = self._asking.silent_since, self._asking.clients or Clients()
        assert since is not None
        silent_s = self._clock() - since
        is_in_use = bool(clients.count) or self._order.is_in_use
        patience_s = self._times.patience_s if is_in_use else 0.0
        if self._card.daemon.phase is not Phase.FAILED:
            lines = read_last_lines(self._places)
            rest = f"pods use it, so that it gets {patience_s:g} s" if is_in_use else "it is replaced"
            self._fail(f"{silence}; {rest}", lines=lines)
            self._card.show()
        if self._asking.silences > 1 and silent_s >= patience_s and self._finish(process, hears=False):
            self._note_failure()

    def _check(self, now: float) -> None:
        """Look for what would be in the way of the target."""
        assert self._order.target is not None
        gpus = self._order.target.gpus
        refused = self._obstacles.look(gpus)
        self._card.change(cleared=frozenset() if refused else frozenset(gpus), refused=refused)
        self._check_due_at = now + self._times.in_the_way_s
        if self.process is None and refused:
            self._card.report(phase=Phase.REFUSED, text=refused)
        elif self._card.daemon.phase is Phase.REFUSED:
            self._card.report(phase=Phase.WAITING, text="")

    def _start(self, target: DaemonSpec, now: float) -> None:
        self._check(now)
        if self._card.seen.refused:
            self.due_at = self._check_due_at
            return
        self._card.report(phase=Phase.STARTING, text="it is being started", restarts=self._starts)
        self._starts += 1
        self._card.show()
        try:
            process, running = bring_up(
                self._node.program, target, self._places, on_process=self._note_process, times=self._times
            )
        except HostError as error:
            self._forget()
            exit_code, lines = (error.exit_code, error.last_lines) if isinstance(error, NotUpError) else (None, ())
            self._note_failure()
            self._fail(str(error), exit_code=exit_code, lines=lines)
            return
        self._failures.note_ready()
        self._card.report(phase=Phase.READY, text="")
        self._on_up(process)
        text = f"control daemon {process.pid} answers: {describe_spec(running)}"
        self._log(Reason.MPS_DAEMON_READY, text, resource=self._resource, pid=process.pid, gpus=list(running.gpus))
        if running != target:
            self._card.change(lacks_multi_user=True)
            text = "this driver's control daemon has no multiUser: pods of different users wait for each other"
            self._log(Reason.MPS_UNSUPPORTED, text, resource=self._resource)

    def _note_process(self, process: DaemonProcess, running: DaemonSpec) -> None:
        """There is one, which is not up yet."""
        self.process, self._owes_limits = process, False
        self._asking.begin()
        self._card.change(cleared=frozenset())
        self._card.report(running=running, pid=process.pid, started=process.started)
        self._card.show()

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
            self.due_at = self._clock() + _STUCK_S
            self._fail(f"no signal ends process {process.pid}: it sleeps in the driver; see dmesg for messages of NVRM")
            return False
        self._forget()
        self.due_at = self._clock()
        return True

    def note_end(self, process: DaemonProcess) -> None:
        """It has ended, and nobody ordered that."""
        process.kill()  # its servers: the next one could not use their GPUs
        self._forget()
        self._note_failure()
        code = process.exit_code
        text = f"control daemon {process.pid} has ended, {describe_exit(code)}"
        self._fail(text, exit_code=code, lines=read_last_lines(self._places))

    def _forget(self) -> None:
        """There is no process any more."""
        self.process = None
        self._asking.begin()
        self._card.report(running=None, pid=None, started=None)
        self._show_asked()

    def _note_failure(self) -> None:
        """The next start has to wait: by how long depends on how many failures there were."""
        self._failures.note()
        self.due_at = self._clock()

    def _fail(self, text: str, *, exit_code: int | None = None, lines: tuple[str, ...] = ()) -> None:
        """Say what went wrong, and when it is started anew, unless it still runs."""
        if self.process is None:
            text = self._failures.describe(text)
        self._card.report(phase=Phase.FAILED, text=text, exit_code=exit_code, last_lines=lines)
        self._failures.tell(text, exit_code=exit_code, lines=lines)

    def _remove(self) -> None:
        """Take away what is left of a resource that is no more."""
        self.due_at = self._clock() + _LONG_S
        try:
            self._places.remove()
        except HostError as error:
            self._log(Reason.STATE_DAMAGED, str(error), resource=self._resource)
        self._card.report(phase=Phase.WAITING, text="")
        self._card.change(is_gone=True, cleared=frozenset(), refused="")

    def _show_asked(self) -> None:
        self._card.report_clients(self._asking.clients, self._asking.waiting_users)
