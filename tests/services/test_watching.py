"""What is done when the events of the GPUs are not heard any more, and what is heard while sessions are replaced."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from nvdp.model.reasons import Level, Reason
from nvdp.nvml.children import NvmlChildren
from nvdp.nvml.frames import Scanned, Watch, WatchFailed, Xid
from nvdp.nvml.outcomes import Died
from nvdp.services.deafness import Unheard
from nvdp.services.nvml_session import NvmlSession
from nvdp.services.watching import WatchEnded, Watching
from tests.services.gpu_bench import Bench, NodeFile

SESSION = 4711
FAILED = WatchEnded(SESSION, WatchFailed(kind="GpuIsLost", text="nvmlEventSetWait: the GPU has fallen off the bus"))
DEAD = WatchEnded(SESSION, Died(call="", gpu=None, how="was killed by SIGKILL", at_fault=False))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Counts:
    def __init__(self) -> None:
        self.failed: Counter[tuple[str, str]] = Counter()

    def nvml_failed(self, call: str, kind: str) -> None:
        self.failed[call, kind] += 1

    def nvml_timed_out(self, uuid: str) -> None:
        raise AssertionError

    def scan_took(self, seconds: float) -> None:
        raise AssertionError


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def watching(clock, counts) -> Watching:
    return Watching(counts, log=lambda *_, **__: None, clock=clock, wall=clock)


def answer(watching, clock) -> float:
    """Wait for the look that answers a failure; how long that took."""
    assert watching.due_at is not None
    delay_s = watching.due_at - clock.now
    if delay_s:
        assert not watching.take_due(), "it is not time yet"
    clock.now += delay_s
    assert watching.take_due()
    assert not watching.take_due(), "once"
    return delay_s


@pytest.mark.parametrize("end", [FAILED, DEAD])
def test_the_first_failure_is_answered_at_once_and_the_next_ones_ever_more_rarely(watching, clock, end) -> None:
    assert not watching.take_due()
    delays = []
    for _ in range(10):
        watching.take_end(end, SESSION)
        delays.append(answer(watching, clock))
        watching.follow(Watch())
    assert delays == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_wait_that_works_makes_the_next_failure_a_first_one_again(watching, clock) -> None:
    for _ in range(4):
        watching.take_end(FAILED, SESSION)
        answer(watching, clock)
    watching.follow(Watch(waits=1, silent_s=4.0))
    watching.take_end(FAILED, SESSION)
    assert answer(watching, clock) == 0


def test_what_a_replaced_session_tells_is_of_no_interest(watching, counts) -> None:
    watching.take_end(FAILED, SESSION + 1)
    watching.take_end(FAILED, None)
    assert watching.due_at is None
    assert not counts.failed


def test_a_failed_wait_is_counted_and_a_dead_child_is_none(watching, counts) -> None:
    watching.take_end(DEAD, SESSION)
    watching.take_end(FAILED, SESSION)
    assert counts.failed == {("nvmlEventSetWait", "GpuIsLost"): 1}


@pytest.mark.parametrize("watch", [Watch(problem="no", failed=True, waits=7), Watch(waits=7, silent_s=15.1)])
def test_a_scan_that_finds_its_session_deaf_counts_as_a_failure(watching, clock, watch) -> None:
    """As when the session that should have replaced it could not be opened, or when a wait does not return."""
    delays = []
    for _ in range(3):
        watching.follow(watch)
        watching.follow(watch)
        delays.append(answer(watching, clock))
    assert delays == [0, 1, 2]


@pytest.mark.parametrize("watch", [Watch(), Watch(problem="no event set"), Watch(waits=3, silent_s=6.0)])
def test_a_session_that_is_well_or_can_have_no_events_is_left_in_peace(watching, watch) -> None:
    watching.follow(watch)
    assert watching.due_at is None


@pytest.mark.parametrize(
    ("fail", "text", "error"),
    [
        (lambda watching: watching.take_end(FAILED, SESSION), FAILED.why.text, "GpuIsLost"),
        (lambda watching: watching.take_end(DEAD, SESSION), "the NVML child was killed by SIGKILL", "ChildDied"),
        (lambda watching: watching.follow(Watch(problem="no", kind="Unknown", failed=True)), "no", "Unknown"),
        (lambda watching: watching.follow(Watch(silent_s=15.1)), "nvmlEventSetWait does not return", "CallTimeout"),
    ],
    ids=["the wait fails", "the child dies", "a scan finds that it failed", "the wait hangs"],
)
def test_two_failures_in_a_row_are_worth_telling_until_a_wait_works(watching, clock, fail, text, error) -> None:
    for expected in (None, Unheard(text=text, error=error)):
        fail(watching)
        answer(watching, clock)
        watching.follow(Watch())
        assert watching.unheard == expected, "a new session promises nothing yet"
    watching.follow(Watch(waits=1))
    assert watching.unheard is None


def test_a_session_that_can_have_no_events_says_so_at_once_and_as_long_as_that_is_so(watching) -> None:
    watching.follow(Watch(problem="nvmlEventSetCreate: unknown error", kind="Unknown"))
    assert watching.unheard == Unheard(text="nvmlEventSetCreate: unknown error", error="Unknown")
    watching.follow(Watch())
    assert watching.unheard is None


def test_a_look_that_is_due_is_not_needed_if_a_new_session_came_by_another_way(watching) -> None:
    watching.take_end(FAILED, SESSION)
    watching.follow(Watch())
    assert watching.due_at is None


@pytest.fixture
def node(tmp_path) -> NodeFile:
    return NodeFile(tmp_path)


@pytest.fixture
def bench(node):
    made = Bench(CountedChildren(simulated=str(node.path)), call_timeout_s=5.0)
    made.configure(rescan_interval_s=60.0, call_timeout_s=5.0)  # what happens soon is not the next rescan's doing
    yield made
    made.service.stop()


class CountedChildren(NvmlChildren):
    def __init__(self, **source: str) -> None:
        super().__init__(**source)
        self.pids: list[int] = []
        self.at: list[float] = []

    def spawn(self, on_notice=None):
        client = super().spawn(on_notice)
        self.pids.append(client.pid)
        self.at.append(time.monotonic())
        return client


def wait_until(condition, *, limit_s: float = 15.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s}s"
        time.sleep(0.01)


def test_events_are_heard_while_nothing_is_scanned(bench, node) -> None:
    bench.service.start()
    bench.wait_healthy(4)
    node.write("events: [{gpu: 1, xid: 13}, {gpu: 2, ecc: single}]")
    wait_until(lambda: len(bench.heard) == 2)
    assert len(bench.scans) == 1


def test_after_a_fatal_xid_all_gpus_are_looked_at_without_waiting_for_the_next_scan(bench, node) -> None:
    bench.service.start()
    bench.wait_healthy(4)
    node.write("events: [{gpu: 1, xid: 79}]")
    bench.wait_causes(one="XID")
    wait_until(lambda: len(bench.scans) == 2)
    assert len(bench.children.pids) == 1, "the session is well"


def test_events_are_heard_while_a_scan_hangs(bench, node) -> None:
    bench.service.start()
    bench.wait_healthy(4)
    hang = "faults: [{call: nvmlDeviceGetName, gpu: 0, hang: true}]"
    node.write(hang)
    bench.configure(rescan_interval_s=0.1, call_timeout_s=20.0)
    wait_until(lambda: bench.service._session._child._receiver.last[0].call == "nvmlDeviceGetName")
    scans = len(bench.scans)
    node.write(hang, "events: [{gpu: 1, xid: 13}]")
    wait_until(lambda: len(bench.heard) == 1)
    assert len(bench.scans) == scans
    assert not bench.posts[-1].ailments, "the scan hangs, and goes on to"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_child_that_dies_at_rest_is_replaced_at_once_and_its_successor_hears(bench, node, number) -> None:
    bench.service.start()
    bench.wait_healthy(4)
    killed_at = time.monotonic()
    os.kill(bench.children.pids[0], number)
    wait_until(lambda: len(bench.scans) == 2)
    assert time.monotonic() - killed_at < 10, "long before the next rescan"
    assert len(bench.children.pids) == 2
    assert not any(post.ailments for post in bench.posts)
    assert bench.reasons() == ["DriverReady"]
    node.write("events: [{gpu: 1, xid: 13}]")
    wait_until(lambda: len(bench.heard) == 1)


@pytest.mark.invariant(5)
def test_a_gpu_that_is_lost_during_the_wait_is_found_at_once_and_the_others_are_heard_again(bench, node) -> None:
    bench.service.start()
    bench.wait_healthy(4)
    lost = ("lost: [2]", "faults: [{call: nvmlEventSetWait, gpu: 2, error: GpuIsLost}]")
    node.write(*lost)
    bench.wait_causes(two="Lost")
    assert bench.errors["nvmlEventSetWait", "GpuIsLost"] == 1
    node.write(*lost, "events: [{gpu: 2, xid: 13}, {gpu: 0, xid: 13}]")
    wait_until(lambda: len(bench.heard) == 1)
    node.write()
    bench.wait_healthy(4)


def test_a_wait_that_always_fails_costs_a_new_session_ever_more_rarely_and_is_told_once(bench, node) -> None:
    node.write("faults: [{call: nvmlEventSetWait, error: 999}]")
    bench.service.start()
    bench.wait_healthy(4)
    wait_until(lambda: bench.errors["nvmlEventSetWait", "Unknown"] == 3)
    _, *others = bench.children.at
    assert len(others) == 2
    assert others[1] - others[0] >= 1.0
    assert not any(post.ailments for post in bench.posts)
    wait_until(lambda: len(bench.scans) == 3)
    assert bench.reasons() == ["DriverReady", "WatchDegraded"]
    assert degraded(bench) == [("nvmlEventSetWait", Level.ERROR, None)]
    node.write("events: [{gpu: 1, xid: 13}]")
    wait_until(lambda: len(bench.scans) == 4)
    node.write("events: [{gpu: 1, xid: 13}, {gpu: 1, xid: 31}]")
    wait_until(lambda: len(bench.heard) == 1)


def degraded(bench) -> list[tuple[str, Level | None, object]]:
    told = (Reason.WATCH_DEGRADED, Reason.WATCH_RESTORED)
    lines = [(msg, fields) for reason, msg, fields in bench.lines if reason in told]
    return [(msg.partition(":")[0], fields.get("level"), fields.get("device")) for msg, fields in lines]


def test_an_event_set_that_cannot_be_made_is_an_error_once_until_it_can_and_every_try_counts(bench, node) -> None:
    node.write("faults: [{call: nvmlEventSetCreate, error: 999}]")
    bench.configure(rescan_interval_s=0.1)
    bench.service.start()
    bench.wait_healthy(4)
    bench.wait_scans(3)
    assert degraded(bench) == [("nvmlEventSetCreate", Level.ERROR, None)]
    assert bench.errors["nvmlEventSetCreate", "Unknown"] >= 3
    assert bench.posts[-1].trouble.text.startswith("nvmlEventSetCreate: ")
    assert not any(post.ailments for post in bench.posts)
    node.write()
    bench.wait(lambda post: post.trouble is None)
    assert degraded(bench)[1:] == [("the driver's events are heard again", None, None)]


def test_a_gpu_that_has_no_events_is_a_warning_once_and_no_error(bench, node) -> None:
    node.write("faults: [{call: nvmlDeviceRegisterEvents, gpu: 2, error: NotSupported}]")
    bench.configure(rescan_interval_s=0.1)
    bench.service.start()
    bench.wait_healthy(4)
    bench.wait_scans(3)
    bench.service.look_now()
    bench.wait_scans(3)
    ((text, level, device),) = degraded(bench)
    assert text.startswith("the driver tells no events of this GPU")
    assert (level, device) == (None, "GPU-two")
    assert bench.posts[-1].trouble.note
    assert not bench.errors
    assert not any(post.ailments for post in bench.posts)


def test_a_wait_that_never_returns_keeps_no_scan_from_its_answer(bench, node) -> None:
    node.write("faults: [{call: nvmlEventSetWait, hang: true}]")
    bench.configure(rescan_interval_s=0.1)
    bench.service.start()
    bench.wait_healthy(4)
    bench.wait_scans(5)
    assert not any(post.ailments for post in bench.posts)
    assert len(bench.children.pids) == 1


def test_no_event_is_missed_and_none_heard_three_times_while_sessions_are_replaced(node) -> None:
    heard: Counter[int] = Counter()
    changed = threading.Condition()

    def take(_pid: int, notice: object) -> None:
        if isinstance(notice, Xid):
            with changed:
                heard[notice.code] += 1
                changed.notify_all()

    children = NvmlChildren(simulated=str(node.path))
    session = NvmlSession(children, sysfs=None, on_notice=take, clock=time.monotonic)
    events: list[str] = []
    stopped = threading.Event()

    def go_on() -> None:
        """One event after the other, each as soon as somebody has heard the one before."""
        while not stopped.is_set():
            number = len(events)
            events.append(f"- {{gpu: {number % 4}, xid: {number}}}")
            node.write("events:", *events)
            with changed:
                assert changed.wait_for(lambda: len(events) - 1 in heard, 15.0), f"nobody heard of event {number}"
            stopped.wait(0.02)

    try:
        assert isinstance(session.scan([], limit_s=20.0), Scanned)
        with ThreadPoolExecutor(1) as pool:
            going = pool.submit(go_on)
            try:
                for _ in range(4):
                    session.renew()
                    assert isinstance(session.scan([], limit_s=20.0), Scanned)
                    wait_until(lambda: session.former_ends_at <= time.monotonic())
                    session.end_former()
            finally:
                stopped.set()
            going.result(20)
        assert set(heard.values()) == {1, 2}
    finally:
        session.close()
