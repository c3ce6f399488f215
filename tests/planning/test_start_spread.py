"""The first requests of nodes that start together: spread by chance, a kind after the other, and within the budget."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.config.cluster import ClusterOptions, LabelTarget
from nvdp.planning.start_spread import FLEET, StartDelays, plan_start, starts_with_others

OPTIONS = st.builds(
    ClusterOptions,
    config_map=st.sampled_from(["", "nvdp-configs"]),
    write_labels=st.sampled_from(LabelTarget),
    events=st.booleans(),
    node_condition=st.sampled_from(["", "nvidia.com/GPUReady"]),
    startup_taint=st.sampled_from(["", "nvidia.com/gpu-not-ready"]),
)
ALL = ClusterOptions(
    config_map="nvdp-configs",
    write_labels=LabelTarget.AUTO,
    events=True,
    node_condition="nvidia.com/GPUReady",
    startup_taint="nvidia.com/gpu-not-ready",
)


@pytest.mark.parametrize(
    ("boot_age_s", "has_applied", "expected"),
    [(30.0, True, True), (599.0, True, True), (601.0, True, False), (None, True, False), (None, False, True)],
)
def test_a_node_starts_with_others_after_a_boot_or_where_nvdp_is_new(boot_age_s, has_applied, expected):
    assert starts_with_others(boot_age_s=boot_age_s, has_applied=has_applied) is expected


@given(OPTIONS, st.booleans(), st.integers())
def test_a_node_knows_its_configuration_within_a_minute(options: ClusterOptions, with_others: bool, seed: int):  # noqa: FBT001
    delays = plan_start(options, with_others=with_others, rng=Random(seed))
    assert 0 <= delays.ask_s < 60 - 2, "an answer takes a moment"
    assert max(delays.state_s, delays.labels_s, delays.events_s) < 180


@given(OPTIONS, st.integers())
def test_a_pod_that_is_replaced_by_itself_waits_for_nobody(options: ClusterOptions, seed: int):
    delays = plan_start(options, with_others=False, rng=Random(seed))
    assert delays.ask_s <= 1
    assert delays.state_s == 0
    assert max(delays.labels_s, delays.events_s) <= 30


@given(st.integers())
def test_labels_wait_for_configurations_and_events_for_labels(seed: int):
    delays = plan_start(ALL, with_others=True, rng=Random(seed))
    assert delays.ask_s < delays.state_s
    assert delays.ask_s < delays.labels_s < delays.events_s


def test_what_is_switched_off_takes_no_time():
    def find_most(options: ClusterOptions) -> StartDelays:
        found = [plan_start(options, with_others=True, rng=Random(seed)) for seed in range(300)]
        return max(found, key=lambda delays: delays.ask_s)

    most = {
        name: find_most(options).ask_s
        for name, options in {"all": ALL, "labels": ClusterOptions(write_labels=LabelTarget.NODE_FEATURE)}.items()
    }
    assert most["labels"] < most["all"] / 3


def test_the_budget_holds_for_each_kind_of_a_fleet():
    rng = Random(7)
    fleet = [plan_start(ALL, with_others=True, rng=rng) for _ in range(FLEET)]
    for at, count in (("ask_s", 4), ("labels_s", 3), ("events_s", 3)):
        times = sorted(getattr(delays, at) for delays in fleet)
        busiest = max(sum(start <= time < start + 10 for time in times) for start in range(0, 180, 5))
        assert busiest * count < 4000
