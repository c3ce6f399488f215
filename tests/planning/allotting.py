"""What the file makes of a node, written in a few words per card."""

from __future__ import annotations

from nvdp.model.inventory import Driver, Gpu, Inventory
from nvdp.model.listing import Strategy
from nvdp.planning.allotment import Allotment, allot, resolve_pins
from nvdp.planning.assignment import Assignment
from tests.planning.values import inventory, parse

_MARKS = {Strategy.NONE: "", Strategy.TIME_SLICING: "/", Strategy.MPS: "%"}


def allotted(text: str, *gpus: Gpu, before=None, ailments=None, driver: Driver | None = None) -> Allotment:
    """The allotment when the file comes into force on a node with these GPUs and with what was pinned ``before``."""
    config = parse(text)
    node = inventory(*gpus) if driver is None else Inventory(driver=driver, gpus=gpus)
    return allot(config, node, resolve_pins(config, gpus, ailments or {}, before or {}))


def numbers(uuids) -> list[int]:
    """The GPUs by the numbers with which ``values.uuid`` made them."""
    return [int(uuid.rpartition("-")[2]) for uuid in uuids]


def show(assignment: Assignment | None) -> str:
    """``gpu`` for a whole one, ``gpu.shared/4`` for time-slices, ``gpu.mps%4`` for MPS clients."""
    if assignment is None:
        return ""
    name = assignment.form.resource.removeprefix("nvidia.com/")
    mark = _MARKS[assignment.strategy]
    return f"{name}{mark}{assignment.replicas}" if mark else name


def shown(allotment: Allotment) -> dict[int, str]:
    """Each card by number: what it is offered as, or ``-reason`` and what was meant."""
    offered = {uuid: show(assignment) for uuid, assignment in allotment.assignments.items()}
    kept = {uuid: f"-{held.reason} {show(held.intended)}".rstrip() for uuid, held in allotment.withheld.items()}
    assert not offered.keys() & kept.keys()
    return {int(uuid.rpartition("-")[2]): text for uuid, text in sorted((offered | kept).items())}
