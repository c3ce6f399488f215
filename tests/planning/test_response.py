"""Allocate: what a container gets, and what is refused, as NVIDIA's vectors and the kubelet's contract have it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.errors import AllocationError
from nvdp.model.listing import (
    AllocationFacts,
    DeviceIDStrategy,
    DeviceListStrategy,
    DeviceNode,
    GpuFacts,
    ListedDevice,
    ResourceList,
)
from nvdp.model.reasons import Cause
from nvdp.planning.response import Mount, build_allocation

ENVVAR, MOUNTS = DeviceListStrategy.ENVVAR, DeviceListStrategy.VOLUME_MOUNTS
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def node(path):
    return DeviceNode(container_path=path, host_path=path)


def listing(*uuids, replicas=0, unhealthy=None, **facts):
    unhealthy = unhealthy or {}
    ids = [(uuid, f"{uuid}::{n}" if replicas else uuid) for uuid in uuids for n in range(replicas or 1)]
    devices = tuple(
        ListedDevice(
            id=text, gpu_uuid=uuid, cause=Cause.LOST if text in unhealthy else None, text=unhealthy.get(text, "")
        )
        for uuid, text in ids
    )
    gpus = tuple(
        GpuFacts(uuid=uuid, index=str(index), nodes=(node(f"/dev/nvidia{index}"),)) for index, uuid in enumerate(uuids)
    )
    return ResourceList(resource="nvidia.com/gpu", devices=devices, facts=AllocationFacts(gpus=gpus, **facts))


def refusal(listed, *ids):
    with pytest.raises(AllocationError) as refused:
        build_allocation(listed, ids)
    assert "\n" not in str(refused.value)
    return str(refused.value), refused.value.reason


@pytest.mark.requirement(31)
def test_one_device_by_environment_sets_that_variable_and_nothing_else():
    answer = build_allocation(listing("foo", "bar"), ["foo"])
    assert (answer.envs, answer.mounts, answer.devices) == ({VISIBLE: "foo"}, (), ())


@pytest.mark.requirement(30)
def test_several_replicas_of_a_gpu_name_it_once():
    assert build_allocation(listing("foo", "bar"), ["foo", "bar", "foo"]).envs == {VISIBLE: "foo,bar"}
    shared = listing("foo", "bar", replicas=2)
    assert build_allocation(shared, ["foo::1", "bar::0", "foo::0"]).envs == {VISIBLE: "foo,bar"}


@pytest.mark.parametrize(
    ("listed", "request_", "allowed"),
    [
        (listing("device0", "device1"), ["device1"], True),
        (listing("device0", "device1"), ["device1", "device2"], False),
        (listing("device0", "device1", replicas=2), ["device0::1"], True),
        (listing("device0", "device1", replicas=2), ["device0::1", "device1::0"], True),
        (listing("device0", "device1", replicas=2, single_replica_key="some.key"), ["device0::1"], True),
        (listing("device0", "device1", replicas=2, single_replica_key="some.key"), ["device0::1", "device1::0"], False),
    ],
)
def test_requests_are_accepted_and_refused_as_in_nvidias_vectors_b1(listed, request_, allowed):
    if allowed:
        assert build_allocation(listed, request_).envs
    else:
        refusal(listed, *request_)


@pytest.mark.requirement(32)
def test_volume_mounts_name_the_devices_and_the_variable_names_their_directory():
    answer = build_allocation(listing("A", "B", device_list_strategies=(ENVVAR, MOUNTS)), ["A"])
    assert answer.envs == {VISIBLE: "/var/run/nvidia-container-devices"}
    assert answer.mounts == (Mount(host_path="/dev/null", container_path="/var/run/nvidia-container-devices/A"),)
    assert build_allocation(listing("A", device_list_strategies=(MOUNTS,)), ["A"]) == answer


def test_devices_are_named_by_index_where_the_file_says_so():
    listed = listing("A", "B", device_id_strategy=DeviceIDStrategy.INDEX, device_list_strategies=(ENVVAR,))
    assert build_allocation(listed, ["B", "A"]).envs == {VISIBLE: "0,1"}
    mounted = listing("A", "B", device_id_strategy=DeviceIDStrategy.INDEX, device_list_strategies=(MOUNTS,))
    assert [mount.container_path for mount in build_allocation(mounted, ["B"]).mounts] == [
        "/var/run/nvidia-container-devices/1"
    ]


@pytest.mark.requirement(36)
def test_device_nodes_are_the_control_nodes_then_each_gpus_own_and_each_path_once():
    listed = listing("A", "B", replicas=2, pass_device_specs=True, control_nodes=(node("/dev/nvidiactl"),))
    answer = build_allocation(listed, ["B::0", "A::1", "A::0"])
    assert [device.container_path for device in answer.devices] == ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"]


def test_a_node_keeps_the_hosts_path_under_the_dev_root():
    spec = DeviceNode(container_path="/dev/nvidia3", host_path="/run/nvidia/driver/dev/nvidia3")
    facts = AllocationFacts(
        gpus=(GpuFacts(uuid="A", index="0", nodes=(spec,)),),
        control_nodes=(DeviceNode(container_path="/dev/nvidiactl", host_path="/run/nvidia/driver/dev/nvidiactl"),),
        pass_device_specs=True,
    )
    listed = ResourceList(resource="nvidia.com/gpu", devices=(ListedDevice(id="A", gpu_uuid="A"),), facts=facts)
    assert build_allocation(listed, ["A"]).devices[-1] == spec


def test_without_pass_device_specs_no_node_is_handed_out():
    assert build_allocation(listing("A", control_nodes=(node("/dev/nvidiactl"),)), ["A"]).devices == ()


def test_switches_for_features_of_the_runtime_are_handed_on():
    answer = build_allocation(listing("A", feature_envs=(("NVIDIA_GDS", "enabled"),)), ["A"])
    assert answer.envs == {"NVIDIA_GDS": "enabled", VISIBLE: "A"}


@pytest.mark.requirement(26)
def test_an_unknown_id_is_refused_by_name():
    text, reason = refusal(listing("A"), "A", "GPU-nope")
    assert text.startswith("nvidia.com/gpu: GPU-nope is not on this node's list")
    assert reason == "unknown_device"


def test_a_refusal_stays_one_short_line_whatever_was_asked():
    text, _ = refusal(listing("A"), *[f"x{n}\n" + "y" * 5000 for n in range(9)])
    assert len(text) < 400
    assert "and 6 more are not" in text


@pytest.mark.requirement(27)
@pytest.mark.requirement(52)
def test_an_unhealthy_id_is_refused_with_its_cause():
    text, reason = refusal(listing("A", "B", unhealthy={"B": "fallen off the bus"}), "A", "B")
    assert text == "nvidia.com/gpu: B is Unhealthy (Lost: fallen off the bus)"
    assert reason == "unhealthy"


def test_two_replicas_where_one_is_allowed_are_refused_with_the_key_that_says_so():
    key = "sharing.timeSlicing.failRequestsGreaterThanOne"
    listed = listing("A", replicas=2, single_replica_key=key)
    assert refusal(listed, "A::0", "A::1") == (f"nvidia.com/gpu: 2 asked, 1 allowed ({key})", "too_many")


@pytest.mark.requirement(28)
def test_an_empty_request_is_refused():
    text, _ = refusal(listing("A"))
    assert "no device asked" in text


@pytest.mark.requirement(25)
@pytest.mark.invariant(8)
@given(
    st.lists(st.sampled_from([f"{uuid}::{n}" for uuid in "ABC" for n in range(3)]), min_size=1),
    st.randoms(use_true_random=False),
    st.sets(st.sampled_from([ENVVAR, MOUNTS]), min_size=1),
)
def test_the_answer_does_not_depend_on_the_order_asked_in(ids, rng, strategies):
    listed = listing("C", "A", "B", replicas=3, device_list_strategies=tuple(strategies), pass_device_specs=True)
    answer = build_allocation(listed, ids)
    shuffled = list(ids)
    rng.shuffle(shuffled)
    assert build_allocation(listed, shuffled) == answer
    assert len({mount.container_path for mount in answer.mounts}) == len(answer.mounts)
    order = [gpu.uuid for gpu in listed.facts.gpus if any(text.startswith(gpu.uuid) for text in ids)]
    assert [device.container_path for device in answer.devices] == [f"/dev/nvidia{'CAB'.index(uuid)}" for uuid in order]
