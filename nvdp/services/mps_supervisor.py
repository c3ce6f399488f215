"""The supervisor of ``nvdp mps``: takes events, plans the course of all daemons, and orders what it says.

It runs on the main thread and owns all state. To learn what happens when something happens, find its event in
``_take``; what follows is always the same turn: judge the configuration, plan, order, report. It turns once a second at
least: its report is the heartbeat by which the plugin knows that it does.
"""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from nvdp.log import Log, describe_exception
from nvdp.model.mps import HEARTBEAT_S
from nvdp.model.reasons import Reason
from nvdp.model.status import DriverState
from nvdp.planning.ailing import list_reachable
from nvdp.planning.daemon_course import Course, Surroundings, keep_all, plan_daemons
from nvdp.services.adoption import Adoption
from nvdp.services.events import ConfigRead, GpusScanned, PauseOrdered, Ping, ServiceCrashed, SignalReceived
from nvdp.services.mps_crew import Crew
from nvdp.services.mps_driver import DriverUse
from nvdp.services.mps_events import DaemonSeen, GpusOccupied, GrantsRead, ModesSeen, MpsEvent, SharedMemorySeen
from nvdp.services.mps_modes import ModeService
from nvdp.services.mps_occupancy import OccupancyService
from nvdp.services.mps_pauses import Pauses
from nvdp.services.mps_readiness import Readiness, judge_readiness
from nvdp.services.mps_reporting import Reporter
from nvdp.services.mps_wishes import Wishes
from nvdp.services.restarts import Restarts

_STOP_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
_ENDS_S: Final = 12.0  # for all daemons, side by side: a word, SIGTERM and SIGKILL
_MODES_S: Final = 5.0
_LOOK_S: Final = 0.1


class Collaborators(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor works with. ``restart`` starts the service of a thread anew, False if it knows none."""

    adoption: Adoption
    crew: Crew
    modes: ModeService
    driver: DriverUse
    occupancy: OccupancyService
    reporter: Reporter
    log: Log
    restart: Callable[[str], bool]
    look_now: Callable[[], None]


class _Planned(msgspec.Struct, frozen=True, kw_only=True):
    """By which grants was planned last, and the number of what the modes were told for that."""

    digest: str = ""
    modes: int = 0


class MpsSupervisor:
    """Build it, then ``run`` it on the main thread; it returns after SIGTERM or SIGINT, with all daemons ended.

    ``readiness`` is replaced as a whole; any thread may read it.
    """

    def __init__(
        self,
        events: queue.SimpleQueue[MpsEvent],
        collaborators: Collaborators,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._events = events
        self._with = collaborators
        self._clock = clock
        self._wall = wall
        self._wishes = Wishes(log=collaborators.log)
        self._scan: GpusScanned | None = None
        self._modes = ModesSeen()
        self._shared_memory = SharedMemorySeen(problem="the shared memory of MPS is not there yet")
        self._occupied: Mapping[str, str] = {}
        self._pauses = Pauses(clock=clock, wall=wall)
        self._unheard: set[type] = {ConfigRead, GrantsRead, GpusScanned, PauseOrdered}
        self._course = Course(steps={}, claims=frozenset())
        self._planned = _Planned()
        self._heard = ""
        self._defect = ""
        self._restarts = Restarts(
            restart=lambda thread: collaborators.crew.restart(thread) or collaborators.restart(thread),
            count=lambda _thread: None,
            log=collaborators.log,
            clock=clock,
        )
        self._stopping = False
        self.readiness = Readiness()

    def run(self) -> None:
        """Turn until told to stop, then end all daemons and put the compute modes back. Blocks."""
        self._report()
        while not self._stopping:
            for event in self._drain(HEARTBEAT_S):
                self._take(event)
            self._restarts.start_due()
            if not self._stopping:
                self._turn()
                self._report()
        self._end()

    @property
    def minors(self) -> Mapping[str, int]:
        """The numbers of the GPUs' device nodes, by UUID, by the last scan. Any thread."""
        scan = self._scan
        gpus = scan.inventory.gpus if scan is not None and scan.inventory is not None else ()
        return {gpu.uuid: gpu.minor for gpu in gpus if gpu.minor is not None}

    @property
    def claims(self) -> Mapping[str, str]:
        """What was not put back, at the end."""
        return self._modes.claims

    def _drain(self, timeout_s: float) -> list[MpsEvent]:
        """All events there are; waits for the first one at most that long, or until time alone changes something."""
        times = (self._restarts.next_at, self._with.adoption.next_at)
        due = [at - self._clock() for at in times if at is not None]
        events: list[MpsEvent] = []
        try:
            events.append(self._events.get(timeout=max(0.0, min([timeout_s, *due]))))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            return events

    def _take(self, event: MpsEvent) -> None:  # noqa: C901 - the table of what can happen
        self._unheard.discard(type(event))
        match event:
            case ConfigRead():
                self._with.adoption.take(event)
            case GrantsRead():
                self._wishes.take(event)
            case GpusScanned():
                self._take_scan(event)
            case DaemonSeen():
                self._with.crew.note(event)
            case ModesSeen():
                self._modes = event
            case GpusOccupied():
                self._occupied = event.by
            case SharedMemorySeen():
                self._shared_memory = event
            case PauseOrdered():
                self._pauses.order(event.pause)
            case SignalReceived(number=number) if number in _STOP_SIGNALS:
                self._stopping = True
            case SignalReceived():
                self._with.adoption.hurry()
                self._with.look_now()
            case ServiceCrashed():
                self._restarts.note(event)
            case Ping():
                event.answered.set()

    def _take_scan(self, event: GpusScanned) -> None:
        before, self._scan = self._scan, event
        if event.driver.state is not DriverState.READY or event.inventory is None:
            self._with.modes.see(None)
            return
        if before is None or before.scanned_at != event.scanned_at or before.driver.state is not DriverState.READY:
            self._with.modes.see(event.inventory)
        if before is None or before.inventory != event.inventory:
            self._with.adoption.follow(event.inventory, event.ailments)

    def _turn(self) -> None:
        """Judge a new configuration, plan, order. A defect in planning leaves everything as it is."""
        adoption = self._with.adoption
        self._judge()
        self._with.driver.configure(adoption.expected)
        self._pauses.follow(adoption.expected)
        try:
            self._plan()
            self._defect = ""
        except Exception as error:  # noqa: BLE001 - a defect that a file brings to light leaves the daemons as they are
            described = describe_exception(error)
            if described["error"] != self._defect:
                self._defect = described["error"]
                self._with.log(Reason.SERVICE_RESTARTED, "planning failed, all daemons stay as they are", **described)
        self._with.driver.consider(
            pause=self._pauses.current,
            is_needed=self._may_open_driver
            and (self._wishes.may_need_driver(adoption.expected) or bool(self._modes.claims)),
            is_settled=(self._pauses.current is None or self._pauses.is_settled)
            and self._modes.claims.keys() <= self._course.claims | self._modes.unreleasable.keys(),
            staying=self._course.staying,
        )
        may_look = self._with.driver.is_open and self._pauses.current is None
        uncertain = self._wishes.find_uncertain(self._modes.claims) & self._find_present() if may_look else frozenset()
        self._occupied = {gpu: text for gpu, text in self._occupied.items() if gpu in uncertain}
        self._with.occupancy.watch(uncertain)

    @property
    def _may_open_driver(self) -> bool:
        """Not before it is known that there is no pause: what is paused from the start is not touched at all."""
        return self._unheard.isdisjoint({ConfigRead, PauseOrdered})

    def _judge(self) -> None:
        adoption, scan = self._with.adoption, self._scan
        if scan is None or scan.inventory is None:
            return
        applied = adoption.judge(scan.inventory, scan.ailments)
        if applied is not None:
            shared = applied.sharing.mps is not None
            adoption.confirm(applied, "the control daemons of MPS follow" if shared else "nothing is shared by MPS")

    def _plan(self) -> None:
        crew, config = self._with.crew, self._with.adoption.config
        if config is not None and self._scan is not None and self._scan.inventory is not None:
            self._wishes.follow(config, self._scan.inventory, self._with.adoption.pins)
        if problem := self._wishes.find_problem(self._with.adoption.expected):
            self._course = keep_all(crew.standings, text=problem)
        else:
            wishes = self._wishes.build(crew.in_use, claims=self._modes.claims, occupied=self._occupied)
            self._course = plan_daemons(wishes, crew.standings, self._build_surroundings())
        number = self._with.modes.want(self._course.claims)
        crew.follow(self._course)
        self._planned = _Planned(digest=self._wishes.digest, modes=number)

    def _build_surroundings(self) -> Surroundings:
        pauses = self._pauses
        return Surroundings(
            present=self._find_present(),
            claimed=self._modes.claimed,
            unclaimable=self._modes.unclaimable,
            paused=str(pauses.current) if pauses.current is not None else "",
            is_pause_settled=pauses.is_settled,
            obstacle=self._find_obstacle(),
        )

    def _find_present(self) -> frozenset[str]:
        scan = self._scan
        if scan is None or scan.inventory is None or scan.driver.state is not DriverState.READY:
            return frozenset()
        return list_reachable(scan.inventory.gpus, scan.ailments)

    def _find_obstacle(self) -> str:
        """Why no daemon can be started at all; empty if there is nothing."""
        scan = self._scan
        if self._shared_memory.problem or scan is None:
            return self._shared_memory.problem or "the driver has not answered yet"
        return "" if scan.driver.state is DriverState.READY else f"the driver is not there: {scan.driver.text}"

    def _report(self) -> None:
        crew = self._with.crew
        daemons = crew.build_reports(self._course.steps)
        if self._modes.followed >= self._planned.modes:  # until then a GPU may be claimed that was taken away
            self._heard = self._planned.digest
        self._with.reporter.publish(daemons, answered=crew.answered, heard=self._heard)
        adoption = self._with.adoption
        self.readiness = judge_readiness(
            unheard=self._unheard,
            needs_driver=self._pauses.current is None and self._wishes.may_need_driver(adoption.expected),
            refused=adoption.status.refused or (adoption.status.waiting if adoption.expected is None else None),
            problem=self._wishes.find_problem(adoption.expected) if self._pauses.current is None else "",
            daemons=daemons,
        )

    def _end(self) -> None:
        """End all daemons side by side, and put back what can be. ``claims`` are what is left for the next start."""
        crew = self._with.crew
        crew.end_all()
        ends_at = self._clock() + _ENDS_S
        while not crew.is_empty and self._clock() < ends_at:
            self._go_on_ending()
        ends_at = self._clock() + _MODES_S
        while self._may_put_back() and self._clock() < ends_at:
            self._go_on_ending()

    def _go_on_ending(self) -> None:
        crew = self._with.crew
        self._with.modes.want(keep_all(crew.standings, text="").claims)
        for event in self._drain(_LOOK_S):
            self._take(event)
        self._with.reporter.publish(crew.build_reports({}), answered=crew.answered, heard=self._heard)

    def _may_put_back(self) -> bool:
        """Whether a mode is to be put back that can be, for all that is known."""
        return self._with.driver.is_open and bool(self._modes.claims.keys() - self._modes.unreleasable.keys())
