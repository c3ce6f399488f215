"""A model of ``nvdp mps`` for random histories: the real course of its daemons, and who is hit by what it does.

Whoever loses a daemon that it works through, or a card to a daemon, while nothing says that this is all right, is an
``AssertionError`` with its story.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from nvdp.model.mps import DaemonReport, DaemonSpec, Grant, MpsGrants, MpsView, Phase
from nvdp.planning.daemon_course import Stage, Standing, Step, Surroundings, Wish, plan_daemons

LOOKS_S = 1.0  # it reads what it is told this often
Holders = Callable[[str], Iterator[tuple[str, str, bool]]]
"""By card the pods that have it, under which resource, and whether by MPS."""


def list_kept(grant: Grant) -> Collection[str]:
    """The cards of pods that it may be started again with, though they are to leave it."""
    return grant.kept.gpus if grant.kept is not None else ()


class Keeper:
    """Control daemons by resource. What it was told last it acts upon at its next look: it is one look behind."""

    def __init__(self, holders: Holders) -> None:
        self.up = True
        self.running: dict[str, DaemonSpec] = {}
        self.claims: dict[str, str] = {}
        self._heard = MpsGrants()
        self._acted = ""
        self._holders = holders

    @property
    def view(self) -> MpsView:
        daemons = {name: DaemonReport(phase=Phase.READY, running=spec) for name, spec in self.running.items()}
        problem = "" if self.up else "nvdp mps does not answer"
        return MpsView(problem=problem, daemons=daemons, claims=dict(self.claims), heard=self._acted)

    def list_takeable(self, told: MpsGrants) -> set[str]:
        """The cards that it may take, by what it goes by, or by what it is ``told`` when it reads that."""
        words = (told, self._heard) if self.up else (told,)
        return {
            uuid for word in words for grant in word.resources.values() for uuid in (*grant.free, *list_kept(grant))
        }

    def set_up(self, told: MpsGrants, *, up: bool) -> None:
        """It is gone, or there again: then it reads what it is ``told`` before it does anything."""
        if up and not self.up:
            self._heard, self._acted = told, ""
        self.up = up

    def look(self, told: MpsGrants, cards: Collection[str]) -> None:
        """One round: by what it heard before, and then it reads what it is ``told``. ``cards`` are all there are."""
        if not self.up:
            return
        wishes = {
            name: Wish(wanted=one.wanted, free=one.free, is_in_use=bool(one.held), at_once=one.at_once)
            for name, one in self._heard.resources.items()
        }
        standings = {name: Standing(running=spec, cleared=cards) for name, spec in self.running.items()}
        standings |= {name: Standing(cleared=cards) for name in wishes.keys() - self.running.keys()}
        course = plan_daemons(wishes, standings, Surroundings(present=cards, claimed=self.claims))
        for name, step in course.steps.items():
            self._take_step(name, step, at_once=name in wishes and wishes[name].at_once)
        self.claims = dict.fromkeys(sorted(course.claims), "Default")
        self._acted, self._heard = self._heard.digest, told

    def _take_step(self, resource: str, step: Step, *, at_once: bool) -> None:
        if step.stage is Stage.END:
            self._end(resource, step.target, at_once=at_once)
        for uuid in step.target.gpus if step.target is not None else ():
            if uuid not in self.claims:
                self._take(uuid, resource, at_once=at_once)
        if step.stage is Stage.START and step.target is not None:
            self.running[resource] = step.target

    def _take(self, uuid: str, resource: str, *, at_once: bool) -> None:
        for pod, name, by_mps in self._holders(uuid):
            assert at_once or (by_mps and name == resource), f"{uuid} is taken from {pod}, which has it as {name}"

    def _end(self, resource: str, target: DaemonSpec | None, *, at_once: bool) -> None:
        """A card that is on offer by the daemon may be given out at any time: that it restarts is not counted."""
        kept = target.gpus if target is not None else ()
        for uuid in self.running.pop(resource).gpus:
            for pod, name, by_mps in self._holders(uuid):
                is_hit = by_mps and name == resource and uuid not in kept
                assert at_once or not is_hit, f"the daemon of {resource} ends while {pod} works through it on {uuid}"
