"""Pods that ask for GPUs on a real kubelet, by a real scheduler: what they get, and what they keep whatever happens."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.containers.unpacked import find_obstacle
from tests.daemon.node import (
    GPU,
    SHARED,
    ConfigMap,
    Machine,
    build_config,
    build_sliced,
    gpu_uuid,
    replicas,
)
from tests.daemon.process import wait_until
from tests.real.controlplane import ControlPlane
from tests.real.node import RealNode

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]

COUNT = 2
ALL = {gpu_uuid(number) for number in range(COUNT)}
STEPS: dict[str, Callable[[RealNode], object]] = {
    "nvdp dies": lambda node: node.kill(),
    "nvdp starts": lambda node: node.run(),
    "kubelet dies": lambda node: node.kubelet.end(signal.SIGKILL),
    "kubelet ends": lambda node: node.kubelet.end(),
    "kubelet starts": lambda node: node.kubelet.start(),
}
RESTARTS = [
    ("nvdp dies", "nvdp starts", "kubelet ends", "kubelet starts"),
    ("nvdp dies", "kubelet dies", "nvdp starts", "kubelet starts"),
    ("kubelet dies", "nvdp dies", "kubelet starts", "nvdp starts"),
]


@pytest.fixture
def settings() -> dict[str, dict[str, int]]:
    return {"machine": {"count": COUNT}}


@pytest.fixture
def node(control_plane: ControlPlane, root: Path, machine: Machine, config_map: ConfigMap) -> Iterator[RealNode]:
    """All of it runs but nvdp."""
    if obstacle := find_obstacle():
        pytest.skip(f"no container can run here: {obstacle}")
    found = RealNode(control_plane, root, machine=machine, config_map=config_map)
    try:
        found.start()
        yield found
    finally:
        found.stop()
        print(found.describe())  # noqa: T201 - pytest shows it if the test fails


def test_a_pod_gets_a_gpu_and_the_next_one_waits_when_all_are_taken(node):
    node.run(build_config())
    node.pods.wait_resources(COUNT, COUNT)

    node.pods.create("a", "b")
    node.pods.wait_running("a", "b")
    assert node.pods.read_visible("a") | node.pods.read_visible("b") == ALL
    assert node.pods.list_held() == {name: node.pods.read_visible(name) for name in ("a", "b")}
    node.wait_holders("a", "b")

    node.pods.create("c")
    assert f"Insufficient {GPU}" in node.pods.wait_unschedulable("c")
    freed = node.pods.read_visible("a")
    node.pods.delete("a")
    node.pods.wait_running("c")
    assert node.pods.read_visible("c") == freed
    node.wait_holders("b", "c")


def test_what_allocate_refuses_is_what_the_user_reads(node):
    node.run(build_config(share=2, timeSlicing={"failRequestsGreaterThanOne": True}))
    node.pods.wait_resources(2 * COUNT, 2 * COUNT)
    node.pods.create("a", count=2)
    wait_until(lambda: node.pods.phase("a") == "Failed", what="that the pod is refused")
    status = node.pods.status("a")
    assert status["reason"] == "UnexpectedAdmissionError"
    assert f"{GPU}: 2 asked, 1 allowed (sharing.timeSlicing.failRequestsGreaterThanOne)" in status["message"]


def test_an_edit_changes_the_node_and_what_a_pod_holds_stays_until_it_goes(node):
    node.run(build_config(share=2))
    node.pods.wait_resources(2 * COUNT, 2 * COUNT)
    node.config_map.publish(build_config(share=4))
    node.pods.wait_resources(4 * COUNT, 4 * COUNT)

    pods = [f"p{number}" for number in range(3 * COUNT)]
    node.pods.create(*pods)
    node.pods.wait_running(*pods)
    held = node.pods.list_held()
    node.config_map.publish(build_config(share=2))
    node.pods.wait_resources(3 * COUNT, 2 * COUNT)  # what is held is not dropped, and cannot be had
    node.wait_holders(*pods)
    assert node.status()["waits"]
    assert node.pods.list_held() == held
    assert {node.pods.phase(pod) for pod in pods} == {"Running"}

    node.pods.delete(*pods)
    node.pods.wait_resources(2 * COUNT, 2 * COUNT)
    wait_until(lambda: not node.status()["waits"], what="that nothing waits any more")


def test_a_gpu_that_a_pod_holds_is_not_offered_under_another_name_before_the_pod_goes(node):
    node.run(build_config())
    node.pods.wait_resources(COUNT, COUNT)
    node.pods.create("whole")
    node.pods.wait_running("whole")
    held = node.pods.read_visible("whole")
    node.config_map.publish(build_sliced({}))
    node.pods.wait_resources(2 * COUNT, 2 * (COUNT - 1), resource=SHARED)
    node.pods.wait_resources(1, 0)

    slices = [f"s{number}" for number in range(2 * COUNT - 1)]
    node.pods.create(*slices, resource=SHARED)
    wait_until(lambda: len(node.pods.list_held()) == 2 * COUNT - 1, 60, what="that all slices but one are given out")
    (last,) = {*slices} - node.pods.list_held().keys()
    assert f"Insufficient {SHARED}" in node.pods.wait_unschedulable(last)
    for pod in {*slices} - {last}:
        node.pods.wait_running(pod)
        assert not node.pods.read_visible(pod) & held
    node.pods.delete("whole")
    node.pods.wait_running(last)
    assert node.pods.read_visible(last) == held


def test_a_gpu_that_goes_bad_is_not_given_to_pods_and_the_pod_on_it_goes_on(node):
    daemon = node.run(build_config(share=2))
    daemon.wait_ready()
    daemon.wait_scans()
    node.pods.wait_resources(2 * COUNT, 2 * COUNT)
    node.pods.create(*"abc")
    node.pods.wait_running(*"abc")
    held = node.pods.list_held()

    bad = gpu_uuid(1)
    node.machine.change(events=[{"gpu": 1, "xid": 79}], conditions=[{"gpu": 1, "recoveryAction": "GPUReset"}])
    node.pods.wait_resources(2 * COUNT, 2 * (COUNT - 1))
    assert {node.pods.phase(pod) for pod in "abc"} == {"Running"}
    assert node.pods.list_held() == held
    node.pods.delete(*(pod for pod, ids in held.items() if not ids & replicas(1, 2)))
    node.pods.create("d")
    node.pods.wait_running("d")
    assert bad not in node.pods.read_visible("d")


@pytest.mark.parametrize("steps", RESTARTS, ids=", ".join)
def test_pods_keep_what_they_hold_over_restarts(node, steps):
    node.run(build_config(share=2))
    node.pods.wait_resources(2 * COUNT, 2 * COUNT)
    node.pods.create(*"abc")
    before = [container.id for container in node.pods.wait_running(*"abc")]
    held = node.pods.list_held()

    for step in steps:
        STEPS[step](node)
    node.daemons[-1].wait_ready(60)
    node.pods.wait_resources(2 * COUNT, 2 * COUNT)
    node.wait_holders(*"abc")
    assert node.pods.list_held() == held
    assert [node.pods.find_container(pod).id for pod in "abc"] == before
    assert {node.pods.phase(pod) for pod in "abc"} == {"Running"}

    node.pods.create("d")
    node.pods.wait_running("d")
    assert not node.pods.list_held()["d"] & set().union(*held.values())


def test_an_edit_that_was_made_while_both_were_away_takes_nothing_from_pods(node):
    node.run(build_config(share=4))
    node.pods.wait_resources(4 * COUNT, 4 * COUNT)
    pods = [f"p{number}" for number in range(3 * COUNT)]
    node.pods.create(*pods)
    node.pods.wait_running(*pods)
    held = node.pods.list_held()

    STEPS["nvdp dies"](node)
    STEPS["kubelet dies"](node)
    node.config_map.publish(build_config(share=2))
    STEPS["nvdp starts"](node)
    STEPS["kubelet starts"](node)
    node.pods.wait_resources(3 * COUNT, 2 * COUNT)
    node.wait_holders(*pods)
    assert node.pods.list_held() == held
    assert {node.pods.phase(pod) for pod in pods} == {"Running"}
