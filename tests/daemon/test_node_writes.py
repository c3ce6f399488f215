"""What the daemon writes to its Node: events, the condition, no more taint; and that it waits for none of that."""

from __future__ import annotations

import threading
import time

import pytest
import yaml

from tests.cluster.server import ApiServer, answer, hang
from tests.daemon.cluster import TAINT, Cluster, save_applied
from tests.daemon.node import build_config, gpu_uuid, healthy, wait_healthy
from tests.daemon.process import LIMIT_S, Daemon, wait_until
from tests.daemon.prompt import PROMPT

UUIDS = [gpu_uuid(number) for number in range(4)]


@pytest.fixture
def cluster(root):
    with ApiServer() as server:
        yield Cluster(server, root)


@pytest.fixture(autouse=True)
def _applied_before(root, config_map):
    save_applied(root / "state", yaml.safe_dump(build_config()), source=str(config_map.file))


@pytest.fixture
def follow(start, cluster):
    """Starts a daemon that writes all there is to the Node."""

    def begin() -> Daemon:
        return start(build_config(), *cluster.access, *cluster.node_writers, launcher=PROMPT)

    return begin


def test_the_node_tells_what_the_daemon_does(kubelet, cluster, follow, config_map):
    others = [taint for taint in cluster.node["spec"]["taints"] if taint["key"] != TAINT]
    daemon = follow()
    wait_until(lambda: cluster.condition.get("status") == "True", what="the condition")
    assert cluster.condition["message"] == "nvidia.com/gpu: 4 of 4 healthy"
    wait_until(lambda: TAINT not in cluster.taints, what="that the taint goes")
    assert cluster.node["spec"]["taints"] == others
    daemon.log.wait_for("StartupTaintRemoved")
    config_map.publish("version: v1\nhealht: {}\n")
    daemon.log.wait_for("ConfigRefused")
    assert cluster.condition["status"] == "True", "what is in force is on offer"
    assert healthy(kubelet) == set(UUIDS)
    used = cluster.server.journal.verbs - {("create", "events")}  # those wait for up to half a minute
    assert used == {("watch", "nodes"), ("patch", "nodes"), ("patch", "nodes/status")}


@pytest.mark.parametrize("fault", ["hangs", "forbids", "is away"])
def test_a_server_that_does_not_take_it_disturbs_nothing(kubelet, cluster, follow, config_map, fault):
    released, asked = threading.Event(), threading.Event()
    refuse = hang(released) if fault == "hangs" else answer(403, "no")

    def act(handler):
        asked.set()
        refuse(handler)

    cluster.server.faults.add(act)
    if fault == "is away":
        cluster.server.stop()
    try:
        daemon = follow()
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
