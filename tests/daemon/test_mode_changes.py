"""Every change from one form of a card to another while pods hold it: nothing is promised twice, and all converge."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time

import grpc
import pytest

from nvdp.simulate.kubelet import AdmissionError
from tests.daemon.forms import (
    FAMILIES,
    FORMS,
    RESOURCES,
    Hold,
    Offer,
    build_file,
    check_promises,
    find_listed,
    find_offers,
    wait_equal,
)
from tests.daemon.node import connect, gpu_uuid, on_node
from tests.daemon.process import LIMIT_S, wait_until

FULL = os.environ.get("NVDP_CAMPAIGN") == "full"
PAIRS = tuple(itertools.permutations(FORMS, 2))
_KEPT_BACK = frozenset({"cordoned", "mps", "excluded"})  # what a pod holds in these, it was given when it was whole


def family(before: str, after: str) -> str:
    """By what the plain name must stand for: whole cards or slices, first and last."""
    first, last = FORMS[before].plain_is_shared, FORMS[after].plain_is_shared
    if first is None:
        first = bool(last) and before not in _KEPT_BACK
    return "".join("s" if shared else "w" for shared in (first, first if last is None else last))


# One card for each pair that a pod will hold, and another one that nobody will.
HELD = dict(enumerate(PAIRS))
CARDS = HELD | {len(PAIRS) + number: pair for number, pair in enumerate(PAIRS)}
FAMILY = {card: family(*pair) for card, pair in CARDS.items()}
CARD = {gpu_uuid(card): card for card in CARDS}
MACHINE = {"count": len(CARDS), "products": [f"Card {FAMILY[card]}" for card in CARDS]}
FIRST = {card: "whole" if before in _KEPT_BACK else before for card, (before, _) in CARDS.items()}
BEFORE = {card: before for card, (before, _) in CARDS.items()}
AFTER = {card: after for card, (_, after) in CARDS.items()}


def write(forms, *, sliced, **allocation):
    return build_file({card: (FAMILY[card], form) for card, form in forms.items()}, sliced=sliced, **allocation)


def offer(card, form) -> Offer | None:
    return FORMS[form].offer(FAMILY[card])


def build_offers(forms, holds=()) -> dict[str, set[Offer]]:
    """What is on offer under a file: no card that a pod holds in another form."""
    held = {hold.uuid: hold.form for hold in holds}
    return {
        gpu_uuid(card): {given}
        for card, form in forms.items()
        if (given := offer(card, form)) is not None
        and FORMS[form].takes_pods
        and held.get(gpu_uuid(card)) in {None, given.form}
    }


def build_listed(forms, holds=()) -> dict[str, set[Offer]]:
    """What is listed in the end: each card in the form of the file, and what pods hold in another one."""
    listed: dict[str, set[Offer]] = {}
    for card, form in forms.items():
        if (given := offer(card, form)) is not None:
            listed[gpu_uuid(card)] = {given}
    for hold in holds:
        known = listed.setdefault(hold.uuid, set())
        if hold.form not in {given.form for given in known}:
            known.add(Offer(*hold.form, 1))
    return listed


def find_waiting(forms, holds) -> set[tuple[str, str]]:
    """Each card that waits for a pod, with that pod."""
    return {
        (hold.uuid, f"team/{hold.pod.name}")
        for hold in holds
        if (new := offer(CARD[hold.uuid], forms[CARD[hold.uuid]])) is not None and new.form != hold.form
    }


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


def restart_kubelet(kubelet):
    kubelet.restart()
    kubelet.wait_until(lambda: not kubelet.readmissions_pending, LIMIT_S)


def wait_told(daemon, reason, wanted):
    """Wait until the log names these cards, each with the pod that it waits for, if any."""
    wait_until(
        lambda: (
            {(device, line.get("pod", "")) for line in daemon.log.of(reason) for device in line["devices"]} == wanted
        ),
        what=f"{reason} of {len(wanted)} cards",
    )


def check_refusals(kubelet, waiting):
    """What waits is refused, and says for whom it waits."""
    for uuid, pod in waiting:
        new = offer(CARD[uuid], AFTER[CARD[uuid]])
        with connect(kubelet, new.resource) as client, pytest.raises(grpc.RpcError) as refusal:
            client.allocate([f"{uuid}::0" if new.shared else uuid])
        text = refusal.value.details()
        assert f"held by {pod} as " in text or (AFTER[CARD[uuid]] == "cordoned" and "Cordoned" in text)


def on_every_pair(*kubelets):
    """Give a test the machine of all pairs, with kubelets of a version and a topology policy."""
    return pytest.mark.parametrize(
        ("version", "settings"),
        [(version, {"machine": MACHINE, "kubelet": {"topology_policy": policy}}) for version, policy in kubelets],
        ids=["-".join(kubelet) for kubelet in kubelets],
    )


@on_every_pair(("1.36", "restricted"), ("1.37", "none"))
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

    at = config_map.publish(write(AFTER, sliced=["ws", "ss"]))
    wait_equal(kubelet, find_offers, build_offers(AFTER, holds))
    assert time.monotonic() - at < 1
    waiting = find_waiting(AFTER, holds)
    wait_told(daemon, "ModeChangeWaiting", waiting)
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


@on_every_pair(("1.36", "restricted"))
@pytest.mark.invariant(3)
def test_where_the_file_says_so_the_new_form_comes_at_once_and_still_no_held_id_leaves(kubelet, start, config_map):
    now = {"modeChange": "immediate"}
    daemon = start(write(FIRST, sliced=["sw", "ss"], **now))
    wait_equal(kubelet, find_offers, build_offers(FIRST))
    holds = hold_cards(kubelet)
    config_map.publish(write(BEFORE, sliced=["sw", "ss"], **now))
    wait_equal(kubelet, find_offers, build_offers(BEFORE))

    at = config_map.publish(write(AFTER, sliced=["ws", "ss"], **now))
    wait_equal(kubelet, find_offers, build_offers(AFTER))
    assert time.monotonic() - at < 1
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


class History:
    """Edits, pods, restarts and losses in an order that ``dice`` chooses."""

    def __init__(self, kubelet, machine, config_map, start) -> None:
        self._kubelet, self._machine, self._config_map, self._start = kubelet, machine, config_map, start
        self.holds: list[Hold] = []
        self.forms = dict.fromkeys(CARDS, "whole")
        self._steps = (
            *(self.edit, self.edit, self.edit, self.delete, self.delete, self.wait),
            *(self.admit, self.admit, self.admit, self.admit, self.admit),
            *(self.restart_kubelet, self.restart_daemon, self.lose_cards, self.remove_cards, self.heal),
            *(self.edit_while_the_kubelet_is_down, self.hide_holders),
        )

    def live(self, steps: int, dice: random.Random) -> None:
        self._dice = dice
        for _ in range(steps):
            self._dice.choice(self._steps)()
            threading.Event().wait(self._dice.choice([0.0, 0.1, 0.5]))
            self._kubelet.assert_alive()

    def edit(self) -> None:
        sliced = [name for name in FAMILIES if self._dice.random() < 0.5]
        for card in CARDS:
            possible = [name for name, form in FORMS.items() if form.plain_is_shared in {None, FAMILY[card] in sliced}]
            self.forms[card] = self._dice.choice(possible)
        self._config_map.publish(write(self.forms, sliced=sliced))

    def admit(self) -> None:
        for resource in RESOURCES:
            for _ in range(self._dice.randrange(4)):
                if any(state.health == "Healthy" for state in self._kubelet.devices(resource).values()):
                    self._hold(resource)

    def _hold(self, resource) -> None:
        with contextlib.suppress(AdmissionError):
            pod = self._kubelet.admit(f"team/pod-{len(self.holds)}", {"main": {resource: 1}})
            self.holds += [Hold(pod, resource, device, time.monotonic()) for device in pod.ids(resource)]

    def delete(self) -> None:
        running = [hold for hold in self.holds if hold.until == float("inf")]
        self._end(self._dice.sample(running, len(running) // 2))

    def _end(self, ending) -> None:
        now = time.monotonic()
        self.holds = [hold._replace(until=now) if hold in ending else hold for hold in self.holds]
        for hold in ending:
            self._kubelet.delete(hold.pod)

    def lose_cards(self) -> None:
        self.heal()
        self._machine.change(lost=[gpu_uuid(card) for card in self._choose_cards()])

    def remove_cards(self) -> None:
        gone = self._choose_cards()
        self._machine.change(lost=[])
        self._machine.renumber(*self._dice.sample([card for card in CARDS if card not in gone], len(CARDS) - len(gone)))

    def heal(self) -> None:
        self._machine.change(lost=[])
        self._machine.renumber(*CARDS)

    def _choose_cards(self) -> list[int]:
        return self._dice.sample(sorted(CARDS), len(CARDS) // 4)

    def wait(self) -> None:
        threading.Event().wait(self._dice.choice([1.0, 7.0 if FULL else 2.0]))

    def restart_kubelet(self) -> None:
        restart_kubelet(self._kubelet)

    def edit_while_the_kubelet_is_down(self) -> None:
        self._kubelet.stop()
        self.edit()
        self.wait()
        self._kubelet.start()
        self._kubelet.wait_until(lambda: not self._kubelet.readmissions_pending, LIMIT_S)

    def hide_holders(self) -> None:
        """No PodResources until the kubelet starts again; the checkpoint tells."""
        self._kubelet.drop_pod_resources()

    def restart_daemon(self) -> None:
        daemon = self._start.daemons[-1]
        daemon.log.wait_for("Starting")  # before, signals are the interpreter's
        if self._dice.random() < 0.5:
            daemon.kill()
        else:
            assert daemon.stop().code == 0
        self._start()

    def end(self) -> None:
        self.heal()
        self.restart_kubelet()
        self._start.daemons[-1].wait_scans(3)  # the new kubelet has named all holders
        self._end([hold for hold in self.holds if hold.until == float("inf")])
        wait_equal(self._kubelet, find_offers, build_offers(self.forms), timeout_s=60)


@on_node(machine=MACHINE, kubelet={"topology_policy": "restricted"})
@pytest.mark.campaign
@pytest.mark.timeout(3600 if FULL else 120)
@pytest.mark.invariant(4)
@pytest.mark.parametrize("seed", range(4 if FULL else 1))
@pytest.mark.parametrize("version", ["1.36", "1.37"] if FULL else ["1.36"])
def test_no_history_of_edits_pods_losses_and_restarts_promises_a_card_twice(kubelet, machine, start, config_map, seed):
    history = History(kubelet, machine, config_map, start)
    start(write(history.forms, sliced=[]))
    wait_equal(kubelet, find_offers, build_offers(history.forms))
    history.live(200 if FULL else 18, random.Random(seed))
    history.end()

    assert len(history.holds) > 10
    check_promises(kubelet, history.holds)
