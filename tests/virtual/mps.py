"""``nvdp mps`` beside a virtual node: what it is told, and what it, or a test, has it say."""

from __future__ import annotations

import msgspec

from nvdp.model.inventory import ComputeMode
from nvdp.model.mps import DaemonReport, DaemonSpec, MpsGrants, MpsView, Phase
from nvdp.services.events import MpsSeen
from tests.virtual.clock import Clock

FOLLOWS_S = 1.0


class VirtualMps:
    """Takes the place of both services, of what the plugin hears and of what it tells.

    If it ``runs``, daemons follow what is granted a second later; else nothing is said but what a test says.
    """

    def __init__(self, clock: Clock, told: list[MpsGrants], *, runs: bool) -> None:
        self._clock = clock
        self._runs = runs
        self._running: dict[str, DaemonSpec] = {}
        self.told = told
        self.found = told[-1] if told else MpsGrants()
        self.is_used = False
        self._said: MpsView | None = None

    def use(self, *, is_used: bool) -> None:
        self.is_used = is_used

    def want(self, grants: MpsGrants) -> None:
        if self.told[-1:] == [grants] and self._said is not None:
            return
        self.told.append(grants)
        if self._runs:
            self._clock.after(FOLLOWS_S, self._follow)

    def say(self, view: MpsView) -> None:
        if view != self._said:
            self._said = view
            self._clock.put(MpsSeen(view=view, at=self._clock.now))

    def _follow(self) -> None:
        granted = self.told[-1].resources
        for resource, grant in granted.items():
            if grant.held and resource in self._running and not grant.at_once:
                continue
            self._running.pop(resource, None)
            gpus = tuple(uuid for uuid in grant.wanted.gpus if uuid in grant.free) if grant.wanted is not None else ()
            if gpus:
                self._running[resource] = msgspec.structs.replace(grant.wanted, gpus=gpus)
        self._running = {resource: spec for resource, spec in self._running.items() if resource in granted}
        self.say(
            MpsView(
                daemons={one: DaemonReport(phase=Phase.READY, running=spec) for one, spec in self._running.items()},
                claims={uuid: ComputeMode.DEFAULT.value for spec in self._running.values() for uuid in spec.gpus},
            )
        )
