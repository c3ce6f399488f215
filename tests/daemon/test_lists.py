"""The lists that the kubelet gets: whole, unique, at once, and only when something changed."""

from __future__ import annotations

import time

import pytest

from tests.daemon.node import (
    GPU,
    SHARED,
    Machine,
    build_config,
    connect,
    gpu_uuid,
    healthy,
    on_node,
    replicas,
    wait_healthy,
)
from tests.daemon.process import LIMIT_S


@pytest.mark.requirement(9)
@pytest.mark.requirement(10)
def test_the_first_list_comes_at_once_and_is_whole(kubelet, daemon):
    with connect(kubelet) as client:
        at = time.monotonic()
        devices = next(iter(client.watch())).devices
        assert time.monotonic() - at < 1

    assert {device.id for device in devices} == set().union(*(replicas(number, 4) for number in range(4)))
    assert {device.health for device in devices} == {"Healthy"}


@pytest.mark.requirement(11)
@pytest.mark.invariant(4)
def test_ids_are_unique_over_all_resources_of_the_node(kubelet, daemon, config_map):
    kubelet.admit("team/a", {"main": {GPU: 1}})

    config_map.publish(build_config(share=4, timeSlicing={"renameByDefault": True}))
    kubelet.wait_until(lambda: healthy(kubelet, SHARED), LIMIT_S)

    for resource in (GPU, SHARED):
        ids = kubelet.messages(resource)[-1].ids
        assert len(ids) == len(set(ids))
    # The same replica may be known under both names while it moves, but it is Healthy under one at most.
    assert not healthy(kubelet, GPU) & healthy(kubelet, SHARED)


@pytest.mark.requirement(12)
@pytest.mark.invariant(8)
def test_an_update_is_a_whole_list_and_silence_means_no_change(kubelet, daemon, machine):
    daemon.look_again()
    assert len(kubelet.messages(GPU)) == 1

    machine.change(lost=["2"])
    daemon.look()
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 12, LIMIT_S)
    daemon.look_again()

    first, second = kubelet.messages(GPU)
    assert second.ids == first.ids
    assert {device.health for device in second.devices} == {"Healthy", "Unhealthy"}
    assert len(kubelet.registrations) == 1
    daemon.wait_metric(1, "nvdp_kubelet_registrations_total", resource=GPU, result="success")


@pytest.mark.invariant(8)
def test_the_same_inputs_give_the_same_bytes_again(kubelet, daemon, start):
    (first,) = kubelet.messages(GPU)

    daemon.stop()
    start()
    kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 2, LIMIT_S)
    kubelet.restart()
    kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 3, LIMIT_S)

    assert {message.raw for message in kubelet.messages(GPU)} == {first.raw}


@pytest.mark.requirement(18)
def test_every_open_stream_gets_every_update(kubelet, daemon, config_map):
    with connect(kubelet) as one, connect(kubelet) as other, connect(kubelet) as third:
        streams = [iter(client.watch()) for client in (one, other, third)]
        assert [len(next(stream).devices) for stream in streams] == [16, 16, 16]

        config_map.publish(build_config(share=5))

        assert [len(next(stream).devices) for stream in streams] == [20, 20, 20]
    wait_healthy(kubelet, set().union(*(replicas(number, 5) for number in range(4))))


@pytest.mark.requirement(39)
def test_each_device_has_the_numa_node_of_its_gpu(kubelet, daemon):
    (message,) = kubelet.messages(GPU)

    assert {(device.id.partition("::")[0], device.numa) for device in message.devices} == {
        (gpu_uuid(0), (0,)),
        (gpu_uuid(1), (0,)),
        (gpu_uuid(2), (1,)),
        (gpu_uuid(3), (1,)),
    }


@pytest.mark.requirement(39)
@pytest.mark.parametrize("settings", [{"machine": {"numa": None}}, {"machine": {"numa": [0, 0, 1, None]}}])
def test_without_a_node_for_every_gpu_no_device_has_one(kubelet, daemon):
    (message,) = kubelet.messages(GPU)

    assert {device.numa for device in message.devices} == {()}


@pytest.mark.requirement(39)
def test_numa_nodes_can_be_left_out(kubelet, start):
    start(build_config(allocation={"numaHints": False}), wait=True)

    (message,) = kubelet.messages(GPU)

    assert {device.numa for device in message.devices} == {()}


@pytest.mark.requirement(40)
@pytest.mark.invariant(8)
def test_a_list_beyond_the_limit_is_refused_with_the_figure_and_the_one_before_stays(kubelet, daemon, config_map):
    config_map.publish(build_config(share=70_000))
    refused = daemon.log.wait_for("ConfigRefused")["msg"]

    assert "replicas: 4 × 70000 devices make a list of" in refused
    assert "2 MiB is allowed, at most " in refused
    most = int(refused.partition("at most ")[2].partition(" ")[0])
    assert len(healthy(kubelet)) == 16
    daemon.wait_metric(0, "nvdp_config_valid")

    config_map.publish(build_config(share=most))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 4 * most, 30)
    assert 1.9 * 2**20 < len(kubelet.messages(GPU)[-1].raw) <= 2 * 2**20

    config_map.publish(build_config(share=most + 1))
    assert f"at most {most} replicas" in daemon.log.wait_for("ConfigRefused", text=f"4 × {most + 1}")["msg"]


@on_node(machine={"count": 0})
@pytest.mark.requirement(44)
def test_a_node_without_gpus_is_up_and_waits(kubelet, start, machine):
    daemon = start(build_config(share=4))
    daemon.wait_ready()
    daemon.look_again()

    assert kubelet.registrations == ()
    assert daemon.probe("/healthz").status == 200


def test_gpus_that_come_go_and_come_back_need_no_restart(kubelet, start, machine):
    machine.change(removed=["0", "1", "2", "3"])
    daemon = start(build_config(devices={"removeAfter": "1s"}))
    daemon.wait_ready()

    machine.change(removed=["2", "3"])
    wait_healthy(kubelet, [gpu_uuid(0), gpu_uuid(1)])
    machine.change(removed=["0"])
    wait_healthy(kubelet, [gpu_uuid(1), gpu_uuid(2), gpu_uuid(3)])
    assert kubelet.devices(GPU)[gpu_uuid(0)].health == "Unhealthy"
    kubelet.wait_until(lambda: gpu_uuid(0) not in kubelet.devices(GPU), LIMIT_S)
    machine.heal()
    wait_healthy(kubelet, [gpu_uuid(number) for number in range(4)])

    assert len(kubelet.registrations) == 1
    assert [line["device"] for line in daemon.log.of("DeviceAdded")] == [gpu_uuid(n) for n in (0, 1, 2, 3, 0)]
    assert daemon.log.wait_for("DeviceRemoved")["device"] == gpu_uuid(0)


def test_thousands_of_replicas_are_listed_and_chosen_from_in_no_time(kubelet, root, config_map, start):
    machine = Machine(root / "node.yaml", count=8)
    daemon = start(build_config(share=1000))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 8000, LIMIT_S)
    daemon.wait_ready()

    with connect(kubelet) as client:
        at = time.monotonic()
        devices = next(iter(client.watch())).devices
        assert time.monotonic() - at < 1
        ids = [device.id for device in devices]
        assert {identity.partition("::")[0] for identity in ids} == set(machine.uuids)

        def choose(size):
            """In how many seconds."""
            at = time.monotonic()
            assert len(client.prefer(available=ids, size=size)) == size
            return time.monotonic() - at

        for size in (1, 8, 100):
            assert any(choose(size) < 0.01 for _ in range(200))  # the machine has other things to do, too
