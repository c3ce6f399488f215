"""A cluster as an administrator made it: the shipped manifests applied, a Node, and nvdp's pod on it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.daemon.node import build_config
from tests.daemon.process import wait_until
from tests.real.controlplane import ControlPlane, find_kubectl

NAMESPACE, NODE, POD = "nvdp", "gpu-a3", "nvdp-x7"
KEY = "nvidia.com/device-plugin.config"
CONDITION, TAINT = "nvidia.com/GPUReady", "nvidia.com/gpu-not-ready"
TEXTS = {name: yaml.safe_dump(build_config(share=share)) for name, share in (("two", 2), ("four", 4), ("whole", None))}
MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
# Newer than the oldest server that the tests run on; what they do is shown by tests/manifests.
_UNKNOWN = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
_FEATURES = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodefeatures.nfd.k8s-sigs.io"},
    "spec": {
        "group": "nfd.k8s-sigs.io",
        "scope": "Namespaced",
        "names": {"kind": "NodeFeature", "plural": "nodefeatures", "singular": "nodefeature"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                                    "features": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}


class RealCluster:
    """The Node is labelled ``two`` and has the start-up taint. nvdp has the rights of its service account.

    The manifests are the overlay cluster-nodes; with ``components`` the base with these.
    """

    def __init__(self, control: ControlPlane, root: Path, *, components: Sequence[str] = ()) -> None:
        self.control = control
        built = subprocess.run(
            [find_kubectl(control.programs), "kustomize", _write_kustomization(root, components)],
            capture_output=True,
            text=True,
            check=True,
        )
        objects = [found for found in yaml.safe_load_all(built.stdout) if found["kind"] not in _UNKNOWN]
        control.create(_FEATURES)
        control.create(*(found for found in objects if found["kind"] == "Namespace"))
        control.create(*(found for found in objects if found["kind"] not in {"Namespace", "ResourceQuota"}))
        taint = {"key": TAINT, "effect": "NoSchedule"}
        control.create(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": NODE, "labels": {KEY: "two", "team": "a"}},
                "spec": {"taints": [taint, {"key": "example.com/other", "effect": "NoSchedule"}]},
                "status": {"capacity": {"cpu": "2"}},
            },
            build_pod(NAMESPACE, POD, NODE, account="nvdp", owner=control.get("daemonset", "nvdp", "-n", NAMESPACE)),
        )
        self.edit(**TEXTS)
        self.kubeconfig = control.write_service_account(root / "nvdp.kubeconfig", namespace=NAMESPACE, name="nvdp")
        self.access = (
            "--node-name",
            NODE,
            "--namespace",
            NAMESPACE,
            "--pod-name",
            POD,
            "--kubeconfig",
            self.kubeconfig,
        )
        self.by_label = ("--config-map", "nvdp-configs", "--default-config", "whole")
        self.flags: tuple[str | Path, ...] = (
            *(*self.access, *self.by_label, "--write-labels", "node-feature"),
            *("--events", "true", "--node-condition", CONDITION, "--startup-taint", TAINT),
        )

    def label(self, value: str | None) -> float:
        """kubectl label node; when (monotonic seconds) it is about to end."""
        self.control.kubectl("label", "--overwrite", "node", NODE, f"{KEY}={value}" if value is not None else f"{KEY}-")
        return time.monotonic()

    def edit_by_hand(self, editor: str) -> float:
        """kubectl edit configmap, with this command line as the editor; when (monotonic seconds) it has ended."""
        self.control.kubectl("edit", "configmap", "nvdp-configs", "-n", NAMESPACE, editor=editor)
        return time.monotonic()

    def untaint(self, key: str) -> None:
        self.control.kubectl("taint", "node", NODE, f"{key}-")

    def edit(self, **texts: str) -> float:
        """What kubectl edit configmap writes; when (monotonic seconds) that was done."""
        change = json.dumps({"data": texts})
        self.control.kubectl("patch", "configmap", "nvdp-configs", "-n", NAMESPACE, "--type=merge", "-p", change)
        return time.monotonic()

    def take_right(self, resource: str, verb: str) -> None:
        """Edit the roles of nvdp so that none grants this any more."""
        for found in self.control.get("clusterroles")["items"]:
            rules = found["rules"] or [] if found["metadata"]["name"].startswith("nvdp") else []
            for rule in [one for one in rules if resource in one["resources"]]:
                rule["verbs"] = [other for other in rule["verbs"] if other != verb]
                self.control.kubectl("replace", "-f", "-", given=found)

    def set_allocatable(self, count: int) -> None:
        """As the kubelet does in the status of its Node."""
        quantities = {"nvidia.com/gpu": str(count)}
        change = [
            {"op": "add", "path": "/status/allocatable", "value": quantities},
            {"op": "add", "path": "/status/capacity", "value": quantities},
        ]
        path = f"/api/v1/nodes/{NODE}/status"
        self.control.patch(path, change)

    @property
    def node(self) -> dict[str, Any]:
        return self.control.get("node", NODE)

    @property
    def condition(self) -> dict[str, Any]:
        conditions = self.node.get("status", {}).get("conditions", [])
        return next((one for one in conditions if one["type"] == CONDITION), {})

    @property
    def taints(self) -> set[str]:
        return {taint["key"] for taint in self.node["spec"].get("taints", [])}

    @property
    def labels(self) -> dict[str, str]:
        """Those for node-feature-discovery."""
        found = self.control.get("nodefeatures", "-n", NAMESPACE)["items"]
        return found[0]["spec"]["labels"] if found else {}

    @property
    def events(self) -> list[dict[str, Any]]:
        """Those about the Node, which are where kubectl describe looks for them."""
        return [one for one in self.control.get("events", "-A")["items"] if one["involvedObject"]["kind"] == "Node"]

    def describe(self) -> str:
        return self.control.kubectl("describe", "node", NODE)

    def wait_settled(self, replicas: int) -> None:
        """Until all that is written is as it should be."""
        wait_until(lambda: self.condition.get("status") == "True", what="the condition")
        wait_until(lambda: TAINT not in self.taints, what="that the taint goes")
        wait_until(lambda: self.labels.get("nvidia.com/gpu.replicas") == str(replicas), what="labels")


def _write_kustomization(root: Path, components: Sequence[str]) -> Path:
    """Its directory."""
    if not components:
        return MANIFESTS / "overlays" / "cluster-nodes"
    directory = root / "kustomization"
    directory.mkdir()

    def name(*parts: str) -> str:
        return os.path.relpath(MANIFESTS.joinpath(*parts), directory.resolve())

    document = {"resources": [name("base")], "components": [name("components", one) for one in components]}
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return directory


def build_pod(namespace: str, name: str, node: str, *, account: str, owner: dict[str, Any]) -> dict[str, Any]:
    reference = {
        **{key: owner[key] for key in ("apiVersion", "kind")},
        **{key: owner["metadata"][key] for key in ("name", "uid")},
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [reference]},
        "spec": {
            "nodeName": node,
            "serviceAccountName": account,
            "containers": [{"name": "c", "image": "nothing"}],
        },
    }
