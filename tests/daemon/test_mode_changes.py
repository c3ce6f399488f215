"""Every change from one form of a card to another while pods hold it: nothing is promised twice, and all converge."""

from __future__ import annotations

import os
import time

import grpc
import pytest

from tests.daemon.forms import RESOURCES, Hold, check_promises, find_listed, find_offers, restart_kubelet, wait_equal
from tests.daemon.node import at_length, connect, gpu_uuid, on_node
from tests.daemon.pairs import (
    AFTER,
    BEFORE,
    CARD,
    FIRST,
    HELD,
    MACHINE,
    build_listed,
    build_offers,
    offer,
    write,
)
from tests.daemon.process import wait_until

# Under a policy a kubelet of 1.36 dies of a held ID that is missing; one of 1.37 is tried without, in campaigns.
POLICY = {"1.36": "restricted", "1.37": "none"}[os.environ.get("NVDP_KUBELET", "1.36")]
on_every_pair = on_node(machine=MACHINE, kubelet={"topology_policy": POLICY})
AT_ONCE_S = 2.0  # with ten times the cards of a node, on a busy machine; alone it takes 0.1 s


def find_waiting(forms, holds) -> set[tuple[str, str]]:
    """Each card that waits for a pod, with that pod: also for MPS, whose daemon nobody runs here."""

    def changes(hold) -> bool:
        new = offer(CARD[hold.uuid], forms[CARD[hold.uuid]])
        return forms[CARD[hold.uuid]] == "mps" or (new is not None and new.form != hold.form)

    return {(hold.uuid, f"team/{hold.pod.name}") for hold in holds if changes(hold)}


def leave_mps_out(offers):
    """Without cards that MPS could have been given: they come when ``nvdp mps`` must have heard that it cannot."""
    return {uuid: given for uuid, given in offers.items() if BEFORE[CARD[uuid]] != "mps"}


def hold_cards(kubelet) -> list[Hold]:
    """A pod on each card of the first half: those of every resource that are given first."""
    holds = []
    for resource in RESOURCES:
        count = sum(found.resource == resource for card in HELD if (found := offer(card, FIRST[card])))
        for number in range(count):
            pod = kubelet.admit(f"team/{resource.rpartition('/')[2]}-{number}", {"main": {resource: 1}})
            holds += [Hold(pod, resource, device, time.monotonic()) for device in pod.ids(resource)]
    assert {hold.uuid for hold in holds} == {gpu_uuid(card) for card in HELD}
    return holds


def wait_told(daemon, reason, wanted, *, after=0):
    """Wait until the log, from that line on, names these cards, each with the pod that it waits for, if any."""

    def list_told():
        lines = daemon.log.of(reason, after=after)
        return {(device, line.get("pod", "")) for line in lines for device in line["devices"]}

    wait_until(lambda: list_told() == wanted, what=f"{reason} of {len(wanted)} cards")


def check_refusals(kubelet, waiting):
    """What waits is refused, and says for whom it waits."""
    for uuid, pod in waiting:
        new = offer(CARD[uuid], AFTER[CARD[uuid]])
        if new is None:
            continue
        with connect(kubelet, new.resource) as client, pytest.raises(grpc.RpcError) as refusal:
            client.allocate([f"{uuid}::0" if new.shared else uuid])
        text = refusal.value.details()
        assert f"held by {pod} as " in text or (AFTER[CARD[uuid]] == "cordoned" and "Cordoned" in text)


@on_every_pair
@pytest.mark.requirement(49)
@pytest.mark.requirement(50)
@pytest.mark.invariant(3)
@pytest.mark.invariant(4)
def test_a_card_changes_from_any_form_to_any_other_once_the_pod_that_holds_it_has_ended(kubelet, start, config_map):
    daemon = start(write(FIRST, sliced=["sw", "ss"]))
    wait_equal(kubelet, find_offers, build_offers(FIRST))
    holds = hold_cards(kubelet)
    config_map.publish(write(BEFORE, sliced=["sw", "ss"]))
    wait_equal(kubelet, find_offers, build_offers(BEFORE, holds))
    restart_kubelet(kubelet)
    wait_equal(kubelet, find_offers, build_offers(BEFORE, holds))
    daemon.wait_scans(3)  # what was given to pods is old enough for an answer to name them

    lines = len(daemon.log)
    at = config_map.publish(write(AFTER, sliced=["ws", "ss"]))
    wait_equal(kubelet, lambda found: leave_mps_out(find_offers(found)), leave_mps_out(build_offers(AFTER, holds)))
    assert time.monotonic() - at < AT_ONCE_S
    wait_equal(kubelet, find_offers, build_offers(AFTER, holds))
    waiting = find_waiting(AFTER, holds)
    wait_told(daemon, "ModeChangeWaiting", waiting, after=lines)
    check_refusals(kubelet, waiting)
    wait_equal(kubelet, find_listed, build_listed(AFTER, holds))  # what nobody holds has left

    restart_kubelet(kubelet)
    wait_equal(kubelet, find_offers, build_offers(AFTER, holds))
    assert daemon.stop().code == 0
    daemon = start()
    wait_equal(kubelet, find_offers, build_offers(AFTER, holds))
    wait_told(daemon, "ModeChangeWaiting", waiting)
    assert {hold.pod.phase for hold in holds} == {"Running"}

    ended_at = time.monotonic()
    for hold in holds:
        kubelet.delete(hold.pod)
    wait_equal(kubelet, find_offers, build_offers(AFTER))
    assert time.monotonic() - ended_at < 4
    wait_told(daemon, "ModeChanged", {(uuid, "") for uuid, _ in waiting})
    wait_equal(kubelet, find_listed, build_listed(AFTER))
    check_promises(kubelet, [hold._replace(until=ended_at) for hold in holds])
    assert daemon.log.of("HoldersUnknown") == []


@at_length  # tests/planning/test_histories.py has files that say so
@on_every_pair
@pytest.mark.campaign
@pytest.mark.invariant(3)
def test_where_the_file_says_so_the_new_form_comes_at_once_and_still_no_held_id_leaves(kubelet, start, config_map):
    now = {"modeChange": "immediate"}
    daemon = start(write(FIRST, sliced=["sw", "ss"], **now))
    wait_equal(kubelet, find_offers, build_offers(FIRST))
    holds = hold_cards(kubelet)
    config_map.publish(write(BEFORE, sliced=["sw", "ss"], **now))
    wait_equal(kubelet, find_offers, build_offers(BEFORE))

    at = config_map.publish(write(AFTER, sliced=["ws", "ss"], **now))
    wait_equal(kubelet, lambda found: leave_mps_out(find_offers(found)), leave_mps_out(build_offers(AFTER)))
    assert time.monotonic() - at < AT_ONCE_S
    wait_equal(kubelet, find_offers, build_offers(AFTER))
    wait_equal(kubelet, find_listed, build_listed(AFTER, holds))
    restart_kubelet(kubelet)
    wait_equal(kubelet, find_offers, build_offers(AFTER))
    assert {hold.pod.phase for hold in holds} == {"Running"}
    assert daemon.log.of("ModeChangeWaiting") == []
    daemon.wait_scans(3)  # the new kubelet has named all holders: before, its checkpoint counts as well

    ended_at = time.monotonic()
    for hold in holds:
        kubelet.delete(hold.pod)
    wait_equal(kubelet, find_listed, build_listed(AFTER))
    check_promises(kubelet, [hold._replace(until=ended_at) for hold in holds], when_free=False)
