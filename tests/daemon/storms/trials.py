"""What is tried in a calm, where it is known what has to come of it."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Collection

from nvdp.simulate.kubelet import AdmissionError
from tests.daemon.process import LIMIT_S, wait_until
from tests.daemon.storms.files import NAMES, Key, find_key
from tests.daemon.storms.node import Node
from tests.daemon.storms.truth import Truth
from tests.daemon.storms.world import CARDS, Step

_UNHEARD_OF_XIDS = 1000  # no catalogue has these, and no storm: they are fatal, and never the echo of another
_HEARD_WITHIN_S = 1.0


class Trials:
    """Each trial is given a card: that one is aimed at, or the next one on offer, by a trial that aims."""

    def __init__(self, node: Node, truth: Truth) -> None:
        self._node, self._truth = node, truth
        self._kubelet = node.kubelet
        self._xids = itertools.count(_UNHEARD_OF_XIDS)

    def hear_all(self, _: int) -> None:
        """Events of all cards that are there are heard, however the waits for them failed before.

        Of excluded ones nobody counts any.
        """
        for card in sorted({*CARDS} - self._truth.ailing - self._node.file.excluded):
            self._await_heard(card)

    def strike(self, card: int) -> None:
        """A fatal event takes its card and no other, until it has been clean; unless events are ignored."""
        if (aim := self._aim(card)) is None:
            return
        card, before = aim, self._count_healthy()
        starts = {name: len(self._kubelet.messages(name)) for name in NAMES}
        self._tell(card, next(self._xids))
        if self._node.file.ignores_xids:
            self._check_unchanged(before)
            return
        mine = {key for key in before if key[0] == self._uuid(card)}
        self._kubelet.wait_until(
            lambda: self._find_taken(before, starts) == mine, LIMIT_S, what=f"card {card} taken, and no other"
        )
        self._truth.wait_seen(is_long=False)

    def strike_for_long(self, card: int) -> None:
        """The same, and the driver asks for a reset: the card stays away."""
        if (aim := self._aim(card)) is not None:
            self._node.world.fare(aim, {"recoveryAction": "GPUReset"})
            self._tell(aim, next(self._xids))
            self._truth.wait_seen(is_long=False)

    def refuse(self, card: int) -> None:
        """A file that is no good changes nothing."""
        before, refused = self._count_healthy(), self._count("nvdp_config_edits_total", result="refused")
        self._node.break_file(f"version: v1\nsharing: {{round: {card}}} # after {refused:g}\n")
        wait_until(
            lambda: self._count("nvdp_config_edits_total", result="refused") > refused, what="the file to be refused"
        )
        self._node.daemon.wait_metric(0, "nvdp_config_valid")
        self._check_unchanged(before)

    def admit_all(self, _: int) -> None:
        """Whatever is Healthy and not taken can be had."""
        self.admit(None)

    def admit(self, count: int | None) -> None:
        """So many pods come, for one device each, and as many of them as there are free devices have to be taken."""
        taken = {(form[0], device) for (_, form), ids in self._truth.find_held().items() for device in ids}
        for name, device in sorted(self._truth.list_healthy() - taken)[:count]:
            try:
                self._node.submit(name, 1).result(LIMIT_S)
            except AdmissionError as error:
                raise AssertionError(f"{device} of {name} was free, and yet: {error}") from error
        self._truth.wait_seen(is_long=False)

    def be_still(self, _: int) -> None:
        """While nothing happens no list is sent and nobody registers."""
        self._truth.wait_seen(is_long=True)
        before = self._count_messages()
        if self._truth.is_driver_used:
            self._node.daemon.wait_scans(2)
        now = self._count_messages()
        assert now == before, f"registrations and lists were {before} and are {now} without a cause"

    def _aim(self, card: int) -> int | None:
        """The card, or the next one on offer, once an event of it would be heard; None if none is on offer."""
        uuids = {device.partition("::")[0] for _, device in self._truth.list_healthy()}
        found = next((one for one in (*CARDS[card:], *CARDS[:card]) if self._uuid(one) in uuids), None)
        if found is not None:
            self._await_heard(found)
        return found

    def _await_heard(self, card: int) -> None:
        """One more single-bit error is counted. Those that came while nobody listened are not."""
        labels = {"uuid": self._uuid(card), "type": "single"}
        before = self._count("nvdp_ecc_errors_total", **labels)

        def is_heard() -> bool:
            self._tell(card, None, "single")
            with contextlib.suppress(AssertionError):
                what = "an event"
                wait_until(lambda: self._count("nvdp_ecc_errors_total", **labels) > before, _HEARD_WITHIN_S, what=what)
                return True
            return False

        wait_until(is_heard, self._truth.calm_s, what=f"an event of card {card} that is heard")

    def _find_taken(self, before: Collection[Key], starts: dict[str, int]) -> set[Key]:
        """The cards that were on offer before and were not in one of the lists since."""
        found: set[Key] = set()
        for name, start in starts.items():
            mine = {key for key in before if key[1][0] == name}
            for message in self._kubelet.messages(name)[start:]:
                found |= mine - {find_key(name, device) for device in message.healthy}
        return found

    def _tell(self, *event: object) -> None:
        self._node.do(Step("tell", event))

    def _count_healthy(self) -> Counter[Key]:
        """By card, for which of its numbers are on offer may depend on when the end of a pod was noticed.

        Without those that ail: while the next look at them is still to come, one of them may be on offer for a moment.
        """
        ailing = {self._uuid(card) for card in self._truth.ailing}
        keys = (find_key(name, device) for name, device in self._truth.list_healthy())
        return Counter(key for key in keys if key[0] not in ailing)

    def _check_unchanged(self, before: Counter[Key]) -> None:
        if self._truth.is_driver_used:
            self._node.daemon.wait_scans(1)
        now = self._count_healthy()
        assert now == before, f"on offer were {before} and are {now} without a cause"

    def _count(self, name: str, **labels: str) -> float:
        return self._node.daemon.metric(name, **labels) or 0.0

    def _count_messages(self) -> list[int]:
        return [len(self._kubelet.registrations), *(len(self._kubelet.messages(name)) for name in NAMES)]

    def _uuid(self, card: int) -> str:
        return self._node.machine.uuids[card]
