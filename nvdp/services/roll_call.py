"""Who is there: the GPUs that scans find, miss, or have to leave out, from one scan to the next.

The rules are ``planning/presence``'s; this keeps what they need.
"""

from __future__ import annotations

from collections.abc import Callable

from nvdp.model.inventory import GpuRef, Inventory
from nvdp.model.reasons import Cause
from nvdp.nvml.frames import COMMON_ANCESTOR_CALL, Scanned
from nvdp.nvml.outcomes import Hung, is_gpus_fault
from nvdp.planning.places import Silenced, relocate
from nvdp.planning.presence import (
    Presence,
    expire,
    find_next_expiry,
    identify,
    let_go,
    lose_driver,
    merge_scan,
    recall,
    rename,
    silence,
)
from nvdp.services.driver_watch import Failure


class RollCall:
    """Used by one thread; nothing blocks. ``clock`` is monotonic, ``wall`` is for people.

    ``presence`` is None before the first scan. ``silenced`` are the GPUs that scans leave out, by UUID where it is
    known. ``asks_ancestors`` is false while scans do without a call that hangs. ``remembered`` is what a predecessor
    saw: it is listed, out of order, while nobody can or may look, and what the first scan does not find of it vanished.
    """

    def __init__(
        self,
        *,
        remembered: Inventory | None,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._remembered = recall(remembered) if remembered is not None else None
        self._clock = clock
        self._wall = wall
        self.presence: Presence | None = None
        self.silenced: dict[str, Silenced] = {}
        self.asks_ancestors = True

    @property
    def skipped(self) -> list[GpuRef]:
        """Whom the next scan is to leave out."""
        return [entry.ref for entry in self.silenced.values()]

    def dispense_with(self, outcome: Failure) -> bool:
        """Whether the scan failed at something that the next ones do without, at the price of a better choice of GPUs.

        A call about two GPUs: nobody can say which of them is to blame, and both may well be used. It is asked again
        when the driver was away.
        """
        if not is_gpus_fault(outcome) or outcome.call != COMMON_ANCESTOR_CALL or not self.asks_ancestors:
            return False
        self.asks_ancestors = False
        return True

    def find_blamed(self, outcome: Failure) -> Silenced | None:
        """The GPU to leave out from now on, because of what became of a scan.

        None if no GPU is to blame, or if leaving it out has been no help.
        """
        if not is_gpus_fault(outcome) or outcome.gpu is None:
            return None
        ref = outcome.gpu
        if any(entry.ref == ref for entry in self.silenced.values()):
            return None
        cause = Cause.CALL_TIMEOUT if isinstance(outcome, Hung) else Cause.CALL_FAILED
        uuid = identify(self._known, ref)
        return Silenced(ref=ref, uuid=uuid, cause=cause, call=outcome.call, text=outcome.text)

    def silence(self, entry: Silenced, *, show: bool) -> None:
        """Leave a GPU out of the scans; ``show`` it as ailing at once, without waiting for a scan that is complete."""
        self.silenced[_name(entry)] = entry
        if self.presence is not None and show:
            self.presence = silence(self.presence, entry, wall=self._wall())

    def readmit(self, key: str) -> bool:
        """Let scans ask the GPU of this key again. Whether it had been left out."""
        return self.silenced.pop(key, None) is not None

    def take(self, scanned: Scanned) -> Presence:
        """A scan is complete; what is known now."""
        # A GPU to be left out that was not met is gone, or another card has its place now: the next scan will tell.
        entries = relocate(self.silenced.values(), scanned.skipped)
        self.presence = merge_scan(
            self._known, scanned.inventory, entries, count=scanned.count, now=self._clock(), wall=self._wall()
        )
        self.silenced = {_name(entry): entry for entry in (rename(self.presence, entry) for entry in entries)}
        return self.presence

    def lose_driver(self, text: str) -> None:
        """NVML failed as a whole."""
        self.asks_ancestors = True
        before = self._known
        if before is not None:
            self.presence = lose_driver(before, text, wall=self._wall())

    def let_go(self, text: str) -> None:
        """The driver is let go of: nobody is known to hang any more, and all GPUs are out of order until a scan."""
        self.silenced = {}
        self.asks_ancestors = True
        before = self._known
        if before is not None:
            self.presence = let_go(before, text, wall=self._wall())

    @property
    def _known(self) -> Presence | None:
        """What is known, by a predecessor's word where there was no scan yet."""
        return self.presence if self.presence is not None else self._remembered

    def expire(self, *, remove_after_s: float) -> None:
        """Forget who has been absent for too long."""
        if self.presence is not None:
            self.presence = expire(self.presence, now=self._clock(), remove_after_s=remove_after_s)

    def find_next_expiry(self, *, remove_after_s: float) -> float | None:
        """When ``expire`` has something to do (monotonic seconds)."""
        return find_next_expiry(self.presence, remove_after_s=remove_after_s) if self.presence is not None else None


def _name(entry: Silenced) -> str:
    """The key of a GPU that is left out."""
    return entry.uuid or str(entry.ref)
