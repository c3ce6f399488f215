"""The service that knows the GPUs: it scans them through NVML and says what there is and what ails.

Nothing here ends the process. A driver that is not there is waited for; a GPU whose call does not return is left out
of the scans and probed alone; what fails as a whole is tried again. By order all of it is let go of.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from nvdp.config.schema import HealthSettings
from nvdp.host.devnodes import NodeView
from nvdp.host.sysfs import Sysfs
from nvdp.log import Log
from nvdp.model.deviceref import DeviceRef
from nvdp.model.health import Ailment
from nvdp.model.pause import Pause
from nvdp.nvml.children import NvmlChildren, Source
from nvdp.nvml.frames import Notice, WatchFailed
from nvdp.nvml.outcomes import Died
from nvdp.service_thread import ServiceThread
from nvdp.services.driver_watch import DriverWatch
from nvdp.services.events import GpusScanned, Post
from nvdp.services.gpu_users import GpuUsers, UsersSeen
from nvdp.services.health import HealthWatch
from nvdp.services.nvml_counts import GpuObserver
from nvdp.services.nvml_session import NvmlSession
from nvdp.services.past import Past
from nvdp.services.probing import ProbeDone, Probing
from nvdp.services.roll_call import RollCall
from nvdp.services.rounds import Parts, Rounds, Settings
from nvdp.services.watching import WatchEnded, Watching

_STOP_WAIT_S: Final = 1.0
_RELEASE_LOOK_S: Final = 0.05


class _Wake(msgspec.Struct, frozen=True):
    """Look at the clock again, at the GPUs as they are known, or at everything; ``otherwise``: by other means."""

    at_gpus: bool = False
    at_everything: bool = False
    otherwise: bool = False


_Message: TypeAlias = _Wake | ProbeDone | WatchEnded | UsersSeen


class GpuService:
    """``start`` it; it posts ``GpusScanned`` after each complete scan and whenever something changed.

    All methods may be called from any thread; none but ``stop`` blocks. The threads are named ``gpus``, ``gpu-probe``,
    ``gpu-users`` and, for each child, ``nvml-events``. An exception that nobody expected ends the thread ``gpus``;
    ``start`` starts it again, and what was known is still known. ``sysfs`` is None on a simulated node, whose library
    knows the NUMA nodes itself.
    """

    THREAD: Final = "gpus"

    def __init__(
        self,
        children: NvmlChildren,
        *,
        post: Post,
        log: Log,
        observer: GpuObserver,
        sysfs: Sysfs | None,
        nodes: NodeView,
        past: Past | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        first_probe_delay_s: float = 1.0,
    ) -> None:
        past = past or Past()
        self._children = children
        self._post_event = post
        self._nodes = nodes
        self._clock = clock
        self._wall = wall
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._thread: ServiceThread | None = None
        self._stopping = False
        self._is_held = past.is_held
        self._pause: Pause | None = None
        self._released = threading.Event()
        self._ordering = threading.Lock()  # guards the three above, and that the children are closed as they say
        self._session = NvmlSession(children, sysfs=sysfs, on_notice=self._take_event, clock=clock)
        self._driver = DriverWatch(log, clock=clock, remembered=past.inventory.driver if past.inventory else None)
        self._roll = RollCall(remembered=past.inventory, clock=clock, wall=wall)
        self._health = HealthWatch(past.faults, log=log, observer=observer, clock=clock, wall=wall)
        self._hearing = threading.Lock()  # guards what the driver's events change, and the order of what is posted
        self._watching = Watching(observer, log=log, clock=clock, wall=wall)
        self._users = GpuUsers(children, report=self._inbox.put, observer=observer, clock=clock)
        self._posted: GpusScanned | None = None
        self._rounds = Rounds(
            Parts(
                session=self._session,
                roll=self._roll,
                driver=self._driver,
                health=self._health,
                hearing=self._hearing,
                watching=self._watching,
                probing=Probing(children, report=self._inbox.put, clock=clock, first_delay_s=first_probe_delay_s),
                users=self._users,
                observer=observer,
            ),
            show=self._post,
            may_ask=self._may_ask,
            clock=clock,
            wall=wall,
        )

    def start(self) -> None:
        """Start the thread; nothing if it runs."""
        if self._thread is None or not self._thread.is_at_work:
            self._thread = ServiceThread(self._run, name=self.THREAD)
            self._thread.start()

    def configure(
        self,
        *,
        rescan_interval_s: float,
        remove_after_s: float,
        call_timeout_s: float,
        source: Source | None = None,
        health: HealthSettings | None = None,
        excluded: frozenset[str] = frozenset(),
    ) -> None:
        """New intervals and limits, in seconds, from the next wait or scan on, and new rules of health.

        Another ``source`` is looked into at once. What happens to ``excluded`` GPUs is neither counted nor told.
        """
        if health is not None:
            with self._hearing:
                self._health.configure(health, excluded=excluded)
        self._rounds.settings = Settings(
            rescan_interval_s=rescan_interval_s,
            remove_after_s=remove_after_s,
            call_timeout_s=call_timeout_s,
            asks_who_computes=health is not None and health.release_for_reset,
            excluded=excluded,
        )
        if source is not None:
            self._nodes.use_driver_root(source.driver_root)
        before, after = self._children.source, source or self._children.source
        self._children.use(after)
        self._inbox.put(_Wake(at_everything=before != after, otherwise=before.discovery is not after.discovery))

    def look_now(self) -> None:
        """Scan at once, in a new session, which also sees what was plugged in since."""
        self._inbox.put(_Wake(at_everything=True))

    def pause(self, pause: Pause) -> None:
        """Let go of the driver: all GPUs are out of order, whatever hangs is killed, nothing is asked until ``resume``.

        See ``is_released``. A pause takes the place of another one.
        """
        with self._ordering:
            self._pause, self._is_held = pause, False
            self._children.close_all()
        self._inbox.put(_Wake())

    def resume(self) -> None:
        """Take the driver back, whatever it is by now."""
        with self._ordering:
            if self._pause is None and not self._is_held:
                return
            self._pause, self._is_held = None, False
            self._released.clear()
            self._children.reopen()
        self._inbox.put(_Wake(at_everything=True))

    def is_released(self, pause: Pause) -> bool:
        """Whether it is by this pause that the driver is let go of, and no process of ours has it open any more."""
        with self._ordering:
            return self._pause == pause and self._released.is_set()

    def clear(self, ref: DeviceRef) -> tuple[str, Ailment | None] | None:
        """The operator says that this GPU is well: its faults are forgotten, and it is looked at.

        Its UUID, and what still ails it; None if no GPU is meant. An index is the one of the last scan.
        """
        found = self._rounds.clear(ref)
        if found is not None:
            self._post()
            self._inbox.put(_Wake(at_gpus=True))
        return found

    def stop(self) -> None:
        """End the threads and all children; blocks for a second or so, whatever hangs. There is no way back."""
        self._stopping = True
        self._children.close_all()
        self._inbox.put(_Wake())
        if self._thread is not None:
            self._thread.join(_STOP_WAIT_S)

    # What follows runs in the thread "gpus", but for _take_event.

    def _run(self) -> None:
        try:
            while not self._stopping:
                if (pause := self._pause) is not None:
                    self._let_go(pause)
                else:
                    self._rounds.take_back()
                scanned = self._rounds.scan_due()
                self._rounds.look_after()
                self._post(always=scanned)
                self._wait()
        finally:
            self._session.close()

    def _may_ask(self) -> bool:
        return self._pause is None and not self._is_held and not self._stopping

    def _let_go(self, pause: Pause) -> None:
        """End the session, and tell once no child is left."""
        self._rounds.let_go(pause)
        with self._ordering:
            if self._pause is pause and self._children.are_gone:
                self._released.set()

    def _wait(self) -> None:
        """Until something is due or comes in."""
        try:
            self._take(self._inbox.get(timeout=self._find_timeout()))
            while True:
                self._take(self._inbox.get_nowait())
        except queue.Empty:
            return

    def _find_timeout(self) -> float | None:
        """Seconds until something is due; None if nothing is before something comes in."""
        if self._pause is not None:
            return None if self._released.is_set() else _RELEASE_LOOK_S
        return max(0.0, self._rounds.find_due() - self._clock()) if not self._is_held else None

    def _take(self, message: _Message) -> None:
        if isinstance(message, ProbeDone):
            self._rounds.take_probe(message.key, message.outcome)
        elif isinstance(message, WatchEnded):
            self._watching.take_end(message, self._session.pid)
        elif isinstance(message, UsersSeen):
            self._users.take(message)
        elif message.at_everything:
            self._rounds.look_anew(otherwise=message.otherwise)
        elif message.at_gpus:
            self._rounds.look_soon()

    def _take_event(self, session: int, notice: Notice | Died) -> None:
        """Called from the thread ``nvml-events`` of that session, at once, also while a scan waits for an answer."""
        if isinstance(notice, WatchFailed | Died):
            self._inbox.put(WatchEnded(session, notice))
            return
        with self._hearing:
            is_fatal = self._health.hear(session, notice)
        if is_fatal:
            self._post()  # the list first: a look at the GPUs may take as long as the driver likes
            self._inbox.put(_Wake(at_gpus=True))

    def _post(self, *, always: bool = False) -> None:
        if not self._stopping:
            with self._hearing:
                self._post_now(always=always)

    def _post_now(self, *, always: bool) -> None:
        presence = self._roll.presence
        inventory = presence.inventory if presence is not None else None
        nodes = self._nodes.look(inventory)
        event = GpusScanned(
            driver=self._driver.status,
            inventory=inventory,
            ailments=self._health.find_ailments(presence) if presence is not None else {},
            records=self._health.records,
            recoveries=self._health.take_recoveries(),
            busy=self._users.busy,
            trouble=self._watching.trouble,
            control_nodes=nodes.control,
            missing_nodes=nodes.missing,
            imex_channels=nodes.imex_channels,
            children_abandoned=self._children.count_abandoned(),
            scanned_at=self._rounds.scanned_at,
            at=self._clock(),
            wall=self._wall(),
        )
        posted = self._posted
        same_time = msgspec.structs.replace(posted, at=event.at, wall=event.wall) if posted is not None else None
        if always or event != same_time:
            self._posted = event
            self._post_event(event)
