"""A node of a cluster as a whole: API server, scheduler and kubelet are real, and nvdp has its service account."""

from __future__ import annotations

import signal
import time

import pytest

from nvdp.http.control import load_status
from tests.daemon.node import GPU
from tests.daemon.process import LIMIT_S, wait_until
from tests.daemon.prompt import IMPATIENT, PROMPT
from tests.real.test_real_kubelet import COUNT, node, settings  # noqa: F401 - fixtures

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]
OUTAGE_S = 130.0


def test_label_and_edit_change_the_capacity_of_the_node_and_an_outage_changes_nothing(cluster, node, root):  # noqa: F811
    node.run(by_label=cluster.flags, launcher=PROMPT)
    node.pods.wait_resources(2 * COUNT, 2 * COUNT)
    cluster.wait_settled(2)
    cluster.untaint("example.com/other")

    for change, share in (
        (lambda: cluster.label("four"), 4),
        (lambda: cluster.edit_by_hand("sed -i 's/replicas: 4/replicas: 5/'"), 5),
        (lambda: cluster.label("two"), 2),
    ):
        change()
        node.pods.wait_resources(share * COUNT, share * COUNT)
    cluster.label("five")
    wait_until(lambda: any(event["reason"] == "ConfigUnknown" for event in cluster.events), what="the event")
    assert "names no configuration" in cluster.describe()
    cluster.label("two")
    node.pods.create("a", "b")
    before = [container.id for container in node.pods.wait_running("a", "b")]
    held = node.pods.list_held()

    cluster.control.stop_server(signal.SIGKILL)
    over = time.monotonic() + OUTAGE_S
    node.kill()
    daemon = node.run(by_label=cluster.flags, launcher=IMPATIENT)
    assert daemon.wait_ready(60).body["config"]["entry"] == "two"
    wait_until(lambda: time.monotonic() > over, OUTAGE_S + 10, what="the end of the outage")
    assert node.pods.list_held() == held
    assert [(one["name"], one["healthy"]) for one in node.status()["resources"]] == [(GPU, 2 * COUNT)]

    cluster.control.start_server()
    node.pods.wait_resources(2 * COUNT, 2 * COUNT)
    assert {node.pods.phase(pod) for pod in "ab"} == {"Running"}
    assert [node.pods.find_container(pod).id for pod in "ab"] == before
    node.pods.create("c")
    node.pods.wait_running("c")
    cluster.label("four")
    node.pods.wait_resources(5 * COUNT, 5 * COUNT)
    wait_until(lambda: not load_status(root / "run", timeout_s=LIMIT_S).troubles, 75, what="no trouble")
