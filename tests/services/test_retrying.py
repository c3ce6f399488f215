"""When to try again: delays, and which stream's end is a reason."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.services.retrying import Backoff, KubeletStreams, Retry


@pytest.mark.requirement(5)
@pytest.mark.invariant(7)
@given(retry=st.sampled_from(Retry), seed=st.integers())
def test_delays_grow_to_their_limit_and_go_on_for_ever(retry, seed):
    backoff = Backoff(retry, random.Random(seed))
    delays = [backoff.next_delay_s() for _ in range(100)]
    assert 0.8 * retry.first_s <= delays[0] <= 1.2 * retry.first_s
    assert all(0.8 * retry.limit_s <= delay <= 1.2 * retry.limit_s for delay in delays[20:])
    for earlier, later in itertools.pairwise(delays):
        assert later > earlier or later >= 0.8 * retry.limit_s
    backoff.reset()
    assert backoff.next_delay_s() <= 1.2 * retry.first_s


@pytest.mark.requirement(15)
def test_a_lost_stream_is_never_followed_later_than_in_five_seconds():
    assert 1.2 * Retry.LOST.limit_s < 5


@dataclass(eq=False)
class OpenStream:
    """As much of a stream as is looked at."""

    opened_at: float
    taken: bool = True


@pytest.fixture
def streams():
    """The kubelet was asked at 10.0 and accepted at 10.5."""
    streams = KubeletStreams(window_s=1.0)
    streams.begin(10.0)
    streams.answer(10.5)
    return streams


def test_the_end_of_the_only_stream_is_a_loss(streams):
    kubelets = OpenStream(10.2)
    streams.add(kubelets)
    assert streams.listed
    assert streams.remove(kubelets) is Retry.LOST
    assert not streams.listed


def test_the_first_stream_is_the_kubelets_however_late_it_comes(streams):
    kubelets = OpenStream(19.0)
    streams.add(kubelets)
    streams.add(OpenStream(19.1))
    assert streams.remove(kubelets) is Retry.LOST


def test_a_later_stream_is_somebody_elses(streams):
    late = OpenStream(11.6)
    streams.add(OpenStream(10.2))
    streams.add(late)
    assert streams.remove(late) is None
    assert streams.open


def test_of_two_early_streams_the_first_to_end_is_doubtful_and_the_second_a_loss(streams):
    one, other = OpenStream(10.2), OpenStream(11.4)
    streams.add(one)
    streams.add(other)
    assert streams.remove(one) is Retry.DOUBTFUL
    assert streams.remove(other) is Retry.LOST


def test_a_stream_from_before_is_nobodys_while_the_new_one_is_open(streams):
    before, kubelets = OpenStream(9.9), OpenStream(10.2)
    streams.add(before)
    streams.add(kubelets)
    assert streams.remove(before) is None
    assert streams.remove(kubelets) is Retry.LOST


def test_the_end_of_the_last_stream_is_a_loss_whosever_it_was(streams):
    before = OpenStream(9.9)
    streams.add(before)
    assert not streams.came
    assert streams.remove(before) is Retry.LOST


def test_a_new_attempt_forgets_whose_streams_were_whose(streams):
    old = OpenStream(10.2)
    streams.add(old)
    streams.begin(20.0)
    assert not streams.open
    assert not streams.came
    fresh = OpenStream(20.1)
    streams.add(fresh)
    assert streams.remove(old) is None
    assert streams.remove(fresh) is Retry.LOST
