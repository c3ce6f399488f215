"""Events of the Node, as ``events.k8s.io/v1`` has them: ``kubectl describe node`` shows them.

The server holds what is written against rules that this module keeps: an event of what is in no namespace is in
``default``; ``eventTime``, ``action`` and who reports are required; only the series of an event may change later.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final, Protocol

from nvdp.errors import ClusterError, ClusterFault
from nvdp.model.cluster import ObjectPath
from nvdp.planning.event_rate import EventWrite

CONTROLLER: Final = "nvdp/device-plugin"
ACTION: Final = "AdvertiseDevices"
NAMESPACE: Final = "default"
_INSTANCE_LIMIT: Final = 128  # characters
_NODE_LIMIT: Final = 200  # of the node's name in the event's, which may have 253


class EventsApi(Protocol):
    """What is used of the API (cluster/api.py). Each call blocks at most 10 s and raises ClusterError."""

    def create(self, path: ObjectPath, body: Mapping[str, Any], /) -> object: ...

    def patch(self, path: ObjectPath, body: Mapping[str, Any], /) -> object: ...


class NodeEvents:
    """Writes events of one Node. ``instance`` is who reports, the pod's name. One thread at a time."""

    def __init__(self, api: EventsApi, *, node_name: str, instance: str) -> None:
        self._api = api
        self._node_name = node_name
        self._instance = (instance or node_name)[:_INSTANCE_LIMIT]

    def create(self, write: EventWrite, uid: str) -> None:
        """Make an event. One that is there already was made by a call whose answer was lost, and is as it should be."""
        body = build_event(write, node_name=self._node_name, uid=uid, instance=self._instance)
        try:
            self._api.create(self._build_path(write), body)
        except ClusterError as error:
            if error.fault is not ClusterFault.CONFLICT:
                raise

    def repeat(self, write: EventWrite) -> bool:
        """Raise the count of an event. False if it is not there any more: the server keeps events for an hour."""
        try:
            self._api.patch(self._build_path(write), {"series": build_series(write)})
        except ClusterError as error:
            if error.fault is not ClusterFault.MISSING:
                raise
            return False
        return True

    def _build_path(self, write: EventWrite) -> ObjectPath:
        return ObjectPath("events", name_event(write, self._node_name), NAMESPACE, "events.k8s.io")


def name_event(write: EventWrite, node_name: str) -> str:
    """A name that no other event of the node has: when it began, and which one of the process it is."""
    node = node_name[:_NODE_LIMIT].rstrip("-.")
    return f"{node}.{int(write.began * 1e6):x}-{write.serial:x}"


def build_event(write: EventWrite, *, node_name: str, uid: str, instance: str) -> dict[str, Any]:
    """The object. ``uid`` is the Node's."""
    body: dict[str, Any] = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name_event(write, node_name), "namespace": NAMESPACE},
        "eventTime": format_micro_time(write.began),
        "type": write.type,
        "reason": write.reason,
        "action": ACTION,
        "note": write.note,
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": uid},
        "reportingController": CONTROLLER,
        "reportingInstance": instance,
    }
    if write.count > 1:
        body["series"] = build_series(write)
    return body


def build_series(write: EventWrite) -> dict[str, Any]:
    return {"count": write.count, "lastObservedTime": format_micro_time(write.last)}


def format_micro_time(wall: float) -> str:
    """UTC, RFC 3339, microseconds: always six digits, as the API wants them."""
    return dt.datetime.fromtimestamp(wall, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
