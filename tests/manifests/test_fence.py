"""What a pod of nvdp may write, whatever RBAC says: its own node's objects, and there what a feature needs."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import admission
import kubernetes_validate
import kustomize
import pytest

from nvdp.planning import label_catalog

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
COMPONENTS = MANIFESTS / "components"
NODE, OTHER = "gpu-a3", "gpu-a4"
TAINT, CONDITION = "nvidia.com/gpu-not-ready", "nvidia.com/GPUReady"
Object = dict[str, Any]

NODE_BEFORE: Object = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": NODE,
        "uid": "6f2b",
        "resourceVersion": "7",
        "labels": {"kubernetes.io/hostname": NODE, "nvidia.com/gpu.count": "8", "nvidia.com/mig.config": "all-1g.10gb"},
        "annotations": {"node.alpha.kubernetes.io/ttl": "0", "nvidia.com/nvdp.labels": "gpu.count"},
        "managedFields": [{"manager": "kubelet"}],
    },
    "spec": {
        "podCIDR": "10.1.3.0/24",
        "taints": [
            {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
            {"key": TAINT, "value": "true", "effect": "NoSchedule"},
            {"key": TAINT, "value": "true", "effect": "NoExecute"},
        ],
    },
    "status": {
        "allocatable": {"nvidia.com/gpu": "8"},
        "conditions": [
            {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-30T06:00:00Z"},
            {"type": CONDITION, "status": "False", "reason": "NotRegistered"},
        ],
        "images": [{"names": [f"registry.example/{n}@sha256:{n:064}"], "sizeBytes": n} for n in range(50)],
    },
}


def build(*features: str) -> list[Object]:
    objects = kustomize.apply(COMPONENTS / "cluster", kustomize.build(MANIFESTS / "base"))
    for name in ("node-fence", *features):
        objects = kustomize.apply(COMPONENTS / name, objects)
    return objects


NOTHING = build()
LABELS = build("labels-node")
STATE = build("node-condition")
START = build("startup-taint")


def user(node: str | None = NODE, *, name: str = "nvdp") -> Object:
    """Who asks: the token of a pod names its node from Kubernetes 1.30 on."""
    extra = {} if node is None else {"authentication.kubernetes.io/node-name": [node]}
    groups = ["system:serviceaccounts", "system:authenticated"]
    return {"username": f"system:serviceaccount:nvdp:{name}", "groups": groups, **({"extra": extra} if extra else {})}


def write_node(objects: list[Object], change: Callable[[Object], Any], *, by: Object | None = None, part: str = ""):
    new = copy.deepcopy(NODE_BEFORE)
    change(new)
    request = {
        "operation": "UPDATE",
        "resource": {"group": "", "version": "v1", "resource": "nodes"},
        "subResource": part,
        "name": NODE,
        "userInfo": user() if by is None else by,
    }
    admission.judge(objects, request, old=NODE_BEFORE, new=new)


def refused(match: str) -> Any:
    return pytest.raises(admission.Refused, match=match)


def label(key: str, value: str | None) -> Callable[[Object], Any]:
    def change(node: Object) -> None:
        if value is None:
            del node["metadata"]["labels"][key]
        else:
            node["metadata"]["labels"][key] = value

    return change


def take_off(*keys: str) -> Callable[[Object], Any]:
    def change(node: Object) -> None:
        node["spec"]["taints"] = [taint for taint in node["spec"]["taints"] if taint["key"] not in keys]

    return change


def set_condition(kind: str, status: str) -> Callable[[Object], Any]:
    def change(node: Object) -> None:
        others = [one for one in node["status"]["conditions"] if one["type"] != kind]
        node["status"]["conditions"] = [*others, {"type": kind, "status": status}]

    return change


def put(path: str, value: Any) -> Callable[[Object], Any]:
    def change(node: Object) -> None:
        *ways, last = path.split(".")
        for way in ways:
            node = node[way]
        node[last] = value

    return change


@pytest.mark.parametrize(
    "path", [path for path in (COMPONENTS / "node-fence").glob("*.yaml") if path.name != "kustomization.yaml"]
)
def test_every_object_is_valid_for_the_oldest_kubernetes_that_knows_it(path: Path):
    for found in kustomize.load(path):
        for version in ("1.30", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(found, version, strict=True)


# --- whose Node


@pytest.mark.parametrize(
    ("objects", "change", "part"),
    [
        (LABELS, label("nvidia.com/gpu.count", "4"), ""),
        (STATE, set_condition(CONDITION, "True"), "status"),
        (START, take_off(TAINT), ""),
    ],
    ids=["labels", "condition", "taint"],
)
def test_a_pod_writes_to_its_own_node_and_to_no_other(objects: list[Object], change: Callable, part: str):
    write_node(objects, change, part=part)
    with refused("to the Node that its pod runs on, and to no other"):
        write_node(objects, change, part=part, by=user(OTHER))
    with refused("the token names no node"):
        write_node(objects, change, part=part, by=user(None))


def test_others_are_left_alone():
    for name in ("kubelet", "nvdp-operator", "nvdp-mps"):
        write_node(LABELS, put("spec.podCIDR", "other"), by=user(None, name=name))
    write_node(LABELS, put("spec.podCIDR", "other"), by={"username": "admin:nvdp", "groups": []})


def test_the_name_of_the_service_account_is_fenced_in_every_namespace():
    moved = {**user(OTHER), "username": "system:serviceaccount:elsewhere:nvdp"}
    with refused("to no other"):
        write_node(LABELS, label("nvidia.com/gpu.count", "4"), by=moved)


@pytest.mark.parametrize("operation", ["CREATE", "DELETE"])
def test_nodes_are_neither_made_nor_deleted(operation: str):
    request = {
        "operation": operation,
        "resource": {"group": "", "version": "v1", "resource": "nodes"},
        "name": NODE,
        "userInfo": user(),
    }
    with refused("makes and deletes no Nodes"):
        admission.judge(LABELS, request, new=NODE_BEFORE)


# --- what of it


def test_without_a_feature_nothing_of_the_node_may_be_written():
    write_node(NOTHING, lambda _node: None)
    for change in (label("nvidia.com/gpu.count", "4"), take_off(TAINT), set_condition(CONDITION, "True")):
        with refused("nvdp may"):
            write_node(NOTHING, change)


def test_without_the_list_of_what_may_be_written_nothing_may():
    bare = [found for found in LABELS if found["metadata"]["name"] != "nvdp-node-writes"]
    with refused("no params found"):
        write_node(bare, label("nvidia.com/gpu.count", "4"))


@pytest.mark.parametrize(
    "key",
    [
        "nvidia.com/device-plugin.config",
        "nvidia.com/mig.config",
        "nvidia.com/mig.config.state",
        "nvidia.com/gpu.deploy.device-plugin",
        "nvidia.com/gpu.present",
        "nvidia.com/gpu.count.evil",
        "node-role.kubernetes.io/control-plane",
        "kubernetes.io/hostname",
        "evil.example/nvidia.com",
        "gpu.count",
    ],
)
def test_labels_that_steer_somebody_are_not_for_nvdp_to_write(key: str):
    with refused("the labels that it writes itself"):
        write_node(LABELS, label(key, "true"))


def test_the_labels_that_may_be_written_are_those_that_are():
    (rule,) = [
        one["expression"]
        for found in LABELS
        if found["metadata"]["name"] == "nvdp-node-fence" and "validations" in found["spec"]
        for one in found["spec"]["validations"]
        if "matches(" in one["expression"]
    ]
    pattern = "".join(re.findall(r'"([^"]*)"', rule)).replace("\\\\", "\\")
    assert pattern == f"^{label_catalog._OURS.pattern}$"


def test_labels_of_others_stay_and_own_ones_may_go():
    write_node(LABELS, label("nvidia.com/gpu.count", None))
    with refused("the labels that it writes itself"):
        write_node(LABELS, label("nvidia.com/mig.config", None))


def test_the_annotation_that_remembers_labels_is_the_only_one():
    write_node(
        LABELS, put("metadata.annotations", {**NODE_BEFORE["metadata"]["annotations"], "nvidia.com/nvdp.labels": ""})
    )
    with refused("no other"):
        write_node(LABELS, put("metadata.annotations", {}))
    with refused("no other"):
        write_node(START, put("metadata.annotations", {"node.alpha.kubernetes.io/ttl": "0"}))


@pytest.mark.parametrize(
    "change",
    [
        put("metadata.finalizers", ["example.com/mine"]),
        put("metadata.ownerReferences", [{"kind": "Pod", "name": "mine"}]),
        put("metadata.uid", "other"),
        lambda node: node["metadata"].pop("uid"),
    ],
    ids=["finalizers", "owner", "uid", "no uid"],
)
def test_nothing_else_of_the_metadata_may_change(change: Callable):
    with refused("metadata"):
        write_node(LABELS, change)


def test_what_the_server_itself_changes_of_the_metadata_is_let_through():
    write_node(LABELS, put("metadata.managedFields", [{"manager": "nvdp"}]))


def test_a_node_without_labels_annotations_taints_or_conditions_is_judged_too():
    bare = {"metadata": {"name": NODE}, "spec": {}, "status": {}}
    labelled = {**bare, "metadata": {"name": NODE, "labels": {"nvidia.com/gpu.count": "8"}}}
    request = {
        "operation": "UPDATE",
        "resource": {"group": "", "version": "v1", "resource": "nodes"},
        "name": NODE,
        "userInfo": user(),
    }
    admission.judge(LABELS, request, old=bare, new=labelled)
    admission.judge(LABELS, request, old=labelled, new=bare)
    with refused("labels"):
        admission.judge(START, request, old=bare, new=labelled)


def test_the_named_taint_may_go_with_any_effect_and_no_other_may():
    write_node(START, take_off(TAINT))
    write_node(START, lambda node: node["spec"]["taints"].pop(1))
    for change in (
        take_off("nvidia.com/gpu"),
        take_off("nvidia.com/gpu", TAINT),
        lambda node: node["spec"]["taints"].append({"key": "mine", "effect": "NoExecute"}),
        lambda node: node["spec"]["taints"].append({"key": TAINT, "effect": "PreferNoSchedule"}),
        lambda node: node["spec"]["taints"][1].update(effect="PreferNoSchedule"),
    ):
        with refused("take off the taint"):
            write_node(START, change)
    for objects in (LABELS, STATE):
        with refused("take off the taint"):
            write_node(objects, take_off(TAINT))


@pytest.mark.parametrize("key", ["unschedulable", "podCIDR", "providerID", "whatComesLater"])
def test_nothing_else_of_the_spec_may_change(key: str):
    with refused("a Node's spec"):
        write_node(START, put(f"spec.{key}", "other"))


def test_nothing_of_the_spec_may_go():
    with refused("a Node's spec"):
        write_node(START, lambda node: node["spec"].pop("podCIDR"))


def test_the_named_condition_may_be_written_and_no_other():
    write_node(STATE, set_condition(CONDITION, "True"), part="status")
    for change in (
        set_condition("Ready", "False"),
        set_condition("Mine", "True"),
        lambda node: node["status"]["conditions"].pop(0),
        put("status.conditions", []),
    ):
        with refused("write the condition"):
            write_node(STATE, change, part="status")
    for objects in (LABELS, START):
        with refused("write the condition"):
            write_node(objects, set_condition(CONDITION, "True"), part="status")


@pytest.mark.parametrize("key", ["allocatable", "capacity", "images", "whatComesLater"])
def test_nothing_else_of_the_status_may_change(key: str):
    with refused("a Node's status"):
        write_node(STATE, put(f"status.{key}", {"nvidia.com/gpu": "80"}), part="status")
    with refused("a Node's status"):
        write_node(STATE, lambda node: node["status"].pop("allocatable"), part="status")


def test_a_patch_of_the_status_may_not_carry_labels_along():
    def change(node: Object) -> None:
        set_condition(CONDITION, "True")(node)
        label("nvidia.com/mig.config", "all-disabled")(node)

    with refused("the labels that it writes itself"):
        write_node(STATE, change, part="status")


def test_features_of_the_fence_add_up():
    both = build("labels-node", "startup-taint", "node-condition")
    for change, part in (
        (label("nvidia.com/gpu.count", "4"), ""),
        (take_off(TAINT), ""),
        (set_condition(CONDITION, "True"), "status"),
    ):
        write_node(both, change, part=part)


@pytest.mark.parametrize("feature", ["labels-node", "node-condition", "startup-taint"])
def test_what_writes_to_nodes_cannot_be_built_without_the_fence(feature: str):
    objects = kustomize.apply(COMPONENTS / "cluster", kustomize.build(MANIFESTS / "base"))
    with pytest.raises(AssertionError, match="a patch must find its object"):
        kustomize.apply(COMPONENTS / feature, objects)


# --- NodeFeature objects


def write_feature(operation: str, *, name: str = NODE, about: str = NODE, by: Object | None = None) -> None:
    feature = {
        "metadata": {"name": f"nvidia-features-for-{name}", "labels": {"nfd.node.kubernetes.io/node-name": about}},
        "spec": {"labels": {"nvidia.com/gpu.count": "8"}},
    }
    request = {
        "operation": operation,
        "resource": {"group": "nfd.k8s-sigs.io", "version": "v1alpha1", "resource": "nodefeatures"},
        "name": feature["metadata"]["name"],
        "userInfo": user() if by is None else by,
    }
    old = None if operation == "CREATE" else feature
    admission.judge(NOTHING, request, old=old, new=None if operation == "DELETE" else feature)


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
def test_a_pod_writes_its_own_nodes_feature_object_and_no_other(operation: str):
    write_feature(operation)
    with refused("the NodeFeature of the node that its pod runs on"):
        write_feature(operation, name=OTHER)
    with refused("the token names no node"):
        write_feature(operation, by=user(None))
    write_feature(operation, name=OTHER, by=user(None, name="node-feature-discovery"))


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_its_feature_object_speaks_of_no_other_node(operation: str):
    with refused("has to name the node"):
        write_feature(operation, about=OTHER)
