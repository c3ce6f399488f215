"""nvdp with a real API server, with the rights of the shipped manifests and no more."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
import yaml

from nvdp.http.control import load_status
from tests.daemon.node import GPU, build_config, healthy
from tests.daemon.process import LIMIT_S, Daemon, wait_until
from tests.daemon.prompt import IMPATIENT, PROMPT
from tests.real.cluster import CONDITION, KEY, NODE, RealCluster

pytestmark = pytest.mark.campaign
OUTAGE_S = 150.0
COUNT = "nvidia.com/gpu.count"


@pytest.fixture
def follow(start, cluster: RealCluster):
    """Starts a daemon with everything that there is of the cluster."""

    def begin(launcher: tuple[str, ...] = PROMPT) -> Daemon:
        return start(None, *cluster.flags, by_label=True, launcher=launcher)

    return begin


def wait_count(kubelet, count: int, limit_s: float = LIMIT_S) -> None:
    kubelet.wait_until(lambda: len(healthy(kubelet)) == count, limit_s, what=f"{count} Healthy devices")


def begin(kubelet, cluster, follow) -> Daemon:
    """All of it at work, by the label ``two``."""
    daemon = follow()
    wait_count(kubelet, 8)
    cluster.set_allocatable(8)
    cluster.wait_settled(2)
    daemon.wait_ready()
    return daemon


def test_a_node_is_labelled_by_kubectl_its_configuration_edited_and_all_of_it_described(kubelet, cluster, follow, root):
    daemon = begin(kubelet, cluster, follow)
    for change, count in (
        (lambda: cluster.label("four"), 16),
        (lambda: cluster.edit(four=yaml.safe_dump(build_config(share=5))), 20),
        (lambda: cluster.label(None), 4),
        (lambda: cluster.label("two"), 8),
    ):
        changed_at = change()
        wait_count(kubelet, count)
        assert time.monotonic() - changed_at < 1.0
    cluster.wait_settled(2)
    assert cluster.taints == {"example.com/other", "node.kubernetes.io/not-ready"}, "of others"
    assert cluster.node["metadata"]["labels"]["team"] == "a"
    (feature,) = cluster.control.get("nodefeatures", "-n", "nvdp")["items"]
    assert [owner["kind"] for owner in feature["metadata"]["ownerReferences"]] == ["DaemonSet", "Pod"]
    assert feature["metadata"]["labels"]["nfd.node.kubernetes.io/node-name"] == NODE

    lists = len(kubelet.messages(GPU))
    cluster.label("five")
    told = daemon.log.wait_for("ConfigUnknown")["msg"]
    assert f"label {KEY}=five names no configuration; there are default, four, mig, shared, two, whole" in told
    wait_until(lambda: any(event["reason"] == "ConfigUnknown" for event in cluster.events), what="the event")
    described = cluster.describe()
    assert "ConfigUnknown" in described
    assert "names no configuration" in described
    assert CONDITION in described
    assert len(kubelet.messages(GPU)) == lists
    assert {event["reportingComponent"] for event in cluster.events} == {"nvdp/device-plugin"}
    assert load_status(root / "run", timeout_s=LIMIT_S).troubles == (), "nothing that it may not do"


@pytest.mark.timeout(OUTAGE_S + 240)
def test_an_api_server_that_is_away_for_minutes_also_over_a_restart_changes_nothing(kubelet, cluster, follow, root):
    daemon = begin(kubelet, cluster, follow)
    before = cluster.node["metadata"]["labels"], cluster.labels, cluster.condition, cluster.taints
    lists = kubelet.messages(GPU)
    cluster.control.stop_server(signal.SIGKILL)
    over = time.monotonic() + OUTAGE_S
    daemon.log.wait_for("APIServerLost", timeout_s=90)
    assert daemon.wait_ready().status == 200
    assert kubelet.messages(GPU) == lists
    daemon.stop()
    again = follow(launcher=IMPATIENT)
    assert "is not known yet" in again.log.wait_for("ConfigMissing")["msg"]
    kubelet.wait_until(lambda: len(kubelet.messages(GPU)) > len(lists), LIMIT_S, what="a list of the new process")
    wait_until(lambda: time.monotonic() > over, OUTAGE_S + 10, what="the end of the outage")
    assert again.wait_ready().body["config"]["entry"] == "two"
    assert [message.devices for message in kubelet.messages(GPU)[len(lists) :]] == [lists[-1].devices]

    cluster.control.start_server()
    again.look()
    again.wait_probe("/readyz", lambda probe: not probe.body["config"].get("waiting"))
    assert (cluster.node["metadata"]["labels"], cluster.labels, cluster.condition, cluster.taints) == before
    cluster.label("four")
    wait_count(kubelet, 16)
    written = "the labels of it, whose next try may be a minute away"
    wait_until(lambda: cluster.labels["nvidia.com/gpu.replicas"] == "4", 75, what=written)
    wait_until(lambda: not load_status(root / "run", timeout_s=LIMIT_S).troubles, what="no trouble")


def test_edits_of_the_time_when_nothing_was_heard_are_caught_up_with(kubelet, cluster, follow):
    """The server that comes back knows nothing of versions that were before it."""
    daemon = begin(kubelet, cluster, follow)
    daemon.send(signal.SIGSTOP)
    cluster.label("whole")
    cluster.edit(two=yaml.safe_dump(build_config(share=3)))
    cluster.control.compact()
    cluster.control.stop_server(signal.SIGKILL)
    cluster.control.start_server()
    for number in range(20):
        cluster.edit(**{f"other{number}": "version: v1\n"})
    cluster.control.compact()
    daemon.send(signal.SIGCONT)
    daemon.look()
    wait_count(kubelet, 4, limit_s=60)
    cluster.label("two")
    wait_count(kubelet, 12, limit_s=60)


def test_a_right_that_is_taken_away_is_told_and_nothing_else_changes(kubelet, cluster, follow):
    daemon = begin(kubelet, cluster, follow)
    lists = len(kubelet.messages(GPU))
    cluster.take_right("nodes", "watch")
    cluster.control.stop_server()  # a watch that is open stays open
    cluster.control.start_server()
    told = daemon.log.wait_for("APIServerLost", timeout_s=120)["msg"]
    assert "needs the right to watch nodes" in told
    assert daemon.wait_ready().status == 200
    assert len(kubelet.messages(GPU)) == lists


def test_labels_on_the_node_itself_are_put_back_and_taken_away_and_no_others(kubelet, start, control_plane, root):
    components = ("cluster", "config-by-label", "node-fence", "labels-node")
    cluster = RealCluster(control_plane, root, components=components)
    flags = (*cluster.access, *cluster.by_label, "--write-labels", "node")
    start(None, *flags, by_label=True, launcher=PROMPT)
    wait_until(lambda: cluster.node["metadata"]["labels"].get(COUNT) == "4", what="labels")
    cluster.control.kubectl("label", "node", NODE, "--overwrite", f"{COUNT}=7", "example.com/other=stays")
    wait_until(lambda: cluster.node["metadata"]["labels"][COUNT] == "4", what="that it is put back")
    assert remove_labels(root, flags).returncode == 0
    left = cluster.node["metadata"]
    assert {KEY: "two", "team": "a", "example.com/other": "stays"}.items() <= left["labels"].items()
    assert not [label for label in left["labels"] if label.startswith("nvidia.com/") and label != KEY]
    assert not [key for key in left.get("annotations", {}) if "nvdp" in key]


def remove_labels(root, flags) -> subprocess.CompletedProcess[str]:
    """``nvdp labels --remove``, in the pod."""
    places = ("--state-dir", root / "state", "--run-dir", root / "run")
    command = [sys.executable, "-m", "nvdp", "labels", "--remove", *flags, *places]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, check=False)


def test_labels_are_taken_away_with_the_rights_of_the_pod(kubelet, cluster, follow, root):
    begin(kubelet, cluster, follow)
    assert cluster.labels
    done = remove_labels(root, cluster.flags)
    assert done.returncode == 0, done.stderr
    assert cluster.control.get("nodefeatures", "-n", "nvdp")["items"] == []
