"""Which pod holds which device ID, as the kubelet says."""

from __future__ import annotations

import enum

import msgspec


class Source(enum.Enum):
    """Where an answer about holders came from, best first."""

    POD_RESOURCES = "pod-resources"
    CHECKPOINT = "checkpoint"


class Holding(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One device ID held by one container. From the checkpoint only the pod's UID is known: it stands in ``pod``."""

    resource: str
    device_id: str
    namespace: str
    pod: str
    container: str

    @property
    def holder(self) -> str:
        """``namespace/pod``, or the pod's UID where no more is known."""
        return f"{self.namespace}/{self.pod}" if self.namespace else self.pod


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
