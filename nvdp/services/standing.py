"""Whether the kubelet still offers what it took from us: asked now and then, and soon after plugins came or went.

Up to 1.36 a kubelet forgets us when a plugin of our resource goes that had registered after us, and goes on reading
our stream: nothing but this question shows it (the case beside that of A.4 in the kubelet contract).
"""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

from nvdp.errors import KubeletError
from nvdp.service_thread import ServiceThread
from nvdp.services.events import OfferedRead, Post

_LIMIT_S = 5.0
_SOON_S = (1.5, 4.0)  # after a socket came or went: streams may end later than their socket goes
_IDLE_S = 8.0  # a plugin that is killed leaves its socket: nothing tells, and the node is to be back within 10 s


class PodResources(Protocol):
    """``list_offered`` raises KubeletError; ``close`` ends a call under way, for good."""

    def list_offered(self, timeout_s: float, /) -> frozenset[str]: ...

    def close(self) -> None: ...


class StandingService:
    """Posts ``OfferedRead`` with each answer. Methods are for any thread and do not block; the thread is ``standing``.

    A kubelet that does not answer changes nothing. An exception that nobody expects ends the thread; ``start`` may then
    be called again.
    """

    THREAD: Final = "standing"

    def __init__(
        self,
        post: Post,
        *,
        pod_resources: PodResources,
        soon_s: tuple[float, ...] = _SOON_S,
        idle_s: float = _IDLE_S,
    ) -> None:
        self._post = post
        self._pod_resources = pod_resources
        self._soon_s = soon_s
        self._idle_s = idle_s
        self._changed = threading.Condition()
        self._due = [time.monotonic() + idle_s]
        self._stopping = False
        self._thread: ServiceThread | None = None

    def start(self) -> None:
        """Begin to ask. Nothing happens if it does already."""
        if self._thread is None or not self._thread.is_at_work:
            self._thread = ServiceThread(self._run, name=self.THREAD)
            self._thread.start()

    def ask_soon(self) -> None:
        """Something changed between us and the kubelet: ask once it has had time to take that in.

        However often this is called, it puts off no question, and the kubelet is asked once in that time.
        """
        with self._changed:
            now = time.monotonic()
            soon = [now + after_s for after_s in self._soon_s]
            self._due = [due for due in self._due[:1] if due < soon[0]] + soon
            self._changed.notify_all()

    def stop(self) -> None:
        """Ask no more. For good."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._pod_resources.close()

    def _run(self) -> None:
        while self._wait_due():
            requested_at = time.monotonic()
            try:
                resources = self._pod_resources.list_offered(_LIMIT_S)
            except KubeletError:
                continue  # that it does not answer is told by services/held.py
            self._post(OfferedRead(resources=resources, requested_at=requested_at))

    def _wait_due(self) -> bool:
        """Until the next question is due; False if there is to be none."""
        with self._changed:
            while not self._stopping:
                left_s = self._due[0] - time.monotonic()
                if left_s <= 0:
                    self._due = self._due[1:] or [time.monotonic() + self._idle_s]
                    return True
                self._changed.wait(left_s)
            return False
