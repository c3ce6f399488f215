"""How an object is kept in sight: back-off, versions, and what is shown, over histories of all that can happen."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.errors import ClusterFault
from nvdp.planning.following import (
    RETRY_AFTER_MOST_S,
    begin,
    hurry,
    note_ended,
    note_failed,
    note_heard,
    note_left,
    note_opened,
)

MOST_REQUESTS_A_MINUTE = 10
LONGEST_WAIT_S = 60.0
FAULTS = list(ClusterFault)


class Least(Random):
    def uniform(self, a: float, b: float) -> float:
        return min(a, b)


class Most(Random):
    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


def fail(state, now=0.0, *, fault=ClusterFault.UNREACHABLE, random=None, retry_after_s=None):
    return note_failed(
        state, now, fault=fault, problem="no answer", retry_after_s=retry_after_s, random=random or Random(1)
    )


def find_delays(count: int, random: Random) -> list[float]:
    state, now, delays = begin(0.0), 0.0, []
    for _ in range(count):
        state = fail(state, now, random=random)
        delays.append(state.open_at - now)
        now = state.open_at
    return delays


def test_the_first_watch_asks_for_the_present_state_when_it_is_due() -> None:
    state = begin(5.0, first_delay_s=20.0)
    assert (state.open_at, state.version, state.problem) == (25.0, "", "")


def test_the_wait_after_failures_doubles_up_to_a_minute_and_is_spread() -> None:
    assert find_delays(8, Most()) == [2, 4, 8, 16, 32, 60, 60, 60]
    assert find_delays(8, Least()) == [0.5, 1, 2, 4, 8, 15, 15, 15]


def test_a_thousand_failures_wait_no_longer_than_ten() -> None:
    assert find_delays(1000, Most())[-1] == LONGEST_WAIT_S


def test_what_the_server_asks_for_is_the_least_wait_within_reason() -> None:
    state = fail(begin(0.0), fault=ClusterFault.THROTTLED, retry_after_s=30.0)
    assert 30.5 <= state.open_at <= 32.0
    assert fail(begin(0.0), retry_after_s=1e9).open_at <= RETRY_AFTER_MOST_S + 2.0
    assert fail(begin(0.0), retry_after_s=-5.0).open_at >= 0.5


def test_a_hurry_ends_every_wait_but_the_one_that_the_server_asked_for() -> None:
    assert hurry(begin(0.0, first_delay_s=30.0), 1.0, random=Most()).open_at == 1.0
    assert hurry(fail(begin(0.0)), 0.1, random=Most()).open_at == 0.1
    throttled = fail(begin(0.0), fault=ClusterFault.THROTTLED, retry_after_s=30.0, random=Most())
    assert throttled.open_at == 32.0
    assert 30.0 < hurry(throttled, 1.0, random=Least()).open_at < hurry(throttled, 1.0, random=Most()).open_at < 32.0
    assert hurry(throttled, 30.5, random=Most()).open_at == 30.5
    again = fail(throttled, 32.0, random=Most())
    assert hurry(again, 32.0, random=Most()).open_at == 32.0, "what was asked for before is over"


def test_a_hurry_never_puts_off_what_is_due_and_disturbs_no_watch() -> None:
    throttled = fail(begin(0.0), retry_after_s=30.0, random=Least())
    assert throttled.open_at == 30.5
    assert hurry(throttled, 1.0, random=Most()).open_at == 30.5
    opened = note_opened(throttled, 30.5)
    assert hurry(opened, 31.0, random=Most()) == opened


def test_a_watch_that_lived_goes_on_soon_and_from_its_version() -> None:
    state = note_heard(note_opened(fail(fail(begin(0.0))), 10.0), "7")
    ended = note_ended(state, 3000.0, random=Random(1))
    assert (ended.version, ended.failures, ended.problem) == ("7", 0, "")
    assert 3000.0 < ended.open_at <= 3001.0


def test_a_watch_that_is_ended_at_once_each_time_waits_ever_longer() -> None:
    state, now, opened = begin(0.0), 0.0, []
    for _ in range(12):
        now = state.open_at
        opened.append(now)
        state = note_ended(note_heard(note_opened(state, now), "7"), now + 1.0, random=Least())
    assert opened[-1] - opened[-2] == 16.0
    assert state.version == "7"


def test_a_watch_that_somebody_doubts_is_followed_by_the_present_state_at_once() -> None:
    state = note_heard(note_opened(fail(begin(0.0)), 10.0), "7")
    left = note_left(state, 3000.0)
    assert (left.open_at, left.version, left.failures) == (3000.0, "", 0)
    assert note_left(state, 11.0).failures == 1, "it has not lived yet"


def test_a_version_that_is_too_old_is_given_up_at_once_and_shows_no_problem() -> None:
    state = note_heard(note_opened(begin(0.0), 0.0), "7")
    gone = fail(state, 1.0, fault=ClusterFault.GONE)
    assert (gone.version, gone.problem) == ("", "")
    assert gone.open_at <= 2.0


def test_a_server_that_calls_the_present_state_too_old_is_backed_off_from() -> None:
    state, now = note_heard(note_opened(begin(0.0), 0.0), "7"), 1.0
    delays = []
    for _ in range(9):
        state = fail(state, now, fault=ClusterFault.GONE, random=Most())
        delays.append(state.open_at - now)
        now = state.open_at
    assert delays == [1.0, 2, 4, 8, 16, 32, 60, 60, 60]
    assert state.problem


def test_a_server_that_takes_each_state_back_as_too_old_is_not_asked_often() -> None:
    state, now, asked = begin(0.0), 0.0, []
    while now < 60.0:
        asked.append(now)
        state = note_heard(note_opened(state, now), "7")
        state = fail(state, now, fault=ClusterFault.GONE, random=Least())
        now = state.open_at
    assert len(asked) <= MOST_REQUESTS_A_MINUTE


def test_the_problem_ends_when_something_is_heard_and_not_when_a_watch_opens() -> None:
    opened = note_opened(fail(begin(0.0)), 3.0)
    assert opened.problem
    assert not note_heard(opened).problem


steps = st.lists(
    st.one_of(
        st.tuples(st.just("refused"), st.sampled_from(FAULTS), st.none() | st.floats(-1, 1e6)),
        st.tuples(st.just("ended"), st.floats(0, 4000), st.booleans()),
        st.tuples(st.just("error"), st.floats(0, 4000), st.sampled_from(FAULTS)),
    ),
    max_size=40,
)


@given(steps, st.integers(0, 2**32), st.floats(0, 60))
def test_it_never_waits_long_never_asks_often_and_shows_a_problem_exactly_while_there_is_one(
    history, seed, delay_s
) -> None:
    random = Random(seed)
    state, requests = begin(0.0, first_delay_s=delay_s), []
    for kind, one, other in history:
        assert state.open_at is not None, "it always comes back"
        now = state.open_at
        requests.append(now)
        if kind == "refused":
            state = fail(state, now, fault=one, retry_after_s=other, random=random)
            asked_s = min(RETRY_AFTER_MOST_S, max(0.0, other or 0.0))
            is_first_gone = one is ClusterFault.GONE and state.too_old == 1
            assert bool(state.problem) or is_first_gone
        else:
            state = note_opened(state, now)
            asked_s, ends_at = 0.0, now + one
            is_heard = other is True or kind == "error"
            if is_heard:
                state = note_heard(state, str(len(requests)))
                assert not state.problem
            now = ends_at
            state = (
                note_ended(state, now, random=random)
                if kind == "ended"
                else fail(state, now, fault=other, random=random)
            )
        assert 0.1 <= state.open_at - now <= asked_s + LONGEST_WAIT_S
    for first in requests:
        within = [at for at in requests if first <= at < first + 60.0]
        assert len(within) <= MOST_REQUESTS_A_MINUTE, within


@given(st.lists(st.sampled_from(["cut", "gone", "outage", "change", "compact"]), max_size=30), st.integers(0, 2**32))
def test_it_ends_with_the_newest_state_whatever_happened(history, seed) -> None:
    """Against a server of one object, whose history may be forgotten."""
    random = Random(seed)
    newest, oldest, seen, now = 1, 0, 0, 0.0
    state = begin(now)
    for what in [*history, "settle"]:
        if what == "change":
            newest += 1
        if what == "compact":
            newest, oldest = newest + 1, newest + 1
        for _ in range(3 if what == "settle" else 1):
            now = state.open_at if state.open_at is not None else now + 1.0
            if what == "outage":
                state = fail(state, now, random=random)
                continue
            if state.version and int(state.version) < oldest:
                state = fail(state, now, fault=ClusterFault.GONE, random=random)
                continue
            state = note_opened(state, now)
            if not state.version or int(state.version) < newest:
                seen = newest
                state = note_heard(state, str(newest))
            if what == "gone":
                state = fail(state, now + 1, fault=ClusterFault.GONE, random=random)
            else:
                state = note_ended(state, now + 1, random=random)
    assert seen == newest


@pytest.mark.parametrize("fault", FAULTS)
def test_every_kind_of_failure_has_an_end(fault) -> None:
    assert fail(begin(0.0), fault=fault).open_at > 0.0
