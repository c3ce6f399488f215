"""When a start-up taint may go, and how: the node advertises what the plan says, and nothing else of it is touched.

Pure. Autoscalers wait for the taint to go before they count a node as one with GPUs (user-reports J9).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from nvdp.model.status import Status
from nvdp.planning.node_condition import ConditionReason, build_condition

ALLOCATABLE_WAIT_S: Final = 30.0
"""From the kubelet's taking the lists to the Node's showing them; the kubelet does that every ten seconds."""


def list_advertised(status: Status) -> Mapping[str, int]:
    """Healthy devices by resource, once the plan is advertised; empty before."""
    if build_condition(status).reason is not ConditionReason.PLAN_ADVERTISED:
        return {}
    return {resource.name: resource.healthy for resource in status.resources if resource.healthy}


def find_taints(node: Mapping[str, Any], key: str) -> tuple[Mapping[str, Any], ...]:
    """The taints with that key in a Node as the API has it, whatever their effects."""
    return tuple(taint for _, taint in _list_taints(node, key))


def build_removal(node: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """A JSON patch that takes them off: refused as a whole if one stands elsewhere by then, or is another one."""
    patch: list[dict[str, Any]] = []
    for index, taint in reversed(_list_taints(node, key)):  # from the end, so that places hold
        path = f"/spec/taints/{index}"
        patch += [{"op": "test", "path": path, "value": dict(taint)}, {"op": "remove", "path": path}]
    return patch


def has_allocatable(node: Mapping[str, Any], resources: Iterable[str]) -> bool:
    """Whether the Node shows some of each of the resources."""
    status = node.get("status")
    allocatable = status.get("allocatable") if isinstance(status, dict) else None
    known = allocatable if isinstance(allocatable, dict) else {}
    return all(str(known.get(resource, 0)) != "0" for resource in resources)


def _list_taints(node: Mapping[str, Any], key: str) -> list[tuple[int, Mapping[str, Any]]]:
    spec = node.get("spec")
    taints = spec.get("taints") if isinstance(spec, dict) else None
    found = enumerate(taints if isinstance(taints, list) else [])
    return [(index, taint) for index, taint in found if isinstance(taint, dict) and taint.get("key") == key]
