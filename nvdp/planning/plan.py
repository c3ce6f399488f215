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
from nvdp.model.inventory import Gpu, Inventory
from nvdp.model.listing import ListedDevice, ResourceList
from nvdp.model.reasons import Cause
from nvdp.model.replica import ReplicaId
from nvdp.planning.allotment import Allotment, allot
from nvdp.planning.assignment import Assignment, Form, Withheld, order_gpus
from nvdp.planning.facts import build_facts
from nvdp.planning.fitting import fit, withhold_excess
from nvdp.planning.indices import Indices, Renumbered, judge_indices
from nvdp.planning.ledger import Given, find_known, find_leaving, number_of_id, order_of_id, our_holdings, uuid_of_id
from nvdp.planning.locality import find_numa_aware
from nvdp.planning.numbering import choose_numbers
from nvdp.planning.withdrawal import Verdict, Waiting, is_unseen, may_give_up, may_leave

_EMPTY_TAKEN_S = 1.0  # how often to look whether an empty list was taken, should no report say so


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a plan depends on. ``now`` is monotonic seconds.

    ``names`` are the resources that we advertise or once did; ``pins`` are the UUIDs behind references and counts;
    ``control_nodes`` are the driver's device nodes that exist on this node; ``indices`` are those of the plan before.
    """

    config: Config
    inventory: Inventory
    ailments: Mapping[str, Ailment]
    held: Held
    given: Mapping[str, Given]
    names: frozenset[str]
    pins: Mapping[str, str]
    control_nodes: tuple[str, ...]
    now: float
    indices: Indices = {}


class ModeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU whose new form waits for its old one. ``holder`` is the pod in the way, empty while nobody is known."""

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
    """

    lists: Mapping[str, ResourceList]
    planned: Mapping[str, int]
    assignments: Mapping[str, Assignment]
    withheld: Mapping[str, Withheld]
    cordoned: Mapping[str, str] = {}
    holders: Mapping[str, Mapping[str, Holding]] = {}
    changes: tuple[ModeChange, ...] = ()
    indices: Indices = {}
    renumbered: Mapping[str, Renumbered] = {}
    check_at: float | None = None
    ask_since: float | None = None
    waiting: bool = False


def build_plan(inputs: Inputs) -> Plan:
    """The plan for these inputs. Raises nothing that its inputs could cause."""
    gpus = order_gpus(inputs.inventory.gpus)
    allotment = allot(inputs.config, inputs.inventory, inputs.pins)
    # A name of the file's own is ours even where the memory of having used it was lost with the state directory.
    named = {assignment.form.resource for assignment in allotment.assignments.values()}
    holders = our_holdings(inputs.held, names=inputs.names | inputs.given.keys() | named)
    excess = withhold_excess(
        gpus,
        allotment.assignments,
        offered={
            device.gpu_uuid
            for given in inputs.given.values()
            for device in given.listed.devices
            if device.cause is not Cause.WITHDRAWING
        },
        held={uuid_of_id(device_id) for holdings in holders.values() for device_id in holdings},
        numa_hints=inputs.config.allocation.numa_hints,
    )
    fitting = msgspec.structs.replace(
        allotment,
        assignments={uuid: each for uuid, each in allotment.assignments.items() if uuid not in excess},
        withheld={**allotment.withheld, **excess},
    )
    return _Drafting(inputs, gpus, fitting, holders).finish()


class _Drafting:
    """One plan in the making. Lives for one call of ``build_plan``."""

    def __init__(
        self,
        inputs: Inputs,
        gpus: tuple[Gpu, ...],
        allotment: Allotment,
        holders: Mapping[str, Mapping[str, Holding]],
    ) -> None:
        self._inputs = inputs
        self._gpus = gpus
        self._assignments = allotment.assignments
        self._withheld = allotment.withheld
        self._cordoned = allotment.cordoned
        self._holders = holders
        self._numa_nodes = {gpu.uuid: gpu.numa_node for gpu in gpus}
        self._numa_aware = find_numa_aware(inputs.config, gpus, allotment.assignments, inputs.ailments)
        self._waiting = Waiting(
            held=inputs.held,
            holders=holders,
            remove_after_s=inputs.config.devices.remove_after.seconds,
            now=inputs.now,
        )
        self._numbering = judge_indices(
            inputs.indices,
            strategy=inputs.config.flags.plugin.device_id_strategy,
            gpus=gpus,
            ailments=inputs.ailments,
            given=inputs.given,
            waiting=self._waiting,
        )
        self._known = find_known(inputs.given, holders)
        self._leaving = {resource: find_leaving(given) for resource, given in inputs.given.items()}
        self._lists: dict[str, dict[str, ListedDevice]] = {}
        self._planned: dict[str, int] = {}
        self._changes: list[ModeChange] = []
        self._check_at: float | None = None
        self._ask_since: float | None = None
        self._waits = False

    def finish(self) -> Plan:
        for verdict in self._numbering.waits:
            self._note(verdict)
        for gpu in self._gpus:
            assignment = self._assignments.get(gpu.uuid)
            if assignment is not None:
                self._offer(gpu, assignment)
        self._keep_leaving()
        lists = {}
        for resource in sorted(self._lists):
            offered = tuple(gpu for gpu in self._gpus if self._form_resource(gpu) == resource)
            lists[resource] = ResourceList(
                resource=resource,
                devices=fit(self._lists[resource], self._known_by_resource(resource)),
                facts=build_facts(
                    self._inputs.config,
                    offered or self._gpus,
                    [self._assignments[gpu.uuid] for gpu in offered],
                    self._inputs.control_nodes,
                ),
            )
        return Plan(
            lists=lists,
            planned=self._planned,
            assignments=self._assignments,
            withheld=self._withheld,
            cordoned={uuid: path for uuid, path in self._cordoned.items() if uuid in self._assignments},
            holders=self._holders,
            changes=tuple(self._changes),
            indices=self._numbering.indices,
            renumbered=self._numbering.renumbered,
            check_at=self._check_at,
            ask_since=self._ask_since,
            waiting=self._waits,
        )

    def _form_resource(self, gpu: Gpu) -> str | None:
        assignment = self._assignments.get(gpu.uuid)
        return assignment.form.resource if assignment is not None else None

    def _offer(self, gpu: Gpu, assignment: Assignment) -> None:
        """List the GPU in its form: Healthy unless it is cordoned, ails, or its old form is not free yet."""
        form = assignment.form
        known = self._known.get(gpu.uuid, {})
        cause, text = self._judge(gpu, form, known)
        numa_node = gpu.numa_node if self._is_numa_aware(form.resource) else None
        listed = self._lists.setdefault(form.resource, {})
        numbers = self._numbers(known.get(form, ()), assignment, form) if form.shared else (None,)
        for number in numbers:
            device_id = str(ReplicaId(gpu.uuid, number))
            listed[device_id] = ListedDevice(
                id=device_id, gpu_uuid=gpu.uuid, numa_node=numa_node, cause=cause, text=text
            )
        self._planned[form.resource] = self._planned.get(form.resource, 0) + len(numbers)

    def _judge(self, gpu: Gpu, form: Form, known: Mapping[Form, Sequence[str]]) -> tuple[Cause | None, str]:
        foreign = [old for old in sorted(known) if old != form]
        if self._inputs.config.allocation.mode_change is ModeChangeRule.IMMEDIATE:
            foreign = []  # as NVIDIA's plugin does it, by choice: pods may share what one of them was given alone
        cause, text = None, ""
        for old in foreign:
            verdict = may_give_up(
                self._inputs.given.get(old.resource), known[old], self._waiting, resource=old.resource
            )
            if verdict.allowed:
                continue
            self._note(verdict)
            self._changes.append(ModeChange(gpu_uuid=gpu.uuid, before=old, after=form, holder=verdict.holder))
            if cause is None:
                who = f"held by {verdict.holder}" if verdict.holder else "being freed"
                cause, text = Cause.HELD, f"{who} as {old}"
        if gpu.uuid in self._numbering.renumbered:
            cause, text = Cause.HELD, self._numbering.renumbered[gpu.uuid].text
        if gpu.uuid in self._cordoned:
            return Cause.CORDONED, self._cordoned[gpu.uuid]
        ailment = self._inputs.ailments.get(gpu.uuid)
        return (ailment.cause, ailment.text) if ailment is not None else (cause, text)

    def _numbers(self, ids: Sequence[str], assignment: Assignment, form: Form) -> tuple[int, ...]:
        """The replica numbers to offer. An Allocate that no answer about holders can show yet counts as a holder."""
        given = self._inputs.given.get(form.resource)
        holders = self._holders.get(form.resource, {})
        leaving = self._leaving.get(form.resource, frozenset())
        held, offered = [], []
        for device_id in ids:
            if device_id in holders or (given is not None and is_unseen(given, device_id, self._waiting)):
                held.append(number_of_id(device_id))
            elif device_id not in leaving:
                offered.append(number_of_id(device_id))
        return choose_numbers(assignment.replicas, held=held, offered=offered)

    def _keep_leaving(self) -> None:
        """Keep, Unhealthy, every ID that was given out or is held and that the plan does not want, until it may go."""
        for resource, given in self._inputs.given.items():
            wanted = self._lists.setdefault(resource, {})
            for device in given.listed.devices:
                if device.id in wanted:
                    continue
                verdict = may_leave(given, device.id, self._waiting, proof=self._is_last_trace(resource, device))
                if not verdict.allowed:
                    self._note(verdict)
                    wanted[device.id] = self._withdraw(resource, device, verdict.holder)
        for resource, holdings in self._holders.items():
            if resource not in self._lists and resource not in self._inputs.names:
                continue  # another plugin's: its GPUs count as held, but listing them would take it over
            wanted = self._lists.setdefault(resource, {})
            for device_id in sorted(holdings.keys() - wanted.keys(), key=order_of_id):
                gpu_uuid = uuid_of_id(device_id)
                device = ListedDevice(id=device_id, gpu_uuid=gpu_uuid, numa_node=holdings[device_id].numa_node)
                wanted[device_id] = self._withdraw(resource, device, holdings[device_id].holder)
                self._waits = True
        for resource in [name for name, listed in self._lists.items() if not listed]:
            last = self._inputs.given.get(resource)
            if last is None or (not last.listed.devices and last.taken_version >= last.version):
                del self._lists[resource]
            else:  # withdrawn once the kubelet has taken the empty list
                self._note(Verdict(allowed=False, at=self._inputs.now + _EMPTY_TAKEN_S))

    def _is_last_trace(self, resource: str, device: ListedDevice) -> bool:
        """Whether the ID reminds us of a form in which the GPU may be held, and it may be offered in another one."""
        if device.gpu_uuid not in self._numa_nodes:
            return False  # not on the node any more
        assignment = self._assignments.get(device.gpu_uuid)
        form = Form(resource, shared=device.id != device.gpu_uuid)
        return assignment is None or assignment.form != form

    def _withdraw(self, resource: str, device: ListedDevice, holder: str) -> ListedDevice:
        known = self._numa_nodes.get(device.gpu_uuid)  # of one that is gone, the kubelet remembers the node
        numa_node = device.numa_node if known is None else known
        return msgspec.structs.replace(
            device,
            numa_node=numa_node if self._is_numa_aware(resource) else None,
            cause=Cause.WITHDRAWING,
            text=f"held by {holder}" if holder else "leaving",
        )

    def _is_numa_aware(self, resource: str) -> bool:
        """Whether its devices have NUMA nodes: all or none, for the kubelet puts those without at a disadvantage."""
        return self._numa_aware.get(resource, self._inputs.config.allocation.numa_hints)

    def _known_by_resource(self, resource: str) -> frozenset[str]:
        given = self._inputs.given.get(resource)
        listed = given.listed.by_id.keys() if given is not None else ()
        return frozenset(listed).union(self._holders.get(resource, ()))

    def _note(self, verdict: Verdict) -> None:
        self._waits = True
        if verdict.ask_since is not None and (self._ask_since is None or verdict.ask_since > self._ask_since):
            self._ask_since = verdict.ask_since
        if verdict.at is not None and (self._check_at is None or verdict.at < self._check_at):
            self._check_at = verdict.at
