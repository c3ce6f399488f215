"""What a configuration would make of a node, before it is applied: what is advertised by which rule, what is left out.

Nothing is decided here: the plan is the daemon's own (``plan``), as it comes to rest while the pods that run now keep
what they hold. This says why it is as it is.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from nvdp.config.schema import Config
from nvdp.errors import Problem
from nvdp.model.deviceref import RefKind
from nvdp.model.health import Ailment
from nvdp.model.held import Held, Holding, Source
from nvdp.model.inventory import Gpu, Inventory
from nvdp.model.reasons import Cause
from nvdp.model.status import EXCLUDED
from nvdp.planning.allotment import resolve_pins
from nvdp.planning.assignment import Assignment, Withheld, order_gpus
from nvdp.planning.entries import Entry, list_entries
from nvdp.planning.indices import restore_indices
from nvdp.planning.judging import find_unfit
from nvdp.planning.ledger import our_holdings, restore
from nvdp.planning.mps import ClientLimits, find_client_limits
from nvdp.planning.pins import list_references
from nvdp.planning.plan import Inputs, Plan, build_plan
from nvdp.planning.remarks import find_notes, find_warnings

_LONG_S: Final = 3600.0  # refused so long ago, nothing has to wait for time
_NOTHING_HELD: Final = Held(source=Source.POD_RESOURCES, requested_at=_LONG_S)


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a node. Offline that is the machine alone: nothing was pinned, and no pod holds anything.

    ``pins`` are those remembered, ``names`` the resources that were ever advertised, ``indices`` those under which GPUs
    were handed out, by resource and ID. ``held`` must be an answer, of any age; ``in_force`` is the hash of the
    configuration that the node runs on, which is not judged again.
    """

    inventory: Inventory
    ailments: Mapping[str, Ailment] = {}
    pins: Mapping[str, str] = {}
    names: frozenset[str] = frozenset()
    indices: Mapping[str, Mapping[str, str]] = {}
    held: Held = _NOTHING_HELD
    in_force: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that one rule offers in one form. ``advertised`` is the goal, ``healthy`` by GPU what pods could get now.

    ``rule`` is the place in the file (empty: the default), ``pattern`` what stands there for a rule that names.
    ``limits``, by GPU, are those of each MPS client. ``withheld`` is why nothing of it is advertised; then
    ``assignment`` is what the file asks for.
    """

    assignment: Assignment
    gpus: tuple[Gpu, ...]
    healthy: Mapping[str, int]
    pattern: str = ""
    limits: Mapping[str, ClientLimits] = {}
    withheld: Withheld | None = None

    @property
    def resource(self) -> str:
        return self.assignment.form.resource

    @property
    def advertised(self) -> int:
        return 0 if self.withheld is not None else len(self.gpus) * self.assignment.replicas

    @property
    def healthy_count(self) -> int:
        return sum(self.healthy.values())


class Why(enum.Enum):
    """Why a GPU takes no new pods."""

    EXCLUDED = "excluded"
    CORDONED = "cordoned"
    UNHEALTHY = "unhealthy"
    WITHHELD = "withheld"
    UNNAMED = "unnamed"
    UNREADABLE = "unreadable"


_OWN_DOING: Final = frozenset({Why.WITHHELD, Why.UNNAMED})


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU that takes no new pods. ``uuid`` is empty if it could not be read.

    ``path`` is the place in the file that says so, ``by_slot`` that it is named by its PCI address there.
    ``listed_as`` is the resource under which it is listed all the same, Unhealthy; empty if it is not listed at all.
    """

    uuid: str
    pci: str
    product: str
    why: Why
    path: str = ""
    by_slot: bool = False
    text: str = ""
    listed_as: str = ""


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. Each GPU is in one row, or in ``left_out`` without a row; ``gpus`` are in the order of the lists.

    ``warnings`` are what is probably not meant or not possible here, ``notes`` what is good to know. ``holders`` are
    who holds IDs of ours, by resource and ID.
    """

    config: Config
    node: Node
    plan: Plan
    gpus: tuple[Gpu, ...]
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    holders: Mapping[str, Mapping[str, Holding]]

    @property
    def found(self) -> int:
        """GPUs that NVML counts."""
        return len(self.gpus) + len(self.node.inventory.unreadable)

    @property
    def ours(self) -> int:
        return self.found - sum(one.why is Why.EXCLUDED for one in self.left_out)

    @property
    def advertised(self) -> int:
        return sum(row.advertised for row in self.rows)

    @property
    def is_doubtful(self) -> bool:
        """Whether something was probably not meant, or is withheld."""
        return bool(self.warnings) or any(one.why in _OWN_DOING for one in self.left_out)


def find_refusal(config: Config, node: Node) -> Problem | None:
    """Why the daemon would not take the configuration on this node at all; None if it would."""
    if config.hash == node.in_force:
        return None
    return find_unfit(config, node.inventory, _resolve_pins(config, node, before=node.pins))


def build_preview(config: Config, node: Node) -> Preview:
    """The preview of a configuration that is not refused (``find_refusal``)."""
    pins = _resolve_pins(config, node, before=node.pins)
    plan = build_plan(
        Inputs(
            config=config,
            inventory=node.inventory,
            ailments=node.ailments,
            held=node.held,
            given=restore(node.held, names=node.names, now=node.held.requested_at - _LONG_S),
            names=node.names,
            pins=pins,
            control_nodes=(),
            indices=restore_indices(node.indices, now=node.held.requested_at - _LONG_S),
            now=node.held.requested_at,
        )
    )
    gpus = order_gpus(node.inventory.gpus)
    left_out = (*_find_left_out(config, node, plan, gpus), *_find_unreadable(node.inventory))
    return Preview(
        config=config,
        node=node,
        plan=plan,
        gpus=gpus,
        rows=_build_rows(config, plan, gpus, pins),
        left_out=left_out,
        warnings=tuple(find_warnings(config, node.inventory, pins, plan)),
        notes=tuple(
            find_notes(
                config,
                node.inventory,
                pins,
                plan,
                unpinned=_resolve_pins(config, node, before={}),
                ailing=node.ailments.keys(),
            )
        ),
        holders=our_holdings(node.held, names=node.names),
    )


def _resolve_pins(config: Config, node: Node, *, before: Mapping[str, str]) -> dict[str, str]:
    return resolve_pins(config, node.inventory.gpus, node.ailments, before)


def _build_rows(config: Config, plan: Plan, gpus: tuple[Gpu, ...], pins: Mapping[str, str]) -> tuple[Row, ...]:
    """In the order of the file: names, the default, then what is shared."""
    groups: dict[tuple[Assignment, Withheld | None], list[Gpu]] = {}
    for gpu in gpus:
        withheld = plan.withheld.get(gpu.uuid)
        assignment = plan.assignments.get(gpu.uuid) or (withheld.intended if withheld is not None else None)
        if assignment is not None:
            groups.setdefault((assignment, withheld), []).append(gpu)
    patterns = {f"resources.gpus[{at}]": str(rule.pattern) for at, rule in enumerate(config.resources.gpus)}
    entries = {entry.path: entry for entry in list_entries(config)}
    order = [*patterns, "", *entries]
    return tuple(
        Row(
            assignment=assignment,
            gpus=tuple(members),
            healthy={gpu.uuid: _count_healthy(plan, assignment, gpu) for gpu in members},
            pattern=patterns.get(assignment.rule, ""),
            limits=_find_limits(entries.get(assignment.rule), members, pins),
            withheld=withheld,
        )
        for (assignment, withheld), members in sorted(groups.items(), key=lambda item: order.index(item[0][0].rule))
    )


def _find_limits(entry: Entry | None, gpus: list[Gpu], pins: Mapping[str, str]) -> dict[str, ClientLimits]:
    if entry is None:
        return {}
    found = {gpu.uuid: find_client_limits(entry, gpu, pins) for gpu in gpus}
    return {uuid: limits for uuid, limits in found.items() if limits is not None}


def _count_healthy(plan: Plan, assignment: Assignment, gpu: Gpu) -> int:
    listed = plan.lists.get(assignment.form.resource)
    return len(listed.healthy_by_gpu.get(gpu.uuid, ())) if listed is not None else 0


def _find_left_out(config: Config, node: Node, plan: Plan, gpus: tuple[Gpu, ...]) -> Iterator[LeftOut]:
    slots = {one.path for one in list_references(config) if one.ref.kind is RefKind.PCI}
    for gpu in gpus:
        withheld, assignment = plan.withheld.get(gpu.uuid), plan.assignments.get(gpu.uuid)
        cordon, ailment = plan.cordoned.get(gpu.uuid), node.ailments.get(gpu.uuid)
        renumbered = plan.renumbered.get(gpu.uuid)
        path = text = ""
        if withheld is not None:
            why, path = _classify(withheld), withheld.path
            text = "" if why is Why.EXCLUDED else withheld.text
        elif cordon is not None:
            why, path = Why.CORDONED, cordon
        elif ailment is not None:
            why, text = Why.UNHEALTHY, f"{ailment.cause.value}: {ailment.text}"
        elif renumbered is not None:
            why, text = Why.UNHEALTHY, f"{Cause.HELD.value}: {renumbered.text}"
        else:
            continue
        yield LeftOut(
            uuid=gpu.uuid,
            pci=gpu.pci or "",
            product=gpu.product or "",
            why=why,
            path=path,
            by_slot=path in slots,
            text=text,
            listed_as=assignment.form.resource if assignment is not None else "",
        )


def _classify(withheld: Withheld) -> Why:
    if withheld.reason == EXCLUDED:
        return Why.EXCLUDED
    return Why.WITHHELD if withheld.intended is not None else Why.UNNAMED


def _find_unreadable(inventory: Inventory) -> Iterator[LeftOut]:
    for gpu in inventory.unreadable:
        text = f"index {gpu.index}: {gpu.fault.text}"
        yield LeftOut(uuid="", pci=gpu.pci or "", product="", why=Why.UNREADABLE, by_slot=True, text=text)
