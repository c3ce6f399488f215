"""What the actor of a control daemon does, step by step: look for what is in the way, start, ask, bear, end.

Everything that an actor decides is here; its threads and its inbox are in ``services.mps_daemon``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nvdp.errors import HostError
from nvdp.log import describe_exception
from nvdp.model.mps import DaemonSpec, Phase
from nvdp.model.reasons import Reason
from nvdp.mps.control import ControlPipe
from nvdp.mps.places import Places
from nvdp.mps.process import DaemonProcess
from nvdp.planning.daemon_course import Stage
from nvdp.services.mps_asking import Asking
from nvdp.services.mps_card import Card, tell_up
from nvdp.services.mps_events import Order
from nvdp.services.mps_failures import Failures
from nvdp.services.mps_left import Adopted, find_unknown
from nvdp.services.mps_node import Node
from nvdp.services.mps_obstacles import Obstacles
from nvdp.services.mps_running import (
    NotUpError,
    StartCancelledError,
    bring_up,
    describe_exit,
    end_daemon,
    read_last_lines,
)

_LONG_S: Final = 3600.0
_STUCK_S: Final = 10.0  # between tries to end a daemon that no signal ends


class DaemonWork:
    """The daemon of one resource. Used by one thread, but for ``process`` and ``answered_at``, which any may read.

    ``due_at`` is when there is something to do next, monotonic seconds. ``on_up`` hears of each daemon that is up: its
    end is to be told with ``note_end``. ``is_over`` tells whether a start that is under way is still of use. What it
    posts is put together in ``card``.
    """

    def __init__(
        self,
        resource: str,
        node: Node,
        *,
        adopted: Adopted | None,
        on_up: Callable[[DaemonProcess], None],
        is_over: Callable[[], bool],
    ) -> None:
        self._resource = resource
        self._node = node
        self._log = node.log
        self._times = node.times
        self._clock = node.clock
        self._on_up = on_up
        self._is_over = is_over
        self._places = Places(node.mps_dir, resource)
        self._pipe = ControlPipe(node.program.name, self._places.pipe_dir, limit_s=node.times.question_s)
        self._asking = Asking(resource, self._places, self._pipe, node, adopted=adopted)
        self._order = Order(stage=Stage.WAIT)
        self._card = Card(resource, node.post, adopted)
        self._obstacles = Obstacles(resource, self._places, node)
        self._failures = Failures(resource, self._card, log=node.log, times=node.times, clock=node.clock)
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
        elif not self._order.is_end or not self._end(self.process):
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
        silence = self._asking.find_silence(is_in_use=self._order.is_in_use)
        if silence:
            self._bear(process, silence)
            return
        running = self._card.daemon.running
        assert running is not None
        try:
            running = self._asking.settle_limits(running)
        except HostError:
            return  # it is asked again in a second
        self._card.report(running=running)
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

        Nor after one question: it may be us who did not run meanwhile, as in a machine that was halted. That it could
        not be asked is never a reason.
        """
        if not process.is_alive:
            self.note_end(process)
            return
        is_in_use = self._order.is_in_use or self._asking.may_have_clients or bool(process.list_rest())
        patience_s = self._times.patience_s if is_in_use else 0.0
        if self._card.daemon.phase is not Phase.FAILED:
            rest = f"pods may use it, so that it gets {patience_s:g} s" if is_in_use else "it is replaced"
            rest = "it runs on, and is asked again" if self._asking.unasked else rest
            self._failures.tell(f"{silence}; {rest}", runs=True, lines=read_last_lines(self._places))
            self._card.show()
        if self._asking.has_been_silent(patience_s) and self._finish(process, hears=False):
            self._failures.note()

    def _check(self, now: float) -> None:
        """Look for what would be in the way of the target; that may be a daemon that is the target already."""
        assert self._order.target is not None
        if self.process is None and self._adopt_unknown(now):
            return
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
        if self.process is not None:
            return
        if self._card.seen.refused:
            self.due_at = self._check_due_at
            return
        self._card.report(phase=Phase.STARTING, text="it is being started", restarts=self._starts)
        self._starts += 1
        self._card.show()
        try:
            process, running = bring_up(
                self._node.program,
                target,
                self._places,
                on_process=self._note_process,
                is_over=self._is_over,
                times=self._times,
            )
        except HostError as error:
            self._note_failed_start(error)
            return
        self._asking.begin()
        self._failures.note_ready()
        self._card.report(phase=Phase.READY, text="")
        self._on_up(process)
        tell_up(self._log, process, running, target=target)
        if running != target:
            self._card.change(lacks_multi_user=True)

    def _note_failed_start(self, error: HostError) -> None:
        self._forget()
        if isinstance(error, StartCancelledError):
            self._card.report(phase=Phase.WAITING, text="")
            return
        exit_code, lines = (error.exit_code, error.last_lines) if isinstance(error, NotUpError) else (None, ())
        self._failures.note()
        self._failures.tell(str(error), runs=False, exit_code=exit_code, lines=lines)

    def _note_process(self, process: DaemonProcess, running: DaemonSpec) -> None:
        """There is one, which is not up yet."""
        self.process = process
        self._asking.begin(owes_limits=True)
        self._card.change(cleared=frozenset())
        self._card.report(running=running, pid=process.pid, started=process.started)
        self._card.show()

    def _adopt_unknown(self, now: float) -> bool:
        """Take over a daemon of this resource that nobody knows, if there is one: pods may be using it."""
        node = self._node
        adopted = next(find_unknown(node.mps_dir, node.find_own_pids(), wanted=self._resource), None)
        if adopted is None:
            return False
        self.process = adopted.process
        self._asking.begin(adopted)
        self._card.take_over(adopted)
        self._on_up(adopted.process)
        self.due_at = now
        return True

    def _end(self, process: DaemonProcess) -> bool:
        """End it as ordered; False if it stays for clients that are not to be ended, or because nothing ends it."""
        if not self._order.by_force:
            is_told = self._asking.look_at_clients()
            self._show_asked()
            if not is_told or self._asking.may_have_clients:
                return False
        self._card.report(phase=Phase.STOPPING, text="it is being ended")
        self._card.show()
        if not self._finish(process, hears=self._asking.silent_since is None):
            return False
        self._failures.forget()
        self._card.report(phase=Phase.WAITING, text="")
        return True

    def _finish(self, process: DaemonProcess, *, hears: bool) -> bool:
        """Have it gone; False if it stays, which is tried again later. ``hears``: it may be told by its pipe."""
        if not end_daemon(process, self._pipe if hears else None, times=self._times):
            self.due_at = self._clock() + _STUCK_S
            text = f"no signal ends process {process.pid}: it sleeps in the driver; see dmesg for messages of NVRM"
            self._failures.tell(text, runs=True)
            return False
        self._forget()
        return True

    def note_end(self, process: DaemonProcess) -> None:
        """It has ended, and nobody ordered that."""
        process.kill()  # its servers: the next one could not use their GPUs
        self._forget()
        self._failures.note()
        code, lines = process.exit_code, read_last_lines(self._places)
        text = f"control daemon {process.pid} has ended, {describe_exit(code)}"
        self._failures.tell(text, runs=False, exit_code=code, lines=lines)

    def note_defect(self, error: Exception) -> None:
        """What was done came to something that nobody expected: what runs goes on, what is left to remove stays."""
        described = describe_exception(error)
        self._failures.note()
        text = f"a defect of nvdp, please report it: {described['error']}"
        self._failures.tell(text, runs=self.process is not None, trace=described["trace"])
        self.due_at = max(self._failures.retry_at, self._clock() + self._times.probe_s)
        if self.process is None and self._order.stage is Stage.NOTHING:
            self._card.change(is_gone=True, cleared=frozenset(), refused="")

    def _forget(self) -> None:
        """There is no process any more."""
        self.process = None
        self._asking.begin()
        self._card.report(running=None, pid=None, started=None)
        self._show_asked()
        self.due_at = self._clock()

    def _remove(self) -> None:
        """Take away what is left of a resource that is no more."""
        now = self._clock()
        if self._adopt_unknown(now):
            return
        self.due_at = now + _LONG_S
        try:
            self._places.remove()
        except HostError as error:
            self._log(Reason.STATE_DAMAGED, str(error), resource=self._resource)
        self._card.report(phase=Phase.WAITING, text="")
        self._card.change(is_gone=True, cleared=frozenset(), refused="")

    def _show_asked(self) -> None:
        self._card.report_clients(self._asking.clients, self._asking.waiting_users)
