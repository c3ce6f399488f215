"""PreStartContainer where a check is on: calls that may wait for half a minute, on threads of their own.

So no number of containers that wait keeps an Allocate waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import grpc

from nvdp.errors import AllocationError
from nvdp.kubelet.pool import CallPool
from nvdp.model.listing import ResourceList

MAX_STARTS = 64  # more than a node has GPUs; who comes beyond them waits for a thread
STOPPING = "stopping"


class StartWait(Protocol):
    """One container that is about to start."""

    def wait(self) -> bool:
        """Block until it may start; false if ``end`` came first. Raises AllocationError if it must not."""
        ...

    def end(self) -> None:
        """From any thread, at once, again and again."""
        ...


# What looks at a container's devices, of the list as it is now, before it starts. Must not block; the wait does.
StartCheck: TypeAlias = Callable[[ResourceList, Sequence[str]], StartWait]


class ContainerStarts:
    """The PreStartContainer calls of one server, each with its wait. ``pool`` is where they are answered."""

    def __init__(self, check: StartCheck) -> None:
        self._check = check
        self._lock = threading.Lock()
        self._waits: set[StartWait] = set()
        self._ending = False
        self.pool = CallPool(MAX_STARTS, name="container-start")

    def wait(self, listed: ResourceList, device_ids: Sequence[str], context: grpc.ServicerContext) -> None:
        """Return once the container may start. The end of the call, and ``end_all``, end the wait.

        Raises AllocationError with the reason of the check, or ``STOPPING`` if nobody waited to the end.
        """
        wait = self._check(listed, device_ids)
        with self._lock:
            self._waits.add(wait)
            ending = self._ending
        try:
            # False means that the peer was gone before we came to listen: no callback will ever tell.
            if not context.add_callback(wait.end) or ending:
                wait.end()
            if not wait.wait():
                raise AllocationError("nvdp stops; the kubelet starts the container again by itself", reason=STOPPING)
        finally:
            with self._lock:
                self._waits.discard(wait)

    def end_all(self) -> None:
        """End every wait, and those still to come. Does not block."""
        with self._lock:
            self._ending = True
            waits = list(self._waits)
        for wait in waits:
            wait.end()

    def close(self) -> None:
        """Let go of the threads. Only after the server has stopped: it must not be given work any more."""
        self.pool.shutdown(wait=False)
