"""What containers are given, asked of the whole daemon as the kubelet and as strangers ask it."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from hypothesis import given
from hypothesis import settings as within
from hypothesis import strategies as st

from nvdp.simulate.kubelet import AdmissionError
from tests.daemon.kernel import pod_dev
from tests.daemon.node import GPU, build_config, connect, gpu_uuid, healthy, replicas
from tests.daemon.process import LIMIT_S
from tests.kubelet.plugin_client import visible_devices

ROOT = "/var/run/nvidia-container-devices"


@pytest.mark.requirement(24)
@pytest.mark.requirement(31)
def test_each_container_asked_for_gets_one_answer_in_order(kubelet, daemon):
    with connect(kubelet) as client:
        one = client.allocate([f"{gpu_uuid(2)}::1"])
        three = client.allocate([f"{gpu_uuid(3)}::0"], [f"{gpu_uuid(0)}::0"], [f"{gpu_uuid(1)}::3"])

    assert visible_devices(one) == [gpu_uuid(2)]
    assert visible_devices(three) == [gpu_uuid(3), gpu_uuid(0), gpu_uuid(1)]
    for answer in (*one.container_responses, *three.container_responses):
        assert [field.name for field, _ in answer.ListFields()] == ["envs"]
        assert list(answer.envs) == ["NVIDIA_VISIBLE_DEVICES"]


@pytest.mark.requirement(25)
@pytest.mark.requirement(30)
@pytest.mark.requirement(45)
def test_neither_order_nor_repetition_changes_an_answer(kubelet, daemon):
    asked = [f"{gpu_uuid(3)}::0", f"{gpu_uuid(0)}::2", f"{gpu_uuid(0)}::1"]

    with connect(kubelet) as client:
        answers = [client.allocate(order) for order in (asked, asked[::-1], [*asked, asked[0]], asked)]

    assert {answer.SerializeToString(deterministic=True) for answer in answers} == {
        answers[0].SerializeToString(deterministic=True)
    }
    assert visible_devices(answers[0]) == [f"{gpu_uuid(0)},{gpu_uuid(3)}"]


@pytest.mark.requirement(26)
def test_an_unknown_id_is_refused_in_one_readable_line(kubelet, daemon):
    strange = ["GPU-99999999-0000-4000-8000-000000000000::0", "", "x\n" * 2000, "💥"]
    for unknown in (*strange, gpu_uuid(0), f"{gpu_uuid(0)}::4"):
        with connect(kubelet) as client, pytest.raises(grpc.RpcError) as refusal:
            client.allocate([unknown])

        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND
        assert "not on this node's list" in refusal.value.details()
        assert "\n" not in refusal.value.details()
        assert len(refusal.value.details()) < 400
    daemon.wait_metric(6, "nvdp_allocations_refused_total", resource=GPU, reason="unknown_device")
    assert daemon.log.wait_for("AllocationRefused")["cause"] == "unknown_device"


@pytest.mark.requirement(28)
def test_a_request_without_a_device_is_refused_and_one_without_a_container_is_not(kubelet, daemon):
    with connect(kubelet) as client:
        with pytest.raises(grpc.RpcError) as refusal:
            client.allocate([])
        assert not client.allocate().container_responses

    assert "no device asked" in refusal.value.details()


@pytest.mark.requirement(29)
@pytest.mark.invariant(2)
def test_answers_do_not_wait_for_a_driver_that_hangs(kubelet, machine, start):
    daemon = start(build_config(share=4, health={"callTimeout": "1s"}), wait=True)
    machine.fault("nvmlDeviceGetCount_v2", hang=True)

    slowest = 0.0
    with connect(kubelet) as client:
        while healthy(kubelet):
            at = time.monotonic()
            client.prefer(available=sorted(replicas(0, 4)), size=2)
            with contextlib.suppress(grpc.RpcError):  # it is refused once the driver counts as lost
                client.allocate([f"{gpu_uuid(0)}::0"])
            slowest = max(slowest, time.monotonic() - at)

    assert slowest < 1
    assert daemon.log.wait_for("DriverLost")
    assert daemon.running


@pytest.mark.invariant(2)
def test_a_hundred_requests_at_once_get_the_right_answer_each(kubelet, daemon):
    asked = [f"{gpu_uuid(number % 4)}::{number // 4 % 4}" for number in range(100)]

    with connect(kubelet) as client, ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(lambda identity: client.allocate([identity]), asked))

    assert [visible_devices(answer) for answer in answers] == [[identity.partition("::")[0]] for identity in asked]


@pytest.mark.requirement(31)
def test_devices_can_be_named_by_index(kubelet, start):
    start(build_config(share=2, flags={"plugin": {"deviceIDStrategy": "index"}}), wait=True)

    with connect(kubelet) as client:
        answer = client.allocate([f"{gpu_uuid(3)}::0", f"{gpu_uuid(1)}::1"])

    assert visible_devices(answer) == ["1,3"]


@pytest.mark.requirement(32)
@pytest.mark.parametrize("strategies", [["volume-mounts"], ["envvar", "volume-mounts"]])
def test_devices_can_be_named_by_mounts(kubelet, start, strategies):
    start(build_config(flags={"plugin": {"deviceListStrategy": strategies}}), wait=True)

    pod = kubelet.admit("team/a", {"main": {GPU: 2}})

    answer = pod.response(GPU)
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": ROOT}
    assert [mount.container_path for mount in answer.mounts] == [f"{ROOT}/{uuid}" for uuid in sorted(pod.ids(GPU))]
    assert {mount.host_path for mount in answer.mounts} == {"/dev/null"}


@pytest.mark.requirement(36)
def test_device_nodes_are_handed_over_where_asked_for(kubelet, start):
    plugin = {"passDeviceSpecs": True}
    start(build_config(share=2, flags={"plugin": plugin, "nvidiaDevRoot": "/run/driver"}), wait=True)

    with connect(kubelet) as client:
        (answer,) = client.allocate([f"{gpu_uuid(3)}::0", f"{gpu_uuid(1)}::1", f"{gpu_uuid(1)}::0"]).container_responses

    nodes = [(node.container_path, node.host_path, node.permissions) for node in answer.devices]
    own = [node for node in nodes if node[0] in {"/dev/nvidia1", "/dev/nvidia3"}]
    assert own == [
        ("/dev/nvidia1", "/run/driver/dev/nvidia1", "rw"),
        ("/dev/nvidia3", "/run/driver/dev/nvidia3", "rw"),
    ]
    assert nodes[-2:] == own  # what is there of the driver's own nodes comes first


@pytest.mark.requirement(36)
def test_of_the_drivers_own_nodes_those_are_handed_over_that_are_there(kubelet, root, start):
    nodes = [root / name for name in ("nvidiactl", "nvidia-uvm")]
    for node in nodes:
        node.touch()
    plugin = {"passDeviceSpecs": True}
    start(build_config(flags={"plugin": plugin}), wait=True, launcher=pod_dev(root / "dev", *nodes))

    with connect(kubelet) as client:
        (answer,) = client.allocate([gpu_uuid(0)]).container_responses

    paths = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"]
    assert [(node.container_path, node.host_path) for node in answer.devices] == [(path, path) for path in paths]


@pytest.mark.requirement(41)
def test_pre_start_container_is_answered_though_it_is_off(kubelet, daemon):
    with connect(kubelet) as client:
        assert client.pre_start([f"{gpu_uuid(0)}::0"]) is not None


def test_more_than_one_replica_is_refused_per_container_not_per_pod(kubelet, start):
    daemon = start(build_config(share=4, timeSlicing={"failRequestsGreaterThanOne": True}), wait=True)

    two_containers = kubelet.admit("team/good", {"one": {GPU: 1}, "other": {GPU: 1}})
    with pytest.raises(AdmissionError) as refusal:
        kubelet.admit("team/bad", {"main": {GPU: 2}})
    with connect(kubelet) as client:
        assert len(client.allocate([f"{gpu_uuid(3)}::0"], [f"{gpu_uuid(3)}::1"]).container_responses) == 2

    assert len(two_containers.ids(GPU)) == 2
    assert "2 asked, 1 allowed (sharing.timeSlicing.failRequestsGreaterThanOne)" in str(refusal.value)
    assert daemon.log.wait_for("AllocationRefused")["cause"] == "too_many"
    daemon.wait_metric(1, "nvdp_allocations_refused_total", resource=GPU, reason="too_many")


def test_an_edit_of_what_containers_get_is_followed_without_a_new_list(kubelet, daemon, config_map):
    with connect(kubelet) as client:
        for plugin, shown in (({"deviceIDStrategy": "index"}, "2"), ({"deviceListStrategy": "volume-mounts"}, ROOT)):
            lines = len(daemon.log)
            config_map.publish(build_config(share=4, flags={"plugin": plugin}))
            daemon.log.wait_for("ConfigApplied", after=lines)
            assert visible_devices(client.allocate([f"{gpu_uuid(2)}::0"])) == [shown]

        lines = len(daemon.log)
        config_map.publish(build_config(share=4, timeSlicing={"failRequestsGreaterThanOne": True}))
        daemon.log.wait_for("ConfigApplied", after=lines)
        with pytest.raises(grpc.RpcError, match="1 allowed"):
            client.allocate([f"{gpu_uuid(2)}::0", f"{gpu_uuid(1)}::0"])

    assert len(kubelet.messages(GPU)) == 1


@pytest.mark.requirement(45)
def test_an_init_container_hands_its_devices_on(kubelet, daemon):
    pod = kubelet.admit("team/a", {"main": {GPU: 2}}, init_containers={"first": {GPU: 2}})

    assert len(pod.ids(GPU)) == 2
    assert [call.method for call in kubelet.calls].count("Allocate") == 2


@pytest.mark.requirement(37)
@pytest.mark.requirement(38)
@pytest.mark.parametrize("policy", ["distributed", "packed", "spread"])
def test_a_preferred_allocation_is_exact_or_empty(kubelet, start, policy):
    start(build_config(share=4, allocation={"sharedPolicy": policy}), wait=True)
    listed = sorted(healthy(kubelet))
    strange = ["GPU-99999999-0000-4000-8000-000000000000::0", "nonsense"]

    with connect(kubelet) as client:

        @within(max_examples=60, deadline=None)
        @given(st.data())
        def check(data):
            available = data.draw(st.lists(st.sampled_from(listed + strange), unique=True))
            known = [identity for identity in available if identity in listed]
            must = data.draw(st.lists(st.sampled_from(known), unique=True)) if known else []
            size = data.draw(st.integers(-1, len(available) + 2))

            chosen = client.prefer(available=available, must_include=tuple(must), size=size)

            if chosen:
                assert len(chosen) == len(set(chosen)) == size
                assert set(must) <= set(chosen) <= set(available)
            else:
                assert size < max(1, len(must)) or size > len(known) or len(known) < len(available)

        check()


@pytest.mark.requirement(37)
def test_pods_are_spread_over_the_gpus_by_what_they_hold(kubelet, daemon):
    pods = [kubelet.admit(f"team/{number}", {"main": {GPU: 2}}) for number in range(4)]

    for pod in pods:
        assert len({identity.partition("::")[0] for identity in pod.ids(GPU)}) == 2
    used = [identity.partition("::")[0] for pod in pods for identity in pod.ids(GPU)]
    assert {uuid: used.count(uuid) for uuid in used} == {gpu_uuid(number): 2 for number in range(4)}


def test_what_is_served_is_on_record_unless_it_is_turned_off(kubelet, daemon, start):
    pod = kubelet.admit("team/a", {"main": {GPU: 1}})
    line = daemon.log.wait_for("AllocationServed")
    assert set(line["devices"]) == pod.ids(GPU)
    daemon.stop()

    silent = start(None, "--log-allocations=false")
    kubelet.wait_until(lambda: healthy(kubelet), LIMIT_S, what="its list")
    kubelet.admit("team/b", {"main": {GPU: 1}})
    with connect(kubelet) as client, pytest.raises(grpc.RpcError):
        client.allocate(["nonsense"])

    silent.log.wait_for("AllocationRefused")
    assert silent.log.of("AllocationServed") == []


def test_a_call_takes_next_to_no_time(kubelet, daemon):
    with connect(kubelet) as client:
        client.options()
        at = time.monotonic()
        for _ in range(100):
            client.allocate([f"{gpu_uuid(0)}::0"])
        assert time.monotonic() - at < 2
    assert replicas(0, 4) <= healthy(kubelet)
    daemon.wait_ready(LIMIT_S)
