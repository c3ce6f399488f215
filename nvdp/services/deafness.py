"""What is told where the driver tells no events: each change once, in the log and in ``nvdp status``.

GPUs without events stay Healthy, for each scan asks how they are. What leaves no trace there, as most XIDs, is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from nvdp.log import Log
from nvdp.model.inventory import Gpu
from nvdp.model.platforms import Platform
from nvdp.model.reasons import Level, Reason
from nvdp.model.status import Trouble
from nvdp.nvml.frames import Scanned
from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.planning.wording import join_some

_OF_ALL: Final = "no XID of any GPU is heard, they are watched by scans alone"
_OF_ONE: Final = "its XIDs are not heard, it is watched by scans alone"
_REMEDY: Final = "dmesg | grep -i nvrm on the node has why, and the XIDs that are missed. It is tried again by itself"
_OLD: Final = "a newer driver tells events, from 450 on; until then dmesg | grep -i nvrm on the node has the XIDs"
_NONE: Final = "nothing to be done: this card has none; dmesg | grep -i nvrm on the node has its XIDs"


class Unheard(msgspec.Struct, frozen=True, kw_only=True):
    """Why no events of any GPU are heard. ``error`` is the field's word for it, empty if it has none."""

    text: str
    error: str = ""

    @property
    def is_by_nature(self) -> bool:
        """Whether it will be so as long as the driver is this one."""
        return self.error == NvmlErrorKind.FUNCTION_NOT_FOUND.word


class Deafness:
    """Used by one thread, but for ``trouble``, which is what ``nvdp status`` shows now. ``wall`` is for people."""

    def __init__(self, log: Log, *, wall: Callable[[], float]) -> None:
        self._log = log
        self._wall = wall
        self._unheard: Unheard | None = None
        self._mute: dict[str, Gpu] = {}
        self._since = 0.0
        self.trouble: Trouble | None = None

    def follow(self, scanned: Scanned, unheard: Unheard | None, *, known: Collection[str]) -> None:
        """A scan is complete; ``unheard`` is what there is to say of the session, ``known`` are the GPUs not forgotten.

        Where all that computes is one device, nobody expects events.
        """
        if scanned.inventory.platform is not Platform.NVML:
            self._unheard, self._mute, self.trouble = None, {}, None
            return
        if unheard != self._unheard:
            self._tell_of_all(unheard)
        if unheard is None:  # else nobody knows which GPUs have events
            self._tell_of_gpus(scanned, known)
        self.trouble = self._build_trouble()

    def _tell_of_all(self, unheard: Unheard | None) -> None:
        before, self._unheard = self._unheard, unheard
        if unheard is None:
            self._log(Reason.WATCH_RESTORED, "the driver's events are heard again")
            return
        if before is None:
            self._since = self._wall()
        level = Level.WARNING if unheard.is_by_nature else Level.ERROR
        self._log(Reason.WATCH_DEGRADED, f"{unheard.text}; {_OF_ALL}", level=level, error=unheard.error or "Unknown")

    def _tell_of_gpus(self, scanned: Scanned, known: Collection[str]) -> None:
        """GPUs that have no events, and those that do by now. One with a fault is told of otherwise."""
        mute = {uuid: gpu for uuid, gpu in self._mute.items() if uuid in known}
        for gpu in scanned.inventory.gpus:
            fields: dict[str, Any] = {"device": gpu.uuid, "index": gpu.index, "pci": gpu.pci}
            if gpu.uuid not in scanned.unwatched:
                if mute.pop(gpu.uuid, None) is not None:
                    self._log(Reason.WATCH_RESTORED, "the driver tells the events of this GPU now", **fields)
            elif gpu.fault is None:
                if gpu.uuid not in mute:
                    self._log(Reason.WATCH_DEGRADED, f"the driver tells no events of this GPU: {_OF_ONE}", **fields)
                mute[gpu.uuid] = gpu
        self._mute = mute

    def _build_trouble(self) -> Trouble | None:
        reason, unheard = Reason.WATCH_DEGRADED.word, self._unheard
        if unheard is not None:
            return Trouble(
                reason=reason,
                text=f"{unheard.text}; {_OF_ALL}",
                remedy=_OLD if unheard.is_by_nature else _REMEDY,
                since=self._since,
                note=unheard.is_by_nature,
            )
        if self._mute:
            gpus = sorted(self._mute.values(), key=lambda gpu: gpu.index)
            names = join_some([f"GPU {gpu.index} ({gpu.uuid})" for gpu in gpus])
            return Trouble(
                reason=reason, text=f"the driver tells no events of {names}: {_OF_ONE}", remedy=_NONE, note=True
            )
        return None
