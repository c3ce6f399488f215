"""How large a list is on the wire, and how many replicas fit.

The kubelet receives at most 4 MiB a message and loses the resource for good beyond it; its checkpoint and its
PodResources answers grow with the list and hurt before. So a list may have half of that (kubelet contract A.11).
"""

from __future__ import annotations

LIMIT_BYTES = 2 * 1024 * 1024

_HEALTH_BYTES = 2 + len("Unhealthy")  # the longer of the two words: a list must fit whatever its health


def device_bytes(*, id_length: int, numa_node: int | None) -> int:
    """Encoded size of one device of a ListAndWatchResponse, Unhealthy, with its own tag and length."""
    body = 1 + _varint_bytes(id_length) + id_length + _HEALTH_BYTES
    if numa_node is not None:
        node = 0 if numa_node == 0 else 1 + _varint_bytes(numa_node)
        body += 2 + 2 + node
    return 1 + _varint_bytes(body) + body


def gpu_bytes(*, uuid: str, numa_node: int | None, replicas: int) -> int:
    """Encoded size of one GPU: its plain ID, or ``uuid::0`` up to ``uuid::<replicas-1>``."""
    if replicas == 1:
        return device_bytes(id_length=len(uuid), numa_node=numa_node)
    total = 0
    first, digits = 0, 1
    while first < replicas:  # all numbers of one length at a time
        end = min(replicas, 10**digits)
        total += (end - first) * device_bytes(id_length=len(uuid) + 2 + digits, numa_node=numa_node)
        first, digits = end, digits + 1
    return total


def most_replicas(gpus: tuple[tuple[str, int | None], ...], *, limit_bytes: int = LIMIT_BYTES) -> int:
    """The most replicas of each of these GPUs (UUID, NUMA node) whose list still fits; 1 at least."""
    low, high = 1, LIMIT_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if sum(gpu_bytes(uuid=uuid, numa_node=node, replicas=middle) for uuid, node in gpus) <= limit_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def _varint_bytes(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
