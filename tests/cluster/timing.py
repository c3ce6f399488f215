"""A clock for services on threads of their own, and a log that remembers."""

from __future__ import annotations

import threading
import time

from nvdp.model.cluster import ObjectSeen
from tests.daemon.process import wait_until

START = 5000.0
WALL = 1_795_921_927.0


class Clock:
    """Stands until it is moved; ``pass_time`` has the services look at it."""

    def __init__(self):
        self.now = START
        self.services = []

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return WALL + self.now - START

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for service in self.services:
            wake(service)


def wake(service) -> None:
    if hasattr(service, "_changed"):
        with service._changed:
            service._changed.notify_all()
    else:
        service._lines.came.set()


class Changed(threading.Condition):
    """In the place of a service's own: knows whether its thread has done all that is due, and waits."""

    def __init__(self):
        super().__init__()
        self.is_idle = False

    def wait(self, timeout=None):
        self.is_idle = True
        return super().wait(timeout)

    def notify_all(self):
        self.is_idle = False
        super().notify_all()


class Lines:
    """A Log."""

    def __init__(self):
        self.lines = []

    def __call__(self, reason, msg, /, *, level=None, **fields):
        self.lines.append((reason, msg))

    @property
    def reasons(self):
        return [reason.word for reason, _ in self.lines]


def wait_soon(predicate, *, what: str) -> None:
    """As ``wait_until``, for what another thread does at once: in steps of a millisecond first."""
    for _ in range(50):
        if predicate():
            return
        time.sleep(0.001)
    wait_until(predicate, what=what)


def see(server, *services, name="gpu-a3") -> None:
    """The Node as the server has it, as a watch would tell."""
    for service in services:
        service.see(ObjectSeen(object=server.store.find("nodes", name), at=0.0))


def wait_ended(service) -> None:
    """The thread of the service is over."""
    thread = service._thread
    wait_soon(lambda: not thread.is_alive(), what="the end of the thread")


class Crashes:
    """Threads that die are noted here, as the daemon does, and are no failure of the test."""

    def __enter__(self):
        self.died = threading.Event()
        self._hook, threading.excepthook = threading.excepthook, lambda _: self.died.set()
        return self

    def __exit__(self, *_):
        threading.excepthook = self._hook
