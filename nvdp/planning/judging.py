"""What the hardware has to say about a configuration before it is applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from nvdp.config.schema import DEFAULT, Config
from nvdp.errors import Problem
from nvdp.model.inventory import Inventory
from nvdp.planning.allotment import allot
from nvdp.planning.assignment import Assignment
from nvdp.planning.sizing import LIMIT_BYTES, gpu_bytes, most_replicas

_MIB = 1024 * 1024


def find_unfit(config: Config, inventory: Inventory, pins: Mapping[str, str]) -> Problem | None:
    """Why this node cannot take the configuration at all, with the place in the file; None if it can.

    A list that passes 2 MiB would end the resource on the kubelet's side, so the edit is refused as a whole.
    """
    allotment = allot(config, inventory, pins)
    by_resource: dict[str, list[_Member]] = {}
    for device in allotment.devices:
        assignment = allotment.assignments.get(device.uuid)
        if assignment is not None:
            node = device.numa_node if config.allocation.numa_hints else None
            by_resource.setdefault(assignment.form.resource, []).append(_Member(device.uuid, node, assignment))
    for members in by_resource.values():
        size = sum(member.size for member in members)
        if size > LIMIT_BYTES:
            return _refuse(config, members, size)
    return None


class _Member(msgspec.Struct, frozen=True):
    """One device of a resource that is judged."""

    uuid: str
    numa_node: int | None
    assignment: Assignment

    @property
    def size(self) -> int:
        return gpu_bytes(uuid=self.uuid, numa_node=self.numa_node, replicas=self.assignment.replicas)


def _refuse(config: Config, members: Sequence[_Member], size: int) -> Problem:
    """The problem, at the entry whose devices take most room."""
    sizes: Counter[str] = Counter()
    for member in members:
        sizes[member.assignment.rule] += member.size
    rule, taken = sizes.most_common(1)[0]
    concerned = [member for member in members if member.assignment.rule == rule]
    room = LIMIT_BYTES - (size - taken)
    is_enough = sum(gpu_bytes(uuid=member.uuid, numa_node=member.numa_node, replicas=1) for member in concerned) <= room
    most = _most_replicas(concerned, room) if is_enough else _most_replicas(members, LIMIT_BYTES)
    path = f"{rule}.replicas"
    origin = config.origins.get(path, DEFAULT)
    return Problem(
        file=config.name,
        line=origin.line,
        column=origin.column,
        path=path,
        message=f"{len(concerned)} × {concerned[0].assignment.replicas} devices make a list of {_mib(size)} MiB"
        f"{'' if len(concerned) == len(members) else ' together with others of that name'}; "
        f"2 MiB is allowed, at most {most} replicas {'here' if is_enough else 'of each device'}",
    )


def _most_replicas(members: Sequence[_Member], limit_bytes: int) -> int:
    return most_replicas(tuple((member.uuid, member.numa_node) for member in members), limit_bytes=limit_bytes)


def _mib(size: int) -> str:
    return f"{size / _MIB:.0f}" if size >= 10 * _MIB else f"{size / _MIB:.1f}"
