"""The cluster around a test's node: an API server that knows the node, a ConfigMap to choose from, and the pod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from nvdp.config.load import parse_config
from nvdp.host.state import AppliedConfig, State, StateDirectory
from nvdp.model.chosen import Chosen
from tests.cluster.server import ApiServer, Entry
from tests.daemon.node import GPU, build_config

KEY = "nvidia.com/device-plugin.config"
NODE = "gpu-a3"
CONDITION, TAINT = "nvidia.com/GPUReady", "nvidia.com/gpu-not-ready"
LABELS = "nvidia.com/gpu."
TEXTS = {name: yaml.safe_dump(build_config(share=share)) for name, share in (("two", 2), ("four", 4), ("whole", None))}
_OTHERS = {"key": "example.com/other", "effect": "NoSchedule"}


def save_applied(directory: Path, text: str, *, source: str, chosen: Chosen | None = None) -> None:
    """A process before had this configuration: then the node does not start with all others, and waits a little."""
    config = parse_config(text, name=source)
    applied = AppliedConfig(text=text, source=source, hash=config.hash, chosen=chosen)
    StateDirectory(directory, log=lambda *_, **__: None).save_state(State(config=applied))


class Cluster:
    """The node is labelled ``two``; it has the start-up taint, and four GPUs to advertise."""

    def __init__(self, server: ApiServer, root: Path) -> None:
        self.server = server
        self._root = root
        node = {
            "metadata": {"name": NODE, "labels": {KEY: "two", "team": "a"}},
            "spec": {"taints": [_OTHERS, {"key": TAINT, "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {GPU: "8"}},
        }
        server.store.put("nodes", node)
        server.store.put("configmaps", {"metadata": {"name": "configs", "namespace": "nvdp"}, "data": TEXTS})
        server.store.put("pods", {"metadata": {"name": "nvdp-x7", "namespace": "nvdp"}})
        kubeconfig = server.write_kubeconfig(root / "kubeconfig")
        self.access = ("--node-name", NODE, "--namespace", "nvdp", "--pod-name", "nvdp-x7", "--kubeconfig", kubeconfig)
        self.by_label = ("--config-map", "nvdp/configs", "--default-config", "whole")
        self.node_writers = ("--events", "true", "--node-condition", CONDITION, "--startup-taint", TAINT)
        self.all = (*self.access, *self.by_label, "--write-labels", "node-feature", *self.node_writers)

    def label(self, value: str | None) -> None:
        """As kubectl label."""
        self.server.store.label(NODE, **{KEY: value})

    def edit(self, **texts: str) -> None:
        """As kubectl edit configmap."""
        self.server.store.edit("configmaps", "configs", lambda found: found["data"].update(texts), namespace="nvdp")

    def remember(self, entry: str, directory: str = "state") -> None:
        """A process before had this entry."""
        chosen = Chosen(entry, f"label {KEY}={entry}")
        save_applied(self._root / directory, TEXTS[entry], source=f"configmap nvdp/configs:{entry}", chosen=chosen)

    @property
    def node(self) -> dict[str, Any]:
        found = self.server.store.find("nodes", NODE)
        assert found is not None
        return found

    @property
    def feature(self) -> dict[str, Any]:
        """The object for node-feature-discovery; empty if there is none."""
        return self.server.store.find("nodefeatures", f"nvidia-features-for-{NODE}", namespace="nvdp") or {}

    @property
    def condition(self) -> dict[str, Any]:
        return next((one for one in self.node["status"]["conditions"] if one["type"] == CONDITION), {})

    @property
    def taints(self) -> list[str]:
        return [taint["key"] for taint in self.node["spec"]["taints"]]

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.server.store.list("events")

    @property
    def writes(self) -> list[Entry]:
        """Every request that is not a look at something."""
        return [entry for entry in self.server.journal.of() if entry.verb not in {"get", "list", "watch"}]
