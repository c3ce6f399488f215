"""What must hold of every list that is given out in a history: invariants 3, 8 and 10, from one list to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nvdp.model.listing import ResourceList
from nvdp.model.replica import parse_replica_id
from nvdp.planning.assignment import Assignment
from nvdp.planning.plan import Plan
from tests.planning.values import list_bytes

if TYPE_CHECKING:
    from tests.planning.plugin_model import Plugin

UNHEALTHY_S, QUIET_S = 5.0, 2.0
READ_S = 0.1  # from the plugin's handing out a list to the kubelet's having read it
LIST_BYTES = 2 * 2**20
Form = tuple[str, bool]


def form_of(resource: str, device_id: str) -> tuple[str, Form]:
    """The GPU of an ID, and the form in which the ID promises it."""
    replica = parse_replica_id(device_id)
    assert replica is not None, device_id
    return replica.device, (resource, replica.number is not None)


def find_used(node: Plugin, resource: str) -> set[str]:
    """The listed IDs that pods have or may have got, as the plan knew it."""
    planned = node.inputs
    used = {one.device_id for one in planned.held.holdings if one.resource == resource}
    given = planned.given.get(resource)
    if given is None:
        return used
    for device_id, trace in given.allocations.items():
        is_unseen = trace.answered_at is not None and planned.held.requested_at < trace.answered_at + QUIET_S
        if device_id in given.listed.by_id and (trace.in_flight or is_unseen):
            used.add(device_id)
    return used


def check_withdrawals(node: Plugin, before: Mapping[str, ResourceList]) -> None:
    """What a list lost was Unhealthy for 5 s, quiet for 2 s, and free: or nobody could be asked for long enough."""
    kubelet = node.kubelet
    holders = {key: pod for pod, grant in kubelet.pods.items() for key in grant.keys}
    calls = {key for call in kubelet.calls for key in call.keys}
    named = {(holding.resource, holding.device_id) for holding in node.held.holdings}
    for resource, listed in before.items():
        now_listed = node.given[resource].listed.by_id if resource in node.given else {}
        for device_id in listed.by_id.keys() - now_listed.keys():
            key = (resource, device_id)
            assert key not in calls, f"{device_id} left during its Allocate"
            assert node.now - kubelet.answered.get(key, float("-inf")) >= QUIET_S, f"{device_id} was just allocated"
            since = float("-inf")
            if resource in kubelet.lists and device_id in kubelet.lists[resource].by_id:
                since = kubelet.unhealthy_since.get(key, float("inf"))
                assert since < float("inf"), f"{device_id} left while the kubelet believes it Healthy"
                assert node.now - since >= UNHEALTHY_S, f"{device_id} left after {node.now - since:.2f} s"
            is_given_up = _is_unreadable_for_long(node, since)
            ripe_at = max(since + UNHEALTHY_S, kubelet.answered.get(key, float("-inf")) + QUIET_S)
            assert is_given_up or node.held.requested_at >= ripe_at, f"{device_id} left unasked"
            assert key not in named, f"{device_id} left, and the last answer names a holder"
            pod = holders.get(key)
            if pod is not None and pod not in kubelet.unknowable:
                assert is_given_up, f"{device_id} left while {pod} holds it"
                kubelet.given_up.add(pod)
                if node.find_gpu(listed.by_id[device_id].gpu_uuid) not in node.gpus:
                    kubelet.unknowable.add(pod)


def _is_unreadable_for_long(node: Plugin, since: float) -> bool:
    """Whether nobody could be asked about an ID, Unhealthy ``since``, for as long as stands in for an answer."""
    if node.held.unreadable_since is None:
        return False
    unread_s = node.now - max(node.held.unreadable_since, since)
    return unread_s >= node.config.devices.remove_after.seconds - READ_S


def check_order(node: Plugin, before: Mapping[str, ResourceList]) -> None:
    """What is on offer before and after is so in the same order."""
    for resource, listed in before.items():
        if resource in node.given:
            now_healthy = {device.id for device in node.given[resource].listed.devices if device.healthy}
            stayed = [device.id for device in listed.devices if device.healthy and device.id in now_healthy]
            known = set(stayed)
            order = [device.id for device in node.given[resource].listed.devices if device.id in known]
            assert order == stayed, f"the order of {resource} changes"


def check_numbers(node: Plugin, before: Mapping[str, ResourceList]) -> None:
    """Of a card that is shared as before no replica goes for another's sake, unless a pod has that other."""
    for resource, listed in before.items():
        now_healthy = node.given[resource].listed.healthy_by_gpu if resource in node.given else {}
        if now_healthy == listed.healthy_by_gpu:
            continue
        used = find_used(node, resource)
        for gpu, ids in listed.healthy_by_gpu.items():
            offered = now_healthy.get(gpu, ())
            fresh = set(offered).difference(ids, used)
            if ids and fresh and form_of(resource, ids[0]) == form_of(resource, offered[0]):
                assert len(fresh) <= len(offered) - len(ids), (
                    f"{sorted(fresh)} came for {sorted(set(ids) - {*offered})}"
                )


def check_equal(reordered: Plan, plan: Plan) -> None:
    """The order of mappings and of equals does not matter."""
    for field in plan.__struct_fields__:
        assert getattr(plan, field) == getattr(reordered, field), (
            f"the plan's {field} depends on the order of a mapping"
        )


def check_sizes(node: Plugin) -> None:
    for given in node.given.values():
        assert list_bytes(given.listed.devices) <= LIST_BYTES


def check_unmoved(before: Mapping[str, Assignment], after: Mapping[str, Assignment]) -> None:
    """Cards came or went, and those that were there all the while are offered as before."""
    for uuid in before.keys() & after.keys():
        assert (before[uuid].form, before[uuid].replicas) == (after[uuid].form, after[uuid].replicas), (
            f"{uuid} was moved by another card: {before[uuid]} → {after[uuid]}"
        )
