"""The plan: what every resource offers, from configuration, inventory, health, holders and what was given before.

One pure function, ``build_plan``. The same inputs give the same lists, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from nvdp.config.schema import Config
from nvdp.model.health import Ailment
from nvdp.model.held import Held, Holding
from nvdp.model.inventory import Gpu, Inventory
from nvdp.model.listing import ListedDevice, ResourceList
from nvdp.model.reasons import Cause
from nvdp.model.replica import ReplicaId, parse_replica_id
from nvdp.planning.assignment import Assignment, Form, assign, order_gpus
from nvdp.planning.facts import build_facts
from nvdp.planning.ledger import Given, our_holdings
from nvdp.planning.sizing import LIMIT_BYTES, gpu_bytes
from nvdp.planning.withdrawal import Verdict, Waiting, may_change, may_leave
from nvdp.planning.withholding import Withheld, withhold

_EMPTY_TAKEN_S = 1.0  # how often to look whether an empty list was taken, should no report say so


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a plan depends on. ``now`` is monotonic seconds.

    ``names`` are the resources that we advertise or once did; ``pins`` are the UUIDs behind references by index;
    ``control_nodes`` are the driver's device nodes that exist on this node.
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
    """

    lists: Mapping[str, ResourceList]
    planned: Mapping[str, int]
    assignments: Mapping[str, Assignment]
    withheld: Mapping[str, Withheld]
    changes: tuple[ModeChange, ...] = ()
    check_at: float | None = None
    ask_since: float | None = None
    waiting: bool = False


def build_plan(inputs: Inputs) -> Plan:
    """The plan for these inputs. Raises nothing that its inputs could cause."""
    gpus = order_gpus(inputs.inventory.gpus)
    withheld = dict(withhold(inputs.config, gpus, inputs.pins))
    assignments = assign(inputs.config, gpus, withheld)
    _withhold_beyond_limit(inputs, gpus, assignments, withheld)
    return _Drafting(inputs, gpus, assignments, withheld).finish()


class _Drafting:
    """One plan in the making. Lives for one call of ``build_plan``."""

    def __init__(
        self, inputs: Inputs, gpus: tuple[Gpu, ...], assignments: dict[str, Assignment], withheld: dict[str, Withheld]
    ) -> None:
        self._inputs = inputs
        self._gpus = gpus
        self._assignments = assignments
        self._withheld = withheld
        self._holders = our_holdings(inputs.held, names=inputs.names | inputs.given.keys())
        self._waiting = Waiting(
            held=inputs.held,
            holders=self._holders,
            remove_after_s=inputs.config.devices.remove_after.seconds,
            now=inputs.now,
        )
        self._known = _known_ids(inputs.given, self._holders)
        self._lists: dict[str, dict[str, ListedDevice]] = {}
        self._planned: dict[str, int] = {}
        self._changes: list[ModeChange] = []
        self._check_at: float | None = None
        self._ask_since: float | None = None
        self._waits = False

    def finish(self) -> Plan:
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
                devices=tuple(self._lists[resource].values()),
                facts=build_facts(
                    self._inputs.config,
                    offered or self._gpus,
                    self._assignments.get(offered[0].uuid) if offered else None,
                    self._inputs.control_nodes,
                ),
            )
        return Plan(
            lists=lists,
            planned=self._planned,
            assignments=self._assignments,
            withheld=self._withheld,
            changes=tuple(self._changes),
            check_at=self._check_at,
            ask_since=self._ask_since,
            waiting=self._waits,
        )

    def _form_resource(self, gpu: Gpu) -> str | None:
        assignment = self._assignments.get(gpu.uuid)
        return assignment.form.resource if assignment is not None else None

    def _offer(self, gpu: Gpu, assignment: Assignment) -> None:
        """List the GPU in its form: Healthy unless it ails or its old form is not free yet."""
        form = assignment.form
        known = self._known.get(gpu.uuid, {})
        cause, text = self._judge(gpu, form, known)
        numa_node = gpu.numa_node if self._inputs.config.allocation.numa_hints else None
        listed = self._lists.setdefault(form.resource, {})
        numbers = self._numbers(known.get(form, ()), assignment, form) if form.shared else (None,)
        for number in numbers:
            device_id = str(ReplicaId(gpu.uuid, number))
            listed[device_id] = ListedDevice(
                id=device_id, gpu_uuid=gpu.uuid, numa_node=numa_node, cause=cause, text=text
            )
        self._planned[form.resource] = self._planned.get(form.resource, 0) + len(numbers)

    def _judge(self, gpu: Gpu, form: Form, known: Mapping[Form, Sequence[ReplicaId]]) -> tuple[Cause | None, str]:
        foreign = [old for old in sorted(known) if old != form]
        cause, text = None, ""
        for old in foreign:
            verdict = self._may_change(old, known[old])
            if verdict.allowed:
                continue
            self._note(verdict)
            self._changes.append(ModeChange(gpu_uuid=gpu.uuid, before=old, after=form, holder=verdict.holder))
            if cause is None:
                who = f"held by {verdict.holder}" if verdict.holder else "being freed"
                cause, text = Cause.HELD, f"{who} as {old}"
        ailment = self._inputs.ailments.get(gpu.uuid)
        return (ailment.cause, ailment.text) if ailment is not None else (cause, text)

    def _may_change(self, old: Form, ids: Sequence[ReplicaId]) -> Verdict:
        given = self._inputs.given.get(old.resource)
        texts = [str(replica) for replica in ids]
        if given is None:  # held, but never given out by us: only the holder's end frees it
            holder = next(filter(None, (self._waiting.find_holder(old.resource, text) for text in texts)), "")
            return Verdict(allowed=not holder, holder=holder)
        listed = {device.id for device in given.listed.devices} & set(texts)
        for text in texts:
            if text not in listed and (holder := self._waiting.find_holder(old.resource, text)):
                return Verdict(allowed=False, holder=holder)
        return may_change(given, [text for text in texts if text in listed], self._waiting)

    def _numbers(self, ids: Sequence[ReplicaId], assignment: Assignment, form: Form) -> tuple[int, ...]:
        """Which replica numbers are offered: those that pods hold first, then those offered before, then the lowest."""
        holders = self._holders.get(form.resource, {})
        leaving = self._leaving(form.resource)
        held, stay = set(), set()
        for replica in ids:
            if replica.number is None:
                continue
            if str(replica) in holders:
                held.add(replica.number)
            elif str(replica) not in leaving:
                stay.add(replica.number)
        chosen = (sorted(held) + sorted(stay))[: assignment.replicas]
        taken = set(chosen)
        number = 0
        while len(taken) < assignment.replicas:
            taken.add(number)
            number += 1
        return tuple(sorted(taken))

    def _leaving(self, resource: str) -> frozenset[str]:
        given = self._inputs.given.get(resource)
        if given is None:
            return frozenset()
        return frozenset(device.id for device in given.listed.devices if device.cause is Cause.WITHDRAWING)

    def _keep_leaving(self) -> None:
        """Keep, Unhealthy, every ID that was given out or is held and that the plan does not want, until it may go."""
        for resource, given in sorted(self._inputs.given.items()):
            wanted = self._lists.setdefault(resource, {})
            for device in given.listed.devices:
                if device.id in wanted:
                    continue
                verdict = may_leave(given, device.id, self._waiting)
                if not verdict.allowed:
                    self._note(verdict)
                    wanted[device.id] = _withdrawing(device, verdict.holder)
        for resource, holdings in sorted(self._holders.items()):
            wanted = self._lists.setdefault(resource, {})
            for device_id, holding in sorted(holdings.items()):
                replica = parse_replica_id(device_id)
                if device_id not in wanted and replica is not None:
                    device = ListedDevice(id=device_id, gpu_uuid=replica.device, numa_node=self._numa_node(replica))
                    wanted[device_id] = _withdrawing(device, holding.holder)
                    self._waits = True
        for resource in [name for name, listed in self._lists.items() if not listed]:
            last = self._inputs.given.get(resource)
            if last is None or (not last.listed.devices and last.taken_version >= last.version):
                del self._lists[resource]
            else:  # withdrawn once the kubelet has taken the empty list
                self._note(Verdict(allowed=False, at=self._inputs.now + _EMPTY_TAKEN_S))

    def _numa_node(self, replica: ReplicaId) -> int | None:
        if not self._inputs.config.allocation.numa_hints:
            return None
        return next((gpu.numa_node for gpu in self._gpus if gpu.uuid == replica.device), None)

    def _note(self, verdict: Verdict) -> None:
        self._waits = True
        if verdict.ask_since is not None:
            self._ask_since = max(verdict.ask_since, self._ask_since or verdict.ask_since)
        if verdict.at is not None:
            self._check_at = min(verdict.at, self._check_at or verdict.at)


def _withdrawing(device: ListedDevice, holder: str) -> ListedDevice:
    text = f"held by {holder}" if holder else "leaving"
    return msgspec.structs.replace(device, cause=Cause.WITHDRAWING, text=text)


def _known_ids(
    given: Mapping[str, Given], holders: Mapping[str, Mapping[str, Holding]]
) -> dict[str, dict[Form, list[ReplicaId]]]:
    """All IDs that the kubelet may know of each GPU, by form: those given out and those that pods hold."""
    known: dict[str, dict[Form, dict[ReplicaId, None]]] = {}

    def note(resource: str, ids: Iterable[str]) -> None:
        for text in ids:
            replica = parse_replica_id(text)
            if replica is not None:
                form = Form(resource, replica.number is not None)
                known.setdefault(replica.device, {}).setdefault(form, {})[replica] = None

    for resource, record in given.items():
        note(resource, (device.id for device in record.listed.devices))
    for resource, holdings in holders.items():
        note(resource, holdings)
    return {gpu: {form: list(ids) for form, ids in forms.items()} for gpu, forms in known.items()}


def _withhold_beyond_limit(
    inputs: Inputs, gpus: tuple[Gpu, ...], assignments: dict[str, Assignment], withheld: dict[str, Withheld]
) -> None:
    """Withhold GPUs whose replicas would make a list too large, those that were never listed first."""
    listed = {device.gpu_uuid for given in inputs.given.values() for device in given.listed.devices}
    used: dict[str, int] = {}
    for gpu in sorted(gpus, key=lambda gpu: gpu.uuid not in listed):
        assignment = assignments.get(gpu.uuid)
        if assignment is None:
            continue
        node = gpu.numa_node if inputs.config.allocation.numa_hints else None
        size = gpu_bytes(uuid=gpu.uuid, numa_node=node, replicas=assignment.replicas)
        resource = assignment.form.resource
        if used.get(resource, 0) + size > LIMIT_BYTES:
            del assignments[gpu.uuid]
            withheld[gpu.uuid] = Withheld(
                reason="ListTooLarge",
                path=assignment.rule,
                text=f"its {assignment.replicas} replicas would make the list of {resource} larger than 2 MiB",
            )
        else:
            used[resource] = used.get(resource, 0) + size
