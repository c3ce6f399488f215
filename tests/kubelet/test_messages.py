"""Lists as bytes of the protocol."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nvdp.kubelet.feed import Feed
from nvdp.kubelet.messages import ListEncoder, build_container_response, encode_list
from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.model.listing import DeviceNode, ListedDevice, ResourceList
from nvdp.model.reasons import Cause
from nvdp.planning.response import ContainerAllocation, Mount
from tests.kubelet.lists import build_list

devices = st.builds(
    ListedDevice,
    id=st.text(max_size=63),
    gpu_uuid=st.just("GPU-x"),
    numa_node=st.none() | st.integers(0, 2**40),
    cause=st.none() | st.sampled_from(Cause),
)


@given(st.lists(devices, max_size=20))
def test_every_device_arrives_as_it_was_listed(listed):
    message = deviceplugin.ListAndWatchResponse.FromString(
        encode_list(ResourceList(resource="nvidia.com/gpu", devices=tuple(listed)))
    )
    assert [(one.id, one.health) for one in message.devices] == [
        (device.id, "Healthy" if device.healthy else "Unhealthy") for device in listed
    ]
    for one, device in zip(message.devices, listed, strict=True):
        assert one.HasField("topology") == (device.numa_node is not None)
        assert [node.id for node in one.topology.nodes] == ([] if device.numa_node is None else [device.numa_node])


def test_a_version_is_encoded_once_for_all_streams():
    feed, encoder = Feed(build_list()), ListEncoder()
    first = encoder.encode(feed.current)
    assert encoder.encode(feed.current) is first
    feed.publish(build_list(replicas=3))
    assert encoder.encode(feed.current) == encode_list(build_list(replicas=3))


def test_all_that_a_container_gets_has_its_place_in_the_answer():
    response = build_container_response(
        ContainerAllocation(
            envs={"NVIDIA_VISIBLE_DEVICES": "GPU-a"},
            mounts=(Mount(container_path="/in", host_path="/on"),),
            devices=(DeviceNode(container_path="/dev/nvidia0", host_path="/root/dev/nvidia0"),),
            annotations={"cdi.k8s.io/key": "vendor/gpu=GPU-a"},
            cdi_devices=("vendor/gpu=GPU-a", "vendor/gds=all"),
        )
    )
    arrived = deviceplugin.ContainerAllocateResponse.FromString(response.SerializeToString())
    assert arrived.envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-a"}
    assert [(one.container_path, one.host_path, one.read_only) for one in arrived.mounts] == [("/in", "/on", False)]
    (spec,) = arrived.devices
    assert (spec.container_path, spec.host_path, spec.permissions) == ("/dev/nvidia0", "/root/dev/nvidia0", "rw")
    assert arrived.annotations == {"cdi.k8s.io/key": "vendor/gpu=GPU-a"}
    assert [one.name for one in arrived.cdi_devices] == ["vendor/gpu=GPU-a", "vendor/gds=all"]
