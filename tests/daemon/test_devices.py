"""Which cards take part: those kept out, those kept from new pods, and those that are exchanged or gone."""

from __future__ import annotations

import shutil
import time

import grpc
import pytest

from tests.daemon.node import (
    GPU,
    SHARED,
    at_length,
    build_config,
    build_sliced,
    connect,
    gpu_uuid,
    healthy,
    on_node,
    pci_address,
    replicas,
    wait_healthy,
)
from tests.daemon.process import LIMIT_S, wait_until

ALL = {gpu_uuid(number) for number in range(4)}
ELSEWHERE = "GPU-99999999-9999-4999-8999-999999999999"
QUICK = {"recovery": {"holdOff": "200ms", "maxHoldOff": "200ms"}}


def devices(**keys):
    return build_config(devices={"removeAfter": "1s", **keys}, health=QUICK)


def has_series(daemon, name, **labels) -> bool:
    return any(found == name and labels.items() <= dict(have).items() for found, have in daemon.metrics())


def wait_cause(daemon, uuid, cause):
    name = "nvdp_device_unhealthy_info"
    wait_until(lambda: has_series(daemon, name, uuid=uuid, reason=cause), what=f"{uuid} as {cause}")


# Five ways to name card 1, and one for a card of another node.
SPELLINGS = {
    "UUID": gpu_uuid(1),
    "UUID in capitals": f"GPU-{gpu_uuid(1)[4:].upper()}",
    "PCI address": pci_address(1),
    "PCI address with a long domain": f"0000{pci_address(1)}",
    "index": 1,
    "index as text": "1",
}


def test_a_card_is_excluded_by_any_of_its_names_and_back_without_the_entry(kubelet, start, config_map):
    daemon = start(devices(), wait=True)
    for spelling in SPELLINGS.values():
        config_map.publish(devices(exclude=[spelling, ELSEWHERE]))
        wait_healthy(kubelet, ALL - {gpu_uuid(1)})
        daemon.wait_metric(1, "nvdp_device_withheld", uuid=gpu_uuid(1), reason="Excluded")
        daemon.wait_metric(1, "nvdp_config_unmatched_references")

        config_map.publish(devices())
        wait_healthy(kubelet, ALL)

    assert daemon.log.of("EntryWithheld") == []
    assert len(kubelet.registrations) == 1


@at_length  # tests/daemon/test_mode_changes.py excludes cards that pods hold, and restarts the kubelet
@pytest.mark.campaign
@pytest.mark.invariant(3)
def test_an_excluded_card_leaves_in_two_phases_and_not_while_a_pod_holds_it(kubelet, start, config_map):
    daemon = start(devices(), wait=True)
    pod = kubelet.admit("team/train-7", {"main": {GPU: 1}})
    (held,) = pod.ids(GPU)
    other = min(ALL - {held})

    at = config_map.publish(devices(exclude=[held, other]))
    wait_healthy(kubelet, ALL - {held, other})
    assert time.monotonic() - at < 1
    assert kubelet.devices(GPU).keys() == ALL
    with connect(kubelet) as client, pytest.raises(grpc.RpcError, match=r"Unhealthy \(Withdrawing"):
        client.allocate([other])

    kubelet.wait_until(lambda: kubelet.devices(GPU).keys() == ALL - {other}, LIMIT_S)
    assert time.monotonic() - at >= 5
    kubelet.restart()
    kubelet.wait_until(lambda: not kubelet.readmissions_pending and healthy(kubelet), LIMIT_S)
    assert kubelet.devices(GPU).keys() == ALL - {other}
    config_map.publish(devices(exclude=[held]))
    wait_healthy(kubelet, ALL - {held})
    daemon.wait_scans(3)  # the new kubelet has named all holders: before, its checkpoint counts as well
    kubelet.delete(pod)
    kubelet.wait_until(lambda: kubelet.devices(GPU).keys() == ALL - {held}, LIMIT_S)


def test_a_node_may_exclude_all_its_cards(kubelet, start, config_map):
    daemon = start(devices(exclude=[0, 1, 2, 3]))
    daemon.wait_ready()
    daemon.look_again()
    assert kubelet.registrations == ()

    config_map.publish(devices(exclude=[0, 1, 2]))
    wait_healthy(kubelet, [gpu_uuid(3)])
    daemon.wait_ready()


def test_how_an_excluded_card_fares_is_none_of_our_business(kubelet, start, machine, config_map):
    daemon = start(devices(exclude=["1"]))
    wait_healthy(kubelet, ALL - {gpu_uuid(1)})
    daemon.look_again()
    machine.change(events=[{"gpu": 1, "xid": 13}, {"gpu": 2, "xid": 13}])
    daemon.wait_metric(1, "nvdp_xid_events_total", uuid=gpu_uuid(2), xid="13", verdict="ignored")
    assert not has_series(daemon, "nvdp_xid_events_total", uuid=gpu_uuid(1))
    machine.change(events=[], removed=["1", "2"])
    daemon.look()
    daemon.log.wait_for("DeviceRemoved")
    machine.heal()
    daemon.look()
    wait_healthy(kubelet, ALL - {gpu_uuid(1)})
    for reason in ("DeviceRemoved", "DeviceAdded"):
        assert [line["device"] for line in daemon.log.of(reason)] == [gpu_uuid(2)], reason
    machine.change(lost=["1", "2"])
    daemon.look()
    wait_healthy(kubelet, ALL - {gpu_uuid(1), gpu_uuid(2)})
    daemon.wait_metric(2, "nvdp_device_health_changes_total", uuid=gpu_uuid(2), to="unhealthy")

    assert [line["device"] for line in daemon.log.of("DeviceUnhealthy")] == [gpu_uuid(2)] * 2
    for name in ("nvdp_device_healthy", "nvdp_device_unhealthy_info", "nvdp_device_health_changes_total"):
        assert has_series(daemon, name, uuid=gpu_uuid(2)), name
        assert not has_series(daemon, name, uuid=gpu_uuid(1)), name
    assert has_series(daemon, "nvdp_gpu_info", uuid=gpu_uuid(1))

    lines = len(daemon.log)
    config_map.publish(devices())
    kubelet.wait_until(lambda: kubelet.devices(GPU).keys() == ALL, LIMIT_S)
    assert daemon.log.wait_for("DeviceUnhealthy", after=lines)["device"] == gpu_uuid(1)
    machine.heal()
    wait_healthy(kubelet, ALL)
    assert {line["device"] for line in daemon.log.of("DeviceRecovered")} == {gpu_uuid(1), gpu_uuid(2)}


def test_a_cordoned_card_takes_no_new_pods_and_keeps_those_it_has(kubelet, start, machine, config_map):
    daemon = start(build_config(share=2, health=QUICK))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 8, LIMIT_S)
    pod = kubelet.admit("team/a", {"main": {GPU: 1}})
    (held,) = {device.partition("::")[0] for device in pod.ids(GPU)}
    card = int(held[4:12])
    lines = len(daemon.log)

    at = config_map.publish(build_config(share=2, devices={"cordon": [held]}, health=QUICK))
    kubelet.wait_until(lambda: not healthy(kubelet) & replicas(card, 2), LIMIT_S)
    assert time.monotonic() - at < 1
    assert len(kubelet.devices(GPU)) == 8
    cordoned = daemon.log.wait_for("DeviceCordoned", after=lines)
    assert (cordoned["device"], cordoned["pci"]) == (held, pci_address(card))
    assert "devices.cordon[0]" in cordoned["msg"]
    with connect(kubelet) as client, pytest.raises(grpc.RpcError) as refusal:
        client.allocate([f"{held}::1"])
    assert refusal.value.details() == f"{GPU}: {held}::1 is Unhealthy (Cordoned: devices.cordon[0])"
    daemon.wait_metric(1, "nvdp_allocations_refused_total", resource=GPU, reason="unhealthy")
    daemon.wait_metric(1, "nvdp_device_withheld", uuid=held, reason="Cordoned")
    wait_cause(daemon, held, "Cordoned")

    # A cordon wins over health, and over restarts of all.
    machine.change(lost=[str(card)])
    daemon.log.wait_for("DeviceUnhealthy", text=held)
    wait_cause(daemon, held, "Cordoned")
    machine.heal()
    daemon.log.wait_for("DeviceRecovered", text=held)
    kubelet.restart()
    kubelet.wait_until(lambda: not kubelet.readmissions_pending and healthy(kubelet), LIMIT_S)
    assert not healthy(kubelet) & replicas(card, 2)
    assert pod.phase == "Running"
    assert len(daemon.log.of("DeviceCordoned")) == 1

    config_map.publish(build_config(share=2, health=QUICK))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 8, LIMIT_S)
    assert daemon.log.wait_for("DeviceUncordoned", after=lines)["device"] == held
    assert len(daemon.log.of("DeviceUncordoned")) == 1
    wait_until(lambda: not has_series(daemon, "nvdp_device_withheld", uuid=held), what="nothing withheld")
    assert len({message.raw for message in kubelet.messages(GPU)}) == 2


def test_a_card_that_comes_back_from_repair_is_treated_as_its_slot_or_its_name_is(kubelet, start, machine, config_map):
    fresh = [f"GPU-{number:08d}-1111-4111-8111-111111111111" for number in range(4)]
    config = build_sliced(
        {"devices": [pci_address(0)]},
        devices={"removeAfter": "1s", "cordon": [gpu_uuid(1)], "exclude": [pci_address(2)]},
    )
    daemon = start(config)
    wait_healthy(kubelet, replicas(0, 2), resource=SHARED)
    wait_healthy(kubelet, [gpu_uuid(3)])

    for slot in range(4):
        machine.exchange(slot, fresh[slot])
    wait_healthy(kubelet, {f"{fresh[0]}::0", f"{fresh[0]}::1"}, resource=SHARED)
    wait_healthy(kubelet, {fresh[1], fresh[3]})
    kubelet.wait_until(lambda: kubelet.devices(GPU).keys() == {fresh[1], fresh[3]}, LIMIT_S)
    kubelet.wait_until(lambda: len(kubelet.devices(SHARED)) == 2, LIMIT_S)
    assert "devices.cordon[0]" in daemon.log.wait_for("ConfigReferenceUnmatched")["msg"]
    daemon.wait_metric(1, "nvdp_config_unmatched_references")
    assert fresh[2] not in {line["device"] for line in daemon.log.of("DeviceUnhealthy")}


@on_node(kubelet={"topology_policy": "restricted"})
@pytest.mark.requirement(39)
@pytest.mark.requirement(49)
def test_a_pod_outlives_its_card_that_went_while_nothing_ran_here_and_then_the_kubelet_restarts(
    kubelet, start, machine, root
):
    daemon = start(devices(), wait=True)
    pods = [kubelet.admit(f"team/{number}", {"main": {GPU: 1}}) for number in range(2)]
    gone = next(int(device[4:12]) for device in pods[0].ids(GPU))
    assert daemon.stop().code == 0
    shutil.rmtree(root / "state")  # no nvdp knows the card any more, as after a reboot
    machine.renumber(*({0, 1, 2, 3} - {gone}))
    start()
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 3, LIMIT_S)
    assert kubelet.devices(GPU).keys() == ALL
    assert kubelet.devices(GPU)[gpu_uuid(gone)] == ("Unhealthy", (0,))  # as the kubelet remembers it

    kubelet.restart()
    kubelet.wait_until(lambda: not kubelet.readmissions_pending, LIMIT_S)
    assert [pod.phase for pod in pods] == ["Running", "Running"]
