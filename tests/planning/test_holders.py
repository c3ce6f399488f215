"""What is counted as used beyond what the kubelet's request shows."""

from __future__ import annotations

from nvdp.planning.holders import count_held_elsewhere
from tests.planning.values import GPU, SHARED, answer, holding, listed, mig_uuid, uuid

A, B = uuid(0), uuid(1)
M = mig_uuid(0, 0)
PARENTS = {M: A}


def count(held, *lists):
    return count_held_elsewhere({one.resource: one for one in lists}, held, parents=PARENTS)


def test_a_healthy_listed_id_is_not_counted_for_the_request_shows_it():
    assert count(answer(holding(f"{A}::0")), listed(GPU, f"{A}::0", f"{A}::1")) == {GPU: {}}


def test_an_unhealthy_listed_id_and_one_that_left_are_counted():
    held = answer(holding(f"{A}::0"), holding(f"{A}::5"))
    assert count(held, listed(GPU, f"{A}::0", f"{A}::1", unhealthy=(f"{A}::0",))) == {GPU: {A: 2}}


def test_what_is_held_of_a_gpu_under_another_resource_is_counted():
    held = answer(holding(f"{A}::0", resource=SHARED), holding(B))
    assert count(held, listed(GPU, A, B), listed(SHARED, f"{A}::0")) == {GPU: {A: 1}, SHARED: {B: 1}}


def test_one_id_of_two_holders_is_used_once():
    held = answer(holding(f"{A}::7", "init"), holding(f"{A}::7", "main"))
    assert count(held, listed(GPU, f"{A}::0")) == {GPU: {A: 1}}


def test_ids_of_other_plugins_are_not_ours_to_count():
    assert count(answer(holding("nic-0", resource="other.example/nic")), listed(GPU, A)) == {GPU: {}}


def test_what_is_held_of_a_mig_device_counts_for_its_gpu_too():
    small, large = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
    other = mig_uuid(0, 1)
    held = answer(holding(M, resource=small))
    assert count(held, listed(small, M), listed(large, other)) == {small: {}, large: {M: 1, A: 1}}
