"""The rounds of the one who knows the GPUs: look at all, leave out who does not answer, probe who ails, let go of all.

What each of these means is decided by others: ``services/roll_call`` who is there, ``services/health`` who is faulty,
``services/driver_watch`` what is said of the driver. Here is what is done when.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import msgspec

from nvdp.model.deviceref import DeviceRef, RefKind
from nvdp.model.health import Ailment
from nvdp.model.pause import Pause
from nvdp.model.status import DriverState
from nvdp.nvml.frames import Probed, Refused, Scanned
from nvdp.nvml.outcomes import Died, Hung, Outcome
from nvdp.planning.release import asks_for_reset
from nvdp.services.driver_watch import DriverWatch
from nvdp.services.gpu_users import GpuUsers
from nvdp.services.health import HealthWatch
from nvdp.services.nvml_counts import GpuObserver, count_outcome
from nvdp.services.nvml_session import NvmlSession
from nvdp.services.probing import Probing, find_patients
from nvdp.services.roll_call import RollCall
from nvdp.services.watching import Watching

# However many hang: a thousand times what a call takes.
_SHORTEST_LIMIT_S: Final = 0.25


_UNANSWERED: Final = "the pause is over, and the driver has not answered yet"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals and limits, in seconds, and whether to look who computes once a GPU asks for a reset.

    That is none of the ``excluded`` GPUs, and they are not looked at for it.
    """

    rescan_interval_s: float = 10.0
    remove_after_s: float = 300.0
    call_timeout_s: float = 5.0
    asks_who_computes: bool = False
    excluded: frozenset[str] = frozenset()


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the rounds ask. ``health`` is used under ``hearing`` only: events come in between, on other threads."""

    session: NvmlSession
    roll: RollCall
    driver: DriverWatch
    health: HealthWatch
    hearing: threading.Lock
    watching: Watching
    probing: Probing
    users: GpuUsers
    observer: GpuObserver


class Rounds:
    """Used by one thread, but for ``settings``, which any may replace, and ``clear``.

    ``show`` is called where others should see at once what is known by now; ``may_ask`` says whether the driver may be
    asked (still): it is not while it is let go of.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        show: Callable[[], None],
        may_ask: Callable[[], bool],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._with = parts
        self._show = show
        self._may_ask = may_ask
        self._clock = clock
        self._wall = wall
        self._scan_due_at = clock()
        self._looked_at = float("-inf")
        self.settings = Settings()
        self.scanned_at: float | None = None

    def look_soon(self) -> None:
        """The next scan is due now."""
        self._scan_due_at = self._clock()

    def look_anew(self, *, otherwise: bool = False) -> None:
        """The next scan is due now, in a new session; if it is to look ``otherwise``, this one is not gone back to."""
        self.look_soon()
        self._with.session.renew()
        if otherwise:
            self._with.session.close()

    def find_due(self) -> float:
        """When there is something to do (monotonic seconds), should nothing come in before."""
        parts = self._with
        self._scan_due_at = min(self._scan_due_at, self._clock() + self.settings.rescan_interval_s)
        due = [self._scan_due_at, *filter(None, [parts.session.former_ends_at])]
        if parts.driver.is_ready:
            expiry = parts.roll.find_next_expiry(remove_after_s=self.settings.remove_after_s)
            with parts.hearing:
                well_at = parts.health.next_look_at
            # A look that may end a fault is a scan. One that did not end it is repeated no sooner than any other.
            if well_at is not None and well_at > self._looked_at:
                self._scan_due_at = min(self._scan_due_at, well_at)
                due.append(well_at)
            due += [at for at in (parts.probing.next_due_at, parts.watching.due_at, expiry) if at is not None]
        return min(due)

    def let_go(self, pause: Pause) -> None:
        """Show the pause, then end the session; blocks for a second or two at most. Nothing if it is so already."""
        parts = self._with
        if parts.driver.status.state is not DriverState.PAUSED or parts.driver.status.text != str(pause):
            parts.driver.pause(pause)
            with parts.hearing:
                parts.health.lose_all()
            parts.roll.let_go(str(pause))
            parts.probing.follow({})
            parts.users.forget()
            self._show()  # before anything that may take its time
        parts.session.close()

    def take_back(self) -> None:
        """The driver may be asked again; that is shown before it is, for the answer may take a minute."""
        if self._with.driver.status.state is DriverState.PAUSED:
            self._with.driver.take_back()
            self._with.roll.let_go(_UNANSWERED)
            self._show()

    def scan_due(self) -> bool:
        """Scan if it is time. Whether a scan was complete."""
        is_due = self._may_ask() and self._scan_due_at <= self._clock()
        return is_due and self._scan()

    def look_after(self) -> None:
        """Forget who was absent too long, probe who ails, and look anew if no events are heard.

        Nothing of it while the driver is not there.
        """
        parts = self._with
        parts.session.end_former()
        if not parts.driver.is_ready or parts.roll.presence is None:
            return
        parts.roll.expire(remove_after_s=self.settings.remove_after_s)
        parts.probing.follow(find_patients(parts.roll.presence, parts.roll.silenced))
        skip = [(key, entry.ref) for key, entry in parts.roll.silenced.items()]
        parts.probing.start_due(skip, limit_s=self.settings.call_timeout_s)
        if parts.watching.take_due():
            self.look_anew()

    def take_probe(self, key: str, outcome: Outcome | None) -> None:
        """A probe that came back means that scans may ask the GPU again; a clean one promises that it is well."""
        self._with.probing.finish(key)
        if isinstance(outcome, Hung):
            count_outcome(outcome, self._with.observer)
        if not isinstance(outcome, Probed):
            if isinstance(outcome, Refused) or (isinstance(outcome, Hung) and outcome.gpu is None):
                self.look_soon()  # NVML as a whole: it may have gone from everybody
            return
        is_clean = outcome.gpu is not None and outcome.fault is None
        if self._with.roll.readmit(key) or is_clean:
            self.look_anew()

    def clear(self, ref: DeviceRef) -> tuple[str, Ailment | None] | None:
        """Forget the faults of the GPU that is meant: its UUID, and what ails it still. None if there is none such."""
        presence = self._with.roll.presence
        for sighting in presence.sightings if presence is not None else ():
            gpu = sighting.gpu
            if ref.kind is RefKind.INDEX and not sighting.has_index:
                continue  # that index may be another's now
            if ref.matches(gpu_uuid=gpu.uuid, pci=gpu.pci, index=gpu.index):
                with self._with.hearing:
                    left = self._with.health.clear(gpu.uuid)
                return gpu.uuid, sighting.ailment or left
        return None

    def _scan(self) -> bool:
        """Scan, in as many tries as there are GPUs to be left out of it. Whether a scan was complete.

        Each GPU that hangs leaves the next one a quarter of the time, so that, if all of 16 do, all are known after
        twice a limit of 5 s, the starts of as many children included.
        """
        parts, started, limit_s = self._with, self._clock(), self.settings.call_timeout_s
        while True:
            init_limit_s = parts.driver.find_init_limit(call_timeout_s=self.settings.call_timeout_s)
            outcome = parts.session.scan(
                parts.roll.skipped, limit_s=limit_s, init_limit_s=init_limit_s, ancestors=parts.roll.asks_ancestors
            )
            if not self._may_ask():
                return False
            count_outcome(outcome, parts.observer)
            if isinstance(outcome, Scanned):
                self._take_scan(outcome, seconds=self._clock() - started)
                return True
            if not isinstance(outcome, Refused | Hung | Died):
                return False
            dispensed = parts.roll.dispense_with(outcome)
            blamed = parts.roll.find_blamed(outcome) if not dispensed else None
            parts.driver.note(outcome, children=parts.session.children_failed, of_gpu=dispensed or blamed is not None)
            if dispensed:
                continue
            if blamed is not None:
                parts.roll.silence(blamed, show=parts.driver.is_ready)
                if isinstance(outcome, Hung):
                    limit_s = min(limit_s, max(_SHORTEST_LIMIT_S, limit_s / 4))
                self._show()  # the scan goes on without it, and may wait as long for the next one
                continue
            retry_s = parts.driver.fail(outcome, retry_every_s=self.settings.rescan_interval_s)
            if retry_s is not None:
                self._lose_driver(retry_s)
                return False

    def _lose_driver(self, retry_s: float) -> None:
        self._scan_due_at = self._clock() + retry_s
        self._with.users.forget()
        with self._with.hearing:
            self._with.health.lose_all()
        self._with.roll.lose_driver(self._with.driver.status.text)

    def _take_scan(self, scanned: Scanned, *, seconds: float) -> None:
        parts = self._with
        parts.observer.scan_took(seconds)
        self.scanned_at = self._wall()
        self._scan_due_at = self._clock() + self.settings.rescan_interval_s
        presence, inventory = parts.roll.take(scanned), scanned.inventory
        was_reloaded = parts.driver.succeed(inventory.driver, gpus=len(inventory.gpus), seconds=seconds)
        self._looked_at = self._clock()
        with parts.hearing:
            if was_reloaded:
                parts.health.note_driver_reset()
            parts.health.take_scan(presence, scanned.vitals)
        parts.watching.follow(scanned.watch)
        parts.watching.tell(scanned, known={sighting.gpu.uuid for sighting in presence.sightings})
        if self.settings.asks_who_computes and self._is_reset_asked(scanned):
            ours = [gpu.uuid for gpu in inventory.gpus if gpu.uuid not in self.settings.excluded]
            parts.users.look(ours, limit_s=self.settings.call_timeout_s)
        else:
            parts.users.forget()

    def _is_reset_asked(self, scanned: Scanned) -> bool:
        """Whether one of our GPUs asks for a reset."""
        vitals = ((uuid, one) for uuid, one in scanned.vitals.items() if uuid not in self.settings.excluded)
        return asks_for_reset(one.recovery_action or "" for _, one in vitals)
