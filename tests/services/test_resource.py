"""The actor of one resource between its feed and the kubelet's twin: what it reports, and how it ends."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import ExitStack

import grpc
import psutil
import pytest

from nvdp.kubelet.sockets import find_socket_identity
from nvdp.model.listing import AllocationFacts, GpuFacts, ListedDevice, ResourceList
from nvdp.model.reasons import Reason
from nvdp.planning.aligned import choose_aligned
from nvdp.planning.aligned_table import build_table
from nvdp.services.events import AllocateAnswered, ResourceReport
from nvdp.services.retrying import Timings
from nvdp.simulate.kubelet import Kubelet
from tests.kubelet.lists import build_list, replica
from tests.kubelet.plugin_client import PluginClient, stalled_reader
from tests.planning.machines import KINDS
from tests.services.node import (
    GPU,
    LIMIT_S,
    both_kubelets,
    streaming,
    wait_for_foreign_streams_only,
)


@pytest.mark.requirement(1)
@pytest.mark.requirement(2)
@pytest.mark.requirement(3)
@pytest.mark.invariant(6)
@both_kubelets
def test_it_serves_then_registers_and_the_capacity_appears(node, version):
    kubelet = node.kubelet(version)
    actor, observed = node.actor(build_list(gpus=2, replicas=3, unhealthy=[replica(0, 1)], numa_nodes=(0, 1)))
    kubelet.wait_until(lambda: kubelet.messages(GPU))
    kubelet.wait_until(lambda: (kubelet.capacity(GPU), kubelet.allocatable(GPU)) == (6, 5))
    [registration] = kubelet.registrations
    assert (registration.version, registration.resource, registration.error) == ("v1beta1", GPU, None)
    assert registration.endpoint == node.own_socket().name
    assert registration.options == registration.request_options
    node.wait(streaming(observed))
    socket = find_socket_identity(kubelet.directory / "kubelet.sock")
    assert observed.last == ResourceReport(resource=GPU, registered=True, streams=1, taken_version=1, kubelet=socket)
    assert observed.results == ["success"]
    assert observed.logged(Reason.RESOURCE_REGISTERED) == ["6 devices on 2 GPUs, 5 healthy"]
    assert actor.probe(LIMIT_S)


@pytest.mark.requirement(12)
@pytest.mark.requirement(13)
@both_kubelets
def test_a_published_change_is_one_whole_list_on_the_same_stream(node, version):
    kubelet = node.kubelet(version)
    actor, observed = node.actor()
    node.wait(streaming(observed))
    version = actor.feed.publish(build_list(unhealthy=[replica(1, 1)]))
    node.wait(lambda: observed.last.taken_version == version)
    actor.feed.publish(build_list(unhealthy=[replica(1, 1)]))
    actor.feed.publish(build_list())
    kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 3)
    messages = kubelet.messages(GPU)
    assert [len(message.healthy) for message in messages] == [4, 3, 4]
    assert {message.stream for message in messages} == {1}
    assert len(kubelet.registrations) == 1


@pytest.mark.requirement(44)
def test_a_resource_without_devices_is_registered_and_stays(node):
    kubelet = node.kubelet()
    _, observed = node.actor(build_list(gpus=0))
    node.wait(streaming(observed))
    kubelet.wait_until(lambda: (kubelet.capacity(GPU), kubelet.open_streams(GPU)) == (0, 1))


def test_an_allocate_reaches_the_supervisor_and_the_counters(node):
    kubelet = node.kubelet()
    actor, observed = node.actor()
    node.wait(streaming(observed))
    kubelet.wait_until(lambda: kubelet.capacity(GPU) == 4)
    pod = kubelet.admit("team/job", {"main": {GPU: 2}})
    assert pod.ids(GPU) == {replica(0, 0), replica(1, 0)}
    observed.notes.wait_for("AllocateAnswered")
    assert observed.notes.of("AllocateAnswered") == [(AllocateAnswered(resource=GPU),)]
    assert set(actor.feed.allocations()) == pod.ids(GPU)
    node.wait(lambda: [call[:3] for call in observed.notes.of("rpc")].count((GPU, "Allocate", "OK")) == 1)


def test_what_connects_gpus_is_weighed_before_the_first_request_asks_for_it(node):
    kubelet = node.kubelet()
    weights = KINDS["anything"](random.Random(6), 12)
    whole = [ListedDevice(id=f"GPU-{place:02}", gpu_uuid=f"GPU-{place:02}") for place in range(12)]
    facts = AllocationFacts(gpus=tuple(GpuFacts(uuid=one.id, index="") for one in whole), weights=weights)
    build_table.cache_clear()
    node.actor(ResourceList(resource=GPU, devices=tuple(whole), facts=facts))
    node.wait(lambda: build_table.cache_info().currsize)
    kubelet.wait_until(lambda: kubelet.allocatable(GPU) == 12)
    expected = choose_aligned(weights, available=range(12), required=(), size=5).places
    assert kubelet.admit("team/job", {"main": {GPU: 5}}).ids(GPU) == {whole[place].id for place in expected}
    assert build_table.cache_info().misses == 1


def test_a_refused_allocate_is_counted_and_its_text_reaches_the_pod(node):
    node.kubelet()
    actor, observed = node.actor()
    node.wait(streaming(observed))
    with PluginClient(node.own_socket()) as client, pytest.raises(grpc.RpcError, match="GPU-nobody"):
        client.allocate(["GPU-nobody"])
    assert observed.notes.of("allocation_refused") == [(GPU, "unknown_device")]
    assert actor.feed.allocations() == {}


# Others


@pytest.mark.requirement(17)
@pytest.mark.campaign
def test_reconnects_leave_threads_and_files_flat_and_calls_answered(node):
    kubelet = node.kubelet("1.37")
    actor, observed = node.actor()
    node.wait(streaming(observed))
    cycles = 10_000 if os.environ.get("NVDP_CAMPAIGN") == "full" else 100
    process = psutil.Process()
    path = node.own_socket()
    wait_for_foreign_streams_only(node, kubelet)

    def cycle():
        with PluginClient(path) as client:
            stream = client.watch()
            next(stream)
            stream.cancel()

    for _ in range(100):  # grpc's own pool grows to its size first
        cycle()
    node.wait(lambda: actor.feed.streams == 1)
    threads, files, memory = process.num_threads(), process.num_fds(), process.memory_info().rss
    for _ in range(cycles):
        cycle()
    node.wait(lambda: actor.feed.streams == 1)
    node.wait(lambda: process.num_threads() <= threads + 6)
    assert process.num_fds() <= files + 6
    assert process.memory_info().rss - memory < 30 << 20
    observed.notes.wait_for("stream_lost", 100 + cycles)
    assert observed.last.registered
    assert len(kubelet.registrations) == 1
    with PluginClient(path) as client:
        assert client.allocate([replica(0, 0)]).container_responses


@pytest.mark.requirement(43)
@both_kubelets
def test_two_resources_have_a_socket_and_a_registration_each_and_one_fails_alone(node, version):
    kubelet = node.kubelet(version)
    _, plain = node.actor()
    node.wait(streaming(plain))
    kubelet.faults.refuse_registrations(3)
    _, shared = node.actor(build_list(resource="nvidia.com/gpu.shared", gpus=1))
    node.wait(lambda: "failure" in shared.results)
    assert plain.last.registered
    node.wait(streaming(shared))
    kubelet.wait_until(lambda: (kubelet.allocatable(GPU), kubelet.allocatable("nvidia.com/gpu.shared")) == (4, 2))
    assert len(node.sockets()) == 2
    assert plain.results == ["success"]


def test_a_peer_that_stopped_reading_does_not_hold_the_kubelets_list(node):
    kubelet = node.kubelet()
    actor, observed = node.actor(build_list(gpus=8, replicas=500))
    node.wait(streaming(observed))
    with stalled_reader(node.own_socket()):
        node.wait(lambda: actor.feed.streams == 2)
        actor.feed.publish(build_list(gpus=8, replicas=499))
        kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 2)
        assert observed.last.registered


def test_without_a_kubelet_socket_it_serves_and_does_not_register(node):
    kubelet = node.kubelet()
    actor, observed = node.actor(kubelet_socket=None)
    node.wait(lambda: "registration is off" in (observed.last.missing or ""))
    with PluginClient(node.own_socket()) as client:
        assert len(next(client.watch()).devices) == 4
    assert kubelet.registrations == ()
    assert actor.probe(LIMIT_S)


# The end


@pytest.mark.requirement(22)
@both_kubelets
def test_stopping_ends_the_stream_without_an_empty_list_removes_the_socket_and_does_not_register(node, version):
    kubelet = node.kubelet(version)
    actor, observed = node.actor()
    node.wait(streaming(observed))
    kubelet.wait_until(lambda: kubelet.messages(GPU))
    actor.stop("nvdp stops")
    assert actor.join(2)
    kubelet.wait_until(lambda: kubelet.open_streams(GPU) == 0)
    assert node.sockets() == set()
    assert [len(message.devices) for message in kubelet.messages(GPU)] == [4]
    assert len(kubelet.registrations) == 1
    assert observed.last.stopped
    assert not observed.last.registered
    assert observed.notes.of("stream_lost") == []
    assert observed.logged(Reason.RESOURCE_WITHDRAWN) == ["withdrawn: nvdp stops"]


@pytest.mark.requirement(22)
@pytest.mark.parametrize("state", ["registering", "waiting", "refused", "settling", "stalled"])
def test_it_stops_at_once_whatever_it_is_doing(node, state):
    with ExitStack() as stack:
        kubelet = Kubelet(node.root)
        if state != "waiting":
            stack.enter_context(kubelet)
        if state == "registering":
            kubelet.faults.register_delay_s = 60
        if state == "refused":
            kubelet.faults.refuse_registrations(99)
        actor, observed = node.actor(build_list(gpus=8, replicas=500), timings=Timings())
        reached = {
            "registering": lambda: kubelet.registrations,
            "waiting": lambda: "waiting for the kubelet" in (observed.last.missing or ""),
            "refused": lambda: len(observed.results) >= 3,
            "settling": streaming(observed),
            "stalled": streaming(observed),
        }
        node.wait(reached[state])
        if state == "settling":
            node.own_socket().unlink()
            actor.look()
            node.wait(lambda: "was replaced" in (observed.last.missing or ""))
        if state == "stalled":
            stack.enter_context(stalled_reader(node.own_socket()))
            node.wait(lambda: actor.feed.streams == 2)
        actor.stop("nvdp stops")
        started_at = time.monotonic()
        assert actor.join(4)
        assert time.monotonic() - started_at < 2
        assert node.sockets() == set()


@pytest.mark.invariant(1)
def test_a_defect_takes_the_server_down_and_leaves_the_thread_to_the_hook(node):
    kubelet = node.kubelet()
    caught = []
    hook, threading.excepthook = threading.excepthook, caught.append
    try:
        actor, observed = node.actor()
        node.wait(streaming(observed))
        actor.stream_opened(None)  # no stream at all: nobody calls it so
        assert actor.join(LIMIT_S)
    finally:
        threading.excepthook = hook
    [crash] = caught
    assert crash.thread.name == f"resource {GPU}"
    assert issubclass(crash.exc_type, AttributeError)
    kubelet.wait_until(lambda: kubelet.open_streams(GPU) == 0)
    assert node.sockets() == set()
    assert not observed.last.stopped
    _, again = node.actor()
    node.wait(streaming(again))
    node.wait(lambda: kubelet.allocatable(GPU) == 4)
