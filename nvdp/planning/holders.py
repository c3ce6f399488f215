"""What pods hold beyond what a request of the kubelet shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from nvdp.model.held import Held
from nvdp.model.listing import ResourceList
from nvdp.model.replica import parse_replica_id


def count_held_elsewhere(
    lists: Mapping[str, ResourceList], held: Held, *, parents: Mapping[str, str]
) -> dict[str, dict[str, int]]:
    """By resource and device: held IDs that are Unhealthy in the resource's list, left it, or are another resource's.

    Those of a MIG device count for its GPU as well (``parents``), which is preferred, or avoided, for what pods have of
    it. Healthy listed IDs need not be counted: the kubelet's request shows which of them are not available.
    """
    used = [(holding.resource, holding.device_id) for holding in held.holdings]
    counts: dict[str, dict[str, int]] = {}
    for resource, listed in lists.items():
        mine: Counter[str] = Counter()
        for holder_resource, device_id in dict.fromkeys(used):
            replica = parse_replica_id(device_id)
            if replica is None:
                continue
            if holder_resource == resource:
                device = listed.by_id.get(device_id)
                if device is not None and device.healthy:
                    continue
            mine[replica.device] += 1
            if replica.device in parents:
                mine[parents[replica.device]] += 1
        counts[resource] = dict(mine)
    return counts
