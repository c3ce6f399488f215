"""When the driver is let go of by itself, and when it is taken back."""

from __future__ import annotations

import pytest

from nvdp.planning.release import RELEASED_S, Release, advance_release, asks_for_reset, end_release

ASKED = {"asked": True, "idle": True, "held": False}
OUT = Release(ends_at=RELEASED_S)


def test_it_is_let_go_of_for_a_minute_once_a_gpu_asks_and_all_are_idle():
    out = advance_release(Release(), now=0.0, **ASKED)
    assert out == OUT
    assert advance_release(out, now=59.9, asked=None, idle=False, held=False) == out
    assert advance_release(out, now=60.0, asked=None, idle=False, held=False).ends_at is None


@pytest.mark.parametrize("facts", [{"asked": False}, {"asked": None}, {"idle": False}, {"held": True}])
def test_otherwise_it_is_not(facts):
    assert advance_release(Release(), now=0.0, **{**ASKED, **facts}) == Release()


def test_a_pod_that_got_a_gpu_in_the_last_moment_ends_it_at_once():
    assert advance_release(OUT, now=0.5, asked=None, idle=False, held=True) == Release(tries=1, next_at=300.5)


def test_who_asks_on_waits_for_ever_longer_breaks_of_up_to_an_hour():
    now, breaks, state = 0.0, [], Release()
    for _ in range(6):
        state = advance_release(state, now=now, **ASKED)
        ended = end_release(state, now=now + RELEASED_S)
        breaks.append(ended.next_at - now - RELEASED_S)
        assert advance_release(ended, now=ended.next_at - 0.1, **ASKED) == ended
        now, state = ended.next_at, ended
    assert breaks == [300.0, 600.0, 1200.0, 2400.0, 3600.0, 3600.0]


def test_an_end_before_its_time_is_followed_by_the_same_break_and_the_end_of_nothing_by_none():
    ended = end_release(OUT, now=10.0)
    assert ended == Release(tries=1, next_at=310.0)
    assert advance_release(ended, now=11.0, **ASKED) == ended
    assert end_release(ended, now=12.0) == ended


def test_a_gpu_that_asks_no_more_is_a_first_one_the_next_time():
    assert advance_release(Release(tries=3, next_at=9e9), now=0.0, asked=False, idle=True, held=False) == Release()


@pytest.mark.parametrize(("action", "asks"), [("GPUReset", True), ("DrainAndReset", True), ("BusReset", True),
                                              ("NodeReboot", False), ("None", False), ("", False)])  # fmt: skip
def test_only_what_can_be_done_meanwhile_counts(action, asks):
    assert asks_for_reset(["", action]) is asks
