"""How large a list is: equal, to the byte, to what protobuf makes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.model.listing import ListedDevice
from nvdp.model.replica import ReplicaId
from nvdp.planning.sizing import LIMIT_BYTES, device_bytes, gpu_bytes, most_replicas
from tests.planning.values import list_bytes, uuid

NODES = st.none() | st.integers(0, 2**40)


def encode(devices):
    """The list as it is sent, all Unhealthy."""
    return deviceplugin.ListAndWatchResponse(
        devices=[
            deviceplugin.Device(
                id=text,
                health="Unhealthy",
                topology=None if node is None else deviceplugin.TopologyInfo(nodes=[deviceplugin.NUMANode(id=node)]),
            )
            for text, node in devices
        ]
    ).SerializeToString()


@pytest.mark.invariant(8)
@given(length=st.integers(1, 400), node=NODES)
def test_a_device_has_the_size_that_protobuf_gives_it(length, node):
    assert device_bytes(id_length=length, numa_node=node) == len(encode([("x" * length, node)]))


@pytest.mark.parametrize(
    ("text", "node", "size"),
    [(uuid(0), 1, 61), (f"{uuid(0)}::12", 1, 65), ("x" * 63, 1, 84)],
)
def test_a_device_has_the_size_of_the_contracts_table(text, node, size):
    assert device_bytes(id_length=len(text), numa_node=node) == size  # A.11, Unhealthy: two bytes more than Healthy


@given(devices=st.lists(st.tuples(st.text("abc", min_size=1, max_size=90), NODES), max_size=30))
def test_a_list_is_the_sum_of_its_devices(devices):
    listed = tuple(ListedDevice(id=text, gpu_uuid="", numa_node=node) for text, node in devices)
    assert list_bytes(listed) == len(encode(devices))


@given(replicas=st.integers(1, 3000), node=NODES)
def test_a_gpu_has_the_size_of_its_replicas(replicas, node):
    numbers = [None] if replicas == 1 else range(replicas)
    encoded = encode([(str(ReplicaId(uuid(7), number)), node) for number in numbers])
    assert gpu_bytes(uuid=uuid(7), numa_node=node, replicas=replicas) == len(encoded)


@pytest.mark.requirement(40)
@pytest.mark.parametrize(
    ("gpus", "node", "most"),
    [(8, 1, 3929), (8, 0, 4050), (8, None, 4315), (1, 1, 31003), (4, 1, 7841), (16, None, 2166)],
)
def test_the_most_replicas_fit_and_one_more_does_not(gpus, node, most):
    members = tuple((uuid(number), node) for number in range(gpus))
    assert most_replicas(members) == most

    def size(replicas):
        return sum(gpu_bytes(uuid=one, numa_node=node, replicas=replicas) for one, node in members)

    assert size(most) <= LIMIT_BYTES < size(most + 1)


def test_where_two_replicas_do_not_fit_one_is_the_most():
    assert most_replicas((("x" * 2**20, 0),)) == 1
