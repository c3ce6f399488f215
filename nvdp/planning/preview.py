"""What a configuration would make of a node, before it is applied: what is advertised by which rule, what is left out.

Nothing is decided here: the plan is the daemon's own (``plan``), as it comes to rest while the pods that run now keep
what they hold. This says why it is as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from nvdp.config.schema import Config
from nvdp.errors import Problem
from nvdp.model.health import Ailment
from nvdp.model.held import Held, Holding, Source
from nvdp.model.inventory import Gpu, Inventory
from nvdp.planning.allotment import resolve_pins
from nvdp.planning.assignment import Assignment, Withheld, order_gpus
from nvdp.planning.devices import Device
from nvdp.planning.entries import Entry, list_entries
from nvdp.planning.indices import restore_indices
from nvdp.planning.judging import find_unfit
from nvdp.planning.ledger import our_holdings, restore
from nvdp.planning.left_out import OWN_DOING, LeftOut, Why, find_left_out
from nvdp.planning.means import Means, judge_ailments
from nvdp.planning.mps import ClientLimits, find_client_limits
from nvdp.planning.plan import Inputs, Plan, build_plan
from nvdp.planning.remarks import find_cautions, find_notes, find_obstacle_warnings, find_warnings

_LONG_S: Final = 3600.0  # refused so long ago, nothing has to wait for time
_NOTHING_HELD: Final = Held(source=Source.POD_RESOURCES, requested_at=_LONG_S)


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a node. Offline that is the machine alone: nothing was pinned, and no pod holds anything.

    ``pins`` are those remembered, ``names`` the resources that were ever advertised, ``indices`` those under which GPUs
    were handed out, by resource and ID, ``parents`` the GPUs of MIG devices that may be gone, ``by_mps`` the devices
    whose IDs were last on offer by MPS, by resource. ``held`` must be an answer, of any age; ``means`` is by what
    devices are handed over there; ``in_force`` is the hash of the configuration that the node runs on, which is not
    judged again. ``doubts`` are warnings about what no file says.
    """

    inventory: Inventory
    ailments: Mapping[str, Ailment] = {}
    pins: Mapping[str, str] = {}
    names: frozenset[str] = frozenset()
    indices: Mapping[str, Mapping[str, str]] = {}
    parents: Mapping[str, str] = {}
    by_mps: Mapping[str, tuple[str, ...]] = {}
    held: Held = _NOTHING_HELD
    means: Means = Means()
    in_force: str = ""
    doubts: tuple[str, ...] = ()


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Devices that one rule offers in one form. ``advertised`` is the goal, ``healthy`` by device what pods get now.

    ``rule`` is the place in the file (empty: the default), ``pattern`` what stands there for a rule that names.
    ``limits``, by device, are those of each MPS client. ``withheld`` is why nothing of it is advertised; then
    ``assignment`` is what the file asks for.
    """

    assignment: Assignment
    devices: tuple[Device, ...]
    healthy: Mapping[str, int]
    pattern: str = ""
    limits: Mapping[str, ClientLimits] = {}
    withheld: Withheld | None = None

    @property
    def resource(self) -> str:
        return self.assignment.form.resource

    @property
    def advertised(self) -> int:
        return 0 if self.withheld is not None else len(self.devices) * self.assignment.replicas

    @property
    def healthy_count(self) -> int:
        return sum(self.healthy.values())


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. Each device is in one row, or in ``left_out`` without a row; ``gpus`` are in the order of the lists.

    ``warnings`` are what is probably not meant or not possible here, ``cautions`` what pods had better not do, and
    ``notes`` what is good to know. ``holders`` are who holds IDs of ours, by resource and ID.
    """

    config: Config
    node: Node
    plan: Plan
    gpus: tuple[Gpu, ...]
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...]
    warnings: tuple[str, ...]
    cautions: tuple[str, ...]
    notes: tuple[str, ...]
    holders: Mapping[str, Mapping[str, Holding]]

    @property
    def found(self) -> int:
        """GPUs that NVML counts."""
        return len(self.gpus) + len(self.node.inventory.unreadable)

    @property
    def ours(self) -> int:
        excluded = {one.uuid for one in self.left_out if one.why is Why.EXCLUDED}
        kept = {device.gpu.uuid for device in self.plan.devices if device.uuid not in excluded}
        return len(kept) + len(self.node.inventory.unreadable)

    @property
    def advertised(self) -> int:
        return sum(row.advertised for row in self.rows)

    @property
    def is_doubtful(self) -> bool:
        """Whether something was probably not meant, or is withheld."""
        return bool(self.warnings) or any(one.why in OWN_DOING for one in self.left_out)


def find_refusal(config: Config, node: Node) -> Problem | None:
    """Why the daemon would not take the configuration on this node at all; None if it would."""
    if config.hash == node.in_force:
        return None
    return find_unfit(config, node.inventory, _resolve_pins(config, node, before=node.pins))


def build_preview(config: Config, node: Node) -> Preview:
    """The preview of a configuration that is not refused (``find_refusal``)."""
    ailments = judge_ailments(config, node.inventory, node.means, node.ailments)
    node = msgspec.structs.replace(node, ailments=ailments)
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
            indices=restore_indices(node.indices, now=node.held.requested_at - _LONG_S),
            parents=node.parents,
            by_mps=node.by_mps,
            means=node.means,
            now=node.held.requested_at,
        )
    )
    gpus = order_gpus(node.inventory.gpus)
    left_out = tuple(find_left_out(config, node.inventory, plan, node.ailments))
    return Preview(
        config=config,
        node=node,
        plan=plan,
        gpus=gpus,
        rows=_build_rows(config, plan, pins),
        left_out=left_out,
        warnings=(
            *find_warnings(config, node.inventory, pins, plan),
            *find_obstacle_warnings(plan, node.ailments),
            *node.doubts,
        ),
        cautions=tuple(find_cautions(config, plan)),
        notes=tuple(
            find_notes(
                config,
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


def _build_rows(config: Config, plan: Plan, pins: Mapping[str, str]) -> tuple[Row, ...]:
    """In the order of the file: names, the defaults, then what is shared."""
    groups: dict[tuple[Assignment, Withheld | None], list[Device]] = {}
    for device in plan.devices:
        withheld = plan.withheld.get(device.uuid)
        assignment = plan.assignments.get(device.uuid) or (withheld.intended if withheld is not None else None)
        if assignment is not None:
            groups.setdefault((assignment, withheld), []).append(device)
    blocks = (("gpus", config.resources.gpus), ("mig", config.resources.mig))
    patterns = {
        f"resources.{block}[{at}]": str(rule.pattern) for block, rules in blocks for at, rule in enumerate(rules)
    }
    entries = {entry.path: entry for entry in list_entries(config)}
    order = [*patterns, "", *entries]
    return tuple(
        Row(
            assignment=assignment,
            devices=tuple(members),
            healthy={device.uuid: _count_healthy(config, plan, assignment, device) for device in members},
            pattern=patterns.get(assignment.rule, ""),
            limits=_find_limits(entries.get(assignment.rule), members, pins),
            withheld=withheld,
        )
        for (assignment, withheld), members in sorted(groups.items(), key=lambda item: order.index(item[0][0].rule))
    )


def _find_limits(entry: Entry | None, devices: list[Device], pins: Mapping[str, str]) -> dict[str, ClientLimits]:
    if entry is None:
        return {}
    found = {device.uuid: find_client_limits(entry, device, pins) for device in devices}
    return {uuid: limits for uuid, limits in found.items() if limits is not None}


def _count_healthy(config: Config, plan: Plan, assignment: Assignment, device: Device) -> int:
    if config.devices.paused:
        return 0  # the driver is let go of: nothing is known of any GPU
    listed = plan.lists.get(assignment.form.resource)
    return len(listed.healthy_by_gpu.get(device.uuid, ())) if listed is not None else 0
