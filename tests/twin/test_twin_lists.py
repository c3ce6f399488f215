"""Lists, health, stream ends and overlapping plugins at the twin (kubelet contract A.3, A.4, A.10)."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from nvdp.simulate.kubelet import AdmissionError, Kubelet
from tests.twin.reference_plugin import RESOURCE, ReferencePlugin, device, devices

ONE = {"main": {RESOURCE: 1}}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_unhealthy_device_counts_for_capacity_only_and_comes_back(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        plugin.register()
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 4)
        plugin.update([*devices(3), device("dev-3", "Unhealthy")])
        kubelet.wait_until(lambda: kubelet.node_status()[RESOURCE] == (4, 3))
        assert kubelet.devices(RESOURCE)["dev-3"].health == "Unhealthy"
        plugin.update(devices(4))
        kubelet.wait_until(lambda: kubelet.node_status()[RESOURCE] == (4, 4))


def test_a_slow_kubelet_takes_each_list_in_late_and_stops_at_once_all_the_same(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        kubelet.faults.list_delay_s = 0.2
        began = time.monotonic()
        plugin.register()
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 4)
        assert time.monotonic() - began >= 0.2
        kubelet.faults.list_delay_s = 60.0
        plugin.update(devices(3))
        began = time.monotonic()
        kubelet.stop()
        assert time.monotonic() - began < 20.0


def test_only_the_exact_word_is_healthy(root):
    with Kubelet(root) as kubelet:
        listed = [device("a", "healthy"), device("b", ""), device("c", "Healthy")]
        with ReferencePlugin(kubelet.directory, listed=listed) as plugin:
            plugin.register()
            kubelet.wait_until(lambda: kubelet.node_status().get(RESOURCE) == (3, 1))


def test_an_id_sent_twice_collapses_unless_its_healths_differ(root):
    with Kubelet(root) as kubelet:
        twice = [device("a"), device("a"), device("b"), device("b", "Unhealthy")]
        with ReferencePlugin(kubelet.directory, listed=twice) as plugin:
            plugin.register()
            kubelet.wait_until(lambda: kubelet.node_status().get(RESOURCE) == (3, 2))


def test_an_empty_list_keeps_the_resource_and_the_stream(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        plugin.register()
        kubelet.wait_until(lambda: kubelet.capacity(RESOURCE) == 4)
        plugin.update([])
        kubelet.wait_until(lambda: kubelet.capacity(RESOURCE) == 0)
        plugin.update(devices(2))
        kubelet.wait_until(lambda: kubelet.capacity(RESOURCE) == 2)
        assert {message.stream for message in kubelet.messages(RESOURCE)} == {1}


def test_numa_nodes_are_kept_node_0_too(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, listed=devices(2, numa=True)) as plugin:
        plugin.register()
        kubelet.wait_until(lambda: kubelet.devices(RESOURCE))
        assert {name: state.numa for name, state in kubelet.devices(RESOURCE).items()} == {
            "dev-0": (0,),
            "dev-1": (1,),
        }


@pytest.mark.parametrize("version", ["1.36", "1.37"])
def test_a_stopped_plugin_loses_allocatable_at_once_and_capacity_after_5_minutes(root, version):
    clock = Clock()
    with Kubelet(root, version=version, clock=clock) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        plugin.register()
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 4)
        plugin.stop()
        kubelet.wait_until(lambda: kubelet.node_status()[RESOURCE] == (4, 0))
        with pytest.raises(AdmissionError, match=f"cannot allocate unhealthy devices {RESOURCE}"):
            kubelet.admit("late", ONE)
        clock.now += 300
        assert kubelet.node_status()[RESOURCE] == (4, 0)
        clock.now += 1
        assert kubelet.node_status()[RESOURCE] == (0, 0)
        assert kubelet.devices(RESOURCE)  # forgotten by the node, not by the list


def test_a_plugin_that_ends_its_stream_itself_is_stopped_too(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        plugin.register()
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 4)
        plugin.end_streams()
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 0)
        plugin.register()
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 4)


def test_up_to_1_36_the_end_of_an_older_plugin_takes_the_newer_one_with_it(root):
    with Kubelet(root, version="1.36") as kubelet, ReferencePlugin(kubelet.directory, name="old.sock") as old:
        old.register()
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 4)
        with ReferencePlugin(kubelet.directory, name="new.sock", listed=devices(6)) as new:
            new.register()
            kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 6)
            assert kubelet.open_streams(RESOURCE) == 2
            old.update(devices(3))
            kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 3)
            old.stop()
            new.wait_stream_ended()
            kubelet.wait_until(lambda: kubelet.open_streams(RESOURCE) == 0)
            kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 0)
            new.register()
            kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 6)


def test_from_1_37_on_plugins_on_different_sockets_do_not_disturb_each_other(root):
    with Kubelet(root, version="1.37") as kubelet, ReferencePlugin(kubelet.directory, name="old.sock") as old:
        old.register()
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 4)
        with ReferencePlugin(kubelet.directory, name="new.sock", listed=devices(6)) as new:
            new.register()
            kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 6)
            old.stop()
            kubelet.wait_until(lambda: kubelet.open_streams(RESOURCE) == 1)
            assert kubelet.node_status()[RESOURCE] == (6, 6)
            assert kubelet.admit("pod", ONE).phase == "Running"
            assert new.streams_ended == 0


def test_from_1_37_on_a_second_registration_on_the_same_socket_is_refused(root):
    with Kubelet(root, version="1.37") as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        plugin.register()
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 4)
        with pytest.raises(Exception, match="already registered"):
            plugin.register()
        kubelet.close_stream(RESOURCE)
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 0)
        plugin.register()
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 4)


def test_two_resources_are_two_things(root):
    with (
        Kubelet(root) as kubelet,
        ReferencePlugin(kubelet.directory) as first,
        ReferencePlugin(kubelet.directory, name="b.sock", resource="nvidia.com/gpu.shared") as second,
    ):
        first.register()
        second.register()
        kubelet.wait_until(lambda: kubelet.allocatable("nvidia.com/gpu.shared") == 4)
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 4)
        second.stop()
        kubelet.wait_until(lambda: kubelet.allocatable("nvidia.com/gpu.shared") == 0)
        assert kubelet.allocatable(RESOURCE) == 4


def test_a_wait_that_is_not_met_shows_the_journal(root):
    with Kubelet(root) as kubelet, pytest.raises(TimeoutError, match=r"(?s)a miracle.*started"):
        kubelet.wait_until(lambda: False, 0.1, what="a miracle")


@pytest.fixture
def restless():
    """Threads take turns as often as they can, so that what lies between two steps of one is seen by another."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_list_that_is_seen_counts_already(root, restless):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        plugin.register()
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 4)
        over = threading.Event()
        unlike = []

        def look() -> None:
            while not over.is_set():
                listed = len(kubelet.messages(RESOURCE)[-1].devices)
                counted = len(kubelet.devices(RESOURCE))
                if counted < listed:  # both only grow, and what is counted was asked for last
                    unlike.append((listed, counted))

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            for count in range(5, 55):
                plugin.update(devices(count))
                kubelet.wait_until(lambda count=count: len(kubelet.devices(RESOURCE)) == count)
        finally:
            over.set()
            watcher.join()
        assert not unlike
