"""Lists as bytes of the protocol."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nvdp.kubelet.feed import Feed
from nvdp.kubelet.messages import ListEncoder, encode_list
from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.model.listing import ListedDevice, ResourceList
from nvdp.model.reasons import Cause
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
