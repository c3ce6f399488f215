"""The service that knows the GPUs: it scans them through NVML and says what there is and what ails.

Nothing here ends the process. A driver that is not there is waited for; a GPU whose call does not return is left out
of the scans and probed alone; what fails as a whole is tried again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from nvdp.config.schema import HealthSettings
from nvdp.host.sysfs import Sysfs
from nvdp.log import Log
from nvdp.model.reasons import Cause, Reason
from nvdp.nvml.children import NvmlChildren
from nvdp.nvml.frames import Notice, Probed, Refused, Scanned, WatchFailed
from nvdp.nvml.outcomes import Died, Hung, Outcome, is_gpus_fault
from nvdp.planning.presence import (
    Presence,
    Silenced,
    expire,
    find_next_expiry,
    identify,
    lose_driver,
    merge_scan,
    silence,
)
from nvdp.services.driver_watch import DriverWatch, Failure
from nvdp.services.events import GpusScanned, Post
from nvdp.services.health import HealthWatch, KnownFaults
from nvdp.services.nvml_counts import GpuObserver, count_outcome
from nvdp.services.nvml_session import NvmlSession
from nvdp.services.probing import Probing, find_patients
from nvdp.services.watching import WatchEnded, Watching

_STOP_WAIT_S: Final = 1.0


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    rescan_interval_s: float = 10.0
    remove_after_s: float = 300.0
    call_timeout_s: float = 5.0


class _Wake(msgspec.Struct, frozen=True):
    """Look at the clock again, at the GPUs as they are known, or at everything."""

    at_gpus: bool = False
    at_everything: bool = False


class _ProbeDone(msgspec.Struct, frozen=True):
    key: str
    outcome: Outcome | None


_Message: TypeAlias = _Wake | _ProbeDone | WatchEnded


class GpuService:
    """``start`` it; it posts ``GpusScanned`` after each complete scan and whenever something changed.

    All methods may be called from any thread; none but ``stop`` blocks. The threads are named ``gpus``, ``gpu-probe``
    and, for each child, ``nvml-events``. An exception that nobody expected ends the thread ``gpus``; ``start`` starts
    it again, and what was known is still known. ``sysfs`` is None on a simulated node, whose library knows the NUMA
    nodes itself.
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
        find_control_nodes: Callable[[], tuple[str, ...]],
        faults: KnownFaults | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        first_probe_delay_s: float = 1.0,
    ) -> None:
        self._children = children
        self._post_event = post
        self._log = log
        self._observer = observer
        self._find_control_nodes = find_control_nodes
        self._clock = clock
        self._wall = wall
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._settings = _Settings()
        self._session = NvmlSession(children, sysfs=sysfs, on_notice=self._take_event, clock=clock)
        self._watching = Watching(observer, clock=clock)
        self._driver = DriverWatch(log, clock=clock)
        self._probing = Probing(children, report=self._report_probe, clock=clock, first_delay_s=first_probe_delay_s)
        self._presence: Presence | None = None
        self._silenced: dict[str, Silenced] = {}
        self._scan_due_at = clock()
        self._scanned_at: float | None = None
        self._looked_at = float("-inf")
        self._posted: GpusScanned | None = None
        self._hearing = threading.Lock()  # guards what the driver's events change, and the order of what is posted
        self._health = HealthWatch(faults or KnownFaults(), log=log, observer=observer, clock=clock, wall=wall)

    def start(self) -> None:
        """Start the thread; nothing if it runs."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name=self.THREAD, daemon=True)
            self._thread.start()

    def configure(
        self,
        *,
        rescan_interval_s: float,
        remove_after_s: float,
        call_timeout_s: float,
        driver_root: str | None = None,
        health: HealthSettings | None = None,
    ) -> None:
        """New intervals and limits, in seconds, from the next wait or scan on, and new rules of health.

        Another ``driver_root``, the driver's files as this process sees them, is looked into at once.
        """
        if health is not None:
            with self._hearing:
                self._health.configure(health)
        self._settings = _Settings(
            rescan_interval_s=rescan_interval_s, remove_after_s=remove_after_s, call_timeout_s=call_timeout_s
        )
        moved = driver_root is not None and self._children.use_driver_root(driver_root)
        self._inbox.put(_Wake(at_everything=moved))

    def look_now(self) -> None:
        """Scan at once, in a new session, which also sees what was plugged in since."""
        self._inbox.put(_Wake(at_everything=True))

    def stop(self) -> None:
        """End the threads and all children; blocks for a second or so, whatever hangs. There is no way back."""
        self._stopping = True
        self._children.close_all()
        self._inbox.put(_Wake())
        if self._thread is not None:
            self._thread.join(_STOP_WAIT_S)

    # What follows runs in the thread "gpus", but for _report_probe and _take_event.

    def _run(self) -> None:
        try:
            while not self._stopping:
                scanned = self._scan_due_at <= self._clock() and self._scan()
                self._session.end_former()
                self._look_after()
                self._post(always=scanned)
                self._wait()
        finally:
            self._session.close()

    def _wait(self) -> None:
        """Until something is due or comes in."""
        now = self._clock()
        self._scan_due_at = min(self._scan_due_at, now + self._settings.rescan_interval_s)
        due = [self._scan_due_at, *filter(None, [self._session.former_ends_at])]
        if self._driver.is_ready and self._presence is not None:
            expiry = find_next_expiry(self._presence, remove_after_s=self._settings.remove_after_s)
            with self._hearing:
                well_at = self._health.next_look_at
            # A look that may end a fault is a scan. One that did not end it is repeated no sooner than any other.
            if well_at is not None and well_at > self._looked_at:
                self._scan_due_at = min(self._scan_due_at, well_at)
                due.append(well_at)
            due += [at for at in (self._probing.next_due_at, self._watching.due_at, expiry) if at is not None]
        try:
            self._take(self._inbox.get(timeout=max(0.0, min(due) - now)))
            while True:
                self._take(self._inbox.get_nowait())
        except queue.Empty:
            return

    def _take(self, message: _Message) -> None:
        if isinstance(message, _ProbeDone):
            self._take_probe(message.key, message.outcome)
        elif isinstance(message, WatchEnded):
            self._watching.take_end(message, self._session.pid)
        elif message.at_everything:
            self._look_again()
        elif message.at_gpus:
            self._scan_due_at = self._clock()

    def _look_again(self) -> None:
        self._scan_due_at = self._clock()
        self._session.renew()

    def _scan(self) -> bool:
        """Scan, in as many tries as there are GPUs to be left out of it. Whether a scan was complete."""
        started = self._clock()
        while True:
            skip = [entry.ref for entry in self._silenced.values()]
            outcome = self._session.scan(skip, limit_s=self._settings.call_timeout_s)
            count_outcome(outcome, self._observer)
            if isinstance(outcome, Scanned):
                self._take_scan(outcome, seconds=self._clock() - started)
                return True
            if not isinstance(outcome, Refused | Hung | Died):
                return False
            if self._silence(outcome):
                continue
            retry_s = self._driver.fail(outcome, retry_every_s=self._settings.rescan_interval_s)
            if retry_s is not None:
                self._lose_driver(retry_s)
                return False

    def _silence(self, outcome: Failure) -> bool:
        """Leave the GPU that is to blame out of the scans. False if there is none, or if leaving it out is no help."""
        if not is_gpus_fault(outcome) or outcome.gpu is None:
            return False
        ref = outcome.gpu
        if any(entry.ref == ref for entry in self._silenced.values()):
            return False
        cause = Cause.CALL_TIMEOUT if isinstance(outcome, Hung) else Cause.CALL_FAILED
        uuid = identify(self._presence, ref)
        entry = Silenced(ref=ref, uuid=uuid, cause=cause, call=outcome.call, text=outcome.text)
        self._silenced[uuid or str(ref)] = entry
        if self._presence is not None and self._driver.is_ready:
            self._presence = silence(self._presence, entry, wall=self._wall())
            self._post()  # the scan goes on without it, and may wait as long for the next one
        return True

    def _lose_driver(self, retry_s: float) -> None:
        self._scan_due_at = self._clock() + retry_s
        with self._hearing:
            self._health.lose_all()
        if self._presence is not None:
            self._presence = lose_driver(self._presence, self._driver.status.text, wall=self._wall())

    def _take_scan(self, scanned: Scanned, *, seconds: float) -> None:
        self._observer.scan_took(seconds)
        self._scanned_at = self._wall()
        self._scan_due_at = self._clock() + self._settings.rescan_interval_s
        inventory, before = scanned.inventory, self._presence
        # A GPU to be left out that was not met is gone, or another card has its place now: the next scan will tell.
        self._silenced = {key: entry for key, entry in self._silenced.items() if entry.ref in scanned.skipped}
        self._presence = merge_scan(before, inventory, self._silenced.values(), now=self._clock(), wall=self._wall())
        was_reloaded = self._driver.succeed(inventory.driver, gpus=len(inventory.gpus), seconds=seconds)
        self._looked_at = self._clock()
        with self._hearing:
            if was_reloaded:
                self._health.note_driver_reset()
            self._health.take_scan(self._presence, scanned.vitals)
        self._watching.follow(scanned.watch)
        if before is not None:
            self._tell(Reason.DEVICE_ADDED, "was added", self._presence, before)

    def _look_after(self) -> None:
        """Forget who was absent too long, probe who ails, and look anew if no events are heard.

        Nothing of it while the driver is not there.
        """
        if not self._driver.is_ready or self._presence is None:
            return
        before, remove_after_s = self._presence, self._settings.remove_after_s
        self._presence = expire(before, now=self._clock(), remove_after_s=remove_after_s)
        self._tell(Reason.DEVICE_REMOVED, "was removed", before, self._presence)
        self._probing.follow(find_patients(self._presence, self._silenced))
        skip = [(key, entry.ref) for key, entry in self._silenced.items()]
        self._probing.start_due(skip, limit_s=self._settings.call_timeout_s)
        if self._watching.take_due():
            self._look_again()

    def _report_probe(self, key: str, outcome: Outcome | None) -> None:
        """Called from the probe's thread."""
        self._inbox.put(_ProbeDone(key, outcome))

    def _take_probe(self, key: str, outcome: Outcome | None) -> None:
        """A probe that came back means that scans may ask the GPU again; a clean one promises that it is well."""
        self._probing.finish(key)
        if isinstance(outcome, Hung):
            count_outcome(outcome, self._observer)
        if not isinstance(outcome, Probed):
            return
        was_silenced = self._silenced.pop(key, None) is not None
        is_clean = outcome.gpu is not None and outcome.fault is None
        if was_silenced or is_clean:
            self._look_again()

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

    def _tell(self, reason: Reason, what: str, more: Presence, less: Presence) -> None:
        """Log the GPUs of ``more`` that are not in ``less``."""
        known = {sighting.gpu.uuid for sighting in less.sightings}
        for gpu in more.inventory.gpus:
            if gpu.uuid not in known:
                self._log(reason, f"{gpu.product or 'a GPU'} {what}", device=gpu.uuid, index=gpu.index, pci=gpu.pci)

    def _post(self, *, always: bool = False) -> None:
        if not self._stopping:
            with self._hearing:
                self._post_now(always=always)

    def _post_now(self, *, always: bool) -> None:
        presence = self._presence
        event = GpusScanned(
            driver=self._driver.status,
            inventory=presence.inventory if presence is not None else None,
            ailments=self._health.find_ailments(presence) if presence is not None else {},
            records=self._health.records,
            recoveries=self._health.take_recoveries(),
            control_nodes=self._find_control_nodes(),
            children_abandoned=self._children.count_abandoned(),
            scanned_at=self._scanned_at,
            at=self._clock(),
            wall=self._wall(),
        )
        posted = self._posted
        if not always and posted is not None:
            same_time = msgspec.structs.replace(event, at=posted.at, wall=posted.wall)
            if same_time == posted:
                return
        self._posted = event
        self._post_event(event)
