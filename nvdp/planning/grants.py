"""Which GPUs ``nvdp mps`` may take, and which of its daemons pods depend on: for one plan. Pure.

``nvdp mps`` hears of it a moment later, and tells what it took a moment after that. A GPU that it was allowed to take
until now is therefore offered in no other form before it must have been heard of, one way or the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from nvdp.config.schema import Config
from nvdp.model.mps import HEARTBEAT_S, DaemonSpec, MpsGrants
from nvdp.planning.agenda import Agenda
from nvdp.planning.assignment import Assignment, Form
from nvdp.planning.daemons import Daemons
from nvdp.planning.ledger import Given
from nvdp.planning.mps_specs import build_grants
from nvdp.planning.rivals import Known
from nvdp.planning.withdrawal import Verdict, Waiting, judge_unseen, may_give_up

HEARD_S: Final = 3 * HEARTBEAT_S
"""How long it takes at most until ``nvdp mps`` has read what it is told, and we have read what came of it."""


def restore_granted(found: MpsGrants, *, now: float) -> dict[str, float]:
    """What a predecessor granted, as it told ``nvdp mps`` last: until now, if the first plan does not go on with it."""
    return {uuid: now for grant in found.resources.values() for uuid in grant.free}


class Granting:
    """What is granted, as the plan comes about. Lives for one plan.

    ``granted`` is when each GPU was last free for MPS, infinity for those that are; see ``Plan``.
    """

    def __init__(
        self,
        *,
        assignments: Mapping[str, Assignment],
        given: Mapping[str, Given],
        granted: Mapping[str, float],
        daemons: Daemons,
        waiting: Waiting,
        agenda: Agenda,
    ) -> None:
        self._assignments = assignments
        self._given = given
        self._before = granted
        self._daemons = daemons
        self._waiting = waiting
        self._agenda = agenda
        self._free: dict[str, set[str]] = {}

    def allow(self, resource: str, uuid: str) -> None:
        """The GPU is free of every other form: the daemon of the resource may have it.

        As long as nobody can tell who holds anything, no GPU is taken from whoever may have it.
        """
        if self._waiting.held.source is not None:
            self._free.setdefault(resource, set()).add(uuid)

    def find_grant(self, uuid: str) -> str:
        """Why a GPU must not be offered otherwise yet, though no daemon is seen with it; empty if it may."""
        until = self._end_of(uuid) + HEARD_S
        if uuid not in self._before or self._daemons.view is None or self._waiting.now >= until:
            return ""
        self._agenda.note(Verdict(allowed=False, at=until))
        return "kept for MPS until nvdp mps must have heard that it is wanted otherwise"

    @property
    def granted(self) -> dict[str, float]:
        """What the next plan has to know."""
        free = {uuid for uuids in self._free.values() for uuid in uuids}
        ended = {uuid: self._end_of(uuid) for uuid in self._before if uuid not in free}
        return {uuid: at for uuid, at in ended.items() if self._waiting.now < at + HEARD_S} | dict.fromkeys(free, inf)

    def finish(self, config: Config, specs: Mapping[str, DaemonSpec], known: Known) -> MpsGrants:
        """All that ``nvdp mps`` is told. ``known`` are all IDs that the kubelet may know, by device and form."""
        held: dict[str, set[str]] = {}
        for uuid, forms in known.items():
            for form, ids in forms.items():
                if self._is_held(uuid, form, ids):
                    held.setdefault(form.resource, set()).add(uuid)
        if self._waiting.held.source is None:  # anything may be somebody's
            for resource, spec in specs.items():
                held.setdefault(resource, set()).update(spec.gpus)
        return build_grants(config, specs, free=self._free, held=held)

    def _is_held(self, uuid: str, form: Form, ids: Sequence[str]) -> bool:
        """Whether pods have IDs of the form through MPS, or may have.

        Where memory says otherwise, but the daemon runs with the GPU, they may have it through that all the same.
        """
        given, holders = self._given.get(form.resource), self._waiting.holders.get(form.resource, {})
        if not form.mps:
            return self._daemons.has(form.resource, uuid) and not holders.keys().isdisjoint(ids)
        assignment = self._assignments.get(uuid)
        if assignment is not None and assignment.form == form:
            return not holders.keys().isdisjoint(ids) or (given is not None and self._is_unseen(given, ids))
        verdict = may_give_up(given, ids, self._waiting, resource=form.resource)
        if not verdict.allowed:
            self._agenda.note(verdict)
        return not verdict.allowed

    def _is_unseen(self, given: Given, ids: Sequence[str]) -> bool:
        """Whether an Allocate of any is too young for what is known of holders: then an answer is asked for."""
        unseen = [one for one in (judge_unseen(given, each, self._waiting) for each in ids) if not one.allowed]
        for verdict in unseen:
            self._agenda.note(verdict)
        return bool(unseen)

    def _end_of(self, uuid: str) -> float:
        return min(self._before.get(uuid, self._waiting.now), self._waiting.now)
