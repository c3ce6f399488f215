"""Which GPUs ``nvdp mps`` may take, and which of its daemons pods depend on: for one plan. Pure.

``nvdp mps`` hears of it a moment later, and tells what it took a moment after that. A GPU that it was allowed to take
until now is therefore offered in no other form before that is over (``granted``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nvdp.config.schema import Config
from nvdp.model.mps import DaemonSpec, MpsGrants
from nvdp.planning.agenda import Agenda
from nvdp.planning.assignment import Assignment, Form
from nvdp.planning.daemons import Daemons
from nvdp.planning.ledger import Given
from nvdp.planning.mps_specs import build_grants
from nvdp.planning.rivals import Known
from nvdp.planning.withdrawal import Waiting, judge_unseen, may_give_up


class Granting:
    """What is granted, as the plan comes about. Lives for one plan."""

    def __init__(
        self,
        *,
        assignments: Mapping[str, Assignment],
        given: Mapping[str, Given],
        daemons: Daemons,
        waiting: Waiting,
        agenda: Agenda,
    ) -> None:
        self._assignments = assignments
        self._given = given
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
