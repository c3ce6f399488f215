"""The labels that a running daemon writes: they come with the driver and the configuration, follow edits, and stay."""

from __future__ import annotations

import pytest

from nvdp.http.control import load_status, send_order
from nvdp.http.routes import PAUSE_PATH
from tests.cluster.server import ApiServer
from tests.daemon.cluster import LABELS, NODE, Cluster
from tests.daemon.node import build_config, gpu_uuid, healthy, wait_healthy
from tests.daemon.process import LIMIT_S, Daemon, wait_until
from tests.daemon.prompt import PROMPT

ALL = [gpu_uuid(number) for number in range(4)]
COUNT, REPLICAS = f"{LABELS}count", f"{LABELS}replicas"
WRITTEN = "nvdp_node_labels_writes_total"


@pytest.fixture
def cluster(root):
    with ApiServer() as server:
        yield Cluster(server, root)


@pytest.fixture
def label(start, cluster, root):
    """Starts a daemon that writes labels to this place; ``share`` None leaves the configuration as it is."""

    def begin(target, share=None, **blocks) -> Daemon:
        config = build_config(share, flags={"gfd": {"outputFile": str(root / "features")}}, **blocks) if share else None
        return start(config, *cluster.access, "--write-labels", target, launcher=PROMPT)

    return begin


def read(cluster, root, target) -> dict[str, str]:
    """What the node's labels are, or are about to be made of."""
    if target == "node":
        return cluster.node["metadata"]["labels"]
    if target == "node-feature":
        return cluster.feature.get("spec", {}).get("labels", {})
    file = root / "features"
    return dict(line.split("=", 1) for line in file.read_text().splitlines()) if file.exists() else {}


def find_troubles(root) -> list[str]:
    return [trouble.reason for trouble in load_status(root / "run", timeout_s=LIMIT_S).troubles]


@pytest.mark.usefixtures("kubelet")
@pytest.mark.parametrize("target", ["file", "node-feature", "node"])
def test_they_come_with_the_first_list_are_written_once_and_outlive_the_process(cluster, root, label, target):
    daemon = label(target, 4)
    wait_until(lambda: COUNT in read(cluster, root, target), what="labels")
    found = read(cluster, root, target)
    assert (found[COUNT], found[REPLICAS], found[f"{LABELS}product"]) == ("4", "4", "NVIDIA-A10-SHARED")
    daemon.log.wait_for("LabelsWritten")
    daemon.wait_metric(1, WRITTEN, result="written")
    daemon.stop()
    assert read(cluster, root, target) == found
    assert [entry.verb for entry in cluster.writes] == {"file": [], "node": ["patch"]}.get(target, ["create"])
    assert read(cluster, root, "node")["team"] == "a"


@pytest.mark.usefixtures("kubelet")
def test_an_edit_changes_the_one_label_that_it_is_about(cluster, config_map, root, label):
    daemon = label("node-feature", 4)
    daemon.log.wait_for("LabelsWritten")
    config_map.publish(build_config(2))
    wait_until(lambda: read(cluster, root, "node-feature")[REPLICAS] == "2", what="the edit")
    daemon.wait_metric(2, WRITTEN, result="written")
    wait_until(lambda: len(daemon.log.of("LabelsWritten")) == 2, what="a line, which comes after the count")
    assert daemon.log.of("LabelsWritten")[1]["changed"] == ["nvidia.com/gfd.timestamp", REPLICAS]
    assert [entry.verb for entry in cluster.writes] == ["create", "patch"]


def test_they_stay_through_whatever_happens_to_the_gpus_the_driver_and_the_daemon(
    kubelet, cluster, machine, root, label
):
    daemon = label("node-feature", 4, health={"recovery": {"holdOff": "200ms"}})
    daemon.log.wait_for("LabelsWritten")
    before = cluster.feature
    machine.change(lost=["3"])
    daemon.log.wait_for("DeviceUnhealthy")
    machine.change(driver={"state": "not-loaded"})
    daemon.log.wait_for("DriverLost")
    machine.heal()
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S, what="all Healthy")
    assert send_order(root / "run", PAUSE_PATH, {}, timeout_s=LIMIT_S).done
    daemon.stop()

    again = label("node-feature")
    again.log.wait_for("DriverPaused")
    again.wait_probe("/readyz", lambda probe: probe.body["reason"] == "DriverPaused")
    again.stop()
    (root / "run" / "paused.json").unlink()
    cluster.server.stop()
    again = label("node-feature")
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S, what="all Healthy")
    wait_until(lambda: find_troubles(root) == ["LabelsFailed"], what="an API server that is away")
    cluster.server.start()
    again.look()
    wait_until(lambda: find_troubles(root) == [], what="a look at the labels")
    assert cluster.feature == before
    assert [entry.verb for entry in cluster.writes] == ["create"]
    assert not again.log.of("LabelsWritten")


def test_without_a_driver_nothing_is_written_and_a_late_one_completes_them(kubelet, cluster, machine, label):
    machine.change(driver={"state": "missing"})
    first = label("node-feature", 4)
    first.log.wait_for("DriverMissing")
    machine.heal()
    first.log.wait_for("LabelsWritten")
    assert cluster.feature["spec"]["labels"][COUNT] == "4"
    assert [entry.verb for entry in cluster.writes] == ["create"], "half of them first"

    first.stop()
    machine.change(driver={"state": "missing"})
    cluster.server.store.remove("nodefeatures", cluster.feature["metadata"]["name"], namespace="nvdp")
    cluster.server.journal.clear()
    again = label("node-feature")
    kubelet.wait_until(lambda: len(kubelet.registrations) == 2, LIMIT_S, what="the list of remembered GPUs")
    again.look()
    again.wait_probe("/readyz", lambda probe: probe.body["driver"]["state"] == "Missing")
    assert cluster.server.journal.of() == []

    machine.heal()
    again.log.wait_for("LabelsWritten")
    assert cluster.feature["spec"]["labels"][COUNT] == "4"


def test_a_place_that_cannot_be_written_to_is_told_and_nothing_else_suffers(kubelet, root, config_map, label):
    missing = root / "none" / "features"
    daemon = label("file")
    config_map.publish(build_config(flags={"gfd": {"outputFile": str(missing)}}))
    assert str(missing) in daemon.log.wait_for("LabelsFailed")["msg"]
    wait_healthy(kubelet, ALL)
    daemon.wait_ready()
    assert find_troubles(root) == ["LabelsFailed"]
    missing.parent.mkdir()
    daemon.look()
    daemon.log.wait_for("LabelsWritten")
    wait_until(lambda: find_troubles(root) == [], what="no trouble")


@pytest.mark.usefixtures("kubelet")
def test_another_node_is_never_touched(cluster, label):
    cluster.server.store.put("nodes", {"metadata": {"name": f"{NODE}-b"}})
    label("node", 4).log.wait_for("LabelsWritten")
    assert {(entry.resource, entry.name) for entry in cluster.server.journal.of()} == {("nodes", NODE)}
