"""What the kubelet is told of what MPS shares, and what containers get: from a file to an answer."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.errors import AllocationError
from nvdp.model.inventory import MigMode
from nvdp.model.mps import DaemonSpec
from nvdp.planning.preferred import choose_preferred
from nvdp.planning.response import Mount, build_allocation
from tests.planning.mps_values import GIB, card, mps_file, plan_of, ready, ready_for, seen
from tests.planning.values import GPU, uuid

A, B, C = uuid(0), uuid(1), uuid(2)
PIPE, PERCENT, MEMORY = (
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
)
SEVERAL = "failRequestsGreaterThanOne: false,"


def offered(text, *gpus, resource=GPU, view=None):
    """The list while every daemon answers, or as ``view`` has it."""
    cards = gpus or (card(0), card(1))
    if view is None:
        view = ready_for(plan_of(text, *cards))
    listed = plan_of(text, *cards, means=seen(view)).lists[resource]
    assert all(device.healthy for device in listed.devices)
    return listed


def shares(one, *numbers):
    return [f"{one}::{number}" for number in numbers]


def envs(listed, *ids):
    """Without the variable that names the devices, which is as for any other."""
    found = build_allocation(listed, ids).envs
    return {name: value for name, value in found.items() if name.startswith("CUDA_")}


def refuse(listed, *ids):
    with pytest.raises(AllocationError) as refused:
        build_allocation(listed, ids)
    assert "\n" not in str(refused.value)
    return str(refused.value), refused.value.reason


# Allocate


@pytest.mark.requirement(32)
def test_a_container_gets_the_pipe_of_its_daemon_and_the_shared_memory_and_no_limits_of_its_own():
    answer = build_allocation(offered(mps_file("name: gpu, replicas: 4")), [f"{A}::1"])
    assert answer.envs == {"NVIDIA_VISIBLE_DEVICES": A, PIPE: "/mps/nvidia.com/gpu/pipe"}
    assert answer.mounts == (
        Mount(container_path="/mps/nvidia.com/gpu/pipe", host_path="/run/nvidia/mps/nvidia.com/gpu/pipe"),
        Mount(container_path="/dev/shm", host_path="/run/nvidia/mps/shm"),
    )


def test_the_root_of_the_file_and_the_name_of_the_resource_are_in_the_paths():
    text = "flags: {mpsRoot: /var/mps/, plugin: {deviceListStrategy: [volume-mounts]}}\n"
    listed = offered(text + mps_file("name: gpu, rename: m, replicas: 4"), resource="nvidia.com/m")
    answer = build_allocation(listed, [f"{A}::0"])
    assert answer.envs[PIPE] == "/mps/nvidia.com/m/pipe"
    assert [mount.host_path for mount in answer.mounts] == [
        "/var/mps/nvidia.com/m/pipe",
        "/var/mps/shm",
        "/dev/null",
    ]


def test_cdi_brings_the_devices_and_the_daemon_is_reached_in_the_same_way():
    text = "flags: {plugin: {deviceListStrategy: [cdi-cri]}}\n" + mps_file("name: gpu, replicas: 4")
    answer = build_allocation(offered(text), [f"{A}::0"])
    assert answer.cdi_devices == (f"k8s.device-plugin.nvidia.com/gpu={A}",)
    assert answer.envs == {PIPE: "/mps/nvidia.com/gpu/pipe"}
    assert len(answer.mounts) == 2


def test_several_are_refused_by_default_as_nvidia_does():
    """NVIDIA's vector B1: mps x2, flag true."""
    listed = offered(mps_file("name: gpu, replicas: 2"))
    key = "sharing.mps.failRequestsGreaterThanOne"
    assert refuse(listed, *shares(A, 0, 1)) == (f"{GPU}: 2 asked, 1 allowed ({key})", "too_many")
    assert envs(listed, f"{A}::1")


def test_where_several_are_allowed_they_are_of_one_gpu_or_refused():
    listed = offered(mps_file("name: gpu, replicas: 4", more=SEVERAL))
    text, reason = refuse(listed, f"{A}::0", f"{B}::0", f"{B}::1")
    assert text == (
        f"{GPU}: 3 asked, and they are of 2 different GPUs; under MPS a container gets several of one GPU only "
        "(sharing.mps.failRequestsGreaterThanOne)"
    )
    assert reason == "too_many"
    assert envs(listed, *shares(B, 0, 3))


def test_where_several_are_allowed_each_container_is_narrowed_to_its_own_share():
    listed = offered(mps_file("name: gpu, replicas: 4", more=SEVERAL))
    pipe = {PIPE: "/mps/nvidia.com/gpu/pipe"}
    assert envs(listed, f"{B}::2") == pipe | {PERCENT: "25", MEMORY: f"{B}=20480M"}
    assert envs(listed, *shares(B, 0, 2, 3)) == pipe | {PERCENT: "75", MEMORY: f"{B}=61440M"}
    assert envs(listed, *shares(B, 0, 1, 2, 3)) == pipe


def test_a_share_is_never_more_than_the_card():
    text = "name: gpu, replicas: 4, defaultActiveThreadPercentage: 50, memoryOvercommitPercentage: 200"
    listed = offered(mps_file(text, more=SEVERAL))
    assert envs(listed, f"{A}::0") == {PIPE: "/mps/nvidia.com/gpu/pipe", PERCENT: "50", MEMORY: f"{A}=40960M"}
    assert envs(listed, *shares(A, 0, 1, 2)) == {PIPE: "/mps/nvidia.com/gpu/pipe"}


def test_of_two_entries_under_one_name_those_with_less_are_narrowed():
    text = mps_file(
        "name: gpu, rename: m, devices: [0], replicas: 8", "name: gpu, rename: m, devices: [1], replicas: 2"
    )
    listed = offered(text, resource="nvidia.com/m")
    assert envs(listed, f"{A}::0") == {PIPE: "/mps/nvidia.com/m/pipe", PERCENT: "12"}
    assert envs(listed, f"{B}::0") == {PIPE: "/mps/nvidia.com/m/pipe"}


def test_while_the_daemon_waits_with_new_limits_for_pods_containers_get_the_new_ones_already():
    text = mps_file("name: gpu, replicas: 4")
    old = DaemonSpec(resource=GPU, gpus=(A, B), thread_percent=50, memory_mib={A: 40 * 1024})
    listed = offered(text, view=ready(old))
    assert envs(listed, f"{A}::0") == {PIPE: "/mps/nvidia.com/gpu/pipe", PERCENT: "25", MEMORY: f"{A}=20480M"}
    assert envs(listed, f"{B}::0")[MEMORY] == f"{B}=20480M"
    fewer = msgspec.structs.replace(old, thread_percent=10, memory_mib={A: 1024, B: 1024})
    assert envs(offered(text, view=ready(fewer)), f"{A}::0") == {PIPE: "/mps/nvidia.com/gpu/pipe"}


def test_unknown_memory_is_not_narrowed():
    listed = offered(mps_file("name: gpu, replicas: 2", more=SEVERAL), card(0, memory_bytes=None))
    assert envs(listed, f"{A}::0") == {PIPE: "/mps/nvidia.com/gpu/pipe", PERCENT: "50"}


def test_one_replica_is_the_card_itself_without_limits_and_in_any_number():
    listed = offered(mps_file("name: gpu, replicas: 1"))
    assert [device.id for device in listed.devices] == [A, B]
    assert envs(listed, A, B) == {PIPE: "/mps/nvidia.com/gpu/pipe"}


def test_what_is_not_shared_by_mps_has_nothing_of_it():
    text = mps_file("name: gpu, rename: m, devices: [0], replicas: 2")
    assert envs(offered(text), B) == {}
    assert build_allocation(offered(text), [B]).mounts == ()


# GetPreferredAllocation


def choose(listed, size, *, taken=(), must_include=(), held_elsewhere=None):
    return choose_preferred(
        listed,
        held_elsewhere=held_elsewhere or {},
        available=[device.id for device in listed.devices if device.id not in taken],
        must_include=must_include,
        size=size,
    )


def several(policy="distributed", cards=3, replicas=4):
    text = f"allocation: {{sharedPolicy: {policy}}}\n" + mps_file(f"name: gpu, replicas: {replicas}", more=SEVERAL)
    return offered(text, *(card(number) for number in range(cards)))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("distributed", C), ("packed", B), ("spread", C)],
)
def test_several_are_of_one_gpu_by_the_policy_among_those_with_enough(policy, expected):
    taken = [*shares(A, 0, 1, 2), *shares(B, 0, 1)]
    assert choose(several(policy), 2, taken=taken) == tuple(choose(several(policy), 2, taken=taken))
    assert {one.partition("::")[0] for one in choose(several(policy), 2, taken=taken)} == {expected}


def test_what_must_be_included_decides_the_gpu():
    listed = several("packed")
    assert choose(listed, 3, taken=shares(B, 0), must_include=[f"{C}::2"]) == tuple(shares(C, 2, 0, 1))
    assert choose(listed, 2, must_include=[f"{A}::0", f"{B}::0"]) == ()
    assert choose(listed, 3, must_include=[f"{A}::0"], taken=shares(A, 1, 2)) == ()


def test_what_no_gpu_has_enough_of_is_left_to_the_kubelet():
    assert choose(several(), 5) == ()
    assert choose(several(), 2, taken=[*shares(A, 0, 1, 2), *shares(B, 0, 1, 2), *shares(C, 0, 1, 2)]) == ()


def test_one_of_each_is_chosen_as_of_other_shares_where_only_one_is_allowed():
    listed = offered(mps_file("name: gpu, replicas: 4"))
    assert choose(listed, 1, taken=[f"{A}::0"]) == (f"{B}::0",)


@given(
    taken=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3))),
    size=st.integers(1, 4),
    policy=st.sampled_from(["distributed", "packed", "spread"]),
)
def test_a_choice_is_allocated_and_there_is_one_if_a_gpu_has_enough(taken, size, policy):
    listed = several(policy)
    used = [f"{uuid(number)}::{share}" for number, share in taken]
    chosen = choose(listed, size, taken=used)
    free = Counter(device.gpu_uuid for device in listed.devices if device.id not in used)
    assert bool(chosen) is any(count >= size for count in free.values())
    if chosen:
        assert len(set(chosen)) == size
        assert not set(chosen) & set(used)
        assert envs(listed, *chosen)


# Topology


def test_where_several_must_be_of_one_gpu_no_numa_node_is_told():
    nodes = [card(0, numa_node=0), card(1, numa_node=1)]
    one, many = (mps_file("name: gpu, replicas: 2", more=more) for more in ("", SEVERAL))
    assert {device.numa_node for device in offered(one, *nodes).devices} == {0, 1}
    assert {device.numa_node for device in offered(many, *nodes).devices} == {None}
    alone = mps_file("name: gpu, replicas: 1", more=SEVERAL)
    assert {device.numa_node for device in offered(alone, *nodes).devices} == {0, 1}


def test_a_card_in_mig_mode_is_no_client_whatever_else_it_has():
    text = mps_file("name: gpu, rename: m, devices: [0], replicas: 2")
    plan = plan_of(text, card(0, mig=MigMode.ENABLED, memory_bytes=GIB), card(1))
    assert [*plan.lists] == [GPU]
    assert plan.withheld[A].reason == "MPSUnsupported"
