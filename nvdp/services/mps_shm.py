"""The shared memory of the daemons and their clients: there before any daemon is started, and looked after."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from nvdp.errors import HostError
from nvdp.log import Log
from nvdp.model.reasons import Reason
from nvdp.service_thread import ServiceThread
from nvdp.services.mps_events import MpsPost, SharedMemorySeen

_LOOK_S: Final = 10.0


class SharedMemoryService:
    """Calls ``mount``, which may raise HostError, now and every ten seconds, and posts ``SharedMemorySeen``.

    It gives back why pods do not see what is mounted, or an empty text: that is told, and in the way of no daemon.
    Posted at first and whenever the answer changed; what is wrong is told once. Thread ``mps-shm``; ``start`` may be
    called again after a crash.
    """

    THREAD: Final = "mps-shm"

    def __init__(self, mount: Callable[[], str], *, post: MpsPost, log: Log, look_s: float = _LOOK_S) -> None:
        self._mount = mount
        self._post = post
        self._log = log
        self._look_s = look_s
        self._stopping = threading.Event()
        self._thread: ServiceThread | None = None
        self._seen: SharedMemorySeen | None = None
        self._told = ""

    def start(self) -> None:
        """Start the thread, or start it anew."""
        if self._thread is None or not self._thread.is_at_work:
            self._thread = ServiceThread(self._run, name=self.THREAD)
            self._thread.start()

    def stop(self) -> None:
        """Mount nothing any more. Waits a second for what is under way."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                unseen, problem = self._mount(), ""
            except HostError as error:
                unseen, problem = "", str(error)
            told, self._told = self._told, problem or unseen
            if self._told and self._told != told:
                self._log(Reason.MPS_UNSUPPORTED, self._told)
            seen = SharedMemorySeen(problem=problem)
            if seen != self._seen:
                self._seen = seen
                self._post(seen)
            self._stopping.wait(self._look_s)
