"""MIG as its users have it, on the whole daemon: layouts that change under pods, strategies, faults of one device."""

from __future__ import annotations

import grpc
import pytest

from nvdp.http.control import load_status
from nvdp.planning.diagnosis import diagnose
from tests.daemon.forms import restart_kubelet
from tests.daemon.layouts import (
    A100S,
    Layouts,
    build_mig,
    check_promises,
    check_streams,
    find_listed,
    find_offers,
    hold,
    name_resource,
    wait_offers,
)
from tests.daemon.node import GPU, both_libraries, connect, find_plugin_socket, gpu_uuid, on_node
from tests.daemon.process import LIMIT_S
from tests.kubelet.plugin_client import visible_devices

SMALL, MEDIA, LARGE = (name_resource(profile) for profile in ("1g.10gb", "1g.10gb+me", "2g.20gb"))
HOLDING = [
    ("1.36", "simulated", {"machine": A100S, "kubelet": {"topology_policy": "restricted"}}),
    ("1.37", "compiled", {"kubelet": {"topology_policy": "restricted"}}),
]


@pytest.fixture
def layouts(machine):
    return Layouts(machine)


def without(offers, *uuids):
    """These offers, if some devices are not on offer."""
    left = {name: ids.difference(uuids) for name, ids in offers.items()}
    return {name: ids for name, ids in left.items() if ids}


def load_devices(root):
    return {device.uuid: device for device in load_status(root / "run", timeout_s=LIMIT_S).devices}


def list_causes(root):
    return [finding.cause for finding in diagnose(load_status(root / "run", timeout_s=LIMIT_S))]


@on_node(machine=A100S)
@both_libraries
def test_mig_devices_that_come_are_found_under_their_names_and_disturb_no_other_resource(kubelet, start, layouts, root):
    (first,) = layouts.cut(1, "1g.10gb")
    layouts.cut(2)  # as after a reboot of the node
    daemon = start(build_mig())
    wait_offers(kubelet, layouts.build_offers())
    assert f"GPU 2 ({gpu_uuid(2)}) is in MIG mode without MIG devices" in daemon.log.wait_for("MIGInvalid")["msg"]

    layouts.make(1, "2g.20gb")
    layouts.make(1, "1g.10gb+me")
    part = layouts.make(2, "1c.2g.20gb")
    layouts.make(2, "1g.10gb")
    layouts.make(2, "9g.99gb+of.tomorrow")
    layouts.expect_mode(3, on=True)
    wait_offers(kubelet, layouts.build_offers())

    assert find_offers(kubelet).keys() == {GPU, SMALL, MEDIA, LARGE, "nvidia.com/mig-9g.99gb.of.tomorrow"}
    assert len(kubelet.messages(GPU)) == 1
    assert {message.stream for message in kubelet.messages(SMALL)} == {kubelet.messages(SMALL)[0].stream}
    check_streams(kubelet)
    daemon.log.wait_for("MIGLayoutChanged", text="NVIDIA_MIG_MONITOR_DEVICES")
    assert "2:0 is 1c.2g.20gb, smaller than its GPU instance" in daemon.log.wait_for("MIGInvalid", text=part)["msg"]
    devices = load_devices(root)
    assert devices[gpu_uuid(1)].memory_bytes is None, "the whole card may not be asked"
    assert (devices[first].memory_bytes, devices[first].profile) == (9728 << 20, "1g.10gb")
    assert any("MIG mode is enabled after a reset" in cause for cause in list_causes(root))
    pod = kubelet.admit("team/two", {"main": {SMALL: 1, LARGE: 1}})
    for resource in (SMALL, LARGE):
        assert {pod.response(resource).envs["NVIDIA_VISIBLE_DEVICES"]} == pod.ids(resource)


@on_node(machine=A100S)
@both_libraries
def test_what_goes_wrong_with_one_mig_device_takes_that_one_and_what_is_of_no_one_takes_all_of_its_card(
    kubelet, start, layouts, machine
):
    first, second, third = layouts.cut(1, "1g.10gb", "1g.10gb", "2g.20gb")
    layouts.cut(2, "1g.10gb", "2g.20gb")
    daemon = start(build_mig())
    everything = layouts.build_offers()
    wait_offers(kubelet, everything)
    daemon.look_again()

    for call, where, concerned in (
        ("nvmlDeviceGetAttributes_v2", {"instance": "2"}, [third]),
        ("nvmlDeviceGetMaxMigDeviceCount", {}, [first, second, third]),
    ):
        machine.fault(call, gpu=1, error="Unknown", **where)
        daemon.look()
        wait_offers(kubelet, without(everything, *concerned))
        machine.heal()
        daemon.look()
        wait_offers(kubelet, everything)
    assert daemon.log.wait_for("DeviceUnhealthy", text=third)["cause"] == "CallFailed"

    of_one = {"gpu": 1, "xid": 48, "instance": 1}
    machine.change(events=[of_one])
    wait_offers(kubelet, without(everything, second))
    machine.change(events=[of_one, {"gpu": 1, "xid": 79}])
    wait_offers(kubelet, without(everything, first, second, third))

    assert daemon.log.wait_for("DeviceUnhealthy", text=second)["xid"] == 48
    assert daemon.log.wait_for("DeviceUnhealthy", text=first)["xid"] == 79
    with connect(kubelet, LARGE) as client, pytest.raises(grpc.RpcError) as refusal:
        client.allocate([third])
    assert "XID 79" in refusal.value.details()


@pytest.mark.parametrize(("version", "library", "settings"), HOLDING, ids=["1.36-simulated", "1.37-compiled"])
@pytest.mark.requirement(49)
@pytest.mark.invariant(3)
@pytest.mark.invariant(4)
def test_no_card_is_promised_whole_and_in_parts_while_a_pod_holds_it_in_the_other_way(kubelet, start, layouts):
    layouts.cut(0, "1g.10gb", "1g.10gb")
    config = build_mig(devices={"rescanInterval": "1m"})
    daemon = start(config)
    wait_offers(kubelet, layouts.build_offers())
    part, whole = hold(kubelet, "part", SMALL), hold(kubelet, "whole", GPU)
    card = next(number for number in range(4) if gpu_uuid(number) == whole.device)

    layouts.destroy(part.device)
    daemon.look()
    wait_offers(kubelet, layouts.build_offers())
    told = daemon.log.wait_for("MIGLayoutChanged", text="team/part")  # with the layout, or once it is known
    assert part.device in told["msg"]
    assert told["pods"] == ["team/part"]
    restart_kubelet(kubelet)
    wait_offers(kubelet, layouts.build_offers())

    layouts.uncut(0)
    (slice_of_whole,) = layouts.cut(card, "2g.20gb")
    daemon.look()
    after = layouts.build_offers()
    wait_offers(kubelet, without(after, gpu_uuid(0), slice_of_whole))
    kubelet.wait_until(lambda: kubelet.devices(LARGE), LIMIT_S)
    for resource, device, pod in ((GPU, gpu_uuid(0), "team/part"), (LARGE, slice_of_whole, "team/whole")):
        daemon.log.wait_for("ModeChangeWaiting", text=pod)
        with connect(kubelet, resource) as client, pytest.raises(grpc.RpcError) as refusal:
            client.allocate([device])
        assert f"held by {pod} as " in refusal.value.details()

    restart_kubelet(kubelet)
    assert daemon.stop().code == 0
    daemon = start()  # knows from before whose part it was that is gone
    wait_offers(kubelet, without(after, gpu_uuid(0), slice_of_whole))
    listed = find_listed(kubelet)
    assert part.device in listed[SMALL]
    assert {whole.device, gpu_uuid(0)} <= listed[GPU]
    assert {part.pod.phase, whole.pod.phase} == {"Running"}
    daemon.log.wait_for("MIGLayoutChanged", text=f"{part.device} is gone, and still held by team/part")
    check_promises(kubelet, layouts, [part, whole])

    kubelet.delete(part.pod)
    wait_offers(kubelet, without(after, slice_of_whole))
    kubelet.delete(whole.pod)
    wait_offers(kubelet, after)


STRATEGIES = "a100-sxm4-80gb", "a100-sxm4-80gb", "a100-sxm4-80gb", "a10"
EVERY_WAY = ["1g.10gb"] * 5 + ["1g.10gb+me", "1g.20gb"]


@on_node(machine={"models": STRATEGIES})
def test_each_strategy_offers_what_it_can_and_an_edit_from_one_to_the_next_withdraws_what_is_gone(
    kubelet, start, layouts, config_map
):
    first, second = layouts.cut(0, *EVERY_WAY), layouts.cut(1, *EVERY_WAY)
    (large, _) = layouts.cut(2, "2g.20gb", "1c.2g.20gb")
    daemon = start(build_mig("mixed"))
    wait_offers(kubelet, layouts.build_offers())
    counts = {name: len(ids) for name, ids in find_offers(kubelet).items()}
    assert counts == {GPU: 1, SMALL: 10, MEDIA: 2, name_resource("1g.20gb"): 2, LARGE: 1}
    layouts.destroy(first[5], second[5])

    shared = {"timeSlicing": {"resources": [{"name": SMALL, "replicas": 2, "rename": "nvidia.com/slice"}]}}
    kept_back = {"exclude": ["0:0"], "cordon": [second[1], "2:0"]}
    plugin = {"deviceIDStrategy": "index"}
    config_map.publish(build_mig("mixed", sharing=shared, devices=kept_back, flags={"plugin": plugin}))
    slices = {f"{uuid}::{n}" for uuid in (*first[1:5], second[0], *second[2:5]) for n in range(2)}
    expected = {**without(layouts.build_offers(), large), "nvidia.com/slice": slices}  # and none with media engines
    wait_offers(kubelet, {name: ids for name, ids in expected.items() if name != SMALL})
    with connect(kubelet, "nvidia.com/slice") as client:
        assert visible_devices(client.allocate([f"{second[3]}::1"])) == ["1:3"]
        with pytest.raises(grpc.RpcError) as refusal:
            client.allocate([f"{second[1]}::0"])
        assert "Cordoned" in refusal.value.details()

    config_map.publish(build_mig("single"))
    wait_offers(kubelet, {GPU: {large}})
    unequal = daemon.log.wait_for("MIGInvalid", text="unequal")["msg"]
    assert f"GPU 0 ({gpu_uuid(0)}) has unequal MIG devices (1g.10gb, 1g.20gb)" in unequal
    daemon.log.wait_for("MIGInvalid", text=f"GPU 3 ({gpu_uuid(3)}) is whole, and single offers one kind")
    alike = {*layouts.cut(0, "1g.10gb"), *layouts.cut(1, "1g.10gb", "1g.10gb")}
    wait_offers(kubelet, {GPU: alike})

    config_map.publish(build_mig("none"))
    wait_offers(kubelet, {GPU: {gpu_uuid(number) for number in range(4)}})
    for resource in (SMALL, MEDIA):
        kubelet.wait_until(lambda name=resource: not kubelet.open_streams(name), LIMIT_S)
        kubelet.wait_until(lambda name=resource: not find_plugin_socket(kubelet, name).exists(), LIMIT_S)
        assert not kubelet.messages(resource)[-1].devices, "the last list is empty"
    check_streams(kubelet)
