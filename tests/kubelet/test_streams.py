"""ListAndWatch as the kubelet reads it, over a real socket."""

from __future__ import annotations

import time

import grpc
import pytest

from nvdp.kubelet.streams import MAX_STREAMS
from tests.kubelet.lists import build_list, gpu_uuid, replica
from tests.kubelet.plugin_client import stalled_reader, visible_devices


@pytest.mark.requirement(9)
@pytest.mark.requirement(10)
@pytest.mark.requirement(11)
def test_the_first_message_has_the_whole_list_at_once_in_order_with_the_exact_words(served):
    plugin = served(build_list(gpus=2, replicas=2, unhealthy=[replica(0, 1)]))
    started_at = time.monotonic()
    first = next(plugin.client.watch())
    assert time.monotonic() - started_at < 1
    assert [(device.id, device.health) for device in first.devices] == [
        (replica(0, 0), "Healthy"),
        (replica(0, 1), "Unhealthy"),
        (replica(1, 0), "Healthy"),
        (replica(1, 1), "Healthy"),
    ]


@pytest.mark.requirement(39)
def test_node_zero_is_sent_as_present_and_an_unknown_node_not_at_all(served):
    plugin = served(build_list(gpus=2, replicas=1, numa_nodes=(0, 3)))
    first = next(plugin.client.watch())
    assert [[node.id for node in device.topology.nodes] for device in first.devices] == [[0], [3]]
    plugin.feed.publish(build_list(gpus=2, replicas=1))
    second = next(plugin.client.watch())
    assert [device.HasField("topology") for device in second.devices] == [False, False]


@pytest.mark.requirement(44)
def test_an_empty_list_is_a_message_too(served):
    assert list(next(served(build_list(gpus=0)).client.watch()).devices) == []


@pytest.mark.requirement(12)
@pytest.mark.requirement(18)
def test_three_streams_get_every_change_as_a_whole_list_and_nothing_else(served):
    plugin = served(build_list())
    streams = [plugin.client.watch() for _ in range(3)]
    for stream in streams:
        next(stream)
    plugin.feed.publish(build_list())  # no change: nothing may come of it
    plugin.feed.publish(build_list(unhealthy=[replica(1, 0)]))
    for stream in streams:
        devices = next(stream).devices
        assert [device.id for device in devices if device.health == "Unhealthy"] == [replica(1, 0)]
        assert len(devices) == 4


@pytest.mark.requirement(22)
def test_streams_end_regularly_and_without_an_empty_list_when_the_feed_closes(served):
    plugin = served(build_list())
    stream = plugin.client.watch()
    next(stream)
    plugin.notes.wait_for("taken")
    plugin.feed.close()
    assert list(stream) == []
    assert stream.code() is grpc.StatusCode.OK


@pytest.mark.requirement(15)
def test_the_end_of_a_stream_is_noticed_when_its_peer_goes(served):
    plugin = served(build_list())
    stream = plugin.client.watch()
    next(stream)
    plugin.notes.wait_for("taken")
    left_at = time.monotonic()
    stream.cancel()
    [(ended,)] = plugin.notes.wait_for("ended")
    assert time.monotonic() - left_at < 1
    assert not ended.asked
    assert plugin.server.streams.count == 0
    assert plugin.feed.streams == 0


def test_a_stream_is_observed_with_the_time_of_its_first_list(served):
    plugin = served(build_list())
    stream = plugin.client.watch()
    next(stream)
    plugin.notes.wait_for("taken")
    stream.cancel()
    plugin.notes.wait_for("ended")
    [(method, code, seconds)] = [rpc for rpc in plugin.notes.of("rpc") if rpc[0] == "ListAndWatch"]
    assert (method, code) == ("ListAndWatch", "CANCELLED")
    assert 0 < seconds < 1


def test_a_peer_that_stops_reading_keeps_nobody_waiting(served):
    plugin = served(build_list(gpus=8, replicas=500))
    with stalled_reader(plugin.server.path):
        plugin.notes.wait_for("opened")
        stream = plugin.client.watch()
        assert len(next(stream).devices) == 4000
        plugin.feed.publish(build_list(gpus=8, replicas=400))
        assert len(next(stream).devices) == 3200
        assert visible_devices(plugin.client.allocate([replica(3, 3)])) == [gpu_uuid(3)]
        assert [stream.taken for (stream,) in plugin.notes.of("opened")] == [False, True]
    plugin.notes.wait_for("ended")


def test_streams_without_end_leave_the_newest_served_and_calls_answered(served):
    plugin = served(build_list())
    streams = [plugin.client.watch(timeout_s=60) for _ in range(MAX_STREAMS + 40)]
    plugin.notes.wait_for("ended", 40, limit_s=30)
    newest = plugin.client.watch()
    next(newest)
    assert visible_devices(plugin.client.allocate([replica(0, 0)])) == [gpu_uuid(0)]
    plugin.notes.wait_for("ended", 41)
    assert plugin.server.streams.count == MAX_STREAMS
    plugin.feed.publish(build_list(replicas=3))
    assert len(next(newest).devices) == 6
    for stream in streams:
        stream.cancel()
