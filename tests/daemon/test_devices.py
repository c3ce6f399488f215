"""Which cards take part, in whatever way the file names them: kept out, kept from new pods, named, counted, pinned."""

from __future__ import annotations

import time

import grpc
import pytest

from nvdp.simulate.kubelet import AdmissionError
from tests.daemon.node import (
    GPU,
    SHARED,
    build_config,
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
COUNTED = "nvidia.com/gpu.counted"
RENAMED = {"name": GPU, "rename": SHARED, "replicas": 2}


def devices(**keys):
    return build_config(devices={"removeAfter": "1s", **keys})


def sliced(*entries, **blocks):
    """Some cards in two pieces under another name."""
    resources = [{**RENAMED, **entry} for entry in entries]
    return build_config(sharing={"timeSlicing": {"resources": resources}}, **blocks)


def wait_sliced(kubelet, *cards):
    """Wait until these cards are offered in pieces and all others whole."""
    pieces = set().union(*(replicas(card, 2) for card in cards)) if cards else set()
    wait_healthy(kubelet, pieces, resource=SHARED)
    wait_healthy(kubelet, ALL - {gpu_uuid(card) for card in cards})


def has_series(daemon, name, **labels) -> bool:
    return any(found == name and labels.items() <= dict(have).items() for found, have in daemon.metrics())


def wait_cause(daemon, uuid, cause):
    name = "nvdp_device_unhealthy_info"
    wait_until(lambda: has_series(daemon, name, uuid=uuid, reason=cause), what=f"{uuid} as {cause}")


# Five ways to name card 1, and one for a card of another node. MIG devices are in test_unbuilt.
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
    daemon.wait_scans(1)
    assert kubelet.registrations == ()

    config_map.publish(devices(exclude=[0, 1, 2]))
    wait_healthy(kubelet, [gpu_uuid(3)])
    daemon.wait_ready()


def test_how_an_excluded_card_fares_is_none_of_our_business(kubelet, start, machine, config_map):
    daemon = start(devices(exclude=["1"]))
    wait_healthy(kubelet, ALL - {gpu_uuid(1)})
    machine.change(lost=["1", "2"])
    wait_healthy(kubelet, ALL - {gpu_uuid(1), gpu_uuid(2)})
    daemon.wait_metric(1, "nvdp_device_health_changes_total", uuid=gpu_uuid(2), to="unhealthy")

    assert [line["device"] for line in daemon.log.of("DeviceUnhealthy")] == [gpu_uuid(2)]
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
    daemon = start(build_config(share=2))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 8, LIMIT_S)
    pod = kubelet.admit("team/a", {"main": {GPU: 1}})
    (held,) = {device.partition("::")[0] for device in pod.ids(GPU)}
    card = int(held[4:12])
    lines = len(daemon.log)

    at = config_map.publish(build_config(share=2, devices={"cordon": [held]}))
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

    config_map.publish(build_config(share=2))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 8, LIMIT_S)
    assert daemon.log.wait_for("DeviceUncordoned", after=lines)["device"] == held
    assert len(daemon.log.of("DeviceUncordoned")) == 1
    wait_until(lambda: not has_series(daemon, "nvdp_device_withheld", uuid=held), what="nothing withheld")
    assert len({message.raw for message in kubelet.messages(GPU)}) == 2


def test_a_card_that_comes_back_from_repair_is_treated_as_its_slot_or_its_name_is(kubelet, start, machine, config_map):
    fresh = [f"GPU-{number:08d}-1111-4111-8111-111111111111" for number in range(4)]
    config = sliced(
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


@pytest.mark.invariant(10)
def test_what_a_file_says_of_indices_and_counts_stays_with_the_cards_it_first_meant(
    kubelet, start, machine, config_map
):
    by_index, by_count = {"devices": [1]}, {"devices": 1, "rename": COUNTED}

    def wait_all(*, whole, lost=False):
        wait_healthy(kubelet, set() if lost else replicas(2, 2), resource=SHARED)
        wait_healthy(kubelet, set() if lost else replicas(1, 2), resource=COUNTED)
        wait_healthy(kubelet, {gpu_uuid(card) for card in whole})

    machine.renumber(1, 2, 3)
    daemon = start(sliced(by_index, by_count))
    wait_all(whole={3})
    machine.renumber(3, 2, 1, 0)  # a card that comes before them all
    wait_all(whole={0, 3})

    # The two are lost: nobody takes their place, before or after a restart, and they come back to it.
    machine.renumber(3, 0)
    wait_all(whole={0, 3}, lost=True)
    assert daemon.stop().code == 0
    daemon = start()
    wait_all(whole={0, 3}, lost=True)
    told = {daemon.log.wait_for("ConfigReferenceUnmatched", text=gpu_uuid(card))["msg"] for card in (1, 2)}
    assert all("neighbour" in text for text in told)
    daemon.wait_metric(2, "nvdp_config_unmatched_references")
    machine.renumber(3, 0, 1, 2)
    wait_all(whole={0, 3})
    daemon.wait_metric(0, "nvdp_config_unmatched_references")

    # Entries that come and go around them move neither, nor do other replicas; index 0 is the last slot's card now.
    third = {"devices": [0], "rename": "nvidia.com/gpu.third"}
    config_map.publish(sliced(third, by_count, {**by_index, "replicas": 3}))
    wait_healthy(kubelet, replicas(3, 2), resource=third["rename"])
    wait_healthy(kubelet, replicas(2, 3), resource=SHARED)
    wait_healthy(kubelet, replicas(1, 2), resource=COUNTED)
    config_map.publish(sliced(by_count, by_index))
    wait_all(whole={0, 3})
    # An entry that names another card moves to it.
    config_map.publish(sliced(by_count, {"devices": [0]}))
    wait_healthy(kubelet, replicas(3, 2), resource=SHARED)
    wait_healthy(kubelet, replicas(1, 2), resource=COUNTED)


@on_node(kubelet={"topology_policy": "restricted"})
@pytest.mark.requirement(39)
@pytest.mark.requirement(49)
def test_a_pod_outlives_its_card_that_went_while_nothing_ran_here_and_then_the_kubelet_restarts(
    kubelet, start, machine
):
    daemon = start(devices(), wait=True)
    pods = [kubelet.admit(f"team/{number}", {"main": {GPU: 1}}) for number in range(2)]
    gone = next(int(device[4:12]) for device in pods[0].ids(GPU))
    assert daemon.stop().code == 0
    machine.renumber(*({0, 1, 2, 3} - {gone}))
    start()
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 3, LIMIT_S)
    assert kubelet.devices(GPU).keys() == ALL
    assert {state.numa for state in kubelet.devices(GPU).values()} == {()}  # of the one that is gone nobody knows any

    kubelet.restart()
    kubelet.wait_until(lambda: not kubelet.readmissions_pending, LIMIT_S)
    assert [pod.phase for pod in pods] == ["Running", "Running"]
    machine.renumber(0, 1, 2, 3)
    kubelet.wait_until(lambda: {state.numa for state in kubelet.devices(GPU).values()} == {(0,), (1,)}, LIMIT_S)


def test_one_card_named_in_two_ways_is_with_the_entry_that_named_it_first(kubelet, start, config_map):
    daemon = start(
        sliced({"devices": [0]}, {"devices": [pci_address(0), 1], "rename": "nvidia.com/gpu.late"}),
    )

    wait_healthy(kubelet, replicas(0, 2), resource=SHARED)
    wait_healthy(kubelet, [gpu_uuid(2), gpu_uuid(3)])
    withheld = daemon.log.wait_for("EntryWithheld")
    assert withheld["devices"] == [gpu_uuid(1)]
    assert withheld["path"] == "sharing.timeSlicing.resources[1].devices[0]"
    assert "is already shared by sharing.timeSlicing.resources[0]" in withheld["msg"]
    daemon.wait_ready()
    assert {found.resource for found in kubelet.registrations} == {GPU, SHARED}


def test_a_count_beyond_the_cards_there_are_takes_those_there_are(kubelet, start, config_map):
    daemon = start(sliced({"devices": 6}))

    wait_healthy(kubelet, set().union(*(replicas(card, 2) for card in range(4))), resource=SHARED)
    told = daemon.log.wait_for("ConfigReferenceUnmatched")["msg"]
    assert "sharing.timeSlicing.resources[0].devices: 6 asked, 4 of nvidia.com/gpu here" in told
    daemon.wait_metric(1, "nvdp_config_unmatched_references")
    daemon.wait_ready()


def test_an_edit_that_leaves_a_resource_with_nothing_is_told(kubelet, start, config_map):
    daemon = start(build_config(), wait=True)
    for emptied in (devices(cordon=[0, 1, 2, 3]), devices(exclude=[0, 1, 2, 3]), sliced({"devices": "all"})):
        lines = len(daemon.log)
        config_map.publish(emptied)
        line = daemon.log.wait_for("ResourceEmptied", after=lines)
        assert line["resource"] == GPU
        assert "4 healthy devices → 0" in line["msg"]
        config_map.publish(build_config())
        wait_healthy(kubelet, ALL)

    # That all cards wait for pods is told as such.
    for _ in range(4):
        kubelet.admit(f"team/{_}", {"main": {GPU: 1}})
    lines = len(daemon.log)
    config_map.publish(build_config(share=2))
    kubelet.wait_until(lambda: not healthy(kubelet), LIMIT_S)
    daemon.log.wait_for("ModeChangeWaiting", after=lines)
    assert daemon.log.of("ResourceEmptied", after=lines) == []


def test_names_follow_the_products_and_an_edit_of_the_file(kubelet, start, config_map):
    def named(*rules):
        return build_config(resources={"gpus": [{"pattern": pattern, "name": name} for pattern, name in rules]})

    daemon = start(named(("Tesla*", "nvidia.com/t4"), ("*A10", "example.com/a10")))
    wait_healthy(kubelet, ALL, resource="example.com/a10")
    assert {found.resource for found in kubelet.registrations} == {"example.com/a10"}
    pod = kubelet.admit("team/a", {"main": {"example.com/a10": 1}})
    (held,) = pod.ids("example.com/a10")

    config_map.publish(named(("*A10", "example.com/ten")))
    wait_healthy(kubelet, ALL - {held}, resource="example.com/ten")
    assert not healthy(kubelet, "example.com/a10")
    assert daemon.log.wait_for("ModeChangeWaiting")["pod"] == "team/a"
    with pytest.raises(AdmissionError):
        kubelet.admit("team/late", {"main": {"example.com/a10": 1}})
    kubelet.delete(pod)
    wait_healthy(kubelet, ALL, resource="example.com/ten")


def test_a_card_whose_name_decides_and_cannot_be_read_is_kept_back_until_it_can(kubelet, start, machine):
    machine.fault("nvmlDeviceGetName", gpu=2, error="Unknown")
    daemon = start(build_config(resources={"gpus": [{"pattern": "*T4", "name": "nvidia.com/t4"}]}), wait=True)
    wait_healthy(kubelet, ALL - {gpu_uuid(2)})
    assert gpu_uuid(2) not in kubelet.devices(GPU)
    assert "product name cannot be read" in daemon.log.wait_for("EntryWithheld")["msg"]
    daemon.wait_metric(1, "nvdp_device_withheld", uuid=gpu_uuid(2), reason="NameUnknown")

    machine.heal()
    wait_healthy(kubelet, ALL)
    machine.fault("nvmlDeviceGetName", gpu=2, error="Unknown")  # once read, it is known
    wait_healthy(kubelet, ALL - {gpu_uuid(2)})
    assert kubelet.devices(GPU).keys() == ALL
    machine.heal()
    wait_healthy(kubelet, ALL)


def test_an_edit_waits_as_long_as_the_fleet_wants_unless_it_is_hurried_or_refused(kubelet, start, config_map):
    daemon = start(build_config(), "--apply-jitter", "10h", wait=True)  # the first configuration waits for nobody
    wait_healthy(kubelet, ALL)

    config_map.publish(build_config(share=2))
    daemon.wait_scans(3)
    assert healthy(kubelet) == ALL
    daemon.look()
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 8, LIMIT_S)

    config_map.publish(build_config(share=3))
    daemon.look()  # whichever of the two is seen first
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 12, LIMIT_S)

    config_map.publish("sharing: [")
    daemon.log.wait_for("ConfigRefused")
    assert len(healthy(kubelet)) == 12
    daemon.wait_metric(0, "nvdp_config_valid")
    assert daemon.stop().code == 0

    daemon = start(build_config(share=4), "--apply-jitter", "1s")
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)
    config_map.publish(build_config(share=5))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 20, LIMIT_S)
