"""What control daemons a file calls for: their cards and limits, by the names under which these are offered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.mps import DaemonSpec
from nvdp.planning.mps_specs import build_specs
from tests.planning.allotting import allotted
from tests.planning.mps_values import MIB, card, mps_file
from tests.planning.values import parse, uuid

M, N = "nvidia.com/m", "nvidia.com/n"
SEVERAL = "failRequestsGreaterThanOne: false,"


def specs(text, *gpus):
    config = parse(text)
    return build_specs(config, allotted(text, *(gpus or (card(0), card(1)))))


def spec(text, *gpus):
    (found,) = specs(text, *gpus).values()
    return found


def test_a_daemon_has_the_cards_of_its_resource_alone_with_equal_shares_by_uuid():
    assert specs(mps_file("name: gpu, rename: m, devices: [1], replicas: 4"), card(0), card(1)) == {
        M: DaemonSpec(resource=M, gpus=(uuid(1),), thread_percent=25, memory_mib={uuid(1): 20 * 1024})
    }


def test_nvidias_figures_for_a_card_of_143771_mib():
    """NVIDIA's vector D6."""
    for replicas, percent, mib in ((10, 10, 14377), (3, 33, 47923), (48, 2, 2995)):
        found = spec(mps_file(f"name: gpu, replicas: {replicas}"), card(0, memory_bytes=150_754_820_096))
        assert (found.thread_percent, found.memory_mib) == (percent, {uuid(0): mib})


def test_resources_have_a_daemon_each_in_order_of_name():
    text = mps_file(
        "name: gpu, rename: n, devices: [0], replicas: 2", "name: gpu, rename: m, devices: [1], replicas: 3"
    )
    assert [(one.resource, one.gpus) for one in specs(text).values()] == [(M, (uuid(1),)), (N, (uuid(0),))]


def test_entries_of_one_name_are_one_daemon_with_the_largest_share_as_its_default():
    text = mps_file(
        "name: gpu, rename: m, devices: [0], replicas: 8", "name: gpu, rename: m, devices: [1], replicas: 2"
    )
    found = spec(text)
    assert (found.gpus, found.thread_percent) == ((uuid(0), uuid(1)), 50)
    assert found.memory_mib == {uuid(0): 10 * 1024, uuid(1): 40 * 1024}


@pytest.mark.parametrize(
    ("keys", "percent", "mib"),
    [
        ("replicas: 4", 100, 80 * 1024),
        ("replicas: 3", 99, 3 * (80 * 1024 // 3)),
        ("replicas: 4, defaultActiveThreadPercentage: 50", 100, 80 * 1024),
        ("replicas: 4, defaultActiveThreadPercentage: 10", 40, 80 * 1024),
        ("replicas: 2, defaultPinnedDeviceMemoryLimit: 1Gi", 100, 2 * 1024),
        ("replicas: 4, memoryOvercommitPercentage: 200", 100, 80 * 1024),
    ],
)
def test_where_a_container_may_have_several_shares_the_default_is_all_of_them_but_no_more_than_there_is(
    keys, percent, mib
):
    found = spec(mps_file(f"name: gpu, {keys}", more=SEVERAL), card(0))
    assert (found.thread_percent, found.memory_mib) == (percent, {uuid(0): mib})


def test_one_replica_is_a_daemon_without_limits():
    found = spec(mps_file("name: gpu, replicas: 1", more=SEVERAL))
    assert (found.gpus, found.thread_percent, found.memory_mib) == ((uuid(0), uuid(1)), None, {})


def test_memory_that_nobody_knows_is_not_limited():
    found = spec(mps_file("name: gpu, replicas: 2"), card(0), card(1, memory_bytes=None))
    assert found.memory_mib == {uuid(0): 40 * 1024}


def test_several_users_share_a_daemon_unless_the_file_says_otherwise():
    assert spec(mps_file("name: gpu, replicas: 2")).multi_user
    assert not spec(mps_file("name: gpu, replicas: 2, multiUser: false")).multi_user


def test_what_is_withheld_or_excluded_has_no_daemon():
    assert specs(mps_file("name: gpu, replicas: 2"), card(0, compute_capability="6.0")) == {}
    text = "devices: {exclude: [0], cordon: [1]}\n" + mps_file("name: gpu, replicas: 2")
    assert spec(text, card(0), card(1)).gpus == (uuid(1),)
    assert specs("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}") == {}


@given(
    replicas=st.integers(2, 48),
    mib=st.integers(1024, 300_000),
    percent=st.one_of(st.none(), st.integers(1, 100)),
    several=st.booleans(),
)
def test_the_default_is_never_less_than_what_one_container_is_promised_nor_more_than_there_is(
    replicas, mib, percent, several
):
    keys = f"replicas: {replicas}" + ("" if percent is None else f", defaultActiveThreadPercentage: {percent}")
    found = spec(mps_file(f"name: gpu, {keys}", more=SEVERAL if several else ""), card(0, memory_bytes=mib * MIB))
    share = percent or max(1, 100 // replicas)
    most = replicas if several else 1
    assert found.thread_percent == min(100, share * most)
    assert found.memory_mib == {uuid(0): mib // replicas * most}
