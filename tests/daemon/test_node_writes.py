"""What the daemon writes to its Node: events, the condition, no more taint; and that it waits for none of that."""

from __future__ import annotations

import threading
import time

import pytest
import yaml

from nvdp.config.load import parse_config
from nvdp.host.state import AppliedConfig, State, StateDirectory
from tests.cluster.server import ApiServer, answer, hang
from tests.daemon.node import GPU, build_config, gpu_uuid, healthy, wait_healthy
from tests.daemon.process import LIMIT_S, wait_until
from tests.daemon.prompt import PROMPT

NODE, TYPE, KEY = "gpu-a3", "nvidia.com/GPUReady", "nvidia.com/gpu-not-ready"
OTHERS = {"key": "example.com/other", "effect": "NoSchedule"}
KUBELETS = {"type": "Ready", "status": "True"}
UUIDS = [gpu_uuid(number) for number in range(4)]


class Cluster:
    """An API server that knows the node, and the flags of a daemon that writes to it."""

    def __init__(self, server, root):
        self.server = server
        node = {
            "metadata": {"name": NODE},
            "spec": {"taints": [OTHERS, {"key": KEY, "effect": "NoSchedule"}]},
            "status": {"conditions": [KUBELETS], "allocatable": {GPU: "4"}},
        }
        server.store.put("nodes", node)
        self.flags = [
            *("--node-name", NODE, "--pod-name", "nvdp-x7k2p", "--kubeconfig", server.write_kubeconfig(root / "kube")),
            *("--events", "true", "--node-condition", TYPE, "--startup-taint", KEY),
        ]

    @property
    def node(self):
        return self.server.store.find("nodes", NODE)

    @property
    def condition(self):
        return next((one for one in self.node["status"]["conditions"] if one["type"] == TYPE), {})


@pytest.fixture
def cluster(root):
    with ApiServer() as server:
        yield Cluster(server, root)


@pytest.fixture(autouse=True)
def _applied_before(root, config_map):
    """A configuration was applied here before: then the node does not start with all others, and waits a little."""
    text = yaml.safe_dump(build_config())
    config = parse_config(text, name=str(config_map.file))
    applied = AppliedConfig(text=text, source=config.name, hash=config.hash)
    StateDirectory(root / "state", log=lambda *_, **__: None).save_state(State(config=applied))


def test_the_node_tells_what_the_daemon_does(kubelet, cluster, start, config_map):
    daemon = start(build_config(), *cluster.flags, launcher=PROMPT)
    wait_until(lambda: cluster.condition.get("status") == "True", what="the condition")
    assert cluster.condition["message"] == "nvidia.com/gpu: 4 of 4 healthy"
    wait_until(lambda: cluster.node["spec"]["taints"] == [OTHERS], what="that the taint goes")
    daemon.log.wait_for("StartupTaintRemoved")
    config_map.publish("version: v1\nhealht: {}\n")
    daemon.log.wait_for("ConfigRefused")
    assert cluster.condition["status"] == "True", "what is in force is on offer"
    assert healthy(kubelet) == set(UUIDS)
    used = cluster.server.journal.verbs - {("create", "events")}  # those wait for up to half a minute
    assert used == {("watch", "nodes"), ("patch", "nodes"), ("patch", "nodes/status")}


@pytest.mark.parametrize("fault", ["hangs", "forbids", "is away"])
def test_a_server_that_does_not_take_it_disturbs_nothing(kubelet, cluster, start, config_map, fault):
    released, asked = threading.Event(), threading.Event()
    refuse = hang(released) if fault == "hangs" else answer(403, "no")

    def act(handler):
        asked.set()
        refuse(handler)

    cluster.server.faults.add(act)
    if fault == "is away":
        cluster.server.stop()
    try:
        daemon = start(build_config(), *cluster.flags, launcher=PROMPT)
        assert fault == "is away" or asked.wait(LIMIT_S)
        wait_healthy(kubelet, UUIDS)
        daemon.wait_ready()
        began = time.monotonic()
        config_map.publish(build_config(2))
        kubelet.wait_until(lambda: len(healthy(kubelet)) == 8, LIMIT_S)
        assert time.monotonic() - began < 5.0
        assert daemon.stop().code == 0
    finally:
        released.set()
