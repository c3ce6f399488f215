"""PodResources at the twin (kubelet contract B)."""

from __future__ import annotations

import time

import grpc
import pytest

from nvdp.kubelet import protocol
from nvdp.kubelet.proto import podresources_v1_pb2 as podresources
from nvdp.simulate.kubelet import Kubelet
from nvdp.simulate.kubelet.podresources import BURST
from tests.twin.reference_plugin import RESOURCE, ReferencePlugin, device

LISTED = [device("one", numa=(0,)), device("both", numa=(0, 1)), device("none"), device("sick", "Unhealthy", (1,))]


@pytest.fixture
def plugin_of():
    started = []

    def start(kubelet: Kubelet) -> ReferencePlugin:
        plugin = ReferencePlugin(kubelet.directory, listed=LISTED)
        started.append(plugin)
        plugin.register()
        kubelet.wait_until(lambda: kubelet.capacity(RESOURCE) == len(LISTED))
        return plugin

    yield start
    for plugin in started:
        plugin.stop()


def ask(kubelet: Kubelet, call, request):
    with grpc.insecure_channel(f"unix:{kubelet.pod_resources_socket}") as channel:
        return call.unary(channel)(request, timeout=5)


def listed(kubelet: Kubelet) -> list[podresources.PodResources]:
    return list(ask(kubelet, protocol.LIST_POD_RESOURCES, podresources.ListPodResourcesRequest()).pod_resources)


def test_every_device_is_an_entry_of_its_own_once_for_each_numa_node(root, plugin_of):
    with Kubelet(root) as kubelet:
        plugin_of(kubelet)
        kubelet.admit("team-a/pod", {"main": {RESOURCE: 3}, "side": {}}, init_containers={"init": {RESOURCE: 1}})
        (pod,) = listed(kubelet)
        assert (pod.namespace, pod.name) == ("team-a", "pod")
        assert [container.name for container in pod.containers] == ["main", "side"]
        entries = [
            (entry.resource_name, tuple(entry.device_ids), tuple(node.id for node in entry.topology.nodes))
            for entry in pod.containers[0].devices
        ]
        assert sorted(entries) == [
            (RESOURCE, ("both",), (0,)),
            (RESOURCE, ("both",), (1,)),
            (RESOURCE, ("none",), ()),
            (RESOURCE, ("one",), (0,)),
        ]


def test_listing_returns_the_devices_of_pods_that_are_over(root, plugin_of):
    with Kubelet(root) as kubelet:
        plugin_of(kubelet)
        first, second = (
            kubelet.admit("a", {"main": {RESOURCE: 1}}),
            kubelet.admit("b", {"main": {RESOURCE: 2}}),
        )
        kubelet.delete(first)
        kubelet.finish(second)
        assert listed(kubelet) == []


def test_before_1_34_finished_pods_are_listed_with_what_they_had(root, plugin_of):
    with Kubelet(root, version="1.33") as kubelet:
        plugin_of(kubelet)
        over = kubelet.admit("over", {"main": {RESOURCE: 3}})
        kubelet.finish(over)
        kubelet.admit("next", {"main": {RESOURCE: 3}})
        owners = [
            pod.name for pod in listed(kubelet) for entry in pod.containers[0].devices if "one" in entry.device_ids
        ]
        assert owners == ["over", "next"]


def test_a_kubelet_that_has_just_started_lists_no_pod(root, plugin_of):
    with Kubelet(root) as kubelet:
        plugin_of(kubelet).stop()
        with ReferencePlugin(kubelet.directory, name="b.sock", listed=LISTED) as plugin:
            plugin.register()
            kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 3)
            kubelet.admit("pod", {"main": {RESOURCE: 1}})
            kubelet.restart()
            assert listed(kubelet) == []
        with ReferencePlugin(kubelet.directory, name="c.sock", listed=LISTED) as plugin:
            plugin.register()
            kubelet.wait_until(lambda: kubelet.readmissions_pending == 0)
            assert [pod.name for pod in listed(kubelet)] == ["pod"]


def test_allocatable_are_the_healthy_devices_taken_or_not(root, plugin_of):
    with Kubelet(root) as kubelet:
        plugin_of(kubelet)
        kubelet.admit("pod", {"main": {RESOURCE: 2}})
        answer = ask(kubelet, protocol.GET_ALLOCATABLE_RESOURCES, podresources.AllocatableResourcesRequest())
        assert sorted(entry.device_ids[0] for entry in answer.devices) == ["both", "both", "none", "one"]


def test_get_answers_for_one_pod_where_the_gate_is_on(root, plugin_of):
    with Kubelet(root) as kubelet:
        plugin_of(kubelet)
        kubelet.admit("team-a/pod", {"main": {RESOURCE: 3}})
        request = podresources.GetPodResourcesRequest(pod_name="pod", pod_namespace="team-a")
        answer = ask(kubelet, protocol.GET_POD_RESOURCES, request)
        assert len(answer.pod_resources.containers[0].devices) == 4
        request.pod_name = "other"
        with pytest.raises(grpc.RpcError, match="pod other in namespace team-a not found"):
            ask(kubelet, protocol.GET_POD_RESOURCES, request)


def test_get_is_disabled_before_1_34(root):
    with (
        Kubelet(root, version="1.33") as kubelet,
        pytest.raises(grpc.RpcError, match="PodResources API Get method disabled"),
    ):
        ask(kubelet, protocol.GET_POD_RESOURCES, podresources.GetPodResourcesRequest(pod_name="pod"))


def test_more_than_a_burst_of_questions_is_rejected(root):
    with (
        Kubelet(root) as kubelet,
        grpc.insecure_channel(f"unix:{kubelet.pod_resources_socket}") as channel,
    ):
        call = protocol.LIST_POD_RESOURCES.unary(channel)
        calls = [call.future(podresources.ListPodResourcesRequest(), timeout=5) for _ in range(20 * BURST)]
        errors = [error for error in (one.exception() for one in calls) if error is not None]
        assert errors
        assert {(error.code(), error.details()) for error in errors} == {
            (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        }


def test_pod_resources_can_go_and_come_back(root):
    with Kubelet(root) as kubelet:
        kubelet.drop_pod_resources()
        assert not kubelet.pod_resources_socket.exists()
        kubelet.serve_pod_resources()
        assert listed(kubelet) == []
        kubelet.drop_pod_resources(remove=False)
        assert kubelet.pod_resources_socket.is_socket()
        with pytest.raises(grpc.RpcError):
            listed(kubelet)


def test_an_answer_can_be_delayed_or_be_an_error(root):
    with Kubelet(root) as kubelet:
        kubelet.faults.list_pods_delay_s = 0.3
        began = time.monotonic()
        assert listed(kubelet) == []
        assert time.monotonic() - began >= 0.3
        kubelet.faults.list_pods_delay_s = 0.0
        kubelet.faults.list_pods_error = (grpc.StatusCode.INTERNAL, "out of order")
        with pytest.raises(grpc.RpcError, match="out of order"):
            listed(kubelet)
