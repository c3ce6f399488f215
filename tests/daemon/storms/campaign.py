"""One life through storms, and the calms between them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from http import HTTPStatus

from nvdp.simulate.kubelet import KubeletCrashedError
from tests.daemon.storms.node import Node
from tests.daemon.storms.trials import Trials
from tests.daemon.storms.truth import Truth
from tests.daemon.storms.use import Meter, Use
from tests.daemon.storms.weather import Storm

_SHOWN = 60
_STUCK = frozenset({"hang", "crash"})  # what a failing call does


class Campaign:
    """``calm_s`` is how long it may take after a storm until the kubelet sees what is true.

    A failure tells the last steps.
    """

    def __init__(self, node: Node, *, bounds: Use, calm_s: float) -> None:
        self._node = node
        self._truth = Truth(node, calm_s=calm_s)
        self._trials = Trials(node, self._truth)
        self._said: deque[str] = deque(maxlen=_SHOWN)
        self.meter = Meter(node, bounds=bounds)
        self.steps = 0

    def live(self, storms: Sequence[Storm]) -> None:
        self._node.begin()
        try:
            self._truth.wait_seen(is_long=True)
            for storm in storms:
                self._weather(storm)
                self._rest(storm)
        except (AssertionError, TimeoutError, KubeletCrashedError) as error:
            told = "\n".join(self._said)
            raise AssertionError(f"{error}\nafter {self.steps} steps, the last of which were:\n{told}") from error

    def _weather(self, storm: Storm) -> None:
        self._say("a storm")
        for step in storm.steps:
            self._say(str(step))
            self._node.do(step)
            self.steps += 1

    def _rest(self, storm: Storm) -> None:
        self._say(f"a calm, with {[*map(str, storm.stands)]}{', paused' if storm.is_paused else ''}; {storm.file}")
        self._node.calm_down(storm.stands, file=storm.file, ended=storm.ended, is_paused=storm.is_paused)
        self._truth.wait_seen(is_long=storm.is_long)
        if (storm.stands or _may_be_stuck(storm)) and self._truth.is_driver_used:
            # What ails a card may not have been looked at yet: it was off offer for another reason, which is over now.
            # And that a child says nothing is found only at the next look.
            self._node.daemon.wait_scans(2, self._truth.calm_s)
            self._truth.wait_seen(is_long=storm.is_long)
        self._check_answers()
        self._truth.wait_seen(is_long=False)  # also what was registered anew meanwhile, with sockets that were deleted
        self.meter.check()
        self._node.check_logs()
        self._say(str(storm.trial))
        getattr(self._trials, storm.trial.name)(*storm.trial.args)
        self._trials.admit(storm.arrivals)
        self._node.world.forget_events()

    def _check_answers(self) -> None:
        """The daemon is alive, soon also with sockets that were just deleted, and ready if it uses a driver.

        That may take the whole calm: a child that was stopped at its start is waited for a minute, and where no card
        is on offer anyway, the kubelet's view does not tell.
        """
        self._node.daemon.wait_probe("/healthz", lambda answer: answer.status == HTTPStatus.OK)
        expected = HTTPStatus.OK if self._truth.is_driver_used else HTTPStatus.SERVICE_UNAVAILABLE
        self._node.daemon.wait_probe("/readyz", lambda answer: answer.status == expected, self._truth.calm_s)

    def _say(self, text: str) -> None:
        self._said.append(f"{time.strftime('%H:%M:%S')} {text}")


def _may_be_stuck(storm: Storm) -> bool:
    """Whether the storm may have left a child that hangs, was stopped or is about to end."""
    return any(step.name == "stop_child" or (step.name == "fail" and step.args[2] in _STUCK) for step in storm.steps)
