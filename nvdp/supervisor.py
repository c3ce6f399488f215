"""The supervisor: takes events, plans once, and sends commands until every resource equals the plan.

It runs on the main thread and owns all state. To learn what happens when something happens, find its event in
``_take``; what follows from the new state is always the same turn: judge the configuration, plan, give out lists.
"""

from __future__ import annotations

import queue
import signal
import time
import traceback
from collections.abc import Callable

import msgspec

from nvdp.config.schema import Config
from nvdp.model.held import Held
from nvdp.model.listing import DeviceIDStrategy
from nvdp.model.reasons import Reason
from nvdp.model.status import DriverState, Status
from nvdp.planning.announcing import describe_changes
from nvdp.planning.holders import count_held_elsewhere
from nvdp.planning.indices import keep_indices, restore_indices
from nvdp.planning.plan import Inputs, Plan, build_plan
from nvdp.planning.withdrawal import QUIET_S
from nvdp.services.collaborators import Collaborators
from nvdp.services.events import (
    AllocateAnswered,
    ConfigRead,
    Event,
    GpusScanned,
    HeldRead,
    OfferedRead,
    PauseOrdered,
    Ping,
    ResourceReport,
    ServiceCrashed,
    SignalReceived,
    SocketDirectoryChanged,
)
from nvdp.services.offers import Cause
from nvdp.services.picture import Picture
from nvdp.services.restarts import Restarts
from nvdp.services.telling import Telling

_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_ACTORS_STOP_S = 2.0


class Supervisor:
    """Build it, then ``run`` it on the main thread; it returns the exit code after SIGTERM or SIGINT.

    ``held`` is the first answer about holders, waited for at the start: what pods hold then is in the first lists.
    """

    def __init__(
        self,
        events: queue.SimpleQueue[Event],
        collaborators: Collaborators,
        *,
        held: Held,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._events = events
        self._with = collaborators
        self._clock = clock
        self._scan: GpusScanned | None = None
        self._telling = Telling(collaborators.log, collaborators.observer)
        self._held = held
        self._podresources_up = False
        self._asked_at = self._allocated_at = float("-inf")
        self._asks_often = False
        self._plan: Plan | None = None
        self._plan_error = ""
        self._restarts = Restarts(
            restart=lambda thread: collaborators.offers.restart(thread) or collaborators.restart(thread),
            count=collaborators.observer.service_restarted,
            log=collaborators.log,
            clock=clock,
        )
        self._picture = Picture(
            adoption=collaborators.adoption,
            offers=collaborators.offers,
            restarts=self._restarts,
            clock=clock,
            wall=wall,
        )
        self._indices = restore_indices(collaborators.memory.indices, now=clock())
        self._cause: Cause | None = None
        self._stale = False
        self._stopping = False
        collaborators.offers.restore(held, names=collaborators.memory.names)

    def run(self) -> int:
        """Turn until told to stop. Blocks; the exit code is 0."""
        while not self._stopping:
            for event in self._drain():
                self._take(event)
            self._restarts.start_due()
            if not self._stopping:
                self._turn()
                self._steer()
                self._with.publish_status(self._build_status())
        self._with.offers.stop(timeout_s=_ACTORS_STOP_S)
        return 0

    def _drain(self) -> list[Event]:
        """All events there are; waits for the first one, at most until time alone may change something."""
        check_at = self._plan.check_at if self._plan is not None else None
        times = (check_at, self._restarts.next_at, self._with.adoption.next_at, self._with.steering.next_at)
        due = [at for at in times if at is not None]
        events: list[Event] = []
        try:
            events.append(self._events.get(timeout=max(0.0, min(due) - self._clock()) if due else None))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            return events

    def _take(self, event: Event) -> None:  # noqa: C901 - the table of what can happen
        match event:
            case ConfigRead():
                self._with.adoption.take(event)
            case GpusScanned():
                self._take_scan(event)
            case HeldRead():
                self._take_held(event)
            case OfferedRead():
                self._with.offers.reclaim(event.resources, requested_at=event.requested_at)
            case SocketDirectoryChanged():
                self._take_directory(event)
            case ResourceReport():
                self._with.offers.note(event)
                if event.doubtful:
                    self._with.standing.ask_soon()
                self._stale = self._stale or self._waiting
            case AllocateAnswered():
                self._allocated_at = self._clock()
                self._stale = self._stale or self._waiting or self._hands_out_indices
            case PauseOrdered():
                self._with.steering.order(event.pause)
            case SignalReceived():
                self._take_signal(event.number)
            case ServiceCrashed():
                self._restarts.note(event)
            case Ping():
                event.answered.set()

    @property
    def _waiting(self) -> bool:
        return self._plan is not None and self._plan.waiting

    @property
    def _hands_out_indices(self) -> bool:
        """Whether it must be remembered, at once, what each pod was told."""
        config = self._with.adoption.config
        return config is not None and config.flags.plugin.device_id_strategy is DeviceIDStrategy.INDEX

    def _steer(self) -> None:
        """Let go of the driver for a while, if it is time; have holders, who come to light late, asked accordingly."""
        is_known = self._held.source is not None and self._held.requested_at >= self._allocated_at + QUIET_S
        is_held = not is_known or self._plan is None or any(self._plan.holders.values())
        self._with.steering.consider(self._scan, held=is_held)
        if self._asks_often != (self._waiting or self._with.steering.watches_holders):
            self._asks_often = not self._asks_often
            self._with.holders.set_waiting(self._asks_often)

    def _mark(self, cause: str, at: float) -> None:
        self._stale, self._cause = True, Cause(cause, at)

    def _take_scan(self, event: GpusScanned) -> None:
        before, self._scan = self._scan, event
        self._with.memory.remember_health(event.records)
        if event.inventory is not None and event.driver.state is DriverState.READY:
            self._with.memory.remember_inventory(event.inventory)
        if event.inventory is None:
            return
        untold = self._with.adoption.find_untold(event.inventory, event.ailments)
        for uuid in self._telling.tell_scan(event, untold, plan=self._plan, holders=self._held.holdings):
            self._picture.note_health(uuid, event.wall)
        if before is None or (before.inventory, before.control_nodes) != (event.inventory, event.control_nodes):
            self._mark("inventory", event.at)
            self._with.adoption.follow(event.inventory, event.ailments)
        elif before.ailments != event.ailments:
            self._mark("health", event.at)

    def _take_held(self, event: HeldRead) -> None:
        if self._held.source is None:
            self._with.offers.restore(event.held, names=self._with.memory.names)
        changed = event.held.holdings != self._held.holdings
        self._held, self._podresources_up = event.held, event.podresources_up
        self._stale = self._stale or changed or self._waiting

    def _take_directory(self, event: SocketDirectoryChanged) -> None:
        if self._with.offers.kubelet_changed(event.kubelet, at=event.at):
            self._with.holders.ask()
        self._with.offers.look()
        self._with.standing.ask_soon()

    def _take_signal(self, number: int) -> None:
        if number in _STOP_SIGNALS:
            self._stopping = True
        elif number == signal.SIGHUP:
            self._with.adoption.hurry()
            self._with.look_now()
            self._with.offers.look()

    def _turn(self) -> None:
        """Judge a new configuration, then plan and give out until nothing more can be done at once."""
        if self._scan is None or self._scan.inventory is None:
            self._with.steering.configure(self._with.adoption.expected)  # how often to try again is said there
            return
        before = self._plan
        applied = self._with.adoption.judge(self._scan.inventory, self._scan.ailments)
        if applied is not None:
            self._stale = True
            if before is not None or self._cause is None:  # the first lists come for the GPUs
                self._cause = Cause("config", self._with.adoption.due_at)
        if self._plan_all(self._scan) and applied is not None:
            self._with.steering.configure(applied)
            assert self._plan is not None
            self._with.adoption.confirm(
                applied, describe_changes(before.planned if before is not None else {}, self._plan.planned)
            )
            self._telling.tell_emptied(before, self._plan, self._scan.ailments)
        elif applied is not None:
            self._with.adoption.reject(f"planning failed: {self._plan_error}")
            self._stale = True
            self._plan_all(self._scan)

    def _plan_all(self, scan: GpusScanned) -> bool:
        """Plan and give out until nothing more can be done at once. False if planning failed."""
        while self._with.adoption.config is not None and (self._stale or self._due):
            self._stale = False
            if not self._plan_once(self._with.adoption.config, scan):
                return False
        return True

    @property
    def _due(self) -> bool:
        at = self._plan.check_at if self._plan is not None else None
        return at is not None and at <= self._clock()

    def _plan_once(self, config: Config, scan: GpusScanned) -> bool:
        """Plan and give out. False if planning failed: then the previous plan stays, and is shown as such."""
        assert scan.inventory is not None
        offers, memory = self._with.offers, self._with.memory
        try:
            plan = build_plan(
                Inputs(
                    config=config,
                    inventory=scan.inventory,
                    ailments=scan.ailments,
                    held=self._held,
                    given=offers.given,
                    names=memory.names,
                    pins=self._with.adoption.pins,
                    control_nodes=scan.control_nodes,
                    now=self._clock(),
                    indices=self._indices,
                    parents=memory.parents,
                )
            )
        except Exception as error:  # noqa: BLE001 - a defect in planning must not take away what is given out
            text = f"{type(error).__name__}: {error}"
            if text != self._plan_error:
                self._with.log(
                    Reason.SERVICE_RESTARTED,
                    f"planning failed, the previous plan stays: {text}",
                    error=text,
                    trace=traceback.format_exc(),
                )
            self._plan_error = text
            self._plan = None if self._plan is None else msgspec.structs.replace(self._plan, check_at=None)
            return False
        self._plan_error = ""
        before, self._plan, self._indices = self._plan, plan, plan.indices
        memory.remember_handed_out(indices=keep_indices(plan.indices), parents=plan.parents)
        self._picture.note_plan(plan)
        if offers.carry_out(plan.lists, cause=self._cause):
            memory.remember_names(plan.lists)
        self._cause = None
        self._telling.tell_plan(before, plan)
        if plan.ask_since is not None and self._asked_at < plan.ask_since:
            self._asked_at = self._clock()
            self._with.holders.ask()
        offers.set_held_elsewhere(count_held_elsewhere(plan.lists, self._held, parents=plan.parents))
        return True

    def _build_status(self) -> Status:
        return self._picture.build(
            self._scan,
            self._plan,
            pause=self._with.steering.pause,
            planning_error=self._plan_error,
            held=self._held,
            podresources_up=self._podresources_up,
        )
