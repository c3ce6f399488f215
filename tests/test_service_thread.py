"""The thread of a service that has crashed is known to be over while it still tells of it."""

from __future__ import annotations

import threading

import pytest

from nvdp.service_thread import ServiceThread

LIMIT_S = 10.0


def fail() -> None:
    raise ValueError("a defect")


@pytest.fixture
def told():
    """What the hook sees of the thread that dies: whether it is alive, and whether it is at work."""
    seen: list[tuple[bool, bool]] = []
    hook = threading.excepthook
    threading.excepthook = lambda args: seen.append((args.thread.is_alive(), args.thread.is_at_work))
    yield seen
    threading.excepthook = hook


def test_it_is_at_work_from_its_start_to_the_end_of_its_work():
    begun, released = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert released.wait(LIMIT_S)

    thread = ServiceThread(work, name="some-service")
    assert not thread.is_at_work
    thread.start()
    assert begun.wait(LIMIT_S)
    assert thread.is_at_work
    released.set()
    thread.join(LIMIT_S)
    assert not thread.is_at_work
    assert (thread.name, thread.daemon) == ("some-service", True)


def test_one_that_dies_is_alive_when_that_is_told_and_not_at_work(told):
    thread = ServiceThread(fail, name="some-service")
    thread.start()
    thread.join(LIMIT_S)
    assert told == [(True, False)]
