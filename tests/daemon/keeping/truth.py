"""What must be true of MPS on a node at any time, and what must come true once nothing happens any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psutil

from nvdp.host.mps_report import load_report
from nvdp.model.mps import DaemonReport, DaemonSpec, MpsReport, Phase
from tests.daemon.keeping.node import Node, name_lost
from tests.daemon.keeping.wish import RESOURCES, list_ids
from tests.daemon.node import gpu_uuid, healthy

SETTLED_S = 75.0  # the back-off of a daemon that died again and again is the longest of what is waited for
_LOOK_EVERY_S = 0.05


class Watch:
    """Looks on in a thread of its own: a mode is claimed before it is changed, and no GPU is in two daemons."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._ending = threading.Event()
        self.wrong: list[str] = []
        self.looks = 0
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Raises AssertionError if anything was wrong."""
        self._ending.set()
        self._thread.join()
        assert self.wrong == []
        assert self.looks

    def _run(self) -> None:
        while not self._ending.wait(_LOOK_EVERY_S):
            self.looks += 1
            before = self._node.machine.find_changed_modes()
            report = load_report(self._node.mps.directory) or MpsReport(at=0.0)
            changed = before & self._node.machine.find_changed_modes()
            if not changed <= report.claims.keys():
                self.wrong.append(f"{changed - report.claims.keys()} changed and not claimed, by {report}")
            gpus = [uuid for daemon in report.daemons.values() if daemon.running for uuid in daemon.running.gpus]
            if len(gpus) != len({*gpus}):
                self.wrong.append(f"a GPU in two daemons: {report}")


class Truth:
    """``settle`` after each step: it waits for what must come true, and says what a step may not have done.

    A daemon may have another process only if the step concerned it, or if it is not what it was and nobody held it.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._before: dict[str, DaemonReport] = {}
        self._held_before: set[str] = set()

    def look(self) -> None:
        """What is so before a step."""
        self._before = self._node.list_daemons()
        self._held_before = {held.resource for held in self._node.pods if held.by_mps}

    def settle(self, *, concerned: set[str], cut: set[str]) -> None:
        """``concerned`` are the resources whose daemon may have another process now, ``cut`` those whose clients may
        have lost it. Raises AssertionError with what is not true.
        """
        self._wait(self._find_open)
        self._check_processes(concerned)
        self._check_pods(concerned | cut)
        self._wait(self._find_unserved)

    def _wait(self, find: Callable[[], list[str]]) -> None:
        deadline = time.monotonic() + SETTLED_S
        while open_ends := find():
            assert time.monotonic() < deadline, f"not within {SETTLED_S:g} s: {'; '.join(open_ends)}"
            time.sleep(_LOOK_EVERY_S)

    # --- what may not have happened

    def _check_processes(self, concerned: set[str]) -> None:
        node, now = self._node, self._node.list_daemons()
        held = self._held_before & {one.resource for one in node.pods if one.by_mps}
        for resource, before in self._before.items():
            after = now.get(resource)
            if resource in concerned or (after is not None and after.pid == before.pid):
                continue
            assert resource not in held, f"{resource} is held, and its daemon {before} became {after}"
            assert after is None or after.running != before.running, f"{resource}: {before} became {after} for nothing"

    def _check_pods(self, concerned: set[str]) -> None:
        for held in self._node.pods:
            if held.client is None or held.resource in concerned:
                continue
            assert held.client.is_served, f"{held.pod.name} of {held.resource} has lost its daemon"
            inode = self._node.mps.pipe(held.resource).stat().st_ino
            assert inode == held.inode, f"{held.pod.name} of {held.resource} has another directory mounted"

    # --- what must come true

    def _find_unserved(self) -> list[str]:
        """Programs start again until they are served, each in its container."""
        if self._node.wish.is_paused:  # a daemon that has ended in a pause is not started before the pause ends
            self._node.forget_cut()
            return []
        there = [one for one in self._node.pods if one.card not in self._node.lost]
        unserved = [one for one in there if not self._node.connect(one)]
        if not unserved:
            self._node.forget_cut()  # on a lost card nobody can be served
        return [f"{held.pod.name} of {held.resource} is not served" for held in unserved]

    def _find_open(self) -> list[str]:
        node, report = self._node, self._node.report
        if node.keeper is None or node.plugin is None or report.pid != node.keeper.pid:
            return ["no report of the process that runs"]
        found = self._find_open_claims(report)
        for resource in sorted({*report.daemons, *(form.resource for form in node.wish.forms.values() if form.mps)}):
            found += self._find_open_daemon(resource, report.daemons.get(resource))
        return found or self._find_open_offers(report)

    def _find_open_claims(self, report: MpsReport) -> list[str]:
        """A mode cannot be put back while the card is lost, or the driver is let go of."""
        node = self._node
        if not node.machine.find_changed_modes() <= report.claims.keys():
            return [f"modes of {node.machine.find_changed_modes()} are changed, claims are {report.claims}"]
        gpus = {uuid for one in report.daemons.values() if one.running is not None for uuid in one.running.gpus}
        kept = report.claims.keys() - gpus
        if node.wish.is_paused:
            kept = set()
        if gpus - report.claims.keys() or kept - name_lost(node):
            return [f"claims are {report.claims}, daemons have {gpus}"]
        return []

    def _find_open_daemon(self, resource: str, daemon: DaemonReport | None) -> list[str]:
        node = self._node
        wanted = node.wish.list_cards(resource) - {
            held.card for held in node.pods if (held.resource, held.by_mps) != (resource, True)
        }
        is_held, is_paused = bool(node.holds(resource)), node.wish.is_paused
        if daemon is None or daemon.running is None:
            held_cards = {held.card for held in node.pods if (held.resource, held.by_mps) == (resource, True)}
            is_needed = not is_paused and (wanted | held_cards) - node.lost
            is_known = daemon is not None and not held_cards and not node.wish.list_cards(resource)
            return [f"{resource} has no daemon: {daemon}"] if is_needed or is_known else []
        if not is_held and (is_paused or not node.wish.list_cards(resource)):
            return [f"{resource} has a daemon still: {daemon}"]
        if daemon.phase is not Phase.READY or not _runs(daemon):
            return [f"{resource} has a daemon that does not answer: {daemon}"]
        return [] if is_held else self._find_difference(resource, daemon.running, wanted)

    def _find_difference(self, resource: str, running: DaemonSpec, wanted: set[int]) -> list[str]:
        """Nobody holds it, so that it is what is wanted, without a card that was lost at its start."""
        node = self._node
        shares = next(form.replicas for form in node.wish.forms.values() if form.resource == resource)
        different = {*running.gpus} ^ {gpu_uuid(card) for card in wanted}
        if different - name_lost(node) or running.thread_percent != 100 // shares:
            return [f"{resource} shall have the cards {sorted(wanted)}, in {shares}: {running}"]
        return []

    def _find_open_offers(self, report: MpsReport) -> list[str]:
        node = self._node
        found = []
        for resource in RESOURCES:
            held = {one.device for one in node.pods if one.resource == resource}
            wanted = self._build_offer(resource, report) - held
            there = healthy(node.kubelet, resource) - held
            if there != wanted:
                found.append(f"{resource} has {sorted(there)} on offer, not {sorted(wanted)}")
        return found

    def _build_offer(self, resource: str, report: MpsReport) -> set[str]:
        node = self._node
        if node.wish.is_paused:
            return set()
        daemon = report.daemons.get(resource)
        served = {*daemon.running.gpus} if daemon and daemon.running and daemon.phase is Phase.READY else set()
        offer: set[str] = set()
        for card, form in node.wish.forms.items():
            held_otherwise = any(
                held.card == card and (held.resource, held.by_mps) != (form.resource, form.mps) for held in node.pods
            )
            if form.resource != resource or card in node.lost or held_otherwise:
                continue
            if (gpu_uuid(card) in served) if form.mps else (gpu_uuid(card) not in report.claims):
                offer |= list_ids(card, form.replicas)
        return offer


def _runs(daemon: DaemonReport) -> bool:
    """Not one that was killed and is still to be reaped, by whom it is looked after."""
    try:
        return daemon.pid is not None and psutil.Process(daemon.pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
