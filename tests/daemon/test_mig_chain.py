"""A long chain of random layouts while pods come, hold MIG devices and go: what there is is on offer after one rescan.

In full with ``make campaign``. The rescan interval is a minute, and each link of the chain asks for one look.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from nvdp.simulate.kubelet import AdmissionError, Kubelet, Pod
from tests.daemon.layouts import (
    A100S,
    MOST,
    Hold,
    Layouts,
    build_mig,
    check_promises,
    check_streams,
    find_listed,
    find_resources,
    wait_offers,
)
from tests.daemon.node import on_node
from tests.daemon.process import LIMIT_S, Daemon, wait_until

FULL = os.environ.get("NVDP_CAMPAIGN") == "full"
LINKS = 1000 if FULL else 8
PROFILES = ("1g.10gb", "1g.10gb", "1g.10gb+me", "2g.20gb", "3g.40gb", "1c.3g.40gb", "5g.50gb+of.tomorrow")
MOST_PODS = 8


class Chain:
    """``holds`` are of the pods there are, ``past`` of those that have ended. ``refused`` counts admissions.

    Whether a pod has ended is asked once in a second: who is ``patient`` waits for that after each change.
    """

    def __init__(
        self, kubelet: Kubelet, daemon: Daemon, layouts: Layouts, dice: random.Random, *, patient: bool
    ) -> None:
        self._is_patient = patient
        self._kubelet, self._daemon, self._layouts, self._dice = kubelet, daemon, layouts, dice
        self._scans = daemon.metric("nvdp_scan_duration_seconds_count") or 0
        self.holds: list[Hold] = []
        self.past: list[Hold] = []
        self.admitted = self.refused = self.waited = 0
        self._changes: tuple[Callable[[int], object], ...] = (
            *(self._make,) * 5,
            *(self._destroy,) * 4,
            *(self._recut,) * 2,
            *(self._uncut,) * 2,
            self._expect_mode,
        )

    def forge(self) -> None:
        """One link: while a pod may be arriving, one or two cards are cut otherwise; the next look must find that."""
        dice = self._dice
        if self.holds and dice.random() < 0.3:
            self.end_pod()
        arriving = self._submit() if len(self.holds) < MOST_PODS and dice.random() < 0.4 else None
        for card in dice.sample(range(len(self._layouts.cards)), dice.randint(1, 2)):
            dice.choice(self._changes)(card)
        self._look()
        if arriving is not None:
            self._settle(*arriving)
        expected = self._expect()
        self.waited += sum(map(len, self._layouts.build_offers().values())) - sum(map(len, expected.values()))
        ended = () if self._is_patient else self.past
        being_freed = {rival for one in ended for rival in self._layouts.find_rivals(one.device)}
        wait_offers(self._kubelet, expected, perhaps=being_freed)
        assert all(self._kubelet.open_streams(name) == 1 for name in find_listed(self._kubelet))

    def rest(self) -> None:
        """Wait until all that pods have left behind is on offer."""
        wait_offers(self._kubelet, self._expect())

    def end_pod(self) -> None:
        gone = self.holds.pop(self._dice.randrange(len(self.holds)))
        self.past.append(gone._replace(until=time.monotonic()))
        self._kubelet.delete(gone.pod)

    def _look(self) -> None:
        """One rescan, and no more."""
        self._daemon.look()
        self._scans += 1
        name = "nvdp_scan_duration_seconds_count"
        wait_until(lambda: (self._daemon.metric(name) or 0) >= self._scans, LIMIT_S, what=f"scan {self._scans}")
        assert self._daemon.metric(name) == self._scans

    def _expect(self) -> dict[str, set[str]]:
        """Everything there is, but for cards that pods hold in parts, and parts of cards that they hold whole."""
        kept = {rival for one in self.holds for rival in self._layouts.find_rivals(one.device)}
        offers = {name: ids - kept for name, ids in self._layouts.build_offers().items()}
        return {name: ids for name, ids in offers.items() if ids}

    def _submit(self) -> tuple[str, Pod, Future[None]] | None:
        """A pod arrives that may get something, as far as it knows."""
        held = {one.device for one in self.holds}
        free = sorted(name for name, ids in self._expect().items() if ids - held)
        if not free:
            return None
        resource = self._dice.choice(free)
        pod, admission = self._kubelet.submit(f"team/{self.admitted + self.refused}", {"main": {resource: 1}})
        return resource, pod, admission

    def _settle(self, resource: str, pod: Pod, admission: Future[None]) -> None:
        try:
            admission.result(LIMIT_S)
        except AdmissionError:  # what it was to get is gone, or waits for another pod
            self._kubelet.delete(pod)
            self.refused += 1
            return
        (device,) = pod.ids(resource)
        self.admitted += 1
        self.holds.append(Hold(pod, resource, device, time.monotonic()))

    # --- what whoever does that does to a card

    def _make(self, card: int) -> None:
        parts = self._layouts.cards[card]
        if parts is None:
            self._recut(card)
        elif len(parts) < MOST:
            self._layouts.make(card, self._dice.choice(PROFILES))

    def _destroy(self, card: int) -> None:
        """One of its parts, or some."""
        parts = list((self._layouts.cards[card] or {}).values())
        if parts:
            gone = self._dice.sample(parts, self._dice.randint(1, min(2, len(parts))))
            self._layouts.destroy(*(part.uuid for part in gone))

    def _recut(self, card: int) -> None:
        self._layouts.cut(card, *self._dice.choices(PROFILES, k=self._dice.randrange(4)))

    def _uncut(self, card: int) -> None:
        self._layouts.uncut(card)

    def _expect_mode(self, card: int) -> None:
        self._layouts.expect_mode(card, on=self._dice.random() < 0.5)


@on_node(machine=A100S, kubelet={"topology_policy": "restricted"})
@pytest.mark.campaign
@pytest.mark.invariant(3)
@pytest.mark.invariant(4)
@pytest.mark.timeout(3600 if FULL else 60)
@pytest.mark.parametrize(("version", "library"), [("1.36", "simulated"), *([("1.37", "compiled")] if FULL else [])])
def test_after_each_of_many_layouts_the_next_look_finds_it_and_no_unchanged_resource_loses_its_stream(
    kubelet, machine, start
):
    layouts = Layouts(machine)
    layouts.cut(1, "1g.10gb", "1g.10gb", "2g.20gb")
    layouts.cut(2)
    daemon = start(build_mig(devices={"rescanInterval": "1m"}))
    wait_offers(kubelet, layouts.build_offers())
    began_at = time.monotonic()
    chain = Chain(kubelet, daemon, layouts, random.Random(3), patient=FULL)

    for _ in range(LINKS):
        chain.forge()
    chain.rest()

    print(f"{LINKS} links in {time.monotonic() - began_at:.0f} s: {chain.admitted} pods")  # noqa: T201 - pytest shows it if the test fails
    print(f"{chain.refused} refused, {chain.waited} devices waited for a pod")  # noqa: T201 - as above
    assert chain.admitted > LINKS // 10
    assert chain.waited > LINKS // 10
    check_promises(kubelet, layouts, chain.holds + chain.past)
    if FULL:
        while chain.holds:
            chain.end_pod()
        wait_offers(kubelet, layouts.build_offers(), find=find_listed)
        check_promises(kubelet, layouts, chain.past)
        for resource in set(find_resources(kubelet)) - layouts.build_offers().keys():
            assert not kubelet.messages(resource)[-1].devices, f"{resource} ended without an empty list"
    check_streams(kubelet)
