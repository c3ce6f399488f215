"""Listening to a child that is a socket pair: who hears what, when silence means it, and what is left afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import termios
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from nvdp.model.inventory import Driver, GpuRef, Inventory
from nvdp.nvml.client import NvmlClient
from nvdp.nvml.frames import Breadcrumb, Ecc, Probed, Scan, Scanned, WatchFailed, Xid, encode_frame
from nvdp.nvml.outcomes import Closed, Died, Hung

FULL = os.environ.get("NVDP_CAMPAIGN") == "full"
SCANNED = Scanned(inventory=Inventory(driver=Driver(version="1", cuda_version="2")))
REF = GpuRef(index=1, count=2)


class StandIn:
    """What a client needs of a process, without one."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.returncode: int | None = None
        self.killed = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            raise subprocess.TimeoutExpired("stand-in", timeout or 0.0)
        return self.returncode

    def kill(self) -> None:
        self.returncode = -9
        self.killed.set()


class Line:
    """A client and the child's end of its connection."""

    def __init__(self, *, on_notice=None) -> None:
        ours, self.theirs = socket.socketpair()
        self.process = StandIn()
        self.heard: list[object] = []
        self.client = NvmlClient(
            self.process,
            ours,
            None,
            kill=StandIn.kill,
            on_notice=on_notice or (lambda _, what: self.heard.append(what)),
        )

    def say(self, *messages) -> None:
        self.theirs.sendall(b"".join(encode_frame(message) for message in messages))

    def read_command(self) -> object:
        return self.theirs.recv(1000)

    def close(self) -> None:
        self.theirs.close()
        self.client.end(wait_s=0.0)


@pytest.fixture
def line():
    with contextlib.closing(Line()) as made:
        yield made


def wait_until(condition, *, limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s}s"
        time.sleep(0.002)


def xid(code: int) -> Xid:
    return Xid(uuid="GPU-1", code=code, at=float(code))


def test_notices_are_heard_in_order_before_during_and_after_a_call(line) -> None:
    line.say(xid(1))
    wait_until(lambda: line.heard == [xid(1)])
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(line.client.call, Scan(), limit_s=10)
        line.read_command()
        line.say(Breadcrumb(call="nvmlDeviceGetName", gpu=REF), xid(2), Ecc(uuid="GPU-1", double=True, at=3.0))
        wait_until(lambda: len(line.heard) == 3)
        assert not called.done()
        line.say(SCANNED, WatchFailed(kind="Unknown", text="no"))
        assert called.result(10) == SCANNED
    wait_until(lambda: len(line.heard) == 4)
    assert [type(what) for what in line.heard] == [Xid, Xid, Ecc, WatchFailed]


def test_breadcrumbs_give_a_call_its_time_and_notices_do_not(line) -> None:
    limit_s = 0.5
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        called = pool.submit(line.client.call, Scan(), limit_s=limit_s)
        line.say(Breadcrumb(call="nvmlDeviceGetName", gpu=REF))
        while not called.done():
            line.say(xid(1))
            assert time.monotonic() - began < 10
            time.sleep(0.01)
    assert called.result() == Hung(call="nvmlDeviceGetName", gpu=REF, limit_s=limit_s)
    assert time.monotonic() - began >= limit_s * 0.9


def test_a_call_that_moves_on_is_not_given_up_however_long_it_takes(line) -> None:
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(line.client.call, Scan(), limit_s=1.0)
        for _ in range(30):
            line.say(Breadcrumb(call="nvmlDeviceGetName", gpu=REF))
            time.sleep(0.05)
        line.say(SCANNED)
        assert called.result(10) == SCANNED


def test_what_has_come_and_is_not_yet_read_is_no_silence() -> None:
    """As after the daemon itself was stopped for a while: its limits are over when it goes on."""
    entered, released = threading.Event(), threading.Event()

    def block(_pid, _notice) -> None:
        entered.set()
        assert released.wait(20)

    with contextlib.closing(Line(on_notice=block)) as line, ThreadPoolExecutor(1) as pool:
        called = pool.submit(line.client.call, Scan(), limit_s=0.8)  # enough for a busy machine to say two things
        line.say(Breadcrumb(call="nvmlDeviceGetName", gpu=REF), xid(1))
        assert entered.wait(10)
        line.say(SCANNED)
        over = time.monotonic() + 1.2
        wait_until(lambda: time.monotonic() > over)
        assert not called.done(), "well past the limit, but the answer is there"
        released.set()
        assert called.result(10) == SCANNED


def test_an_answer_that_nobody_waits_for_is_dropped(line) -> None:
    line.say(Probed(), xid(1))
    wait_until(lambda: line.heard)
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(line.client.call, Scan(), limit_s=10)
        line.read_command()
        line.say(SCANNED)
        assert called.result(10) == SCANNED


def test_a_child_that_sends_nonsense_while_nobody_asks_is_given_up(line) -> None:
    line.theirs.sendall(b"\xff\xff\xff\xff")
    wait_until(lambda: line.heard)
    (died,) = line.heard
    assert isinstance(died, Died)
    assert died.how.startswith("sent nonsense")
    assert line.client.call(Scan(), limit_s=10) == died


def test_a_child_that_dies_right_after_its_answer_is_told(line) -> None:
    """Nobody may be there to notice it before the next scan."""
    for _ in range(50):
        with contextlib.closing(Line()) as one, ThreadPoolExecutor(1) as pool:
            called = pool.submit(one.client.call, Scan(), limit_s=10)
            one.read_command()
            one.process.returncode = -9
            one.say(SCANNED)
            one.theirs.close()
            assert called.result(10) == SCANNED
            wait_until(lambda one=one: one.heard)
            assert one.heard == [Died(call="", gpu=None, how="was killed by SIGKILL", at_fault=False)]


def test_a_crash_in_a_call_is_told_to_the_caller_alone(line) -> None:
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(line.client.call, Scan(), limit_s=10)
        line.read_command()
        line.say(Breadcrumb(call="nvmlDeviceGetName", gpu=REF))
        line.process.returncode = -11
        line.theirs.close()
        died = called.result(10)
    assert died == Died(call="nvmlDeviceGetName", gpu=REF, how="was killed by SIGSEGV", at_fault=True)
    line.client.end(wait_s=0.0)
    assert line.heard == []


def test_what_a_child_told_before_it_was_ended_is_still_passed_on(line) -> None:
    line.say(*(xid(n) for n in range(500)))
    line.client.end(wait_s=0.0)  # it goes only then: its end would be told otherwise
    assert line.heard == [xid(n) for n in range(500)]


def test_a_child_that_leaves_when_asked_is_not_told_as_dead(line) -> None:
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(line.client.end, wait_s=0.5)
        assert line.read_command()
        line.theirs.close()
        ended.result(10)
    assert line.heard == []
    assert line.process.killed.is_set(), "it said it would go, and did not"


def test_close_from_another_thread_ends_call_and_listener(line) -> None:
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(line.client.call, Scan(), limit_s=60)
        line.read_command()
        line.client.close()
        assert called.result(5) == Closed()
    wait_until(lambda: "nvml-events" not in {thread.name for thread in threading.enumerate()})
    assert line.client.call(Scan(), limit_s=60) == Closed()
    assert line.heard == []


def test_a_listener_at_rest_uses_no_processor(line) -> None:
    line.say(xid(1))
    wait_until(lambda: line.heard)
    before = time.process_time()
    threading.Event().wait(0.5)  # what is measured is that nothing happens
    assert time.process_time() - before < 0.1


@pytest.mark.campaign
def test_many_sessions_leave_no_thread_and_no_file() -> None:
    with contextlib.closing(Line()) as warm:
        warm.say(xid(0))
        wait_until(lambda: warm.heard)
    process = psutil.Process()
    threads, files = process.num_threads(), process.num_fds()
    for number in range(10_000 if FULL else 1000):
        with contextlib.closing(Line()) as one:
            if number % 100 == 0:
                one.say(xid(number))
                wait_until(lambda one=one: one.heard)
            one.process.returncode = 0
    wait_until(lambda: process.num_threads() <= threads)  # the last one may be about to leave
    assert process.num_fds() <= files


def test_a_listener_that_is_behind_lets_the_child_wait_and_loses_nothing(line) -> None:
    assert fcntl.ioctl(line.theirs, termios.FIONREAD, bytes(4)) == bytes(4)
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(line.say, *(xid(n) for n in range(20_000)))
        wait_until(lambda: len(line.heard) == 20_000)
        said.result(10)
    assert line.heard == [xid(n) for n in range(20_000)]
