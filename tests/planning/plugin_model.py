"""The plugin of a random history: the real planning functions, called as the supervisor and its services call them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import msgspec

from nvdp.config.schema import MigStrategy, ModeChange
from nvdp.model.health import Ailment
from nvdp.model.held import Held, Source
from nvdp.model.inventory import Gpu
from nvdp.model.listing import Strategy
from nvdp.model.mps import MpsGrants
from nvdp.model.reasons import Cause
from nvdp.planning.allotment import resolve_pins
from nvdp.planning.assignment import Assignment
from nvdp.planning.devices import list_instances
from nvdp.planning.granted import restore_granted
from nvdp.planning.judging import find_unfit
from nvdp.planning.ledger import Given, begin_anew, give, note_taken, restore, uuid_of_id
from nvdp.planning.means import Means
from nvdp.planning.plan import Inputs, Plan, build_plan
from nvdp.planning.presence import Presence, lose_driver, merge_scan, recall
from tests.planning import list_checks
from tests.planning.files import parse_file, share_all
from tests.planning.hardware import Machine
from tests.planning.keeper_model import LOOKS_S, Keeper
from tests.planning.kubelet_model import Kubelet
from tests.planning.oracle import Oracle

MOST_TURNS = 6  # plans at one time; more would mean that planning does not come to rest
Planner = Callable[[Inputs], Plan]


class Plugin:
    """The node. All times are seconds of ``now``. ``plan_with`` is what is under test."""

    def __init__(
        self,
        *,
        text: str = share_all(1).text,
        cards: int = 2,
        plan_with: Planner = build_plan,
        names_finished: bool = False,
        look_closely_every: int = 16,
    ) -> None:
        self.now = 1000.0
        self.text = text
        self.config = parse_file(text)
        self.machine = Machine(cards)
        self.kubelet = Kubelet(names_finished=names_finished)
        self.oracle = Oracle()
        self.held = Held(source=Source.POD_RESOURCES, requested_at=self.now)
        self.given: dict[str, Given] = {}
        self.refused_at: dict[tuple[str, str], float] = {}
        self.names: frozenset[str] = frozenset()
        self.pins: dict[str, str] = {}
        self.parents: dict[str, str] = {}
        self.by_mps: dict[str, tuple[str, ...]] = {}
        self.granted = restore_granted(MpsGrants())
        self.disk_full = False
        self.keeper = Keeper(self._find_holders)
        self.told = MpsGrants()
        self._keeper_at = self.now
        self.orphans: set[str] = set()  # MIG devices of which nobody can tell any more what GPU they were of
        self.plan: Plan | None = None
        self.plans = self.refused_edits = 0
        self._reports: list[tuple[str, int]] = []
        self._asked_at = self.now
        self._answer_at: float | None = None
        self._plan_with = plan_with
        self._look_closely_every = look_closely_every
        self._presence: Presence | None = None
        self.scan()

    @property
    def presence(self) -> Presence:
        assert self._presence is not None
        return self._presence

    @property
    def gpus(self) -> dict[str, Gpu]:
        """All that the plugin knows of, by UUID."""
        return {gpu.uuid: gpu for gpu in self.presence.inventory.gpus}

    @property
    def ailments(self) -> dict[str, Ailment]:
        if self._presence is None:
            return {}
        found = self._presence.ailments
        for gpu in self._presence.inventory.gpus:
            if gpu.uuid in found:
                found |= {part.uuid: found[gpu.uuid] for part in list_instances(gpu)}
        return found

    @property
    def gone(self) -> set[str]:
        """GPUs, with their MIG devices, that no scan finds any more."""
        return {uuid for uuid, ailment in self.ailments.items() if ailment.cause is Cause.VANISHED}

    def find_gpu(self, uuid: str) -> str:
        """The GPU of a MIG device, there or not, as far as anybody can know; of a GPU itself."""
        return uuid if uuid in self.orphans else self.machine.parents.get(uuid, uuid)

    @property
    def placed(self) -> dict[str, Assignment]:
        """How each GPU that is there is to be offered, unless it may turn out to be MIG devices."""
        if self.plan is None:
            return {}
        may_be_cut = {gpu.uuid for gpu in self.gpus.values() if gpu.mig is None and self._cuts}
        return {uuid: each for uuid, each in self.plan.assignments.items() if uuid not in self.gone | may_be_cut}

    @property
    def _cuts(self) -> bool:
        return self.config.flags.mig_strategy is not MigStrategy.NONE

    def is_by_mps(self, resource: str) -> bool:
        """Whether what is listed under this name is so by MPS."""
        return resource in self.given and self.given[resource].listed.facts.strategy is Strategy.MPS

    # -- the daemons of MPS -----------------------------------------------------------------------------------------

    def keep_up(self) -> None:
        """``nvdp mps`` looks, as often as it does in the time that has passed."""
        while self._keeper_at + LOOKS_S <= self.now:
            self._keeper_at += LOOKS_S
            self.keeper.look(self.told, {uuid for uuid in self.gpus if uuid not in self.gone})

    def set_keeper_up(self, *, up: bool) -> None:
        self.keeper.set_up(self.told, up=up)
        self.turn()

    def set_disk_full(self, *, full: bool) -> None:
        """What is to be told cannot be written, or can be again, which is tried every few seconds."""
        self.disk_full = full
        self.turn()

    def _find_holders(self, uuid: str) -> Iterator[tuple[str, str, bool]]:
        """Pods that have the card, or a part of it."""
        for grant in (*self.kubelet.pods.values(), *self.kubelet.in_flight):
            if grant.pod not in self.kubelet.unknowable | self.kubelet.given_up:
                mine = {self.find_gpu(uuid_of_id(device_id)) for device_id in grant.device_ids}
                if uuid in mine:
                    yield grant.pod, grant.resource, grant.mps

    @property
    def ours(self) -> frozenset[str]:
        """Names that are ours by memory, or by what there is of MPS."""
        return self.names.union(self.keeper.running, self.told.resources)

    # -- the plugin -------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Plan and give out until nothing more can be done at once, as the supervisor does."""
        for _ in range(MOST_TURNS):
            self.granted = self.granted.hear(self.keeper.view)
            self.inputs = inputs = self.build_inputs()
            self.plan = self._plan_with(inputs)
            self.plans += 1
            assert list(self.plan.lists) == sorted(self.plan.lists), "resources are not in order"
            if self.plans % self._look_closely_every == 0:
                list_checks.check_equal(self._plan_with(_reorder(inputs)), self.plan)
                list_checks.check_sizes(self)
            before = {resource: given.listed for resource, given in self.given.items()}
            self._give(self.plan)
            list_checks.check_withdrawals(self, before)
            list_checks.check_order(self, before)
            list_checks.check_numbers(self, before)
            is_told = (self.granted.in_file, self.granted.unheard) != (inputs.granted.in_file, inputs.granted.unheard)
            if not is_told and (self.plan.check_at is None or self.plan.check_at > self.now):
                self.kubelet.note_known(holding for holding in self.held.holdings if holding.resource in self.given)
                return
        raise AssertionError("planning does not come to rest")

    def build_inputs(self) -> Inputs:
        return Inputs(
            config=self.config,
            inventory=self.presence.inventory,
            ailments=self.ailments,
            held=self.held,
            given={
                resource: msgspec.structs.replace(given, allocations=self.kubelet.traces(resource))
                for resource, given in self.given.items()
            },
            names=self.ours,
            pins=self.pins,
            now=self.now,
            parents=self.parents,
            by_mps=self.by_mps,
            granted=self.granted,
            means=Means(mps=self.keeper.view),
        )

    def _give(self, plan: Plan) -> None:
        for resource, listed in plan.lists.items():
            before = self.given.get(resource)
            if before is None or before.listed != listed:
                version = before.version + 1 if before is not None else 1
                self.given[resource] = give(before, listed, version=version, now=self.now)
                if resource not in self.kubelet.streams:
                    self._note_taken(resource)
        for resource in [resource for resource in self.given if resource not in plan.lists]:
            del self.given[resource]
            self._forget_reports(resource)
            self.kubelet.withdraw(resource)
        self.names |= set(plan.lists)
        self.parents, self.by_mps = dict(plan.parents), dict(plan.by_mps)
        self.granted = self.granted.ask(self.granted.complete(plan.grants))
        if not self.disk_full:
            self._write_grants()
        if self.config.allocation.mode_change is ModeChange.IMMEDIATE:
            self._mix()
        refused = {
            (resource, device.id)
            for resource, given in self.given.items()
            for device in given.listed.devices
            if not device.healthy
        }
        self.refused_at = {key: self.refused_at.get(key, self.now) for key in refused}

    def _write_grants(self) -> None:
        assert self.granted.asked is not None
        self.told = self.granted.asked
        self.granted = self.granted.note_written(self.told).hear(self.keeper.view)

    def _mix(self) -> None:
        """By choice, who has a card goes on with it in the form in which it is on offer now."""
        for pod, grant in self.kubelet.pods.items():
            listed = self.given[grant.resource].listed.healthy_by_gpu if grant.resource in self.given else {}
            if any(listed.get(uuid_of_id(device_id)) for device_id in grant.device_ids):
                self.kubelet.pods[pod] = dataclasses.replace(grant, mps=self.is_by_mps(grant.resource))

    def _note_taken(self, resource: str) -> None:
        """All streams have the newest list, or there is none."""
        self._forget_reports(resource)
        given = self.given[resource]
        self.given[resource] = note_taken(given, version=given.version, now=self.now)

    def _forget_reports(self, resource: str) -> None:
        self._reports = [report for report in self._reports if report[0] != resource]

    def deliver_reports(self) -> None:
        """The plugin hears of lists that were taken a moment ago, and perhaps have been replaced since."""
        reports, self._reports = self._reports, []
        for resource, version in reports:
            self.given[resource] = note_taken(self.given[resource], version=version, now=self.now)
        self.turn()

    def restart_plugin(self, *, forget: bool = False) -> None:
        """The process dies and another begins, with what pods hold; without anything to read it cannot know of them.

        ``forget``: the state directory was lost, and with it the names in use and the pins.
        """
        self.kubelet.lose_plugin(self.now)
        self._reports.clear()
        self.given.clear()
        self.refused_at.clear()
        self.granted = restore_granted(self.told)
        before = {} if forget else self.placed
        self.plan = None
        self._presence = None if forget else recall(self.presence.inventory)
        self.held = self.kubelet.read_holders(self.now)
        if forget:
            self.names, self.pins, self.parents, self.by_mps = frozenset(), {}, {}, {}
            held = (device_id for grant in self.kubelet.pods.values() for device_id in grant.device_ids)
            self.orphans |= {uuid_of_id(device_id) for device_id in held}
            self.oracle.forget()
        self.kubelet.unknowable.update(
            pod for pod, grant in self.kubelet.pods.items() if not self._can_know_of(grant.resource)
        )
        self.given.update(restore(self.held, names=self.ours, now=self.now))
        self.scan()
        list_checks.check_unmoved(before, self.placed)

    def _can_know_of(self, resource: str) -> bool:
        """Whether a new process can tell from what it reads that the holders of the resource are ours."""
        return self.held.source is not None and (resource.startswith("nvidia.com/") or resource in self.ours)

    def restart_actor(self, number: int) -> None:
        """The thread that serves one resource dies, and another takes its place."""
        if self.given:
            resource = sorted(self.given)[number % len(self.given)]
            self.kubelet.lose_stream(resource, self.now)
            anew = begin_anew(self.given[resource], now=self.now)
            self.given[resource] = give(anew, anew.listed, version=1, now=self.now)
            self._note_taken(resource)
            self.turn()

    def scan(self) -> None:
        """NVML is asked for its GPUs."""
        before = self.placed
        scanned, silenced = self.machine.scan()
        self._see(merge_scan(self._presence, scanned, silenced, now=self.now, wall=self.now))
        self.turn()
        list_checks.check_unmoved(before, self.placed)

    def lose_driver(self) -> None:
        self._see(lose_driver(self.presence, "gone", wall=self.now))
        self.turn()

    def _see(self, presence: Presence) -> None:
        before, self._presence = self._presence, presence
        self.orphans -= {part.uuid for gpu in presence.inventory.gpus for part in list_instances(gpu)}
        if before is None or before.inventory != presence.inventory:
            self._follow()

    def _follow(self) -> None:
        """Turn indices and counts into GPUs, as is done when a file is applied and when the GPUs are others."""
        gpus = self.presence.inventory.gpus
        self.pins = resolve_pins(self.config, gpus, self.ailments, self.pins)
        self.oracle.look(self.text, gpus, gone=self.gone)

    def edit(self, text: str) -> None:
        config, inventory = parse_file(text), self.presence.inventory
        if find_unfit(config, inventory, resolve_pins(config, inventory.gpus, self.ailments, self.pins)) is not None:
            self.refused_edits += 1
            return
        self.text, self.config = text, config
        self._follow()
        self.turn()


def _reorder(inputs: Inputs) -> Inputs:
    """The same inputs, every mapping and every set of equals in another order; holders of one ID stay in theirs."""
    holdings = sorted(inputs.held.holdings, key=lambda held: (held.resource, held.device_id), reverse=True)
    return msgspec.structs.replace(
        inputs,
        given=dict(reversed(inputs.given.items())),
        ailments=dict(reversed(inputs.ailments.items())),
        pins=dict(reversed(inputs.pins.items())),
        inventory=msgspec.structs.replace(inputs.inventory, gpus=tuple(reversed(inputs.inventory.gpus))),
        held=msgspec.structs.replace(inputs.held, holdings=tuple(holdings)),
    )
