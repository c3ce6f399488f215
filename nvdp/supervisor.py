"""The supervisor: takes events, plans once, and sends commands until every resource equals the plan.

It runs on the main thread and owns all state. To learn what happens when something happens, find its event in
``_take``; what follows from the new state is always the same turn: judge the configuration, plan, give out lists.
"""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable

from nvdp.model.held import Held
from nvdp.model.inventory import drop_label_facts
from nvdp.model.status import DriverState, Status
from nvdp.planning.announcing import describe_changes
from nvdp.planning.node_facts import LabelFacts
from nvdp.services.collaborators import Collaborators
from nvdp.services.events import (
    AllocateAnswered,
    CdiWritten,
    CheckpointDoubted,
    ConfigRead,
    Event,
    GpusScanned,
    GrantsWritten,
    HeldRead,
    MpsSeen,
    OfferedRead,
    PauseOrdered,
    Ping,
    ResourceReport,
    ServiceCrashed,
    SignalReceived,
    SocketDirectoryChanged,
)
from nvdp.services.list_times import Cause
from nvdp.services.picture import Picture
from nvdp.services.planner import Planner
from nvdp.services.restarts import Restarts
from nvdp.services.specs import Specs
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
        self._scan: GpusScanned | None = None  # as it came
        self._seen: GpusScanned | None = None  # with what is in the way of devices
        self._telling = Telling(collaborators.log, collaborators.observer)
        self._specs = Specs(collaborators.specs, log=collaborators.log, clock=clock, wall=wall)
        self._held = held
        self._podresources_up = False
        self._asks_often = False
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
        self._planner = Planner(collaborators, self._specs, telling=self._telling, picture=self._picture, clock=clock)
        self._stopping = False
        collaborators.offers.restore(held, names=self._planner.names)

    def run(self) -> int:
        """Turn until told to stop. Blocks; the exit code is 0."""
        while not self._stopping:
            for event in self._drain():
                self._take(event)
            self._restarts.start_due()
            if not self._stopping:
                self._turn()
                self._steer()
                self._label()
                self._with.publish_status(self._build_status())
        self._with.offers.stop(timeout_s=_ACTORS_STOP_S)
        return 0

    def _drain(self) -> list[Event]:
        """All events there are; waits for the first one, at most until time alone may change something."""
        plan = self._planner.plan
        times = (
            plan.check_at if plan is not None else None,
            self._restarts.next_at,
            self._with.adoption.next_at,
            self._with.steering.next_at,
            self._specs.next_at,
        )
        due = [at for at in times if at is not None]
        events: list[Event] = []
        try:
            events.append(self._events.get(timeout=max(0.0, min(due) - self._clock()) if due else None))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            return events

    def _take(self, event: Event) -> None:  # noqa: C901, PLR0912 - the table of what can happen
        match event:
            case ConfigRead():
                self._with.adoption.take(event)
            case GpusScanned():
                self._take_scan(event)
            case CdiWritten():
                self._specs.take(event.state)
                self._look_again()
            case MpsSeen():
                self._telling.tell_mps(event.view, self._planner.plan)
                self._planner.see_mps(event.view, at=event.at)
            case GrantsWritten():
                self._planner.note_grants(event.grants)
            case HeldRead():
                self._take_held(event)
            case CheckpointDoubted():
                self._with.offers.repeat()
            case OfferedRead():
                self._with.offers.reclaim(event.resources, requested_at=event.requested_at)
            case SocketDirectoryChanged():
                self._take_directory(event)
            case ResourceReport():
                self._with.offers.note(event)
                if event.doubtful:
                    self._with.standing.ask_soon()
                if self._planner.waits:
                    self._planner.mark()
            case AllocateAnswered():
                self._planner.note_allocation(self._with.adoption.config)
            case PauseOrdered():
                self._with.steering.order(event.pause)
            case SignalReceived():
                self._take_signal(event.number)
            case ServiceCrashed():
                self._restarts.note(event)
            case Ping():
                event.answered.set()

    def _steer(self) -> None:
        """Let go of the driver for a while, if it is time; have holders, who come to light late, asked accordingly."""
        plan = self._planner.plan
        is_held = not self._planner.are_holders_known(self._held) or plan is None or any(plan.holders.values())
        if self._seen is not None and self._seen.inventory is not None:
            untold = self._with.adoption.find_untold(self._seen.inventory, self._seen.ailments)
            self._with.steering.exclude(untold)
        self._with.steering.consider(self._seen, held=is_held)
        if self._asks_often != (self._planner.waits or self._with.steering.watches_holders):
            self._asks_often = not self._asks_often
            self._with.holders.set_waiting(self._asks_often)

    def _label(self) -> None:
        """What is known of the node while the driver answers; at other times its labels stay as they are."""
        if self._with.label is None:
            return
        scan, adoption = self._scan, self._with.adoption
        is_whole = scan is not None and scan.scanned_at is not None and scan.driver.state is DriverState.READY
        if scan is not None and is_whole and scan.inventory is not None:
            self._with.label(LabelFacts(config=adoption.config, inventory=scan.inventory, pins=adoption.pins))

    def _take_scan(self, event: GpusScanned) -> None:
        self._with.memory.remember_health(event.records)
        if event.inventory is not None and event.driver.state is DriverState.READY:
            self._with.memory.remember_inventory(event.inventory)
        self._scan = event
        self._take_seen(self._specs.see(event, self._with.adoption.config))

    def _look_again(self) -> None:
        """See the last scan under the configuration of now, and by what can be handed over now."""
        if self._scan is not None:
            seen = self._specs.see(self._scan, self._with.adoption.config)
            if seen != self._seen:
                self._take_seen(seen)
            self._planner.mark()

    def _take_seen(self, event: GpusScanned) -> None:
        before, self._seen = self._seen, event
        if event.inventory is None:
            return
        untold = self._with.adoption.find_untold(event.inventory, event.ailments)
        for uuid in self._telling.tell_scan(event, untold, plan=self._planner.plan, holders=self._held.holdings):
            self._picture.note_health(uuid, event.wall)
        if before is None or _list_facts(before) != _list_facts(event):
            self._planner.mark(Cause("inventory", event.at))
            self._with.adoption.follow(event.inventory, event.ailments)
        elif before.ailments != event.ailments:
            self._planner.mark(Cause("health", event.at))

    def _take_held(self, event: HeldRead) -> None:
        if self._held.source is None:
            self._with.offers.restore(event.held, names=self._planner.names)
        changed = event.held.holdings != self._held.holdings
        self._held, self._podresources_up = event.held, event.podresources_up
        if changed or self._planner.waits:
            self._planner.mark()

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
        planner, adoption = self._planner, self._with.adoption
        before = planner.plan
        applied = adoption.judge(self._scan.inventory, self._scan.ailments)
        if applied is not None or self._is_patience_over:
            self._look_again()
        if applied is not None and (before is not None or not planner.has_cause):  # the first lists come for the GPUs
            planner.mark(Cause("config", adoption.due_at))
        assert self._seen is not None
        if planner.turn(adoption.config, self._seen, self._held) and applied is not None:
            self._with.steering.configure(applied)
            self._with.runtime.judge(applied.flags.plugin.device_list_strategy)
            assert planner.plan is not None
            adoption.confirm(
                applied, describe_changes(before.planned if before is not None else {}, planner.plan.planned)
            )
            self._telling.tell_emptied(before, planner.plan, self._seen.ailments)
        elif applied is not None:
            adoption.reject(f"planning failed: {planner.error}")
            self._look_again()
            planner.turn(adoption.config, self._seen, self._held)

    @property
    def _is_patience_over(self) -> bool:
        return self._specs.next_at is not None and self._specs.next_at <= self._clock()

    def _build_status(self) -> Status:
        return self._picture.build(
            self._seen,
            self._planner.plan,
            pause=self._with.steering.pause,
            planning_error=self._planner.error,
            held=self._held,
            podresources_up=self._podresources_up,
            mps=self._planner.mps,
        )


def _list_facts(scan: GpusScanned) -> tuple[object, ...]:
    """What a plan depends on besides health."""
    inventory = drop_label_facts(scan.inventory) if scan.inventory is not None else None
    return inventory, scan.control_nodes, scan.missing_nodes, scan.imex_channels
