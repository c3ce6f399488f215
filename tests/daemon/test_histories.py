"""Edits, pods, restarts and losses in any order: no card is promised twice. In full with ``make campaign``."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time

import pytest

from nvdp.simulate.kubelet import AdmissionError
from tests.daemon.forms import (
    FAMILIES,
    FORMS,
    RESOURCES,
    Hold,
    check_promises,
    find_offers,
    restart_kubelet,
    wait_equal,
)
from tests.daemon.node import gpu_uuid, on_node
from tests.daemon.pairs import CARDS, FAMILY, MACHINE, build_offers, write
from tests.daemon.process import LIMIT_S

FULL = os.environ.get("NVDP_CAMPAIGN") == "full"


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
        """All cards are on offer whole at first, and some are taken."""
        self._dice = dice
        for _ in range(4):
            self._hold(RESOURCES[0])
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
            limits = {"main": {resource: self._dice.choice([1, 1, 2])}}
            pod = self._kubelet.admit(f"team/pod-{len(self.holds)}", limits)
            self.holds += [Hold(pod, resource, device, time.monotonic()) for device in pod.ids(resource)]

    def delete(self) -> None:
        running = [hold for hold in self.holds if hold.until == float("inf")]
        self._end(self._dice.sample(running, len(running) // 2))

    def _end(self, ending) -> None:
        now = time.monotonic()
        pods = {hold.pod.uid: hold.pod for hold in ending}
        self.holds = [hold._replace(until=now) if hold.pod.uid in pods else hold for hold in self.holds]
        for pod in pods.values():
            self._kubelet.delete(pod)

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
        self._check_pods()

    def edit_while_the_kubelet_is_down(self) -> None:
        self._kubelet.stop()
        self.edit()
        self.wait()
        self._kubelet.start()
        self._kubelet.wait_until(lambda: not self._kubelet.readmissions_pending, LIMIT_S)
        self._check_pods()

    def _check_pods(self) -> None:
        """The kubelet has taken in again all that ran."""
        for hold in self.holds:
            assert hold.until < float("inf") or hold.pod.phase == "Running", (hold, hold.pod.error)

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
    history.live(200 if FULL else 6, random.Random(seed))
    history.end()

    assert len(history.holds) >= (100 if FULL else 4)
    check_promises(kubelet, history.holds)
