"""``nvdp mps`` beside a virtual node: what it is told, and what a test has it say."""

from __future__ import annotations

from nvdp.model.mps import MpsGrants, MpsView
from nvdp.services.events import MpsSeen
from tests.virtual.clock import Clock


class VirtualMps:
    """Takes the place of both services, of what the plugin hears and of what it tells."""

    def __init__(self, clock: Clock, told: list[MpsGrants]) -> None:
        self._clock = clock
        self.told = told
        self.found = told[-1] if told else MpsGrants()
        self.is_used = False

    def use(self, *, is_used: bool) -> None:
        self.is_used = is_used

    def want(self, grants: MpsGrants) -> None:
        self.told.append(grants)

    def say(self, view: MpsView) -> None:
        self._clock.put(MpsSeen(view=view, at=self._clock.now))
