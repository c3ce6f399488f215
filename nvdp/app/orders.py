"""Carries out what an operator orders through the control socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from nvdp.errors import HostError
from nvdp.host.pause_file import PauseFile
from nvdp.model.orders import Carried, parse_gpu
from nvdp.model.pause import Pause
from nvdp.model.status import DriverState, Status
from nvdp.services.events import PauseOrdered, Ping, Post
from nvdp.services.gpus import GpuService
from nvdp.services.steering import FILE_KEY

COMMAND: Final = "nvdp pause"
_ANSWER_LIMIT_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.02
_KEEP_LIMIT_S: Final = 2.0


class NodeOrders:
    """See ``model.orders.Orders``. ``get_status`` is what others see at the moment.

    ``flush`` waits, at most so many seconds, until all that the main thread remembers is kept for a restart; whether it
    is.
    """

    def __init__(
        self,
        *,
        file: PauseFile,
        post: Post,
        gpus: GpuService,
        get_status: Callable[[], Status],
        flush: Callable[[float], bool],
        wall: Callable[[], float] = time.time,
        release_limit_s: float = 5.0,
    ) -> None:
        self._file = file
        self._post = post
        self._gpus = gpus
        self._get_status = get_status
        self._flush = flush
        self._wall = wall
        self._release_limit_s = release_limit_s
        self._ordering = threading.Lock()  # the file, and the order in which it is posted, are those of the last one
        self._ordered: Pause | None = None

    def pause(self, note: str) -> Carried:
        """Keep the order, let go of the driver, and wait until no process of ours has it open.

        An order that stands already goes on: its moment stays, and its note unless there is a new one.
        """
        kept = ""
        with self._ordering:
            pause = self._build_pause(note)
            try:
                self._file.save(pause)
            except HostError as error:  # to let go is what was asked for, and is done in any case
                kept = f"; a restart of nvdp would take the driver back: {error}"
            self._ordered = pause
            self._post(PauseOrdered(pause=pause))
        deadline = time.monotonic() + self._release_limit_s
        while (ordered := self._find_latest()) is not None and not self._gpus.is_released(ordered):
            if time.monotonic() > deadline:
                return Carried(done=False, text=f"{self._explain_delay(ordered)}{kept}")
            time.sleep(_LOOK_EVERY_S)
        if ordered is None:
            return Carried(done=False, text="not paused: an order to resume came in between; give the order again")
        text = f"paused: all devices are Unhealthy, the driver is free of nvdp; nvdp resume when done{kept}"
        return Carried(done=not kept, text=text)

    def resume(self) -> Carried:
        """Forget the order, and wait for the driver's first answer."""
        before = self._get_status().pause
        with self._ordering:
            try:
                self._file.remove()
            except HostError as error:
                return Carried(done=False, text=f"still paused: {error}")
            self._ordered = None
            self._post(PauseOrdered(pause=None))
        deadline = time.monotonic() + _ANSWER_LIMIT_S
        status = self._get_status()
        while _is_under_way(status, before) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
            status = self._get_status()
        return _describe_resumed(status)

    def _build_pause(self, note: str) -> Pause:
        standing = self._ordered or self._file.load()
        if standing is None or standing.by != COMMAND:
            return Pause(by=COMMAND, note=note, since=self._wall())
        return Pause(by=COMMAND, note=note or standing.note, since=standing.since)

    def _find_latest(self) -> Pause | None:
        """The order that was given last, by whomever; None if it was to resume."""
        return self._ordered

    def _explain_delay(self, ordered: Pause) -> str:
        """Why the driver is not free in time."""
        limit = f"within {self._release_limit_s:g}s"
        if self._get_status().pause != ordered:
            return f"nvdp has not come {limit} to let go of the driver, and will once it can; see nvdp status"
        return (
            f"paused, but an NVML child has not ended {limit}: it sleeps in the driver and keeps it open; "
            "look for NVRM in dmesg, a reboot may be needed"
        )

    def clear(self, device: str) -> Carried:
        """Forget the faults of a GPU, for a restart too. FormatError for words that name none."""
        ref = parse_gpu(device)
        found = self._gpus.clear(ref)
        if found is None:
            return Carried(done=False, text=f"{ref}: no such GPU here; nvdp status shows those that are known")
        uuid, left = found
        is_kept = self._wait_kept()
        owed = "" if is_kept else "; that is not on disk yet: a restart of nvdp would bring it back, see nvdp status"
        if left is None:
            return Carried(done=is_kept, text=f"{uuid}: no fault is known of it any more{owed}")
        text = f"{uuid}: its past is forgotten, but it is still Unhealthy: {left.cause.value}, {left.text}{owed}"
        return Carried(done=False, text=text)

    def _wait_kept(self) -> bool:
        """Wait until what was posted so far was taken in, and is kept; whether it is."""
        ping = Ping(answered=threading.Event())
        self._post(ping)
        return ping.answered.wait(_KEEP_LIMIT_S) and self._flush(_KEEP_LIMIT_S)


def _is_under_way(status: Status, before: Pause | None) -> bool:
    """Whether the order has not come to its end yet: another pause may stand, or the driver has not answered."""
    if status.pause is not None:
        return status.pause == before and not before.by.startswith(FILE_KEY)
    return status.driver.state in {DriverState.PAUSED, DriverState.STARTING}


def _describe_resumed(status: Status) -> Carried:
    if status.pause is not None:
        return Carried(done=False, text=f"still {status.pause}: end that to take the driver back")
    driver = status.driver
    if driver.state is DriverState.READY:
        count = sum(device.healthy for device in status.devices)
        text = f"resumed: driver {driver.version}, {count} of {len(status.devices)} devices are Healthy"
        return Carried(done=True, text=text)
    return Carried(done=False, text=f"resumed, but the driver does not answer yet: {driver.text or 'no answer so far'}")
