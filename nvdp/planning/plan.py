"""The plan: what every resource offers, from configuration, inventory, health, holders and what was given before.

One pure function, ``build_plan``. The same inputs give the same lists, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from nvdp.config.schema import Config
from nvdp.config.schema import ModeChange as ModeChangeRule
from nvdp.model.health import Ailment
from nvdp.model.held import Held, Holding
from nvdp.model.inventory import Inventory
from nvdp.model.listing import ListedDevice, ResourceList
from nvdp.model.mps import MpsGrants
from nvdp.model.reasons import Cause
from nvdp.model.replica import ReplicaId
from nvdp.planning.agenda import Agenda
from nvdp.planning.allotment import Allotment, allot
from nvdp.planning.assignment import Assignment, Form, Withheld
from nvdp.planning.by_cdi import ByCdi, follow_by_cdi
from nvdp.planning.clients import Clients
from nvdp.planning.devices import Device
from nvdp.planning.facts import build_facts
from nvdp.planning.fitting import fit, limit_lists
from nvdp.planning.granted import Granted
from nvdp.planning.indices import Indices, Renumbered, judge_indices
from nvdp.planning.leaving import Leaving, Lists
from nvdp.planning.ledger import ByMps, Given, find_known, find_leaving, number_of_id, our_holdings
from nvdp.planning.locality import Locality
from nvdp.planning.means import Means
from nvdp.planning.numbering import choose_numbers
from nvdp.planning.provision import find_unmet, uses_cdi
from nvdp.planning.rivals import Rivals, find_parents
from nvdp.planning.withdrawal import Waiting, judge_unseen, may_give_up


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a plan depends on. ``now`` is monotonic seconds.

    ``names`` are the resources that we advertise or once did; ``pins`` are the UUIDs behind references and counts;
    ``means`` is by what devices are handed over. ``indices``, ``by_cdi``, ``by_mps`` and ``parents`` are of the plan
    before. ``ailments`` are by the UUIDs of GPUs and of MIG devices: that of a GPU is of any of its parts.
    """

    config: Config
    inventory: Inventory
    ailments: Mapping[str, Ailment]
    held: Held
    given: Mapping[str, Given]
    names: frozenset[str]
    pins: Mapping[str, str]
    means: Means = Means()
    now: float
    indices: Indices = {}
    by_cdi: ByCdi = {}
    by_mps: ByMps = {}
    granted: Granted = Granted()
    parents: Mapping[str, str] = {}


class ModeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A device whose new form waits for an old one, its own or that of its GPU, or of a MIG device of it.

    ``holder`` is the pod in the way, empty while nobody is known.
    """

    gpu_uuid: str
    before: Form
    after: Form
    holder: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The lists of all resources, in order of name, and what they wait for.

    A resource whose list is empty is withdrawn once the kubelet has taken that list. ``check_at`` is when time alone
    may change the plan. ``ask_since`` means that an answer about holders requested then or later may change it,
    ``waiting`` that something waits for holders at all. ``planned`` counts devices without those only leaving.
    ``cordoned`` is by GPU the place in the file. ``holders`` are who holds what is ours, by resource and ID.
    ``indices`` are those by which pods know their GPUs, ``renumbered`` the GPUs that take no new pods for it.
    ``by_cdi`` is what pods may have got by CDI. ``parents`` are the GPUs of the MIG devices that there are, and of the
    last that are gone. ``unmet`` are sentences about what containers do without though the file would have them get it.
    ``missing`` are resources that are planned and not given out yet, each with a sentence that says why. ``by_mps`` are
    by resource the devices whose IDs were last on offer by MPS, which must outlive the process; ``grants`` is what
    ``nvdp mps`` is to be told, and ``kept`` says which free devices are kept from their form for it, and why.
    """

    devices: tuple[Device, ...]
    lists: Mapping[str, ResourceList]
    planned: Mapping[str, int]
    assignments: Mapping[str, Assignment]
    withheld: Mapping[str, Withheld]
    cordoned: Mapping[str, str] = {}
    holders: Mapping[str, Mapping[str, Holding]] = {}
    changes: tuple[ModeChange, ...] = ()
    indices: Indices = {}
    renumbered: Mapping[str, Renumbered] = {}
    by_cdi: ByCdi = {}
    parents: Mapping[str, str] = {}
    unmet: tuple[str, ...] = ()
    missing: Mapping[str, str] = {}
    by_mps: Mapping[str, tuple[str, ...]] = {}
    grants: MpsGrants = MpsGrants()
    kept: Mapping[str, str] = {}
    check_at: float | None = None
    ask_since: float | None = None
    waiting: bool = False


def build_plan(inputs: Inputs) -> Plan:
    """The plan for these inputs. Raises nothing that its inputs could cause."""
    allotment = allot(inputs.config, inputs.inventory, inputs.pins)
    # A name of the file's own is ours even where the memory of having used it was lost with the state directory.
    named = {assignment.form.resource for assignment in allotment.assignments.values()}
    holders = our_holdings(inputs.held, names=inputs.names | inputs.given.keys() | named)
    fitting = limit_lists(allotment, inputs.given, holders, numa_hints=inputs.config.allocation.numa_hints)
    return _Drafting(inputs, fitting, holders).finish()


class _Drafting:
    """One plan in the making. Lives for one call of ``build_plan``."""

    def __init__(self, inputs: Inputs, allotment: Allotment, holders: Mapping[str, Mapping[str, Holding]]) -> None:
        self._inputs = inputs
        self._devices = allotment.devices
        self._assignments = allotment.assignments
        self._withheld = allotment.withheld
        self._cordoned = allotment.cordoned
        self._holders = holders
        known = find_known(inputs.given, holders, inputs.by_mps)
        self._parents = find_parents(inputs.inventory.gpus, known, inputs.parents)
        self._rivals = Rivals(self._devices, known, self._parents)
        self._locality = Locality(
            inputs.config, self._devices, self._assignments, ailing=inputs.ailments.keys(), parents=self._parents
        )
        self._waiting = Waiting(
            held=inputs.held,
            holders=holders,
            remove_after_s=inputs.config.devices.remove_after.seconds,
            now=inputs.now,
        )
        self._numbering = judge_indices(
            inputs.indices,
            strategy=inputs.config.flags.plugin.device_id_strategy,
            devices=self._devices,
            ailments=inputs.ailments,
            given=inputs.given,
            waiting=self._waiting,
        )
        self._leaving = {resource: find_leaving(given) for resource, given in inputs.given.items()}
        self._lists: Lists = {}
        self._planned: dict[str, int] = {}
        self._changes: list[ModeChange] = []
        self._agenda = Agenda()
        self._clients = Clients(
            config=inputs.config,
            allotment=allotment,
            view=inputs.means.mps,
            given=inputs.given,
            holders=holders,
            known=known,
            by_mps=inputs.by_mps,
            granted=inputs.granted,
            waiting=self._waiting,
            agenda=self._agenda,
        )

    def finish(self) -> Plan:
        for verdict in self._numbering.waits:
            self._agenda.note(verdict)
        for device in self._devices:
            assignment = self._assignments.get(device.uuid)
            if assignment is not None:
                self._offer(device, assignment)
        Leaving(
            given=self._inputs.given,
            holders=self._holders,
            names=self._inputs.names,
            assignments=self._assignments,
            by_mps=self._inputs.by_mps,
            rivals=self._rivals,
            locality=self._locality,
            waiting=self._waiting,
            agenda=self._agenda,
        ).keep(self._lists)
        means = self._inputs.means
        grants = self._clients.grant()
        return Plan(
            devices=self._devices,
            lists={resource: self._build_list(resource) for resource in sorted(self._lists)},
            planned=self._planned,
            assignments=self._assignments,
            withheld=self._withheld,
            cordoned={uuid: path for uuid, path in self._cordoned.items() if uuid in self._assignments},
            holders=self._holders,
            changes=tuple(self._changes),
            indices=self._numbering.indices,
            renumbered=self._numbering.renumbered,
            by_cdi=follow_by_cdi(
                self._inputs.by_cdi,
                is_used=uses_cdi(self._inputs.config),
                given=self._inputs.given,
                holders=self._holders,
                held=self._inputs.held,
            ),
            parents=self._parents,
            unmet=tuple(find_unmet(self._inputs.config, imex_channels=means.imex_channels, cdi=means.specs)),
            missing=self._clients.missing,
            by_mps=self._clients.follow(),
            grants=grants,
            kept=self._clients.kept,
            check_at=self._agenda.check_at,
            ask_since=self._agenda.ask_since,
            waiting=self._agenda.waiting,
        )

    def _build_list(self, resource: str) -> ResourceList:
        mine = {uuid for uuid, assignment in self._assignments.items() if assignment.form.resource == resource}
        offered = tuple(device for device in self._devices if device.uuid in mine)
        means = self._inputs.means
        return ResourceList(
            resource=resource,
            devices=fit(self._lists[resource], self._known_by_resource(resource)),
            facts=build_facts(
                self._inputs.config,
                offered or self._devices,
                [self._assignments[device.uuid] for device in offered],
                means.control_nodes,
                imex_channels=means.imex_channels,
                cdi_names=means.specs.names if means.specs is not None else (),
                connections=self._inputs.inventory.connections,
                mps=self._clients.build_facts(resource),
            ),
        )

    def _offer(self, device: Device, assignment: Assignment) -> None:
        """List the device in its form: Healthy unless it is cordoned, ails, or an old form is not free yet."""
        form = assignment.form
        cause, text = self._judge(device, form)
        own = self._rivals.find_own(device, form)
        numbers = self._numbers(own, assignment, form) if form.shared else (None,)
        self._planned[form.resource] = self._planned.get(form.resource, 0) + len(numbers)
        if form.resource in self._clients.missing:
            return
        self._clients.note(device, form, is_healthy=cause is None)
        numa_node = self._locality.find_node(form.resource, device)
        listed = self._lists.setdefault(form.resource, {})
        for number in numbers:
            device_id = str(ReplicaId(device.uuid, number))
            listed[device_id] = ListedDevice(
                id=device_id, gpu_uuid=device.uuid, numa_node=numa_node, cause=cause, text=text
            )

    def _judge(self, device: Device, form: Form) -> tuple[Cause | None, str]:
        ailment = self._inputs.ailments.get(device.uuid)
        is_gone = ailment is not None and ailment.cause is Cause.VANISHED
        # What is gone waits for nobody. At once, as NVIDIA's plugin does it, is by choice: pods may share what one of
        # them was given alone.
        waits = not is_gone and self._inputs.config.allocation.mode_change is not ModeChangeRule.IMMEDIATE
        cause, text = None, ""
        for old, ids in self._rivals.find_foreign(device, form) if waits else ():
            verdict = may_give_up(self._inputs.given.get(old.resource), ids, self._waiting, resource=old.resource)
            if verdict.allowed:
                continue
            self._agenda.note(verdict)
            self._changes.append(ModeChange(gpu_uuid=device.uuid, before=old, after=form, holder=verdict.holder))
            if cause is None:
                who = f"held by {verdict.holder}" if verdict.holder else "being freed"
                cause, text = Cause.HELD, f"{who} as {old}"
        if device.uuid in self._numbering.renumbered:
            cause, text = Cause.HELD, self._numbering.renumbered[device.uuid].text
        if cause is None:
            cause, text = self._clients.judge(device, form, is_gone=is_gone)
        if device.uuid in self._cordoned:
            return Cause.CORDONED, self._cordoned[device.uuid]
        return (ailment.cause, ailment.text) if ailment is not None else (cause, text)

    def _numbers(self, ids: Sequence[str], assignment: Assignment, form: Form) -> tuple[int, ...]:
        """The replica numbers to offer. An Allocate that no answer about holders can show yet counts as a holder."""
        given = self._inputs.given.get(form.resource)
        holders = self._holders.get(form.resource, {})
        leaving = self._leaving.get(form.resource, frozenset())
        held, offered = [], []
        for device_id in ids:
            is_shown = given is None or judge_unseen(given, device_id, self._waiting).allowed
            if device_id in holders or not is_shown:
                held.append(number_of_id(device_id))
            elif device_id not in leaving:
                offered.append(number_of_id(device_id))
        return choose_numbers(assignment.replicas, held=held, offered=offered)

    def _known_by_resource(self, resource: str) -> frozenset[str]:
        given = self._inputs.given.get(resource)
        listed = given.listed.by_id.keys() if given is not None else ()
        return frozenset(listed).union(self._holders.get(resource, ()))
