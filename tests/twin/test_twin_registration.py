"""Registration at the twin: its checks, the dial, and what a failed try leaves behind (kubelet contract A.1, A.2)."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from nvdp.simulate.kubelet import Kubelet
from nvdp.simulate.kubelet.names import is_extended_resource_name
from tests.twin.reference_plugin import RESOURCE, ReferencePlugin, device, devices


def refusal(plugin: ReferencePlugin, **arguments) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        plugin.register(**arguments)
    return error.value.code(), error.value.details()


def test_a_plugin_that_registers_gets_a_stream_and_its_devices_count(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, preferred=True) as plugin:
        plugin.register()
        kubelet.wait_until(lambda: kubelet.capacity(RESOURCE) == 4)
        (record,) = kubelet.registrations
        assert (record.version, record.endpoint, record.resource) == ("v1beta1", "reference.sock", RESOURCE)
        assert record.error is None
        assert record.request_options == record.options == plugin.options
        assert record.answered_at >= record.at
        (message,) = kubelet.messages(RESOURCE)
        assert (message.stream, message.ids) == (record.stream, ("dev-0", "dev-1", "dev-2", "dev-3"))
        assert kubelet.open_streams(RESOURCE) == 1
        assert plugin.options_asked == 1


def test_another_version_is_refused_in_the_kubelets_words(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        assert refusal(plugin, version="v1alpha1") == (
            grpc.StatusCode.UNKNOWN,
            'requested API version "v1alpha1" is not supported by kubelet. Supported version is ["v1beta1"]',
        )
        assert "v1alpha1" in kubelet.registrations[0].error


def test_a_name_that_is_no_extended_resource_is_refused(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        assert refusal(plugin, resource="gpu") == (grpc.StatusCode.UNKNOWN, 'the ResourceName "gpu" is invalid')
        assert kubelet.capacity("gpu") == 0


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/mig-1g.10gb", True),
        ("nvidia.com/gpu.shared", True),
        ("nvidia.com/mig-1g.5gb+me", False),
        ("gpu", False),
        ("kubernetes.io/gpu", False),
        ("node.kubernetes.io/gpu", False),
        ("requests.nvidia.com/gpu", False),
        ("nvidia.com/gpu/a", False),
        ("NVIDIA.com/gpu", False),
        ("nvidia.com/-gpu", False),
        ("nvidia.com/" + "g" * 63, True),
        ("nvidia.com/" + "g" * 64, False),
        ("n" * 245 + "/gpu", False),
    ],
)
def test_resource_names_are_judged_as_the_api_server_does(name, valid):
    assert is_extended_resource_name(name) is valid


def test_a_socket_where_nobody_listens_costs_the_dial_and_is_refused(root):
    with Kubelet(root, dial_limit_s=0.3) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        began = time.monotonic()
        code, text = refusal(plugin, endpoint="absent.sock")
        assert (code, text) == (
            grpc.StatusCode.UNKNOWN,
            "failed to dial device plugin: context deadline exceeded",
        )
        assert 0.3 <= time.monotonic() - began < 3


def test_options_are_asked_for_without_a_deadline_once_connected(root):
    with Kubelet(root, dial_limit_s=0.1) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        plugin.options_hang.clear()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(plugin.register)
            kubelet.wait_until(lambda: plugin.options_asked)
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
            assert time.monotonic() - began >= 0.5
            plugin.options_hang.set()
            waiting.result(5)
        kubelet.wait_until(lambda: kubelet.capacity(RESOURCE) == 4)


@pytest.mark.parametrize(("version", "aborted"), [("1.33", False), ("1.36", True), ("1.37", True)])
def test_giving_up_register_aborts_the_dial_from_1_35_on(root, version, aborted):
    with Kubelet(root, version=version) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        plugin.options_hang.clear()
        assert refusal(plugin, timeout_s=0.3)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        if aborted:
            kubelet.wait_until(lambda: kubelet.registrations[0].error is not None)
            assert kubelet.registrations[0].error == "failed to dial device plugin: context canceled"
        plugin.options_hang.set()
        if not aborted:
            kubelet.wait_until(lambda: kubelet.capacity(RESOURCE) == 4)
            assert kubelet.registrations[0].error is None


def test_refusals_can_be_ordered_and_run_out(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        kubelet.faults.refuse_registrations(2, "come back later")
        assert refusal(plugin) == (grpc.StatusCode.UNKNOWN, "come back later")
        assert refusal(plugin) == (grpc.StatusCode.UNKNOWN, "come back later")
        plugin.register()
        assert [record.error for record in kubelet.registrations] == ["come back later", "come back later", None]


def test_the_reply_to_register_can_be_delayed_and_the_stream_opens_meanwhile(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        kubelet.faults.register_delay_s = 2.0
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(plugin.register)
            kubelet.wait_until(lambda: kubelet.capacity(RESOURCE) == 4)
            assert not waiting.done()
            waiting.result(5)


def test_a_failed_registration_makes_the_kubelet_forget_the_plugin_that_was_there(root):
    """A.1: devices stay Healthy after the plugin's death, and pods are sent to a connection that is dead."""
    with Kubelet(root, dial_limit_s=0.2) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        plugin.register()
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 4)
        refusal(plugin, endpoint="absent.sock")
        plugin.stop()
        kubelet.wait_until(lambda: kubelet.open_streams(RESOURCE) == 0)
        assert kubelet.allocatable(RESOURCE) == 4
        with pytest.raises(Exception, match="code = Unavailable"):
            kubelet.admit("late", {"main": {RESOURCE: 1}})
        with ReferencePlugin(kubelet.directory, name="second.sock", listed=devices(2)) as second:
            second.register()
            kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 2)


def test_an_endpoint_is_joined_to_the_directory_and_not_looked_at_any_further(root):
    with Kubelet(root) as kubelet:
        (root / "elsewhere").mkdir()
        with ReferencePlugin(root / "elsewhere") as plugin:
            plugin.directory = kubelet.directory
            plugin.register(endpoint="../elsewhere/reference.sock")
            kubelet.wait_until(lambda: kubelet.capacity(RESOURCE) == 4)


def test_a_list_of_more_than_4_mib_ends_the_stream_and_the_resource(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, listed=devices(2)) as plugin:
        plugin.register()
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 2)
        plugin.update([device("x" * 60 + f"{number:06}") for number in range(60_000)])
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 0)
        plugin.wait_stream_ended()
        assert any("ResourceExhausted" in line for line in kubelet.journal)


def test_hundreds_of_reconnects_take_seconds_and_leave_no_threads(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, listed=devices(80)) as plugin:
        plugin.register()
        kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 80)
        before = threading.active_count()
        began = time.monotonic()
        for cycle in range(200):
            kubelet.close_stream(RESOURCE)
            plugin.wait_stream_ended(cycle + 1)
            # A plugin that registers before the kubelet has noticed the end is stopped by that end (A.4).
            kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 0)
            plugin.register()
            kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 80)
        assert time.monotonic() - began < 20
        messages = kubelet.messages(RESOURCE)
        assert len(messages) == 201
        assert all(message.devices is messages[0].devices for message in messages)
        kubelet.wait_until(lambda: threading.active_count() <= before + 3)
