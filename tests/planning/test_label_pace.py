"""When labels are written: not before their time, not again and again, and as the API server bears it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.errors import ClusterFault
from nvdp.planning.label_pace import LabelPace

DAY_S = 86_400.0
SLOW = (ClusterFault.DENIED, ClusterFault.REFUSED)


def build(seed=0, first_at=0.0):
    return LabelPace(first_at=first_at, rng=random.Random(seed))


def test_nothing_is_looked_at_or_written_before_the_first_delay_is_over():
    pace = build(first_at=17.0)
    pace.renew(0.0)
    assert (pace.look_at, pace.change_at, pace.repair_at) == (17.0, 17.0, 17.0)


def test_a_single_change_is_followed_at_once_and_many_are_gathered():
    pace = build()
    gaps = []
    now = 1000.0
    for _ in range(12):
        assert pace.change_at <= now
        pace.wrote(now, is_repair=False)
        gaps.append(pace.change_at - now)
        now = pace.change_at
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60, 60]
    now += 400.0
    pace.wrote(now, is_repair=False)
    assert pace.change_at == now + 1


def test_two_who_write_the_same_labels_do_not_keep_each_other_busy():
    pace = build()
    now, repairs = 1000.0, 0
    while now < 1000.0 + DAY_S:
        pace.saw_damage(now)
        now = max(now, pace.repair_at)
        pace.wrote(now, is_repair=True)
        repairs += 1
    assert 90 < repairs < 110


def test_a_fight_over_labels_does_not_hold_up_a_change():
    pace = build()
    now = 1000.0
    for _ in range(10):
        now = max(now, pace.repair_at)
        pace.wrote(now, is_repair=True)
    assert pace.repair_at - now > 800
    assert pace.change_at - now <= 60


def test_after_an_hour_of_peace_the_next_repair_is_soon():
    pace = build()
    for now in (1000.0, 1010.0, 1030.0):
        pace.wrote(now, is_repair=True)
    pace.wrote(9000.0, is_repair=True)
    assert pace.repair_at == 9005.0


def test_damage_that_many_nodes_see_at_once_is_not_repaired_by_all_at_once():
    starts = []
    for seed in range(100):
        pace = build(seed)
        pace.saw_damage(1000.0)
        pace.saw_damage(1000.1)  # more of it puts nothing off
        starts.append(pace.repair_at)
    assert min(starts) < 1000.5
    assert 1004.5 < max(starts) < 1005.1


@pytest.mark.parametrize("fault", ClusterFault)
@pytest.mark.parametrize("seed", range(3))
def test_a_day_of_failures_costs_no_more_tries_than_a_person_or_an_outage_deserves(fault, seed):
    pace = build(seed)
    now, tries = 0.0, 0
    while now < DAY_S:
        pace.failed(now, fault)
        assert now < pace.look_at <= now + (900 if fault in SLOW else 60)
        now, tries = pace.look_at, tries + 1
    assert tries < (200 if fault in SLOW else 3500)


def test_the_first_failure_of_what_passes_by_itself_is_tried_again_within_a_second():
    pace = build()
    pace.failed(10.0, ClusterFault.UNREACHABLE)
    assert 10.0 < pace.look_at <= 11.0
    pace.succeeded()
    assert pace.look_at == 0.0
    pace.failed(20.0, None)
    assert 20.0 < pace.look_at <= 21.0


@given(st.sampled_from(ClusterFault), st.floats(0, 120), st.integers(0, 20), st.integers(0, 5))
def test_what_the_server_asks_for_is_kept_to_with_chance_behind_it(fault, retry_after_s, failures, seed):
    pace = build(seed)
    for _ in range(failures):
        pace.failed(0.0, fault)
    pace.failed(100.0, fault, retry_after_s=retry_after_s)
    assert pace.look_at > 100.0 + retry_after_s


def test_what_a_person_has_to_put_right_is_tried_soon_once_something_else_is_asked_for():
    pace = build()
    for _ in range(10):
        pace.failed(0.0, ClusterFault.DENIED)
    pace.renew(1.0)
    assert pace.change_at <= 6.0
    pace.failed(10.0, ClusterFault.THROTTLED, retry_after_s=60.0)
    pace.renew(11.0)
    assert pace.change_at > 70.0
