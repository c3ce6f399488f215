"""Which pieces of shared cards containers get, and which requests are refused."""

from __future__ import annotations

import grpc
import pytest

from nvdp.simulate.kubelet import AdmissionError
from tests.daemon.node import (
    GPU,
    SHARED,
    build_config,
    connect,
    gpu_uuid,
    healthy,
    on_node,
    wait_healthy,
)
from tests.daemon.process import LIMIT_S

# Two cards of 2 and of 6 pieces under one name: by policy, the card that each of 8 pods gets.
CHOICES = {"packed": "00111111", "distributed": "01011111", "spread": "11110101"}


@on_node(machine={"count": 2})
@pytest.mark.requirement(37)
@pytest.mark.parametrize("policy", CHOICES)
def test_cards_in_different_numbers_of_pieces_are_filled_as_the_policy_says(kubelet, start, policy):
    entries = [
        {"name": GPU, "rename": SHARED, "devices": [card], "replicas": replicas} for card, replicas in ((0, 2), (1, 6))
    ]
    start(build_config(sharing={"timeSlicing": {"resources": entries}}, allocation={"sharedPolicy": policy}))
    kubelet.wait_until(lambda: len(healthy(kubelet, SHARED)) == 8, LIMIT_S)

    given = [kubelet.admit(f"team/{number}", {"main": {SHARED: 1}}).ids(SHARED) for number in range(8)]

    cards = {gpu_uuid(0): "0", gpu_uuid(1): "1"}
    assert "".join(cards[device.partition("::")[0]] for ids in given for device in ids) == CHOICES[policy]


@on_node(machine={"count": 3, "models": ["a10", "a10", "t4"], "numa": [0, 1, None]})
@pytest.mark.requirement(39)
def test_numa_nodes_are_told_for_each_resource_whose_cards_all_have_one(kubelet, start, config_map):
    names = {"gpus": [{"pattern": "Tesla*", "name": "nvidia.com/t4"}]}
    start(build_config(resources=names), wait=True)
    wait_healthy(kubelet, [gpu_uuid(2)], resource="nvidia.com/t4")

    assert {state.numa for state in kubelet.devices(GPU).values()} == {(0,), (1,)}
    assert {state.numa for state in kubelet.devices("nvidia.com/t4").values()} == {()}

    config_map.publish(build_config(resources=names, allocation={"numaHints": False}))
    kubelet.wait_until(lambda: {state.numa for state in kubelet.devices(GPU).values()} == {()}, LIMIT_S)
    assert len(kubelet.registrations) == 2


@on_node(machine={"count": 4, "numa": [0, 1, 0, 1]})
@pytest.mark.requirement(37)
def test_containers_get_whole_cards_that_are_connected_with_each_other(kubelet, start):
    start(build_config(allocation={"numaHints": False}), wait=True)

    given = [find_cards(kubelet.admit(f"team/{number}", {"main": {GPU: 2}})) for number in range(2)]

    assert given == [{gpu_uuid(0), gpu_uuid(2)}, {gpu_uuid(1), gpu_uuid(3)}]


def find_cards(pod) -> set[str]:
    return {device.partition("::")[0] for device in pod.ids(GPU)}


@on_node(machine={"count": 2})
@pytest.mark.parametrize("policy", CHOICES)
def test_a_container_gets_as_many_different_gpus_as_it_asks_for_or_is_refused(kubelet, start, policy):
    distinct = {"requireDistinctGPUs": True}
    daemon = start(build_config(share=3, timeSlicing=distinct, allocation={"sharedPolicy": policy}), wait=True)
    both = {gpu_uuid(0), gpu_uuid(1)}

    def ask(name: str, count: int):
        return kubelet.admit(f"team/{name}", {"main": {GPU: count}}, init_containers={"first": {GPU: count}})

    assert find_cards(ask("two", 2)) == both
    with pytest.raises(AdmissionError, match="3 asked, and only 2 different GPUs free to give them"):
        ask("three", 3)

    single = [ask(f"one-{number}", 1) for number in range(4)]  # nothing is left
    of = {card: [pod for pod in single if find_cards(pod) == {card}] for card in both}
    for pod in of[gpu_uuid(1)]:
        kubelet.delete(pod)
    with pytest.raises(AdmissionError) as refusal:
        ask("again", 2)
    assert (
        f"{GPU}: 2 asked, and only 1 different GPU free to give them (sharing.timeSlicing.requireDistinctGPUs)"
    ) in str(refusal.value)
    kubelet.delete(of[gpu_uuid(0)][0])
    assert find_cards(ask("at last", 2)) == both

    assert daemon.log.wait_for("AllocationRefused")["cause"] == "not_distinct"
    daemon.wait_metric(2, "nvdp_allocations_refused_total", resource=GPU, reason="not_distinct")


@pytest.mark.parametrize(
    "settings",
    [{"kubelet": {"topology_policy": policy}} for policy in ("best-effort", "single-numa-node")],
    ids=["best-effort", "single-numa-node"],
)
def test_no_topology_policy_stands_in_the_way_of_different_gpus(kubelet, start):
    start(build_config(share=4, timeSlicing={"requireDistinctGPUs": True}), wait=True)

    assert len(find_cards(kubelet.admit("team/four", {"main": {GPU: 4}}))) == 4


def test_a_limit_of_one_piece_does_not_concern_whole_cards(kubelet, start):
    slices = [{"name": GPU, "rename": SHARED, "devices": [0, 1], "replicas": 2}]
    start(build_config(sharing={"timeSlicing": {"failRequestsGreaterThanOne": True, "resources": slices}}), wait=True)
    kubelet.wait_until(lambda: len(healthy(kubelet, SHARED)) == 4, LIMIT_S)

    whole = kubelet.admit("team/whole", {"main": {GPU: 2}})
    assert whole.ids(GPU) == {gpu_uuid(2), gpu_uuid(3)}
    with connect(kubelet, SHARED) as client, pytest.raises(grpc.RpcError, match="2 asked, 1 allowed"):
        client.allocate([f"{gpu_uuid(0)}::0", f"{gpu_uuid(1)}::0"])
