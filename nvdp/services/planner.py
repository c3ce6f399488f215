"""Makes the plan anew, and has it carried out. Belongs to the main thread, as a part of the supervisor."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Final

import msgspec

from nvdp.config.schema import Config
from nvdp.model.cdi import CdiClass, CdiWish
from nvdp.model.held import Held
from nvdp.model.listing import DeviceIDStrategy
from nvdp.model.mps import MpsGrants, MpsView
from nvdp.model.reasons import Reason
from nvdp.planning.by_cdi import has_unseen, keep_by_cdi, restore_by_cdi
from nvdp.planning.cdi_wish import build_wish, keep_longer, list_handed_out
from nvdp.planning.granted import Granted, restore_granted
from nvdp.planning.holders import count_held_elsewhere
from nvdp.planning.indices import keep_indices, restore_indices
from nvdp.planning.means import OBSTACLES
from nvdp.planning.mps_pending import find_pending
from nvdp.planning.plan import Inputs, Plan, build_plan
from nvdp.planning.provision import uses_cdi
from nvdp.planning.withdrawal import QUIET_S
from nvdp.services.collaborators import Collaborators
from nvdp.services.events import GpusScanned
from nvdp.services.list_times import Cause
from nvdp.services.picture import Picture
from nvdp.services.specs import Specs
from nvdp.services.telling import Telling

_AGAIN_S: Final = 0.1
_UNSEEN: Final = MpsView(problem="nvdp mps has not been looked for yet")


class Planner:
    """``plan`` is the newest one, ``error`` says why there is none newer: a defect, which takes nothing away.

    ``mps`` is what is seen of the daemons of MPS. ``mark`` says that something has changed; ``turn`` then plans and
    gives out until nothing more can be done at once.
    """

    def __init__(
        self,
        collaborators: Collaborators,
        specs: Specs,
        *,
        telling: Telling,
        picture: Picture,
        clock: Callable[[], float],
    ) -> None:
        self._with = collaborators
        self._specs = specs
        self._telling = telling
        self._picture = picture
        self._clock = clock
        self._indices = restore_indices(collaborators.memory.indices, now=clock())
        self._by_cdi = restore_by_cdi(collaborators.memory.by_cdi, now=clock())
        self._by_mps = collaborators.memory.by_mps
        self._granted = restore_granted(collaborators.grants.found)
        self._told: Plan | None = None
        self._asked_at = float("-inf")
        self._allocated_at = float("-inf")
        self._cause: Cause | None = None
        self._stale = False
        self._owes_wish = False
        self._awaits_daemons = False
        self._in_specs: frozenset[str | CdiClass] = frozenset()
        self._leaving: frozenset[str | CdiClass] = frozenset()
        self._leaving_since = float("-inf")
        self.mps = _UNSEEN
        self.plan: Plan | None = None
        self.error = ""

    @property
    def has_cause(self) -> bool:
        """Whether what the next lists change for is known already."""
        return self._cause is not None

    @property
    def names(self) -> frozenset[str]:
        """The resources that are ours, or once were: a control daemon tells it, should the memory of it be lost."""
        return self._with.memory.names.union(self._with.grants.found.resources, self.mps.daemons)

    @property
    def waits(self) -> bool:
        """Whether something waits for holders."""
        is_plan = self.plan is not None and self.plan.waiting
        return self._owes_wish or self._awaits_daemons or is_plan

    def mark(self, cause: Cause | None = None) -> None:
        """The next turn plans anew; ``cause`` is what its lists change for."""
        self._stale = True
        self._cause = cause if cause is not None else self._cause

    def see_mps(self, view: MpsView, *, at: float) -> None:
        """The daemons of MPS were seen anew, at ``at`` (monotonic seconds)."""
        before, self.mps = self.mps, view
        has_heard = self._follow_granted(self._granted.hear(view))
        if has_heard or _list_facts(before) != _list_facts(view):
            self.mark(Cause("health", at) if self._uses_mps else None)

    def note_grants(self, grants: MpsGrants) -> None:
        """These are where ``nvdp mps`` reads them."""
        granted = self._granted.note_written(grants)
        if self._follow_granted(granted if self.mps is _UNSEEN else granted.hear(self.mps)):
            self.mark()

    def _follow_granted(self, granted: Granted) -> bool:
        """Whether it changes what may be offered otherwise than by MPS."""
        before, self._granted = self._granted, granted
        return (before.in_file, before.unheard) != (granted.in_file, granted.unheard)

    def note_allocation(self, config: Config | None) -> None:
        """An Allocate was answered."""
        self._allocated_at = self._clock()
        # It must be remembered, at once, what each pod was told that will not go without saying later on.
        is_told = config is not None and (
            uses_cdi(config) or config.flags.plugin.device_id_strategy is DeviceIDStrategy.INDEX
        )
        if self.waits or is_told or self._uses_mps:
            self.mark()

    def are_holders_known(self, held: Held) -> bool:
        """Whether this answer shows what the latest Allocate handed out."""
        return held.source is not None and held.requested_at >= self._allocated_at + QUIET_S

    @property
    def _uses_mps(self) -> bool:
        return self.plan is not None and bool(self.plan.grants.resources)

    def turn(self, config: Config | None, scan: GpusScanned, held: Held) -> bool:
        """Plan and give out, if that is due. False if planning failed."""
        while config is not None and (self._stale or self._is_due):
            self._stale = False
            if not self._plan_once(config, scan, held):
                return False
        return True

    @property
    def _is_due(self) -> bool:
        at = self.plan.check_at if self.plan is not None else None
        return at is not None and at <= self._clock()

    def _plan_once(self, config: Config, scan: GpusScanned, held: Held) -> bool:
        """Plan and give out. False if planning failed: then the previous plan stays, and is shown as such."""
        drafted = self._draft(config, scan, held)
        if drafted is None:
            return False
        plan, waits = drafted
        self.plan, self._indices, self._by_cdi = plan, plan.indices, plan.by_cdi
        if waits:
            self.plan = msgspec.structs.replace(plan, check_at=None)  # it is made anew when the wait is over
            faults = {uuid: one for uuid, one in scan.ailments.items() if one.cause not in OBSTACLES}
            self._with.offers.mark_ailing(faults, cause=self._cause)  # which does not wait
            return True
        offers, memory = self._with.offers, self._with.memory
        memory.remember_handed_out(
            indices=keep_indices(plan.indices), by_cdi=keep_by_cdi(plan.by_cdi), parents=plan.parents
        )
        memory.remember_by_mps(plan.by_mps)
        self._picture.note_plan(plan)
        if offers.carry_out(plan.lists, cause=self._cause):
            memory.remember_names(plan.lists)
        elif plan.check_at is not None:
            # Nothing was given out that this moment could still depend on: whatever is waited for, it takes time.
            self.plan = plan = msgspec.structs.replace(plan, check_at=max(plan.check_at, self._clock() + _AGAIN_S))
        self._by_mps = plan.by_mps
        grants = self._granted.complete(plan.grants)
        self._granted = self._granted.ask(grants)
        self._with.grants.want(grants)  # now that Allocate refuses what is to be given up for it
        self._with.mps.use(is_used=self._uses_mps or self._granted.is_any)
        self._cause = None
        self._telling.tell_plan(self._told, plan)
        self._told = plan
        if plan.ask_since is not None and self._asked_at < plan.ask_since:
            self._asked_at = self._clock()
            self._with.holders.ask()
        offers.set_held_elsewhere(count_held_elsewhere(plan.lists, held, parents=plan.parents))
        return True

    def _draft(self, config: Config, scan: GpusScanned, held: Held) -> tuple[Plan, bool] | None:
        """The plan, and whether its lists have to wait for the CDI specs; None after a defect."""
        assert scan.inventory is not None
        try:
            plan = build_plan(
                Inputs(
                    config=config,
                    inventory=scan.inventory,
                    ailments=scan.ailments,
                    held=held,
                    given=self._with.offers.given,
                    names=self.names,
                    pins=self._with.adoption.pins,
                    means=msgspec.structs.replace(self._specs.build_means(scan), mps=self.mps),
                    now=self._clock(),
                    indices=self._indices,
                    by_cdi=self._by_cdi,
                    by_mps=self._by_mps,
                    granted=self._granted,
                    parents=self._with.memory.parents,
                )
            )
            waits = self._wish(config, plan, scan, held)
            self._awaits_daemons = bool(find_pending(plan, self.mps))
        except Exception as error:  # noqa: BLE001 - a defect in planning must not take away what is given out
            text = f"{type(error).__name__}: {error}"
            if text != self.error:
                self._with.log(
                    Reason.SERVICE_RESTARTED,
                    f"planning failed, the previous plan stays: {text}",
                    error=text,
                    trace=traceback.format_exc(),
                )
            self.error = text
            self.plan = None if self.plan is None else msgspec.structs.replace(self.plan, check_at=None)
            return None
        self.error = ""
        return plan, waits

    def _wish(self, config: Config, plan: Plan, scan: GpusScanned, held: Held) -> bool:
        """Have the CDI specs follow the plan. Whether the lists have to wait for them.

        They are done away with only when it is known that no pod may want them at its next start. The same goes for a
        name in them: until the next lists are out, Allocate may answer with it.
        """
        assert scan.inventory is not None
        is_used = uses_cdi(config)
        self._owes_wish = not is_used and has_unseen(plan.by_cdi, plan.holders)
        if not is_used and not plan.by_cdi and self._specs.are_none:
            return False
        wish = build_wish(config, plan, scan.inventory, ailments=scan.ailments, means=self._specs.build_means(scan))
        if held.source is None:
            wish = msgspec.structs.replace(wish, keep_classes=frozenset(CdiClass))  # anything may be somebody's
        wish = self._keep_leaving(wish, held)
        if wish.enabled or self.are_holders_known(held):
            self._specs.want(wish)
        else:
            self._owes_wish = True
        return self._specs.holds_back

    def _keep_leaving(self, wish: CdiWish, held: Held) -> CdiWish:
        """The wish with what the last one had beyond it, until holders are known who may have got that meanwhile."""
        wanted = list_handed_out(wish)
        leaving = self._in_specs - wanted
        if leaving != self._leaving or self._specs.holds_back:
            self._leaving, self._leaving_since = leaving, self._clock()
        is_known = self.are_holders_known(held) and held.requested_at >= self._leaving_since + QUIET_S
        if is_known or not leaving:
            self._in_specs, self._leaving = wanted, frozenset()
            return wish
        self._in_specs = wanted | leaving
        self._owes_wish = True
        return keep_longer(wish, leaving)


def _list_facts(view: MpsView) -> tuple[object, ...]:
    """What a plan depends on: not on clients, which come and go."""
    daemons = {resource: (one.phase, one.text, one.running) for resource, one in view.daemons.items()}
    return view.problem, view.claims, daemons
