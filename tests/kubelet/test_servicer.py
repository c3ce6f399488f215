"""The unary methods as the kubelet calls them, over a real socket."""

from __future__ import annotations

import itertools
import random
import time

import grpc
import msgspec
import pytest

from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.kubelet.protocol import ALLOCATE
from nvdp.model.listing import DeviceListStrategy, DeviceNode
from nvdp.model.reasons import Level, Reason
from tests.kubelet.lists import build_list, gpu_uuid, replica
from tests.kubelet.plugin_client import PluginClient, visible_devices

LIMIT_S = 10


def refusal(call):
    """The gRPC error of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def test_the_options_offer_preferred_allocation_and_ask_for_no_pre_start_call(served):
    options = served(build_list()).client.options()
    assert (options.pre_start_required, options.get_preferred_allocation_available) == (False, True)


@pytest.mark.requirement(41)
def test_pre_start_container_is_answered_though_it_is_not_asked_for(served):
    plugin = served(build_list())
    assert plugin.client.pre_start([replica(0, 0)]) == deviceplugin.PreStartContainerResponse()


@pytest.mark.requirement(42)
@pytest.mark.parametrize("authority", ["localhost", "%2Fvar%2Flib%2Fkubelet", "x.example:1"])
def test_any_authority_is_accepted(served, authority):
    plugin = served(build_list())
    with PluginClient(plugin.server.path, **{"grpc.default_authority": authority}) as client:
        assert client.options().get_preferred_allocation_available


# Allocate


@pytest.mark.requirement(24)
def test_one_request_gets_one_response_and_three_get_three_in_order(served):
    client = served(build_list()).client
    assert visible_devices(client.allocate([replica(1, 0)])) == [gpu_uuid(1)]
    answer = client.allocate([replica(1, 0)], [replica(0, 0)], [replica(1, 1), replica(0, 1)])
    assert visible_devices(answer) == [gpu_uuid(1), gpu_uuid(0), f"{gpu_uuid(0)},{gpu_uuid(1)}"]


@pytest.mark.requirement(25)
@pytest.mark.requirement(45)
def test_the_order_of_ids_and_asking_again_change_nothing(served):
    client = served(build_list(gpus=3)).client
    ids = [replica(2, 0), replica(0, 1), replica(1, 0)]
    answers = [client.allocate(list(order)) for order in itertools.permutations(ids)]
    assert all(answer == answers[0] for answer in answers)


def test_mounts_and_device_nodes_reach_the_kubelet(served):
    facts = {
        "device_list_strategies": (DeviceListStrategy.VOLUME_MOUNTS,),
        "pass_device_specs": True,
        "control_nodes": (DeviceNode(container_path="/dev/nvidiactl", host_path="/run/driver/dev/nvidiactl"),),
    }
    [container] = served(build_list(**facts)).client.allocate([replica(1, 0)]).container_responses
    assert [(mount.host_path, mount.container_path, mount.read_only) for mount in container.mounts] == [
        ("/dev/null", f"/var/run/nvidia-container-devices/{gpu_uuid(1)}", False)
    ]
    assert [(node.container_path, node.host_path, node.permissions) for node in container.devices] == [
        ("/dev/nvidiactl", "/run/driver/dev/nvidiactl", "rw"),
        ("/dev/nvidia1", "/dev/nvidia1", "rw"),
    ]


@pytest.mark.requirement(26)
@pytest.mark.requirement(28)
@pytest.mark.requirement(52)
@pytest.mark.parametrize(
    ("ids", "code", "reason", "text"),
    [
        (["GPU-nobody"], grpc.StatusCode.NOT_FOUND, "unknown_device", "GPU-nobody"),
        ([], grpc.StatusCode.NOT_FOUND, "unknown_device", "no device"),
        ([replica(0, 1)], grpc.StatusCode.FAILED_PRECONDITION, "unhealthy", "nvmlDeviceGetUUID failed"),
        ([replica(0, 0), replica(1, 0)], grpc.StatusCode.INVALID_ARGUMENT, "too_many", "sharing.key"),
    ],
)
def test_what_must_be_refused_is_refused_in_one_readable_line(served, ids, code, reason, text):
    facts = {"single_replica_key": "sharing.key", "text": "nvmlDeviceGetUUID failed"}
    plugin = served(build_list(unhealthy=[replica(0, 1)], **facts))
    error = refusal(lambda: plugin.client.allocate(ids))
    assert error.code() is code
    assert text in error.details()
    assert error.details().startswith("nvidia.com/gpu: ")
    assert "\n" not in error.details()
    assert plugin.notes.of("refused") == [(reason,)]
    assert plugin.notes.of("answered") == []
    [(logged, msg, fields)] = plugin.notes.of("log")
    assert (logged, msg, fields["resource"]) == (Reason.ALLOCATION_REFUSED, error.details(), "nvidia.com/gpu")
    assert [rpc[:2] for rpc in plugin.notes.of("rpc") if rpc[0] == "Allocate"] == [("Allocate", code.name)]


@pytest.mark.invariant(2)
@pytest.mark.requirement(52)
def test_allocate_answers_from_the_newest_list_though_no_stream_has_taken_it(served):
    plugin = served(build_list())
    plugin.client.allocate([replica(0, 0)])
    plugin.feed.publish(build_list(unhealthy=[replica(0, 0)]))
    assert refusal(lambda: plugin.client.allocate([replica(0, 0)])).code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.invariant(2)
def test_a_hundred_allocates_at_once_get_the_right_answer_each(served):
    plugin = served(build_list(gpus=8, replicas=100))
    chance = random.Random(7)
    asked = [[replica(gpu, chance.randrange(100)) for gpu in chance.sample(range(8), 3)] for _ in range(100)]
    calls = [plugin.client.allocate_later(ids) for ids in asked]
    for ids, call in zip(asked, calls, strict=True):
        assert visible_devices(call.result(LIMIT_S)) == [",".join(sorted(text.partition("::")[0] for text in ids))]


@pytest.mark.invariant(3)
def test_an_answered_allocate_is_in_the_trace_before_its_caller_has_the_answer(served):
    plugin = served(build_list())
    plugin.client.allocate([replica(0, 0)])
    assert plugin.feed.allocations()[replica(0, 0)].answered_at == pytest.approx(time.monotonic(), abs=LIMIT_S)
    plugin.notes.wait_for("answered")


def test_served_allocations_are_an_audit_trail(served):
    plugin = served(build_list())
    plugin.client.allocate([replica(0, 1), replica(1, 0)])
    [(reason, msg, fields)] = plugin.notes.of("log")
    assert reason is Reason.ALLOCATION_SERVED
    assert msg == f"{replica(0, 1)}, {replica(1, 0)} → NVIDIA_VISIBLE_DEVICES={gpu_uuid(0)},{gpu_uuid(1)}"
    assert fields["devices"] == [replica(0, 1), replica(1, 0)]
    assert 0 <= fields["seconds"] < 1


@pytest.mark.parametrize("way", [DeviceListStrategy.CDI_CRI, DeviceListStrategy.CDI_ANNOTATIONS])
def test_the_audit_trail_names_what_the_runtime_is_told_by_cdi(served, way):
    plugin = served(build_list(device_list_strategies=(way,)))
    plugin.client.allocate([replica(0, 1), replica(1, 0)])
    [(_, msg, _)] = plugin.notes.of("log")
    names = ", ".join(f"k8s.device-plugin.nvidia.com/gpu={gpu_uuid(number)}" for number in (0, 1))
    assert msg == f"{replica(0, 1)}, {replica(1, 0)} → cdi {names}"


def test_the_audit_trail_can_be_turned_off_and_refusals_cannot(served):
    plugin = served(build_list(), log_allocations=False)
    plugin.client.allocate([replica(0, 0)])
    refusal(lambda: plugin.client.allocate(["GPU-nobody"]))
    assert [reason for reason, _, _ in plugin.notes.of("log")] == [Reason.ALLOCATION_REFUSED]


def test_a_defect_costs_one_call_and_the_server_goes_on(served):
    plugin = served(build_list())
    whole = plugin.feed.current.listed
    # A GPU that is listed and of which no facts are known cannot come from the planner.
    plugin.feed.publish(msgspec.structs.replace(whole, facts=msgspec.structs.replace(whole.facts, gpus=())))
    error = refusal(lambda: plugin.client.allocate([replica(0, 0)]))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "Allocate" in error.details()
    assert "\n" not in error.details()
    [(reason, _, fields)] = plugin.notes.of("log")
    assert (reason, fields["level"]) == (Reason.ALLOCATION_REFUSED, Level.ERROR)
    assert "KeyError" in fields["error"]
    assert "Traceback" in fields["trace"]
    plugin.feed.publish(whole)
    assert visible_devices(plugin.client.allocate([replica(0, 0)])) == [gpu_uuid(0)]


def test_a_request_above_grpcs_usual_limit_is_read(served):
    plugin = served(build_list())
    ids = [f"GPU-{number:060}" for number in range(80_000)]
    error = refusal(lambda: plugin.client.allocate(ids))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert len(error.details()) < 1000


def test_garbage_instead_of_a_message_is_an_error_and_no_harm(served):
    plugin = served(build_list())
    call = plugin.client.channel.unary_unary(ALLOCATE.path)
    assert refusal(lambda: call(b"\xff" * 9, timeout=LIMIT_S)).code() is grpc.StatusCode.INTERNAL
    assert plugin.client.options().get_preferred_allocation_available


# GetPreferredAllocation


def test_the_preferred_devices_are_those_of_the_policy(served):
    plugin = served(build_list(gpus=2, replicas=2))
    available = [replica(0, 0), replica(1, 0), replica(1, 1)]
    assert plugin.client.prefer(available=available, size=1) == [replica(1, 0)]
    assert plugin.client.prefer(available=available, must_include=(replica(1, 1),), size=2) == [
        replica(1, 1),
        replica(0, 0),
    ]


def test_what_pods_hold_beyond_the_list_counts_at_once(served):
    plugin = served(build_list(gpus=2, replicas=2))
    everything = [device.id for device in plugin.feed.current.listed.devices]
    assert plugin.client.prefer(available=everything, size=1) == [replica(0, 0)]
    plugin.feed.replace_held({gpu_uuid(0): 1})
    assert plugin.client.prefer(available=everything, size=1) == [replica(1, 0)]


@pytest.mark.requirement(38)
@pytest.mark.parametrize(
    ("available", "must_include", "size"),
    [
        ([replica(0, 0)], (), 2),
        (["GPU-nobody"], (), 1),
        ([replica(0, 0)], (), 0),
        ([replica(0, 0)], (replica(1, 0),), 1),
    ],
)
def test_an_impossible_preference_is_an_empty_answer_and_no_error(served, available, must_include, size):
    client = served(build_list()).client
    assert client.prefer(available=available, must_include=must_include, size=size) == []


def test_a_defect_in_preferring_leaves_the_choice_to_the_kubelet(served):
    plugin = served(build_list())
    whole = plugin.feed.current.listed
    # A policy that there is not cannot come from the planner.
    plugin.feed.publish(msgspec.structs.replace(whole, facts=msgspec.structs.replace(whole.facts, shared_policy=None)))
    assert plugin.client.prefer(available=[replica(0, 0)], size=1) == []
    assert plugin.notes.of("rpc")[-1][:2] == ("GetPreferredAllocation", "INTERNAL")
    [(_, msg, fields)] = plugin.notes.of("log")
    assert (msg, fields["level"]) == ("GetPreferredAllocation failed, which is a defect of nvdp", Level.ERROR)


def test_every_call_is_observed_with_its_code_and_time(served):
    plugin = served(build_list())
    plugin.client.prefer(available=[replica(0, 0)], size=1)
    plugin.client.pre_start([])
    observed = {(method, code) for method, code, seconds in plugin.notes.of("rpc") if 0 <= seconds < 1}
    assert observed == {
        ("GetDevicePluginOptions", "OK"),
        ("GetPreferredAllocation", "OK"),
        ("PreStartContainer", "OK"),
    }
