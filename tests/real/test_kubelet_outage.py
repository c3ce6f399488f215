"""A kubelet that restarts while there is no API server: it lists no pod, for however long, and its pods go on."""

from __future__ import annotations

import signal

import pytest

from tests.daemon.node import GPU, SHARED, build_config, build_sliced
from tests.real.test_real_kubelet import COUNT, node, settings  # noqa: F401 - fixtures

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]
LONG_S = 60.0  # the API server is away, after the kubelet is back


def test_a_held_gpu_is_not_offered_otherwise_though_a_new_kubelet_knows_no_pod_yet(node, control_plane):  # noqa: F811
    daemon = node.run(build_config())
    node.pods.wait_resources(COUNT, COUNT)
    node.pods.create("a", "b")
    node.pods.wait_running("a", "b")
    node.pods.create("x", resource=SHARED)
    node.pods.wait_unschedulable("x")
    held = node.pods.list_held()

    node.kubelet.end(signal.SIGKILL)
    control_plane.stop_server(signal.SIGKILL)
    node.kubelet.launch()
    daemon.log.wait_for("KubeletRestarted", timeout_s=60)
    after = len(daemon.log)
    node.config_map.publish(build_sliced({}))
    daemon.log.wait_for("ModeChangeWaiting", after=after)
    with pytest.raises(AssertionError, match="no ModeChanged"):
        daemon.log.wait_for("ModeChanged", after=after, timeout_s=LONG_S)
    offered = {one["name"]: one["healthy"] for one in node.status()["resources"]}
    assert offered == {GPU: 0, SHARED: 0}

    control_plane.start_server()
    node.wait_holders("a", "b")
    node.pods.wait_resources(2 * COUNT, 0, resource=SHARED)
    assert f"Insufficient {SHARED}" in node.pods.wait_unschedulable("x")
    assert node.pods.list_held() == held
