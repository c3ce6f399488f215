"""Which pod holds which device ID, as the kubelet says."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec


class Source(enum.Enum):
    """Where an answer about holders came from, best first."""

    POD_RESOURCES = "pod-resources"
    CHECKPOINT = "checkpoint"


class Holding(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One device ID held by one container. From the checkpoint only the pod's UID is known: it stands in ``pod``.

    ``numa_node`` is where the device was when it was given out, as the kubelet remembers it; the lowest of several.
    """

    resource: str
    device_id: str
    namespace: str
    pod: str
    container: str
    numa_node: int | None = None

    @property
    def holder(self) -> str:
        """``namespace/pod``, or the pod's UID where no more is known."""
        return f"{self.namespace}/{self.pod}" if self.namespace else self.pod


def merge_holdings(found: Iterable[Holding]) -> tuple[Holding, ...]:
    """``found``, sorted, each ID once per container: the kubelet names a device once for each of its NUMA nodes."""
    merged: dict[tuple[str, ...], Holding] = {}
    for holding in found:
        key = (holding.resource, holding.device_id, holding.namespace, holding.pod, holding.container)
        known = merged.get(key, holding)
        nodes = [each.numa_node for each in (known, holding) if each.numa_node is not None]
        merged[key] = msgspec.structs.replace(holding, numa_node=min(nodes, default=None))
    return tuple(merged[key] for key in sorted(merged))


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """The newest answer about holders. Times are monotonic seconds.

    ``source`` is None while nothing was ever read. ``requested_at`` is when the question was asked: only an answer
    requested after a device stopped being offered says that nobody holds it. ``unreadable_since`` is set while the
    kubelet is up and *neither* source can be read, and tells since when without interruption; while the kubelet is
    down it is None and the last answer stands.
    """

    source: Source | None = None
    requested_at: float = float("-inf")
    holdings: tuple[Holding, ...] = ()
    unreadable_since: float | None = None
