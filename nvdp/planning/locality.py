"""Which resources tell the kubelet the NUMA nodes of their devices, by which it keeps containers together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from nvdp.config.schema import Config
from nvdp.model.inventory import Gpu
from nvdp.model.listing import Strategy
from nvdp.planning.assignment import Assignment


def find_numa_aware(
    config: Config, gpus: Sequence[Gpu], assignments: Mapping[str, Assignment], ailing: Collection[str]
) -> dict[str, bool]:
    """By resource, whether every GPU that is fit for use has a NUMA node, and its containers may be kept on one.

    Where pieces must be of different GPUs they may not: the kubelet counts pieces, so it would keep a container on a
    node that has enough pieces and too few GPUs, and then refuse every such request.
    """
    slices = config.sharing.time_slicing
    apart = slices is not None and slices.require_distinct_gpus and not slices.fail_requests_greater_than_one
    aware: dict[str, bool] = {}
    for gpu in gpus:
        assignment = assignments.get(gpu.uuid)
        if assignment is None or gpu.uuid in ailing:
            continue
        resource = assignment.form.resource
        may_be_kept = not (apart and assignment.strategy is Strategy.TIME_SLICING)
        known = config.allocation.numa_hints and gpu.numa_node is not None
        aware[resource] = aware.get(resource, True) and known and may_be_kept
    return aware
