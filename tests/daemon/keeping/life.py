"""One life of a node through steps in an order; a failure tells the steps that led to it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence

from nvdp.simulate.kubelet import KubeletCrashedError
from tests.daemon.keeping.node import Node
from tests.daemon.keeping.steps import STEPS, SURROUNDINGS, Effect, Step, turn_pause
from tests.daemon.keeping.truth import Truth, Watch
from tests.daemon.keeping.wish import ONE, PAIR, SHARED
from tests.daemon.process import LIMIT_S, wait_until

_SHOWN = 30
_SURROUNDED = 0.5  # of the steps have something else happen before them
_RESUMED = 0.5  # of the steps in a pause have it end before them: little happens while it lasts


class Life:
    """``begin``, any number of ``live``, then ``end``. ``told`` are the steps so far."""

    def __init__(self, node: Node, *, seed: int) -> None:
        node.chance.seed(seed)
        self._node = node
        self._truth = Truth(node)
        self._watch = Watch(node)
        self._concerned: set[str] = set()
        self._cut: set[str] = set()
        self._turns = {kind: _take_turns(steps, node) for kind, steps in STEPS.items()}
        self.told: list[str] = []

    def begin(self) -> None:
        """All processes, and a pod of each resource that has one at the beginning."""
        self._node.publish()
        self._node.start_missing()
        self._settle()
        for resource in (PAIR, ONE, SHARED):
            self._node.admit(resource)
        assert [held.by_mps for held in self._node.pods] == [True, True, False]
        self._settle()

    def live(self, kinds: Sequence[str]) -> None:
        """A step of each kind, in this order; now and then a pod comes or goes in between, or a card."""
        for kind in kinds:
            steps = [next(self._turns[kind])]
            if self._node.wish.is_paused and self._node.chance.random() < _RESUMED:
                steps.insert(0, turn_pause)
            elif self._node.chance.random() < _SURROUNDED:
                steps.insert(0, self._node.chance.choice(SURROUNDINGS))
            self.do(steps)

    def do(self, steps: Sequence[Step]) -> None:
        """These steps and nothing else."""
        for step in steps:
            self._do(step)

    def end(self, order: Sequence[str]) -> None:
        """All of it ends in this order (``plugin``, ``keeper``, ``pods``), and nothing is left."""
        node = self._node
        self.told.append(f"the end: {', '.join(order)}")
        node.start_missing()
        ends = {
            "plugin": lambda: node.end_plugin(signal.SIGTERM),
            "keeper": lambda: node.end_keeper(signal.SIGTERM),
            "pods": node.dismiss_all,
        }
        for word in order:
            ends[word]()
        if node.lost or node.wish.is_paused:  # modes could not be put back: the next start does it
            node.lose()
            node.publish(is_paused=False)
            node.start_missing()
            node.end_plugin(signal.SIGTERM)
            wait_until(lambda: node.keeper and node.report.pid == node.keeper.pid, LIMIT_S, what="a report")
            wait_until(lambda: self._is_claimed_by_daemons, LIMIT_S, what="what was left put back")
            node.end_keeper(signal.SIGTERM)
        left = node.find_leftovers()
        assert left == [], self._describe(left)

    def stop(self) -> None:
        self._watch.stop()

    @property
    def _is_claimed_by_daemons(self) -> bool:
        report = self._node.report
        return not report.claims.keys() - {
            gpu for one in report.daemons.values() if one.running is not None for gpu in one.running.gpus
        }

    def _do(self, step: Step) -> None:
        self._truth.look()
        self.told.append(step.__name__)
        began_at = time.monotonic()
        try:
            effect: Effect = step(self._node)
            self._concerned |= effect.concerned
            self._cut |= effect.cut
            if not effect.is_open:
                self._node.start_missing()
                self._settle()
        except (AssertionError, TimeoutError, KubeletCrashedError) as error:
            raise AssertionError(self._describe(error)) from error
        self.told[-1] += f" ({time.monotonic() - began_at:.1f} s)"

    def _settle(self) -> None:
        self._truth.settle(concerned=self._concerned, cut=self._cut)
        self._concerned, self._cut = set(), set()

    def _describe(self, error: object) -> str:
        node = self._node
        pods = [f"{held.pod.name} {held.resource} {held.device} by_mps={held.by_mps}" for held in node.pods]
        return f"{error}\nafter {self.told[-_SHOWN:]}\n{node.wish}, lost {node.lost}, pods {pods}"


def _take_turns(steps: Sequence[Step], node: Node) -> Iterator[Step]:
    """Without end; each as often as any other, and each time in another order."""
    while True:
        yield from node.chance.sample(steps, len(steps))
