"""Which devices tell the kubelet their NUMA node, by which it keeps containers together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from nvdp.config.schema import Config
from nvdp.model.listing import ListedDevice, Strategy
from nvdp.planning.assignment import Assignment
from nvdp.planning.devices import Device
from nvdp.planning.mps_specs import allows_several


class Locality:
    """The nodes of one plan. ``parents`` are the GPUs of MIG devices, those that are gone among them."""

    def __init__(
        self,
        config: Config,
        devices: Sequence[Device],
        assignments: Mapping[str, Assignment],
        *,
        ailing: Collection[str],
        parents: Mapping[str, str],
    ) -> None:
        self._nodes = {device.gpu.uuid: device.numa_node for device in devices}
        self._parents = parents
        self._aware = find_numa_aware(config, devices, assignments, ailing)
        self._otherwise = config.allocation.numa_hints

    def find_node(self, resource: str, device: Device) -> int | None:
        """The node with which the device is listed."""
        return device.numa_node if self._is_aware(resource) else None

    def find_last_node(self, resource: str, device: ListedDevice) -> int | None:
        """The same for one that is on its way out; of a GPU that is gone, the kubelet remembers the node."""
        known = self._nodes.get(self._parents.get(device.gpu_uuid, device.gpu_uuid))
        node = device.numa_node if known is None else known
        return node if self._is_aware(resource) else None

    def _is_aware(self, resource: str) -> bool:
        """Whether its devices have NUMA nodes: all or none, for the kubelet puts those without at a disadvantage."""
        return self._aware.get(resource, self._otherwise)


def find_numa_aware(
    config: Config, devices: Sequence[Device], assignments: Mapping[str, Assignment], ailing: Collection[str]
) -> dict[str, bool]:
    """By resource, whether every device that is fit for use has a NUMA node, and its containers may be kept on one.

    Where pieces must be of different devices they may not: the kubelet counts pieces, so it would keep a container on a
    node that has enough pieces and too few devices, and then refuse every such request. Nor where they must be of the
    same device: it would take a node with enough pieces of two.
    """
    slices = config.sharing.time_slicing
    choosy = {
        Strategy.TIME_SLICING: slices is not None
        and slices.require_distinct_gpus
        and not slices.fail_requests_greater_than_one,
        Strategy.MPS: allows_several(config),
    }
    aware: dict[str, bool] = {}
    for device in devices:
        assignment = assignments.get(device.uuid)
        if assignment is None or device.uuid in ailing:
            continue
        resource = assignment.form.resource
        may_be_kept = not (assignment.form.shared and choosy.get(assignment.strategy, False))
        known = config.allocation.numa_hints and device.numa_node is not None
        aware[resource] = aware.get(resource, True) and known and may_be_kept
    return aware
