"""The feed: what streams see of a list, and what a withdrawal can know of Allocate calls."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.kubelet.feed import TRACE_KEPT_S, Feed
from nvdp.model.listing import AllocateTrace, DeviceIDStrategy
from tests.kubelet.lists import build_list, replica

LIMIT_S = 5


class SteppedClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_a_new_watcher_gets_the_current_list_at_once():
    feed = Feed(build_list())
    assert feed.watch().wait_newer().listed == build_list()


def test_a_list_that_is_repeated_goes_once_more_to_every_stream_and_is_no_newer(threads):
    feed = Feed(build_list())
    watchers = [feed.watch(), feed.watch()]
    first = [watcher.wait_newer() for watcher in watchers]
    waiting = [threads.submit(watcher.wait_newer) for watcher in watchers]
    feed.repeat()
    assert [found.result(LIMIT_S) for found in waiting] == first
    once_more = threads.submit(watchers[0].wait_newer)
    feed.close()
    assert once_more.result(LIMIT_S) is None


@pytest.mark.requirement(12)
@pytest.mark.invariant(8)
def test_an_equal_list_makes_no_new_version():
    feed = Feed(build_list())
    assert feed.publish(build_list()) == 1


@pytest.mark.requirement(12)
def test_a_list_that_looks_the_same_to_the_kubelet_is_not_sent_but_is_answered_from():
    feed = Feed(build_list(unhealthy=[replica(0, 0)], text="before"))
    changed = build_list(unhealthy=[replica(0, 0)], text="after", pass_device_specs=True)
    assert feed.publish(changed) == 1
    assert feed.current.listed == changed


@pytest.mark.parametrize(
    "changed",
    [
        build_list(unhealthy=[replica(1, 1)]),
        build_list(replicas=3),
        build_list(numa_nodes=(0,)),
        build_list(gpus=1),
    ],
    ids=["health", "more", "numa", "fewer"],
)
def test_what_the_kubelet_can_see_makes_a_new_version(changed):
    feed = Feed(build_list())
    assert feed.publish(changed) == 2
    assert feed.publish(build_list()) == 3


def test_every_watcher_gets_each_new_version(threads):
    feed = Feed(build_list())
    watchers = [feed.watch() for _ in range(3)]
    for watcher in watchers:
        watcher.wait_newer()
    waits = [threads.submit(watcher.wait_newer) for watcher in watchers]
    feed.publish(build_list(replicas=3))
    assert [wait.result(LIMIT_S).version for wait in waits] == [2, 2, 2]


def test_a_slow_watcher_gets_the_newest_version_only():
    feed = Feed(build_list())
    watcher = feed.watch()
    watcher.wait_newer()
    for replicas in (3, 4, 5):
        feed.publish(build_list(replicas=replicas))
    assert watcher.wait_newer().version == 4


def test_ending_a_watcher_wakes_it_and_no_other(threads):
    feed = Feed(build_list())
    ended, other = feed.watch(), feed.watch()
    ended.wait_newer(), other.wait_newer()
    waits = threads.submit(ended.wait_newer), threads.submit(other.wait_newer)
    ended.end()
    assert waits[0].result(LIMIT_S) is None
    assert not waits[1].done()
    feed.publish(build_list(replicas=3))
    assert waits[1].result(LIMIT_S).version == 2


def test_closing_ends_every_watcher_without_a_last_list(threads):
    feed = Feed(build_list())
    watchers = [feed.watch(), feed.watch()]
    for watcher in watchers:
        watcher.wait_newer()
    waits = [threads.submit(watcher.wait_newer) for watcher in watchers]
    feed.close()
    assert [wait.result(LIMIT_S) for wait in waits] == [None, None]
    assert feed.watch().wait_newer() is None


def test_held_counts_change_without_a_new_version():
    feed = Feed(build_list())
    feed.replace_held({"GPU-a": 3})
    assert feed.current.version == 1
    assert feed.current.held_elsewhere == {"GPU-a": 3}
    feed.publish(build_list(replicas=3))
    assert feed.current.held_elsewhere == {"GPU-a": 3}


def test_the_taken_version_is_what_every_stream_that_has_a_list_has_taken():
    feed = Feed(build_list())
    assert feed.taken_version == 0
    quick, slow = feed.watch(), feed.watch()
    quick.note_taken(quick.wait_newer().version)
    assert feed.taken_version == 1  # the other has no list that pods could be placed by
    slow.note_taken(slow.wait_newer().version)
    feed.publish(build_list(replicas=3))
    quick.note_taken(quick.wait_newer().version)
    assert feed.taken_version == 1
    feed.leave(slow)
    assert feed.taken_version == 2


def test_an_allocate_is_in_the_trace_while_it_is_answered_and_for_a_minute_after():
    clock = SteppedClock()
    feed = Feed(build_list(), clock=clock)
    with feed.allocating(["a", "b", "a"]):
        assert feed.allocations() == {"a": AllocateTrace(1, None), "b": AllocateTrace(1, None)}
        with feed.allocating(["b"]):
            assert feed.allocations()["b"] == AllocateTrace(2, None)
        assert feed.allocations()["b"] == AllocateTrace(1, 1000.0)
    clock.now += TRACE_KEPT_S - 1
    assert feed.allocations() == {"a": AllocateTrace(0, 1000.0), "b": AllocateTrace(0, 1000.0)}
    with feed.allocating(["b"]):
        pass
    clock.now += 1
    assert feed.allocations() == {"b": AllocateTrace(0, 1059.0)}


def test_a_refused_allocate_counts_only_while_it_lasts():
    feed = Feed(build_list())

    def refuse():
        with feed.allocating(["a"]):
            assert feed.allocations() == {"a": AllocateTrace(1, None)}
            raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        refuse()
    assert feed.allocations() == {}


@pytest.mark.invariant(3)
@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_whoever_publishes_and_then_reads_the_trace_misses_no_answer_from_an_older_list(begins_before):
    feed = Feed(build_list())
    begun, release = threading.Semaphore(0), threading.Event()

    def allocate(device_id):
        with feed.allocating([device_id]) as snapshot:
            begun.release()
            assert release.wait(LIMIT_S)
            return snapshot.version

    outcomes = []
    with ThreadPoolExecutor(len(begins_before)) as pool:
        for number, before in enumerate(begins_before):
            call = pool.submit(allocate, f"id-{number}")
            if before:
                assert begun.acquire(timeout=LIMIT_S)  # otherwise it races with the publishing
            published = feed.publish(build_list(replicas=3 + number))
            outcomes.append((call, published, f"id-{number}" in feed.allocations()))
        release.set()
    for call, published, traced in outcomes:
        assert traced or call.result() >= published


def test_the_trace_tells_under_which_index_the_last_answer_handed_a_gpu_out():
    by_index = build_list(device_id_strategy=DeviceIDStrategy.INDEX)
    feed = Feed(by_index, clock=SteppedClock())
    with feed.allocating([replica(1, 0)]):
        assert feed.allocations()[replica(1, 0)] == AllocateTrace(1, None, "")
        feed.publish(build_list())  # the call is answered from the list before
    assert feed.allocations()[replica(1, 0)] == AllocateTrace(0, 1000.0, by_index.facts.gpus[1].index)
    with feed.allocating([replica(1, 0)]):
        pass
    assert feed.allocations()[replica(1, 0)] == AllocateTrace(0, 1000.0, "")
