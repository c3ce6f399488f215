"""A model of ``nvdp mps`` for random histories: it takes what it may, and ends what is not wanted and not in use.

Whoever loses a daemon that it works through, or a card to a daemon, while nothing says that this is all right, is an
``AssertionError`` with its story.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from nvdp.model.mps import DaemonReport, DaemonSpec, Grant, MpsGrants, MpsView, Phase

LOOKS_S = 1.0  # it reads what it is told this often
Holders = Callable[[str], Iterator[tuple[str, str, bool]]]
"""By card the pods that have it, under which resource, and whether by MPS."""


class Keeper:
    """Control daemons by resource. What it was told last it acts upon at its next look: it is one look behind."""

    def __init__(self, holders: Holders) -> None:
        self.up = True
        self.running: dict[str, DaemonSpec] = {}
        self.claims: dict[str, str] = {}
        self._heard = MpsGrants()
        self._holders = holders

    @property
    def view(self) -> MpsView:
        daemons = {name: DaemonReport(phase=Phase.READY, running=spec) for name, spec in self.running.items()}
        problem = "" if self.up else "nvdp mps does not answer"
        return MpsView(problem=problem, daemons=daemons, claims=dict(self.claims))

    def look(self, told: MpsGrants) -> None:
        """One round: by what it heard before, and then it reads what it is ``told`` now."""
        if not self.up:
            return
        for resource in sorted(self._heard.resources.keys() | self.running.keys()):
            self._see_to(resource, self._heard.resources.get(resource, Grant()))
        busy = {uuid for spec in self.running.values() for uuid in spec.gpus}
        self.claims = dict.fromkeys(sorted(busy), "Default")
        self._heard = told

    def _see_to(self, resource: str, grant: Grant) -> None:
        now, target = self.running.get(resource), self._build_target(resource, grant)
        if now is not None and now != target:
            if grant.held and not grant.at_once:
                return
            self._end(resource, now, target, at_once=grant.at_once)
        elif now is None and target is not None:
            for uuid in target.gpus:
                self._take(uuid, resource, at_once=grant.at_once)
            self.running[resource] = target

    def _build_target(self, resource: str, grant: Grant) -> DaemonSpec | None:
        """Its cards that are free and that no other daemon has."""
        others = {uuid for name, spec in self.running.items() if name != resource for uuid in spec.gpus}
        if grant.wanted is None:
            return None
        gpus = tuple(uuid for uuid in grant.wanted.gpus if uuid in grant.free and uuid not in others)
        return msgspec.structs.replace(grant.wanted, gpus=gpus) if gpus else None

    def _take(self, uuid: str, resource: str, *, at_once: bool) -> None:
        for pod, name, by_mps in self._holders(uuid):
            assert at_once or (by_mps and name == resource), f"{uuid} is taken from {pod}, which has it as {name}"

    def _end(self, resource: str, now: DaemonSpec, target: DaemonSpec | None, *, at_once: bool) -> None:
        """A card that is on offer by the daemon may be given out at any time: that it restarts is not counted."""
        kept = target.gpus if target is not None else ()
        for uuid in now.gpus:
            for pod, name, by_mps in self._holders(uuid):
                is_hit = by_mps and name == resource and uuid not in kept
                assert at_once or not is_hit, f"the daemon of {resource} ends while {pod} works through it on {uuid}"
        del self.running[resource]
