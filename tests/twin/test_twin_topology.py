"""Hints, their merge and the policies (kubelet contract A.7, A.8), against brute force and at the twin."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.simulate.kubelet import AdmissionError, Kubelet
from nvdp.simulate.kubelet.topology import Hint, align, build_hints, is_admitted, merge_hints
from tests.twin.reference_plugin import RESOURCE, ReferencePlugin, device, devices

NODES = (0, 1, 2)


def serve(kubelet: Kubelet, plugin: ReferencePlugin) -> None:
    plugin.register()
    kubelet.wait_until(lambda: kubelet.capacity(plugin.resource) == len(plugin.listed))


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.sets(st.sampled_from(NODES), max_size=2), min_size=1),
    st.integers(1, 5),
    st.data(),
)
def test_a_hint_is_every_mask_with_enough_free_devices_and_preferred_if_it_is_the_smallest(listed, requested, data):
    usable = data.draw(st.sets(st.sampled_from(sorted(listed))))
    hints = build_hints(listed, usable=usable, reusable=(), requested=requested, numa_nodes=NODES)
    masks = [frozenset(mask) for size in (1, 2, 3) for mask in itertools.combinations(NODES, size)]
    assert [hint.nodes for hint in hints] == [
        mask for mask in masks if sum(bool(mask & listed[name]) for name in usable) >= requested
    ]
    large_enough = [len(mask) for mask in masks if sum(bool(mask & nodes) for nodes in listed.values()) >= requested]
    smallest = min(large_enough, default=len(NODES))
    assert all(hint.preferred == (len(hint.nodes) == smallest) for hint in hints)


def test_resources_that_do_not_mind_leave_the_choice_to_the_others():
    hints = [Hint(frozenset({1}), preferred=True), Hint(frozenset({0, 1}), preferred=False)]
    assert merge_hints([None, hints], policy="restricted", numa_nodes=(0, 1)) == Hint(frozenset({1}), preferred=True)


def test_two_resources_on_different_nodes_agree_on_nothing_preferred():
    first = [Hint(frozenset({0}), preferred=True), Hint(frozenset({0, 1}), preferred=False)]
    second = [Hint(frozenset({1}), preferred=True), Hint(frozenset({0, 1}), preferred=False)]
    merged = merge_hints([first, second], policy="restricted", numa_nodes=(0, 1))
    assert not merged.preferred
    assert not is_admitted(merged, policy="restricted")
    assert is_admitted(merged, policy="best-effort")


def test_devices_of_an_aware_resource_without_a_node_fit_nowhere():
    listed = {"a": {0}, "b": {1}, "c": set()}
    assert align(listed, listed, frozenset({0})) == (("a",), ("b",), ("c",))
    assert align(listed, listed, None) == ((), (), ("a", "b", "c"))


@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
def test_a_pod_gets_devices_of_one_node_where_that_is_possible(root, policy):
    with (
        Kubelet(root, topology_policy=policy) as kubelet,
        ReferencePlugin(kubelet.directory, listed=devices(8, numa=True)) as plugin,
    ):
        serve(kubelet, plugin)
        for number in range(4):
            pod = kubelet.admit(f"pod-{number}", {"main": {RESOURCE: 2}})
            assert len({kubelet.devices(RESOURCE)[name].numa for name in pod.ids(RESOURCE)}) == 1


def test_the_plugin_chooses_among_aligned_devices_and_not_if_all_are_needed(root):
    with (
        Kubelet(root, topology_policy="restricted") as kubelet,
        ReferencePlugin(kubelet.directory, listed=devices(8, numa=True), preferred=True) as plugin,
    ):
        serve(kubelet, plugin)
        kubelet.admit("some", {"main": {RESOURCE: 2}})
        (asked,) = [call for call in kubelet.calls if call.method == "GetPreferredAllocation"]
        nodes = {kubelet.devices(RESOURCE)[name].numa for name in asked.ids}
        assert (len(asked.ids), len(nodes)) == (4, 1)
        kubelet.admit("all-of-a-node", {"main": {RESOURCE: 4}})
        assert [call.method for call in kubelet.calls].count("GetPreferredAllocation") == 1


def test_more_than_the_aligned_devices_must_include_them_all(root):
    listed = [device("a", numa=(0,)), device("b", numa=(0,)), device("c"), device("d")]
    with (
        Kubelet(root, topology_policy="best-effort") as kubelet,
        ReferencePlugin(kubelet.directory, listed=listed, preferred=True) as plugin,
    ):
        serve(kubelet, plugin)
        plugin.prefer_answer = ["a", "b", "d"]
        pod = kubelet.admit("pod", {"main": {RESOURCE: 3}})
        (asked,) = [call for call in kubelet.calls if call.method == "GetPreferredAllocation"]
        assert set(asked.must_include) == {"a", "b"}
        assert set(asked.ids) == {"a", "b", "c", "d"}
        assert pod.ids(RESOURCE) == {"a", "b", "d"}


def test_an_unhealthy_device_makes_restricted_refuse_what_it_would_admit_without_it(root):
    healthy = [device("a", numa=(0,)), device("c", numa=(1,))]
    with (
        Kubelet(root, topology_policy="restricted") as kubelet,
        ReferencePlugin(kubelet.directory, listed=[*healthy, device("b", "Unhealthy", (0,))]) as plugin,
    ):
        serve(kubelet, plugin)
        with pytest.raises(AdmissionError, match="Resources cannot be allocated with Topology locality") as error:
            kubelet.admit("refused", {"main": {RESOURCE: 2}})
        assert error.value.reason == "TopologyAffinityError"
        plugin.update(healthy)
        kubelet.wait_until(lambda: kubelet.capacity(RESOURCE) == 2)
        assert kubelet.admit("admitted", {"main": {RESOURCE: 2}}).ids(RESOURCE) == {"a", "c"}


def test_init_containers_hand_their_devices_on_under_a_policy_too(root):
    with (
        Kubelet(root, topology_policy="single-numa-node") as kubelet,
        ReferencePlugin(kubelet.directory, listed=devices(4, numa=True)) as plugin,
    ):
        serve(kubelet, plugin)
        pod = kubelet.admit("pod", {"main": {RESOURCE: 2}}, init_containers={"prepare": {RESOURCE: 2}})
        assert len(pod.ids(RESOURCE)) == 2
