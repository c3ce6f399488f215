"""Who computes on the GPUs, asked beside the scans: what hangs there holds no list up, and ends nobody's session."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable

import msgspec

from nvdp.nvml.children import NvmlChildren
from nvdp.services.nvml_counts import GpuObserver
from nvdp.services.process_reading import ProcessReader, Reading, Unanswered


class UsersSeen(msgspec.Struct, frozen=True):
    """What a look found: the GPUs, by UUID, on which processes compute or draw, or may."""

    epoch: int
    busy: tuple[str, ...]


class GpuUsers:
    """Used by one thread; each look is one of its own, ``gpu-users``, with an NVML child for so long.

    ``report`` is called from there; give what it was given to ``take``.
    """

    def __init__(
        self,
        children: NvmlChildren,
        *,
        report: Callable[[UsersSeen], None],
        observer: GpuObserver,
        clock: Callable[[], float],
    ) -> None:
        self._reader = ProcessReader(children, observer=observer, clock=clock)
        self._report = report
        self._is_looking = False
        self._epoch = 0
        self.busy: tuple[str, ...] | None = None

    def look(self, uuids: Iterable[str], *, limit_s: float) -> None:
        """Ask about these GPUs, unless a look is under way; what is known is that of the last one that is over."""
        if self._is_looking:
            return
        asked = (self._epoch, tuple(uuids), limit_s)
        with contextlib.suppress(RuntimeError):  # no thread can be started just now: at the next scan
            threading.Thread(target=self._run, args=asked, name="gpu-users", daemon=True).start()
            self._is_looking = True

    def forget(self) -> None:
        """What is known, or is being asked, counts no more."""
        self._epoch += 1
        self.busy = None

    def take(self, seen: UsersSeen) -> None:
        """A look is over. One that was begun before ``forget`` tells nothing."""
        self._is_looking = False
        if seen.epoch == self._epoch:
            self.busy = seen.busy

    def _run(self, epoch: int, uuids: tuple[str, ...], limit_s: float) -> None:
        busy = uuids  # unless they say otherwise
        try:
            with contextlib.closing(self._reader):
                busy = tuple(uuid for uuid in uuids if _may_be_used(self._reader.read(uuid, limit_s=limit_s)))
        finally:
            self._report(UsersSeen(epoch, busy))


def _may_be_used(found: Reading) -> bool:
    return isinstance(found, Unanswered) or bool(found)
