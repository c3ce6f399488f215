"""Which cards a file means by an index, by a count, by two names of one card, and by the name of a product."""

from __future__ import annotations

import pytest

from nvdp.simulate.kubelet import AdmissionError
from tests.daemon.node import (
    GPU,
    SHARED,
    build_config,
    build_sliced,
    gpu_uuid,
    healthy,
    pci_address,
    replicas,
    wait_healthy,
)

ALL = {gpu_uuid(number) for number in range(4)}
COUNTED = "nvidia.com/gpu.counted"


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
    daemon = start(build_sliced(by_index, by_count, devices={"removeAfter": "1s"}))
    wait_all(whole={3})
    machine.renumber(3, 2, 1, 0)  # a card that comes before them all
    wait_all(whole={0, 3})

    # The two are lost: nobody takes their place, before or after a restart, and they come back to it.
    machine.renumber(3, 0)
    wait_all(whole={0, 3}, lost=True)
    assert daemon.stop().code == 0
    daemon = start()
    wait_all(whole={0, 3}, lost=True)
    # Once they are forgotten, before or after it, that is told.
    told = {daemon.log.wait_for("ConfigReferenceUnmatched", text=gpu_uuid(card))["msg"] for card in (1, 2)}
    assert all("neighbour" in text for text in told)
    daemon.wait_metric(2, "nvdp_config_unmatched_references")
    machine.renumber(3, 0, 1, 2)
    wait_all(whole={0, 3})
    daemon.wait_metric(0, "nvdp_config_unmatched_references")

    # Entries that come and go around them move neither, nor do other replicas; index 0 is the last slot's card now.
    third = {"devices": [0], "rename": "nvidia.com/gpu.third"}
    config_map.publish(build_sliced(third, by_count, {**by_index, "replicas": 3}))
    wait_healthy(kubelet, replicas(3, 2), resource=third["rename"])
    wait_healthy(kubelet, replicas(2, 3), resource=SHARED)
    wait_healthy(kubelet, replicas(1, 2), resource=COUNTED)
    config_map.publish(build_sliced(by_count, by_index))
    wait_all(whole={0, 3})
    # An entry that names another card moves to it.
    config_map.publish(build_sliced(by_count, {"devices": [0]}))
    wait_healthy(kubelet, replicas(3, 2), resource=SHARED)
    wait_healthy(kubelet, replicas(1, 2), resource=COUNTED)


def test_one_card_named_in_two_ways_is_with_the_entry_that_named_it_first(kubelet, start, config_map):
    daemon = start(
        build_sliced({"devices": [0]}, {"devices": [pci_address(0), 1], "rename": "nvidia.com/gpu.late"}),
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
    daemon = start(build_sliced({"devices": 6}))

    wait_healthy(kubelet, set().union(*(replicas(card, 2) for card in range(4))), resource=SHARED)
    told = daemon.log.wait_for("ConfigReferenceUnmatched")["msg"]
    assert "sharing.timeSlicing.resources[0].devices: 6 asked, 4 of nvidia.com/gpu here" in told
    daemon.wait_metric(1, "nvdp_config_unmatched_references")
    daemon.wait_ready()


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
