"""The rights of the manifests are exactly what is used: each feature is played with those that its component brings.

A server obeys the roles and the policies that are shipped. With all of them each journey succeeds, and asks for nothing
that is not granted nor is anything granted that it does not ask for; without any single verb it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import admission
import kustomize
import pytest

from nvdp.cluster.access import ServiceAccountAccess
from nvdp.cluster.api import Api
from nvdp.cluster.node_events import NodeEvents
from nvdp.cluster.node_features import NodeFeatureObject
from nvdp.cluster.node_labels import NodeLabels
from nvdp.cluster.node_status import NodeConditionWriter, NodeTaintRemover
from nvdp.errors import ClusterError, ClusterFault
from nvdp.model.cluster import ObjectPath, ObjectSeen, build_config_map_path, build_node_path
from nvdp.planning.event_rate import EventWrite
from nvdp.planning.label_catalog import is_catalogued
from nvdp.planning.node_condition import Condition, ConditionReason
from nvdp.planning.startup_taint import build_removal
from tests.cluster.server import ApiServer, Roles
from tests.cluster.server.handler import Admission

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
NODE = "gpu-a3"
NODE_PATH = build_node_path(NODE)
LABELS = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H200"}
TAINT = {"key": "nvidia.com/gpu-not-ready", "effect": "NoSchedule"}
Object = dict[str, Any]
Right = tuple[str, str, str]  # namespace, resource with its group, verb


def watch(api: Api, path: ObjectPath) -> Object:
    """The present state, as ``ObjectWatch`` hears it."""
    with api.watch(path) as found:
        return next(iter(found)).object


def look(api: Api, path: ObjectPath) -> None:
    """What ``ObjectWatch`` does where a watch says nothing: is the object there at all?"""
    api.read(path)


# --- the journeys


def choose_by_label(api: Api) -> None:
    for path in (NODE_PATH, build_config_map_path("nvdp", "nvdp-configs")):
        watch(api, path)
        look(api, path)


def write_feature_object(api: Api) -> None:
    def begin() -> NodeFeatureObject:
        return NodeFeatureObject(api, node_name=NODE, namespace="nvdp", pod_name="nvdp-x7")

    for labels in (LABELS, {**LABELS, "nvidia.com/gpu.count": "4"}):
        outcome = begin().write(labels)
        if outcome.problem is not None:
            raise outcome.problem
    begin().remove()


def write_node_labels(api: Api) -> None:
    labels = NodeLabels(api, node_name=NODE, is_ours=is_catalogued)
    labels.see(ObjectSeen(object=watch(api, NODE_PATH), at=0.0))
    labels.write(LABELS)
    labels.forget()
    labels.write({"nvidia.com/gpu.count": "4"})
    labels.remove()


def tell_events(api: Api) -> None:
    uid = watch(api, NODE_PATH)["metadata"]["uid"]
    look(api, NODE_PATH)
    events = NodeEvents(api, node_name=NODE, instance="nvdp-x7")
    write = EventWrite(
        serial=1, reason="DriverReady", type="Normal", note="8 GPUs", began=1.0, last=1.0, count=1, again=False
    )
    events.create(write, uid)
    assert events.repeat(write)


def write_condition(api: Api) -> None:
    watch(api, NODE_PATH)
    look(api, NODE_PATH)
    writer = NodeConditionWriter(api, node_name=NODE, condition_type="nvidia.com/GPUReady")
    condition = Condition(reason=ConditionReason.PLAN_ADVERTISED, message="nvidia.com/gpu: 8 of 8 healthy")
    writer.write(condition, last_transition="2026-11-30T06:00:00Z", now=1.0)


def take_off_taint(api: Api) -> None:
    node = watch(api, NODE_PATH)
    look(api, NODE_PATH)
    NodeTaintRemover(api, node_name=NODE).remove(build_removal(node, TAINT["key"]))


JOURNEYS: dict[str, Callable[[Api], None]] = {
    "config-by-label": choose_by_label,
    "labels-node-feature": write_feature_object,
    "labels-node": write_node_labels,
    "events": tell_events,
    "node-condition": write_condition,
    "startup-taint": take_off_taint,
}


# --- the stage


@cache
def build(feature: str) -> list[Object]:
    """For reading only."""
    objects = kustomize.build(MANIFESTS / "base")
    for name in ("cluster", "node-fence", feature):
        objects = kustomize.apply(MANIFESTS / "components" / name, objects)
    return objects


def list_rules(objects: list[Object]) -> list[tuple[Object, Object, str]]:
    return [
        (found, rule, verb)
        for found in objects
        if found["kind"] in {"Role", "ClusterRole"}
        for rule in found["rules"]
        for verb in rule["verbs"]
    ]


def list_rights(objects: list[Object]) -> set[Right]:
    return {
        (found["metadata"].get("namespace", ""), resource, verb)
        for found, rule, verb in list_rules(objects)
        for resource in rule["resources"]
    }


def fence(objects: list[Object], *, token_of: str) -> Callable[[Admission], str | None]:
    """The policies of the manifests, for the token of the pod on a node."""

    def admit(asked: Admission) -> str | None:
        request = {
            "operation": {"create": "CREATE", "delete": "DELETE"}.get(asked.wish.verb, "UPDATE"),
            "resource": {"group": asked.wish.group, "resource": asked.wish.resource},
            "subResource": asked.wish.subresource,
            "name": asked.wish.name,
            "userInfo": {"username": asked.user, "extra": {"authentication.kubernetes.io/node-name": [token_of]}},
        }
        try:
            admission.judge(objects, request, old=asked.old, new=asked.new)
        except admission.Refused as refused:
            return str(refused)
        return None

    return admit


@contextmanager
def running(objects: list[Object], directory: Path, *, token_of: str = NODE) -> Iterator[tuple[ApiServer, Api]]:
    with ApiServer(roles=Roles(objects), admit=fence(objects, token_of=token_of)) as server:
        node = {"metadata": {"name": NODE}, "spec": {"taints": [TAINT]}, "status": {"conditions": [{"type": "Ready"}]}}
        server.store.put("nodes", node)
        server.store.put("configmaps", {"metadata": {"name": "nvdp-configs", "namespace": "nvdp"}})
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "nvdp", "uid": "d-1", "controller": True}
        pod = {"name": "nvdp-x7", "namespace": "nvdp", "ownerReferences": [owner]}
        server.store.put("pods", {"metadata": pod})
        api = Api(ServiceAccountAccess(server.write_service_account(directory / "account"), environ=server.environ))
        yield server, api
        api.close()


@pytest.mark.parametrize("feature", JOURNEYS)
def test_a_feature_works_by_its_own_rights_and_uses_all_of_them(feature: str, tmp_path: Path):
    objects = build(feature)
    with running(objects, tmp_path) as (server, api):
        JOURNEYS[feature](api)
        used = {(entry.namespace, entry.resource, entry.verb) for entry in server.journal.of()}
        assert {entry.code for entry in server.journal.of()} <= {200, 201, 404}
        assert used == list_rights(objects)


WITHOUT = [
    pytest.param(feature, number, id=f"{feature} without {verb} {'/'.join(rule['resources'])}")
    for feature in JOURNEYS
    for number, (_, rule, verb) in enumerate(list_rules(build(feature)))
]


@pytest.mark.parametrize(("feature", "number"), WITHOUT)
def test_a_feature_fails_without(feature: str, number: int, tmp_path: Path):
    objects = build(feature)
    owner, rule, verb = list_rules(objects)[number]
    rules = [
        {**one, "verbs": [each for each in one["verbs"] if each != verb]} if one is rule else one
        for one in owner["rules"]
    ]
    fewer = [{**one, "rules": rules} if one is owner else one for one in objects]
    with running(fewer, tmp_path) as (_, api), pytest.raises(ClusterError) as failed:
        JOURNEYS[feature](api)
    assert failed.value.fault is ClusterFault.DENIED


@pytest.mark.parametrize("feature", ["labels-node", "node-condition", "startup-taint", "labels-node-feature"])
def test_a_feature_is_refused_with_the_token_of_another_node(feature: str, tmp_path: Path):
    objects = build(feature)
    with (
        running(objects, tmp_path, token_of="gpu-a4") as (_, api),
        pytest.raises(ClusterError, match="that its pod runs on") as failed,
    ):
        JOURNEYS[feature](api)
    assert failed.value.fault is ClusterFault.DENIED
