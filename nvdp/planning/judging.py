"""What the hardware has to say about a configuration before it is applied."""

from __future__ import annotations

from collections.abc import Mapping

from nvdp.config.schema import DEFAULT, Config
from nvdp.errors import Problem
from nvdp.model.inventory import Inventory
from nvdp.planning.assignment import Form, assign, order_gpus
from nvdp.planning.sizing import LIMIT_BYTES, gpu_bytes, most_replicas
from nvdp.planning.withholding import withhold

_MIB = 1024 * 1024


def find_unfit(config: Config, inventory: Inventory, pins: Mapping[str, str]) -> Problem | None:
    """Why this node cannot take the configuration at all, with the place in the file; None if it can.

    A list that passes 2 MiB would end the resource on the kubelet's side, so the edit is refused as a whole.
    """
    gpus = order_gpus(inventory.gpus)
    assignments = assign(config, gpus, withhold(config, gpus, pins))
    by_form: dict[Form, list[tuple[str, int | None]]] = {}
    for gpu in gpus:
        assignment = assignments.get(gpu.uuid)
        if assignment is not None:
            node = gpu.numa_node if config.allocation.numa_hints else None
            by_form.setdefault(assignment.form, []).append((gpu.uuid, node))
    for members in by_form.values():
        assignment = assignments[members[0][0]]
        size = sum(gpu_bytes(uuid=uuid, numa_node=node, replicas=assignment.replicas) for uuid, node in members)
        if size > LIMIT_BYTES:
            path = f"{assignment.rule}.replicas"
            origin = config.origins.get(path, DEFAULT)
            return Problem(
                file=config.name,
                line=origin.line,
                column=origin.column,
                path=path,
                message=f"{len(members)} × {assignment.replicas} devices make a list of {_mib(size)} MiB; "
                f"2 MiB is allowed, at most {most_replicas(tuple(members))} replicas here",
            )
    return None


def _mib(size: int) -> str:
    return f"{size / _MIB:.0f}" if size >= 10 * _MIB else f"{size / _MIB:.1f}"
