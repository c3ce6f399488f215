"""What is written of a Node's status and spec, each by a patch that can touch nothing else: a condition, a taint."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nvdp.model.cluster import ObjectPath, build_node_path
from nvdp.planning.node_condition import Condition, find_version


class ConditionApi(Protocol):
    """What is used of the API (cluster/api.py). Blocks at most 10 s and raises ClusterError."""

    def patch(self, path: ObjectPath, body: Mapping[str, Any], /, *, strategic: bool) -> Mapping[str, Any]: ...


class TaintApi(Protocol):
    """What is used of the API (cluster/api.py). Blocks at most 10 s and raises ClusterError."""

    def patch(self, path: ObjectPath, body: Sequence[Mapping[str, Any]], /) -> object: ...


class NodeConditionWriter:
    """Writes the condition of one type. A strategic merge patch, as conditions are merged by their type there: a plain
    merge patch would replace the whole list, and the kubelet's own with it.
    """

    def __init__(self, api: ConditionApi, *, node_name: str, condition_type: str) -> None:
        self._api = api
        self._path = build_node_path(node_name, subresource="status")
        self._type = condition_type

    def write(self, condition: Condition, *, last_transition: str, now: float) -> str:
        """Have the condition say this, and return the version of the Node; ``now`` is seconds since the epoch."""
        body = build_condition_body(
            condition, condition_type=self._type, last_transition=last_transition, heartbeat=format_time(now)
        )
        return find_version(self._api.patch(self._path, body, strategic=True))


class NodeTaintRemover:
    """Takes taints off one Node, by a JSON patch that tests what it removes."""

    def __init__(self, api: TaintApi, *, node_name: str) -> None:
        self._api = api
        self._path = build_node_path(node_name)

    def remove(self, patch: Sequence[Mapping[str, Any]]) -> None:
        self._api.patch(self._path, patch)


def build_condition_body(
    condition: Condition, *, condition_type: str, last_transition: str, heartbeat: str
) -> dict[str, Any]:
    """The patch."""
    return {
        "status": {
            "conditions": [
                {
                    "type": condition_type,
                    "status": condition.status,
                    "reason": condition.reason.value,
                    "message": condition.message,
                    "lastTransitionTime": last_transition,
                    "lastHeartbeatTime": heartbeat,
                }
            ]
        }
    }


def format_time(wall: float) -> str:
    """UTC, RFC 3339, whole seconds, as the API has times."""
    return dt.datetime.fromtimestamp(wall, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
