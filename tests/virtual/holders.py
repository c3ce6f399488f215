"""Stands in for services/held.py: an answer a moment after a question, and every second while something waits."""

from __future__ import annotations

from collections.abc import Callable

from nvdp.model.held import Held
from nvdp.services.events import HeldRead
from tests.virtual.clock import Clock

ANSWER_S = 0.010  # until PodResources answers
POLL_S = 1.0


class VirtualHolders:
    """``answer`` is what the kubelet says to a question of that time; counted is what the supervisor asks."""

    def __init__(self, clock: Clock, answer: Callable[[float], Held]) -> None:
        self.asked = 0
        self.waiting = False
        self._clock = clock
        self._answer = answer
        self._polls = 0

    def ask(self) -> None:
        self.asked += 1
        self._look()

    def set_waiting(self, waiting: bool, /) -> None:  # noqa: FBT001 - as the service
        if waiting and not self.waiting:
            self._polls += 1
            self._poll(self._polls)
        self.waiting = waiting

    def _poll(self, number: int) -> None:
        def again() -> None:
            if self.waiting and number == self._polls:
                self._look()
                self._poll(number)

        self._clock.after(POLL_S, again)

    def _look(self) -> None:
        asked_at = self._clock.now
        self._clock.after(ANSWER_S, lambda: self._clock.put(HeldRead(held=self._answer(asked_at))))
