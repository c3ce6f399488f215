"""Allocate: what a container gets, and what is refused, as NVIDIA's vectors and the kubelet's contract have it."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.errors import AllocationError
from nvdp.model.cdi import CdiClass, qualify
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
from nvdp.planning.response import Mount, build_allocation, build_annotations

ENVVAR, MOUNTS = DeviceListStrategy.ENVVAR, DeviceListStrategy.VOLUME_MOUNTS
ANNOTATIONS, CRI = DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
CHANNEL, GDS, MOFED = qualify(CdiClass.IMEX_CHANNEL, "0"), qualify(CdiClass.GDS, "all"), qualify(CdiClass.MOFED, "all")


def node(path):
    return DeviceNode(container_path=path, host_path=path)


def listing(*uuids, replicas=0, unhealthy=None, resource="nvidia.com/gpu", **facts):
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
    return ResourceList(resource=resource, devices=devices, facts=AllocationFacts(gpus=gpus, **facts))


def gpus(*names):
    return tuple(qualify(CdiClass.GPU, name) for name in names)


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


# NVIDIA's vectors B7, with our vendor for the one of its test.
CUSTOM = "custom.cdi.k8s.io/"
VECTORS_B7 = [
    ("cdi.k8s.io/", (), {}),
    ("cdi.k8s.io/", gpus("gpu0"), {"cdi.k8s.io/nvidia-device-plugin_uuid": "VENDOR/gpu=gpu0"}),
    (CUSTOM, gpus("gpu0"), {"custom.cdi.k8s.io/nvidia-device-plugin_uuid": "VENDOR/gpu=gpu0"}),
    (
        "cdi.k8s.io/",
        gpus("gpu0", "gpu1"),
        {"cdi.k8s.io/nvidia-device-plugin_uuid": "VENDOR/gpu=gpu0,VENDOR/gpu=gpu1"},
    ),
    (CUSTOM, gpus("gpu0", "gpu1"), {f"{CUSTOM}nvidia-device-plugin_uuid": "VENDOR/gpu=gpu0,VENDOR/gpu=gpu1"}),
    ("cdi.k8s.io/", (MOFED,), {"cdi.k8s.io/nvidia-device-plugin_uuid": "VENDOR/mofed=all"}),
    ("cdi.k8s.io/", (GDS,), {"cdi.k8s.io/nvidia-device-plugin_uuid": "VENDOR/gds=all"}),
    (
        "cdi.k8s.io/",
        (*gpus("gpu0"), GDS, MOFED),
        {"cdi.k8s.io/nvidia-device-plugin_uuid": "VENDOR/gpu=gpu0,VENDOR/gds=all,VENDOR/mofed=all"},
    ),
    ("cdi.k8s.io/", (CHANNEL,), {"cdi.k8s.io/nvidia-device-plugin_uuid": "VENDOR/imex-channel=0"}),
]


@pytest.mark.parametrize(("prefix", "names", "expected"), VECTORS_B7)
def test_annotations_are_those_of_nvidias_vectors_b7(prefix, names, expected):
    built = build_annotations(names, prefix=prefix, identifier="uuid")
    assert {key: value.replace("k8s.device-plugin.nvidia.com", "VENDOR") for key, value in built.items()} == expected


def test_cdi_names_are_those_of_the_gpus_and_then_of_all_that_comes_with_them():
    listed = listing("A", "B", device_list_strategies=(CRI,), cdi_extras=(CHANNEL, GDS, MOFED))
    answer = build_allocation(listed, ["B", "A"])
    assert answer.cdi_devices == (*gpus("A", "B"), CHANNEL, GDS, MOFED)
    assert (answer.envs, answer.mounts, answer.devices, answer.annotations) == ({}, (), (), {})


def test_cdi_names_are_indices_where_the_file_says_so():
    listed = listing("A", "B", device_list_strategies=(CRI,), device_id_strategy=DeviceIDStrategy.INDEX)
    assert build_allocation(listed, ["B"]).cdi_devices == gpus("1")


def test_an_old_uuid_of_a_mig_device_is_a_name_that_a_spec_may_have():
    listed = listing("MIG-GPU-a/1/0", device_list_strategies=(CRI,))
    assert build_allocation(listed, ["MIG-GPU-a/1/0"]).cdi_devices == gpus("MIG-GPU-a_1_0")


@pytest.mark.requirement(34)
def test_an_annotation_holds_all_names_under_a_key_that_kubernetes_takes():
    listed = listing(
        "A", "B", device_list_strategies=(ANNOTATIONS,), cdi_extras=(CHANNEL,), cdi_annotation_prefix=CUSTOM
    )
    answer = build_allocation(listed, ["A", "B"])
    ((key, value),) = answer.annotations.items()
    assert value == ",".join((*gpus("A", "B"), CHANNEL))
    prefix, _, name = key.partition("/")
    assert prefix == "custom.cdi.k8s.io"
    assert name.startswith("nvidia-device-plugin_")
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", name)
    assert (answer.envs, answer.cdi_devices) == ({}, ())


@pytest.mark.requirement(34)
@pytest.mark.parametrize("strategies", [(ANNOTATIONS, CRI), (CRI, ANNOTATIONS), (ENVVAR, ANNOTATIONS, CRI)])
def test_with_both_ways_of_cdi_only_the_field_is_sent(strategies):
    answer = build_allocation(listing("A", device_list_strategies=strategies), ["A"])
    assert (answer.annotations, answer.cdi_devices) == ({}, gpus("A"))


@pytest.mark.invariant(2)
def test_each_request_has_an_annotation_of_its_own_and_the_same_one_each_time():
    def key(resource, *ids):
        listed = listing("A", "B", resource=resource, device_list_strategies=(ANNOTATIONS,))
        return next(iter(build_allocation(listed, ids).annotations))

    keys = [key("nvidia.com/gpu", "A"), key("nvidia.com/gpu", "A", "B"), key("nvidia.com/other", "A")]
    assert len(set(keys)) == 3
    assert key("nvidia.com/gpu", "B", "A", "A") == keys[1]


def test_imex_channels_go_by_variable_by_mount_and_by_device_node():
    spec = node("/dev/nvidia-caps-imex-channels/channel0")
    known = {"imex_channels": (0,), "imex_nodes": (spec,), "pass_device_specs": True}
    answer = build_allocation(listing("A", device_list_strategies=(ENVVAR,), **known), ["A"])
    assert answer.envs == {VISIBLE: "A", "NVIDIA_IMEX_CHANNELS": "0"}
    assert answer.devices == (node("/dev/nvidia0"), spec)
    assert answer.mounts == ()
    root = "/var/run/nvidia-container-devices"
    answer = build_allocation(listing("A", device_list_strategies=(MOUNTS,), **known), ["A"])
    assert answer.envs == {VISIBLE: root}
    assert [(mount.host_path, mount.container_path) for mount in answer.mounts] == [
        ("/dev/null", f"{root}/A"),
        ("/dev/null", f"{root}/imex/0"),
    ]


def merge(first, second):
    """What a container gets of two answers: the kubelet keeps what it saw first (kubelet contract A.5)."""
    return {
        "envs": {**second.envs, **first.envs},
        "mounts": {mount.container_path: mount for mount in (*second.mounts, *first.mounts)},
        "annotations": {**second.annotations, **first.annotations},
        "cdi": {*first.cdi_devices, *second.cdi_devices},
    }


def two_resources(strategy):
    """The answers to a container that asks for a GPU and a MIG device, in both orders."""
    gpu = listing("GPU-a", device_list_strategies=(strategy,))
    mig = listing("MIG-b", resource="nvidia.com/mig-1g.10gb", device_list_strategies=(strategy,))
    answers = build_allocation(gpu, ["GPU-a"]), build_allocation(mig, ["MIG-b"])
    return [merge(*order) for order in itertools.permutations(answers)]


def test_by_environment_a_container_with_two_resources_sees_one_of_them():
    assert [merged["envs"][VISIBLE] for merged in two_resources(ENVVAR)] == ["GPU-a", "MIG-b"]


@pytest.mark.requirement(35)
def test_by_cdi_a_container_with_two_resources_gets_both():
    for merged in two_resources(CRI):
        assert merged["cdi"] == set(gpus("GPU-a", "MIG-b"))
    for merged in two_resources(ANNOTATIONS):
        assert set(merged["annotations"].values()) == set(gpus("GPU-a", "MIG-b"))


@pytest.mark.requirement(35)
def test_by_mounts_a_container_with_two_resources_gets_both():
    for merged in two_resources(MOUNTS):
        assert set(merged["mounts"]) == {f"/var/run/nvidia-container-devices/{name}" for name in ("GPU-a", "MIG-b")}
        assert merged["envs"] == {VISIBLE: "/var/run/nvidia-container-devices"}


@pytest.mark.requirement(25)
@pytest.mark.invariant(8)
@given(
    st.lists(st.sampled_from([f"{uuid}::{n}" for uuid in "ABC" for n in range(3)]), min_size=1),
    st.randoms(use_true_random=False),
    st.sets(st.sampled_from(DeviceListStrategy), min_size=1),
    st.sampled_from(DeviceIDStrategy),
)
def test_the_answer_is_the_same_in_any_order_and_has_everything_once(ids, rng, strategies, id_strategy):
    listed = listing(
        *"CAB",
        replicas=3,
        device_list_strategies=tuple(strategies),
        device_id_strategy=id_strategy,
        pass_device_specs=True,
        imex_channels=(0,),
        imex_nodes=(node("/dev/nvidia-caps-imex-channels/channel0"),),
        cdi_extras=(CHANNEL, GDS),
    )
    answer = build_allocation(listed, ids)
    shuffled = list(ids)
    rng.shuffle(shuffled)
    assert build_allocation(listed, shuffled) == answer
    assert len({mount.container_path for mount in answer.mounts}) == len(answer.mounts)
    order = [gpu.uuid for gpu in listed.facts.gpus if any(text.startswith(gpu.uuid) for text in ids)]
    paths = [device.container_path for device in answer.devices]
    assert paths == [
        *(f"/dev/nvidia{'CAB'.index(uuid)}" for uuid in order),
        "/dev/nvidia-caps-imex-channels/channel0",
    ]
    expected = [*gpus(*(str("CAB".index(uuid)) if id_strategy is DeviceIDStrategy.INDEX else uuid for uuid in order))]
    told = [*answer.cdi_devices, *(name for text in answer.annotations.values() for name in text.split(","))]
    assert told == ([*expected, CHANNEL, GDS] if strategies & {ANNOTATIONS, CRI} else [])
