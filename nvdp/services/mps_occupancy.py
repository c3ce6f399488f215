"""Whose processes compute on GPUs that MPS is to take while no plugin says which are free.

The compute mode of MPS keeps every other process from a GPU: a pod of another plugin, or a program of an administrator,
would fail at its next context. What computes there is waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final

from nvdp.host.processes import NodeProcesses
from nvdp.mps.procfs import find_stat
from nvdp.nvml.frames import ComputeProcess
from nvdp.service_thread import ServiceThread
from nvdp.services.mps_events import GpusOccupied, MpsPost
from nvdp.services.process_reading import ProcessReader, Unanswered

_LOOK_S: Final = 2.0
_LIMIT_S: Final = 5.0


class OccupancyService:
    """``start`` it, then tell it what to look at with ``watch``; it posts ``GpusOccupied`` whenever something changed.

    ``make_reader`` builds what asks the driver, in the thread ``mps-occupancy``, which has an NVML child while there is
    something to look at. ``find_own_pids`` are our control daemons: their servers are no strangers. ``start`` may be
    called again after a crash.
    """

    THREAD: Final = "mps-occupancy"

    def __init__(
        self,
        make_reader: Callable[[], ProcessReader],
        *,
        find_own_pids: Callable[[], Collection[int]],
        post: MpsPost,
        look_s: float = _LOOK_S,
    ) -> None:
        self._make_reader = make_reader
        self._find_own_pids = find_own_pids
        self._post = post
        self._look_s = look_s
        self._processes = NodeProcesses()
        self._changed = threading.Condition()  # guards the next two
        self._watched: frozenset[str] = frozenset()
        self._is_stopped = False
        self._thread: ServiceThread | None = None

    def start(self) -> None:
        """Start the thread, or start it anew."""
        if self._thread is None or not self._thread.is_at_work:
            self._thread = ServiceThread(self._run, name=self.THREAD)
            self._thread.start()

    def watch(self, gpus: Collection[str]) -> None:
        """Look at these GPUs, by UUID, now and every two seconds, and at no others. Does not block."""
        with self._changed:
            if self._watched != (watched := frozenset(gpus)):
                self._watched = watched
                self._changed.notify_all()

    def stop(self) -> None:
        """Look at nothing any more. Waits a second for a look that is under way."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        reader = self._make_reader()
        posted = None
        while not self._is_stopped:
            with self._changed:
                watched = self._watched
            if watched:
                found = GpusOccupied(by={uuid: self._look(reader, uuid) for uuid in sorted(watched)})
                if found != posted:
                    self._post(found)
                posted = found
            else:
                reader.close()
                posted = None
            with self._changed:
                if self._watched == watched and not self._is_stopped:
                    self._changed.wait(self._look_s if watched else None)
        reader.close()

    def _look(self, reader: ProcessReader, uuid: str) -> str:
        """Why it is not free; empty if it is."""
        found = reader.read(uuid, limit_s=_LIMIT_S)
        if isinstance(found, Unanswered):
            return f"not free for all that is known, for the driver does not tell who computes on it: {found.text}"
        own_pids = self._find_own_pids()
        strangers = [process for process in found if not _is_server(process, own_pids)]
        if not strangers:
            return ""
        first = strangers[0]
        known = self._processes.find_process(first.pid)
        name = f" ({known.name})" if known is not None else ""
        more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        return f"not free yet: process {first.pid}{name}{more} computes on it"


def _is_server(process: ComputeProcess, own_pids: Collection[int]) -> bool:
    stat = find_stat(process.pid)
    return stat is not None and stat.session in own_pids
