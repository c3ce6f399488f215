"""The configuration that the node's label chooses: label and ConfigMap are followed, nothing else changes anything."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import yaml

from nvdp.config.load import parse_config
from nvdp.host.state import AppliedConfig, State, StateDirectory
from nvdp.http.control import load_status
from nvdp.model.chosen import Chosen
from tests.cluster.server import ApiServer, answer, hang
from tests.daemon.node import GPU, at_length, build_config, healthy
from tests.daemon.process import LIMIT_S, Daemon, wait_until
from tests.daemon.prompt import PROMPT
from tests.host.test_config_directory import mount

KEY = "nvidia.com/device-plugin.config"
NODE = "gpu-a3"
TEXTS = {name: yaml.safe_dump(build_config(share=share)) for name, share in (("two", 2), ("four", 4), ("whole", None))}
pytestmark = pytest.mark.invariant(9)


class Cluster:
    """An API server that knows the node and the ConfigMap, and the flags of a daemon that follows it."""

    def __init__(self, server: ApiServer, root: Path) -> None:
        self.server = server
        self._root = root
        server.store.put("nodes", {"metadata": {"name": NODE, "labels": {KEY: "two"}}})
        server.store.put("configmaps", {"metadata": {"name": "configs", "namespace": "nvdp"}, "data": TEXTS})
        self.flags = [
            *("--node-name", NODE, "--config-map", "nvdp/configs", "--default-config", "whole"),
            *("--kubeconfig", server.write_kubeconfig(root / "kubeconfig")),
        ]

    def label(self, value: str | None) -> None:
        self.server.store.label(NODE, **{KEY: value})

    def edit(self, **texts: str) -> None:
        self.server.store.edit("configmaps", "configs", lambda found: found["data"].update(texts), namespace="nvdp")

    def remember(self, entry: str) -> None:
        """A process before had this entry: the first request then waits for a second at most."""
        name = f"configmap nvdp/configs:{entry}"
        config = parse_config(TEXTS[entry], name=name)
        applied = AppliedConfig(
            text=TEXTS[entry], source=name, hash=config.hash, chosen=Chosen(entry, f"label {KEY}={entry}")
        )
        StateDirectory(self._root / "state", log=lambda *_, **__: None).save_state(State(config=applied))


@pytest.fixture
def cluster(root):
    with ApiServer() as server:
        yield Cluster(server, root)


@pytest.fixture
def follow(kubelet, cluster, start):
    """Starts a daemon that follows the cluster; with an ``entry`` one was there before that had it."""

    def begin(*flags, entry="two", count=None) -> Daemon:
        if entry is not None:
            cluster.remember(entry)
        daemon = start(None, *cluster.flags, *flags, by_label=True, launcher=PROMPT)
        if count is not None:
            wait_count(kubelet, count)
        return daemon

    return begin


def wait_count(kubelet, count: int) -> None:
    kubelet.wait_until(lambda: len(healthy(kubelet)) == count, LIMIT_S, what=f"{count} Healthy devices")


def test_a_label_and_an_edit_of_its_entry_change_the_list_within_a_second(kubelet, cluster, follow):
    daemon = follow(count=8)
    times = []
    for change, count in (
        (lambda: cluster.label("four"), 16),
        (lambda: cluster.edit(four=yaml.safe_dump(build_config(share=5))), 20),
        (lambda: cluster.label(None), 4),
        (lambda: cluster.label("two"), 8),
    ):
        changed_at = time.monotonic()
        change()
        wait_count(kubelet, count)
        times.append(time.monotonic() - changed_at)
    assert max(times) < 1.0, times
    config = daemon.wait_ready().body["config"]
    assert (config["source"], config["entry"]) == ("configmap nvdp/configs:two", "two")
    assert config["chosenBy"] == f"label {KEY}=two"
    assert len(cluster.server.journal.of()) == 2


def test_a_label_that_names_nothing_keeps_what_is_there_until_the_name_appears(kubelet, cluster, follow):
    daemon = follow(count=8)
    lists = len(kubelet.messages(GPU))
    cluster.label("five")
    told = daemon.log.wait_for("ConfigUnknown")["msg"]
    assert f"label {KEY}=five names no configuration; there are four, two, whole  (keeping two sha256:" in told
    daemon.wait_metric(0, "nvdp_config_valid")
    answer = daemon.wait_probe("/readyz", lambda probe: probe.status == 200 and probe.body["config"]["refused"])
    assert (answer.body["config"]["valid"], answer.body["config"]["entry"]) == (False, "two")
    assert len(kubelet.messages(GPU)) == lists

    daemon.stop()
    again = follow(entry=None)
    again.log.wait_for("ConfigUnknown", text="(keeping two sha256:")
    wait_count(kubelet, 8)

    cluster.edit(five=yaml.safe_dump(build_config(share=5)))
    wait_count(kubelet, 20)
    again.wait_metric(1, "nvdp_config_valid")


@at_length
def test_without_the_server_a_restart_changes_nothing_and_its_return_is_followed(kubelet, cluster, follow):
    daemon = follow(count=8)
    cluster.server.stop()
    before = daemon.wait_ready().body["config"]["hash"]
    daemon.stop()
    again = follow(entry=None)
    told = again.log.wait_for("ConfigMissing", timeout_s=30)["msg"]
    assert "is not known yet (" in told
    wait_count(kubelet, 8)
    config = again.wait_ready().body["config"]
    assert (config["valid"], config["hash"], config["entry"]) == (True, before, "two")
    assert "is not known yet" in config["waiting"]

    cluster.label("four")
    cluster.server.start()
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, 30, what="the label of the meantime")


def test_a_slow_server_does_not_start_a_labelled_node_with_the_default(kubelet, cluster, follow, root):
    mount(root / "configs", TEXTS, version="one")
    release = threading.Event()
    cluster.server.faults.add(hang(release), verb="watch", resource="nodes")
    daemon = follow("--config-dir", root / "configs", entry="whole")
    wait_until(lambda: cluster.server.journal.of(resource="configmaps"), what="the ConfigMap")
    cluster.server.faults.clear()
    release.set()
    wait_count(kubelet, 8)
    assert [line["config"] for line in daemon.log.of("ConfigApplied")] == ["configmap nvdp/configs:two"]
    assert len(kubelet.messages(GPU)) == 1


def test_the_driver_of_a_node_that_never_had_a_configuration_is_left_alone_until_one_is_chosen(
    kubelet, cluster, follow, root
):
    """It may say ``devices.paused``, for a change of the driver that goes on just now."""
    cluster.edit(two=yaml.safe_dump(build_config(share=2, devices={"paused": True})))
    release = threading.Event()
    cluster.server.faults.add(hang(release), verb="watch", resource="nodes")
    daemon = follow(entry=None)
    wait_until(lambda: cluster.server.journal.of(resource="configmaps"), what="a request for the ConfigMap")
    assert daemon.wait_probe("/readyz", lambda _: True).status == 503
    cluster.server.faults.clear()
    release.set()
    assert "devices.paused" in daemon.log.wait_for("DriverPaused")["msg"]
    assert load_status(root / "run", timeout_s=LIMIT_S).scanned_at is None
    assert not daemon.children
    assert not daemon.log.of("DriverReady")

    cluster.edit(two=TEXTS["two"])
    wait_count(kubelet, 8)
    daemon.wait_ready()


def test_one_refusal_does_not_bring_back_what_the_volume_still_has(kubelet, cluster, follow, root):
    """The kubelet renews a mounted ConfigMap up to a minute after an edit that was followed already."""
    mount(root / "configs", {**TEXTS, "two": TEXTS["four"]}, version="one")
    cluster.server.faults.add(answer(429), verb="watch", resource="configmaps", times=1)
    daemon = follow("--config-dir", root / "configs", count=8)
    assert [line["config"] for line in daemon.log.of("ConfigApplied")] == ["configmap nvdp/configs:two"]
    assert len(kubelet.messages(GPU)) == 1


def test_a_right_that_is_taken_away_is_shown_though_all_is_on_offer(kubelet, cluster, follow, root):
    daemon = follow(count=8)
    cluster.server.stop()
    cluster.server.faults.add(answer(403, "no"), verb="watch", resource="configmaps")
    cluster.server.start()
    daemon.log.wait_for("APIServerLost")
    (trouble,) = load_status(root / "run", timeout_s=LIMIT_S).troubles
    assert trouble.reason == "APIServerLost"
    assert "needs the right to watch configmaps" in trouble.text
    assert daemon.wait_ready().status == 200

    cluster.server.faults.clear()
    daemon.look()
    wait_until(lambda: not load_status(root / "run", timeout_s=LIMIT_S).troubles, what="no trouble")
