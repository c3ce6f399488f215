"""What a test can make the kubelet do wrong, or late. Set at any time, from any thread; kept over restarts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from enum import Enum

import grpc


class HoldPoint(Enum):
    """Where an Allocate can be held: IDs are chosen but not yet sent, or the plugin has answered."""

    REQUEST = "request"
    ANSWER = "answer"


class Hold:
    """An Allocate that waits. ``reached`` is set once one is there; ``release`` lets it, and later ones, go on."""

    def __init__(self, point: HoldPoint) -> None:
        self.point = point
        self.reached = threading.Event()
        self._released = threading.Event()

    def release(self) -> None:
        self._released.set()

    def pass_by(self, stopping: threading.Event) -> None:
        """Wait for the release, or for the kubelet to stop."""
        self.reached.set()
        while not self._released.wait(0.02):
            if stopping.is_set():
                return


class Faults:
    """The kubelet's faults to come. ``register_delay_s`` delays the reply to Register, not what happens before it.

    ``list_delay_s`` is how long it takes to take in a list, as on a busy node.
    ``api_server_away``: see ``Kubelet.lose_api_server``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refusals: list[tuple[grpc.StatusCode, str]] = []
        self._hold: Hold | None = None
        self.register_delay_s = 0.0
        self.list_delay_s = 0.0
        self.list_pods_delay_s = 0.0
        self.list_pods_error: tuple[grpc.StatusCode, str] | None = None
        self.api_server_away = False

    def refuse_registrations(
        self, count: int, text: str = "not now", *, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN
    ) -> None:
        """Answer the next ``count`` Register calls with this error, before the plugin is dialled."""
        with self._lock:
            self._refusals = [(code, text)] * count

    def take_refusal(self) -> tuple[grpc.StatusCode, str] | None:
        """The error for the Register call that has just come, if it is to be refused."""
        with self._lock:
            return self._refusals.pop() if self._refusals else None

    @contextlib.contextmanager
    def hold_allocate(self, point: HoldPoint = HoldPoint.ANSWER) -> Iterator[Hold]:
        """Hold each Allocate at ``point`` for as long as the block runs, or until the hold is released."""
        hold = Hold(point)
        with self._lock:
            self._hold = hold
        try:
            yield hold
        finally:
            with self._lock:
                self._hold = None
            hold.release()

    def pass_by(self, point: HoldPoint, stopping: threading.Event) -> None:
        """Called by the kubelet at each point of each Allocate; blocks while that is held."""
        with self._lock:
            hold = self._hold
        if hold is not None and hold.point is point:
            hold.pass_by(stopping)
