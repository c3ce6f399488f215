"""How devices leave: Unhealthy first, gone later, and never while anybody has them or may be getting them."""

from __future__ import annotations

import time

import grpc
import pytest

from nvdp.simulate.kubelet import AdmissionError, HoldPoint
from tests.daemon.node import (
    GPU,
    SHARED,
    at_length,
    both_kubelets,
    build_config,
    connect,
    find_plugin_socket,
    gpu_uuid,
    healthy,
    on_node,
    replicas,
    wait_healthy,
)
from tests.daemon.process import LIMIT_S, wait_until


def all_replicas(count: int) -> set[str]:
    return set().union(*(replicas(number, count) for number in range(4)))


def unhealthy_seconds(kubelet, resource: str = GPU) -> dict[str, float]:
    """For each ID that left, how long the kubelet had it as Unhealthy before."""
    seconds: dict[str, float] = {}
    since: dict[str, float] = {}
    for message in kubelet.messages(resource):
        for device in since.keys() - set(message.ids):
            seconds[device] = message.at - since.pop(device)
        for device in message.devices:
            if device.health == "Healthy":
                since[device.id] = float("inf")  # if it left now: -inf
            elif since.get(device.id, float("inf")) == float("inf"):
                since[device.id] = message.at
    return seconds


@pytest.mark.requirement(48)
@pytest.mark.invariant(3)
def test_what_a_shrink_takes_away_is_unhealthy_for_five_seconds_and_then_gone(kubelet, daemon, config_map):
    at = config_map.publish(build_config(share=2))

    wait_healthy(kubelet, all_replicas(2))
    assert time.monotonic() - at < 1
    assert kubelet.devices(GPU).keys() == all_replicas(4)
    with connect(kubelet) as client, pytest.raises(grpc.RpcError) as refusal:
        client.allocate([f"{gpu_uuid(0)}::3"])
    assert "Unhealthy (Withdrawing" in refusal.value.details()

    kubelet.wait_until(lambda: kubelet.devices(GPU).keys() == all_replicas(2), LIMIT_S)
    left = unhealthy_seconds(kubelet)
    assert left.keys() == all_replicas(4) - all_replicas(2)
    assert all(seconds >= 5 for seconds in left.values())
    assert time.monotonic() - at < 9
    assert len(kubelet.messages(GPU)) == 3
    assert daemon.running


@pytest.mark.requirement(48)
@pytest.mark.requirement(49)
@pytest.mark.invariant(3)
def test_what_a_pod_was_just_given_stays_listed_as_long_as_the_pod_lives(kubelet, daemon, config_map):
    with kubelet.faults.hold_allocate(HoldPoint.ANSWER) as hold:
        pod, admission = kubelet.submit("team/a", {"main": {GPU: 4}})
        assert hold.reached.wait(LIMIT_S)
        config_map.publish(build_config(share=1))
        kubelet.wait_until(lambda: not healthy(kubelet) & all_replicas(4), LIMIT_S)
    admission.result(LIMIT_S)

    kubelet.wait_until(lambda: len(kubelet.devices(GPU)) == 8, LIMIT_S)  # what nobody holds is gone
    assert kubelet.devices(GPU).keys() == pod.ids(GPU) | {gpu_uuid(number) for number in range(4)}
    assert not healthy(kubelet)

    kubelet.delete(pod)
    wait_healthy(kubelet, [gpu_uuid(number) for number in range(4)])
    kubelet.wait_until(lambda: len(kubelet.devices(GPU)) == 4, LIMIT_S)
    assert all(seconds >= 5 for seconds in unhealthy_seconds(kubelet).values())
    assert daemon.running


@pytest.mark.invariant(3)
def test_what_an_edit_takes_away_comes_back_at_once_with_the_next(kubelet, daemon, config_map):
    pod = kubelet.admit("team/a", {"main": {GPU: 1}})
    (held,) = {identity.partition("::")[0] for identity in pod.ids(GPU)}
    kept = {identity for identity in all_replicas(4) if not identity.startswith(held)}

    for taken, left in (({"share": 2}, 8), ({"share": 4, "devices": {"exclude": [held]}}, 12)):
        config_map.publish(build_config(**taken))
        kubelet.wait_until(lambda left=left: len(healthy(kubelet)) == left, LIMIT_S)
        assert kubelet.devices(GPU).keys() == all_replicas(4)
        at = config_map.publish(build_config(share=4))
        wait_healthy(kubelet, all_replicas(4))
        assert time.monotonic() - at < 1
    assert kept < healthy(kubelet)
    assert len(kubelet.registrations) == 1
    assert daemon.running


@pytest.mark.requirement(48)
@both_kubelets
def test_a_request_for_what_left_meanwhile_fails_the_pod_and_not_the_kubelet(kubelet, daemon, config_map):
    with kubelet.faults.hold_allocate(HoldPoint.REQUEST) as hold:
        _, admission = kubelet.submit("team/late", {"main": {GPU: 16}})
        assert hold.reached.wait(LIMIT_S)
        config_map.publish(build_config(share=2))
        wait_healthy(kubelet, all_replicas(2))

    with pytest.raises(AdmissionError, match="Unhealthy"):
        admission.result(LIMIT_S)
    kubelet.assert_alive()
    assert daemon.log.wait_for("AllocationRefused")["cause"] == "unhealthy"


@on_node(kubelet={"topology_policy": "restricted"})
@pytest.mark.requirement(49)
@pytest.mark.invariant(3)
def test_a_shrink_keeps_the_numbers_that_pods_hold(kubelet, daemon, config_map):
    pods = [kubelet.admit(f"team/{number}", {"main": {GPU: 1}}) for number in range(16)]
    keeper = next(pod for pod in pods if pod.ids(GPU) == {f"{gpu_uuid(1)}::3"})
    for pod in pods:
        if pod is not keeper:
            kubelet.delete(pod)
    daemon.log.wait_for("AllocationServed")
    config_map.publish(build_config(share=5))  # lets it ask who holds what
    wait_healthy(kubelet, all_replicas(5))

    config_map.publish(build_config(share=2))
    # At first all that was given out a moment ago may be held; the first answer tells.
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 8 and keeper.ids(GPU) <= healthy(kubelet), LIMIT_S)

    kubelet.restart()
    kubelet.wait_until(lambda: not kubelet.readmissions_pending and healthy(kubelet), LIMIT_S)
    assert keeper.phase == "Running"


MODE_CHANGES = {
    "exclusive to shared": ((None, {}), (4, {}), GPU),
    "shared to exclusive": ((4, {}), (None, {}), GPU),
    "shared to renamed": ((4, {}), (4, {"timeSlicing": {"renameByDefault": True}}), SHARED),
}


@pytest.mark.requirement(50)
@pytest.mark.invariant(4)
@pytest.mark.parametrize("change", MODE_CHANGES)
def test_a_gpu_is_offered_in_its_new_form_once_nobody_holds_the_old_one(kubelet, start, config_map, change):
    (share, blocks), (new_share, new_blocks), resource = MODE_CHANGES[change]
    old_resource = SHARED if blocks else GPU
    daemon = start(build_config(share=share, **blocks))
    kubelet.wait_until(lambda: healthy(kubelet, old_resource), LIMIT_S)
    pod = kubelet.admit("team/train-7", {"main": {old_resource: 1}})
    (held,) = {identity.partition("::")[0] for identity in pod.ids(old_resource)}
    old_ids = set(kubelet.devices(old_resource))

    config_map.publish(build_config(share=new_share, **new_blocks))
    free = {gpu_uuid(number) for number in range(4)} - {held}
    new_ids = {f"{uuid}::{n}" for uuid in free for n in range(new_share)} if new_share else free
    # Answered a moment ago: for 2 s nobody can tell who holds what.
    wait_healthy(kubelet, new_ids, resource=resource)

    assert not healthy(kubelet, old_resource) & old_ids
    assert pod.ids(old_resource) <= kubelet.devices(old_resource).keys()
    waiting = daemon.log.wait_for("ModeChangeWaiting", text=held)
    assert waiting["pod"] == "team/train-7"
    with connect(kubelet, resource) as client, pytest.raises(grpc.RpcError) as refusal:
        client.allocate([f"{held}::0" if new_share else held])
    assert "held by team/train-7" in refusal.value.details()
    with connect(kubelet, old_resource) as client, pytest.raises(grpc.RpcError):
        client.allocate(sorted(pod.ids(old_resource)))

    kubelet.delete(pod)
    kubelet.wait_until(lambda: len(healthy(kubelet, resource)) == 4 * (new_share or 1), LIMIT_S)
    daemon.log.wait_for("ModeChanged", text=held)


@pytest.mark.invariant(4)
def test_on_an_idle_node_a_mode_change_takes_no_time_and_the_old_name_ends_empty(kubelet, daemon, config_map):
    at = config_map.publish(build_config(share=4, timeSlicing={"renameByDefault": True}))
    wait_healthy(kubelet, all_replicas(4), resource=SHARED)
    assert time.monotonic() - at < 1
    old_socket = find_plugin_socket(kubelet)

    line = daemon.log.wait_for("ResourceWithdrawn")

    assert line["resource"] == GPU
    # It is sent before the end: else the kubelet would go on counting them.
    kubelet.wait_until(lambda: kubelet.messages(GPU)[-1].devices == (), LIMIT_S, what="the empty list")
    assert all(seconds >= 5 for seconds in unhealthy_seconds(kubelet).values())
    kubelet.wait_until(lambda: not old_socket.exists(), LIMIT_S)
    assert daemon.log.of("StreamLost") == []
    assert kubelet.capacity(GPU) == 0
    assert [resource["name"] for resource in daemon.wait_ready().body["resources"]] == [SHARED]


@pytest.mark.invariant(3)
@pytest.mark.invariant(4)
def test_while_nobody_can_tell_who_holds_what_no_gpu_changes_its_form(kubelet, start, config_map):
    daemon = start(build_config(share=4, devices={"removeAfter": "1s"}))
    wait_healthy(kubelet, all_replicas(4))
    kubelet.drop_pod_resources()
    kubelet.checkpoint.unlink()
    kubelet.checkpoint.mkdir()

    config_map.publish(build_config(share=1, devices={"removeAfter": "1s"}))
    daemon.log.wait_for("HoldersUnknown")
    kubelet.wait_until(lambda: not healthy(kubelet), LIMIT_S)
    daemon.wait_scans(2)
    assert not healthy(kubelet)
    wait_until(lambda: daemon.metric("nvdp_podresources_up") == 0, what="PodResources shown as lost")

    kubelet.serve_pod_resources()
    wait_healthy(kubelet, [gpu_uuid(number) for number in range(4)])
    wait_until(lambda: daemon.metric("nvdp_podresources_up") == 1, what="PodResources shown as there again")


@at_length
@pytest.mark.campaign
@pytest.mark.invariant(3)
def test_where_holders_stay_unknown_the_time_to_remove_stands_in_for_the_answer(kubelet, start, config_map):
    start(build_config(share=4, devices={"removeAfter": "6s"}))
    wait_healthy(kubelet, all_replicas(4))
    kubelet.drop_pod_resources()
    kubelet.checkpoint.unlink()
    kubelet.checkpoint.mkdir()

    config_map.publish(build_config(share=2, devices={"removeAfter": "6s"}))

    kubelet.wait_until(lambda: len(kubelet.devices(GPU)) == 8, LIMIT_S)
    assert all(seconds > 5.5 for seconds in unhealthy_seconds(kubelet).values())  # the first list may come late
