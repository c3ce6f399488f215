"""What a running daemon exposes and writes, seen from outside: scrapes, probes and every line of its log."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nvdp.metrics.catalog import METRICS
from nvdp.simulate.kubelet import Kubelet

ROOT = Path(__file__).resolve().parents[2]
NODE = ROOT / "nvdp/nvml/simulated/nodes/t4.yaml"
CONFIG = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"

# Series that exist only once something has gone wrong, or changed.
ONLY_AFTER_TROUBLE = {
    "nvdp_device_unhealthy_info",
    "nvdp_device_health_change_timestamp_seconds",
    "nvdp_device_withheld",
    "nvdp_xid_events_total",
    "nvdp_nvml_errors_total",
    "nvdp_service_restarts_total",
    "nvdp_mig_instances",  # and these once a GPU is cut
    "nvdp_mps_daemon_up",  # or given to MPS
    "nvdp_mps_daemon_restarts_total",
    "nvdp_mps_clients",
    "nvdp_mps_servers",
    "nvdp_api_requests_total",  # or something of the cluster is switched on
    "nvdp_node_labels_writes_total",
}


class Daemon:
    """``nvdp run`` on a simulated T4, under a kubelet's twin."""

    def __init__(self, root: Path) -> None:
        self.root, self.config, self.log = root, root / "config.yaml", root / "log"
        self.config.write_text(CONFIG)
        self.kubelet = Kubelet(root)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def start(self) -> None:
        self.kubelet.start()
        command = [sys.executable, "-m", "nvdp", "run", "--kubelet-root", self.root, "--state-dir", self.root / "state"]
        command += ["--config-file", self.config, "--simulated-node", NODE, "--run-dir", self.root / "run"]
        command += ["--metrics-port", str(self.port), "--log-level", "debug"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("NVDP_", "CONFIG_"))}
        with self.log.open("w") as log:
            self.process = subprocess.Popen([str(word) for word in command], stderr=log, env=environment)

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError:
            return 0, b""

    def scrape(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(self.get("/metrics")[1].decode()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def value(self, name: str, **labels: str) -> float | None:
        return next((value for found, value in self.scrape().get(name, []) if labels.items() <= found.items()), None)

    def lines(self) -> list[dict]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(6)
        finally:
            self.process.kill()
            self.process.wait()
            self.kubelet.stop()


def wait_for(
    condition: Callable[[], object], what: str, *, explain: Callable[[], str] = str, limit_s: float = 10.0
) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}\n{explain()}"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    root = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    made = Daemon(root)
    made.start()
    try:
        wait_for(lambda: made.get("/readyz")[0] == 200, "ready", explain=made.log.read_text)
        yield made
    finally:
        made.stop()
        shutil.rmtree(root)


def test_every_metric_of_the_catalogue_is_in_a_scrape_with_its_labels(daemon: Daemon):
    found = daemon.scrape()
    for metric in METRICS:
        samples = found.get(metric.name) or found.get(f"{metric.name}_count")
        if metric.name not in ONLY_AFTER_TROUBLE:
            assert samples, metric.name
        for labels, _ in samples or ():
            assert set(labels) == set(metric.labels), metric.name


def test_what_the_kubelet_has_is_what_the_metrics_say(daemon: Daemon):
    daemon.kubelet.wait_until(lambda: daemon.kubelet.capacity("nvidia.com/gpu") == 4)  # once it has taken the list in
    assert daemon.value("nvdp_resource_devices", resource="nvidia.com/gpu", health="healthy") == 4
    assert daemon.value("nvdp_kubelet_registrations_total", resource="nvidia.com/gpu", result="success") == 1
    assert daemon.value("nvdp_kubelet_streams", resource="nvidia.com/gpu") == 1
    assert daemon.value("nvdp_ready") == 1
    assert daemon.get("/healthz")[0] == 200


def test_a_broken_edit_shows_in_metrics_and_readiness_and_the_fix_clears_it(daemon: Daemon):
    good = daemon.config.read_text()
    daemon.config.write_text(CONFIG.replace("replicas: 4", "replica: 4"))
    wait_for(lambda: daemon.value("nvdp_config_valid") == 0, "the broken edit is seen")
    assert daemon.value("nvdp_config_edits_total", result="refused") == 1
    assert "did you mean replicas?" in json.loads(daemon.get("/readyz")[1])["config"]["refused"]
    assert daemon.value("nvdp_resource_devices", resource="nvidia.com/gpu", health="healthy") == 4
    daemon.config.write_text(good)
    wait_for(lambda: daemon.value("nvdp_config_valid") == 1, "the fix is seen")


def test_an_allocation_a_refusal_and_a_kubelet_restart_are_counted(daemon: Daemon):
    daemon.kubelet.wait_until(lambda: daemon.kubelet.allocatable("nvidia.com/gpu") == 4)
    pod = daemon.kubelet.admit("default/one", {"main": {"nvidia.com/gpu": 1}})
    assert daemon.value("nvdp_rpc_requests_total", method="Allocate", code="OK") == 1
    assert daemon.value("nvdp_rpc_duration_seconds_count", method="Allocate") == 1
    daemon.kubelet.delete(pod)
    daemon.kubelet.restart()
    wait_for(lambda: daemon.value("nvdp_kubelet_restarts_total") == 1, "the restart is counted")
    wait_for(lambda: daemon.value("nvdp_kubelet_registrations_total", result="success") == 2, "registered again")


def test_every_line_of_the_log_is_one_object_of_known_reason_and_no_line_holds_the_environment(daemon: Daemon):
    from nvdp.model.reasons import Reason

    known = {reason.word for reason in Reason}
    lines = daemon.lines()
    assert lines
    for line in lines:
        assert list(line)[:4] == ["time", "level", "reason", "msg"]
        assert line["reason"] in known
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert all(re.fullmatch(r"[a-z][a-zA-Z]*", name) for name in line)
    assert os.environ["PATH"] not in daemon.log.read_text()
