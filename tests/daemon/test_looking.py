"""What the port and the log of a running daemon tell, held against their catalogues."""

from __future__ import annotations

import re
import resource
import socket
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from nvdp.metrics import catalog
from nvdp.model.reasons import Reason
from tests.daemon.node import GPU, build_config, gpu_uuid, healthy, wait_healthy
from tests.daemon.process import LIMIT_S, LOG_TIME, Daemon, find_free_port, wait_until


def test_readiness_says_what_is_in_force_and_what_is_missing(kubelet, start):
    kubelet.faults.refuse_registrations(1000, "not today")
    daemon = start(build_config(share=4))
    answer = daemon.wait_probe("/readyz", lambda probe: bool(probe.body["resources"]))

    assert answer.status == 503
    assert answer.body["reason"] == "NotRegistered"
    assert re.fullmatch("sha256:[0-9a-f]{12}", answer.body["config"]["hash"])
    assert answer.body["config"].keys() == {"valid", "hash", "source", "appliedAt", "refused"}
    assert answer.body["driver"] == {"state": "Ready", "version": "580.65.06"}
    (shown,) = answer.body["resources"]
    assert (shown["name"], shown["planned"], shown["healthy"], shown["registered"]) == (GPU, 16, 16, False)
    daemon.wait_probe("/readyz", lambda probe: "not today" in probe.body["resources"][0]["missing"])
    assert daemon.probe("/healthz").status == 200
    daemon.wait_metric(0, "nvdp_ready")
    failures = partial(daemon.metric, "nvdp_kubelet_registrations_total", resource=GPU, result="failure")
    wait_until(lambda: (failures() or 0) >= 1, what="a failure that is counted")

    kubelet.faults.refuse_registrations(0)
    daemon.wait_ready()
    daemon.wait_metric(1, "nvdp_ready")


def test_both_probes_have_a_form_for_people(kubelet, daemon):
    daemon.wait_ready()
    for path in ("healthz", "readyz"):
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.port}/{path}?format=text", timeout=LIMIT_S) as answer:
            text = answer.read().decode()
            assert answer.headers["Content-Type"].startswith("text/plain")
        assert "ready" in text
        assert "nvidia.com/gpu: 16 planned, 16 healthy, registered" in text


def test_a_scrape_has_every_metric_of_the_catalogue(kubelet, daemon, machine, config_map):
    kubelet.admit("team/a", {"main": {GPU: 1}})
    machine.change(lost=["3"])
    wait_until(lambda: daemon.log.of("DeviceUnhealthy"), what="a lost GPU")
    config_map.publish(build_config(share=4, devices={"exclude": [gpu_uuid(2)]}))
    daemon.wait_metric(1, "nvdp_device_withheld", uuid=gpu_uuid(2), reason="Excluded")
    kubelet.restart()
    kubelet.wait_until(lambda: healthy(kubelet), LIMIT_S)
    daemon.wait_ready()

    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.port}/metrics", timeout=LIMIT_S) as answer:
        types = dict(re.findall(r"^# TYPE (nvdp_\w+) (\w+)$", answer.read().decode(), re.MULTILINE))

    assert types == {metric.name: metric.kind.value for metric in catalog.METRICS}
    samples = daemon.metrics()
    for metric in catalog.METRICS:
        base = metric.name
        found = [dict(labels) for name, labels in samples if name in {base, f"{base}_count"}]
        assert all(labels.keys() == set(metric.labels) for labels in found), metric.name
    daemon.wait_metric(8, "nvdp_resource_devices", resource=GPU, health="healthy")
    daemon.wait_metric(1, "nvdp_resource_sharing_info", resource=GPU, strategy="time-slicing", replicas="4")
    daemon.wait_metric(1, "nvdp_rpc_requests_total", resource=GPU, method="Allocate", code="OK")


def test_a_port_that_is_taken_costs_the_probes_and_nothing_else(kubelet, start):
    port = find_free_port()
    with socket.socket() as other:
        other.bind(("0.0.0.0", port))
        other.listen()
        daemon = start(build_config(), wait=True, port=port)
        line = daemon.log.wait_for("PortTaken")
        wait_healthy(kubelet, [gpu_uuid(number) for number in range(4)])

    assert str(port) in line["msg"]
    assert "--metrics-port" in line["msg"]


def test_port_zero_is_no_port(kubelet, start):
    daemon = start(build_config(), wait=True, port=0)

    connections = Path(f"/proc/{daemon.pid}/net/tcp")
    inodes = {link.readlink().name for link in Path(f"/proc/{daemon.pid}/fd").iterdir()}
    listening = [line.split() for line in connections.read_text().splitlines()[1:] if line.split()[3] == "0A"]
    assert not [fields for fields in listening if f"socket:[{fields[9]}]" in inodes]


def test_a_reference_to_a_card_of_another_node_is_a_warning(kubelet, start):
    daemon = start(build_config(devices={"exclude": ["GPU-99999999-0000-4000-8000-000000000000"]}), wait=True)

    line = daemon.log.wait_for("ConfigReferenceUnmatched")
    assert "devices.exclude[0]" in line["msg"]
    assert "GPU-99999999" in line["msg"]
    wait_healthy(kubelet, [gpu_uuid(number) for number in range(4)])
    daemon.wait_metric(1, "nvdp_config_unmatched_references")


def test_who_got_what_is_told_at_debug_level(kubelet, start):
    daemon = start(build_config(share=4), "--log-level", "debug", wait=True)
    daemon.wait_ready()
    pod = kubelet.admit("team/nb-1", {"main": {GPU: 2}})
    daemon.look()

    line = daemon.log.wait_for("AllocationSeen")
    assert (line["namespace"], line["pod"], line["container"], line["resource"]) == ("team", "nb-1", "main", GPU)
    assert all(device in line["msg"] for device in pod.ids(GPU))


@pytest.mark.invariant(12)
def test_what_the_environment_holds_is_told_nowhere(kubelet, start, config_map, root):
    secret = "hunter2-hunter2"
    environment = {"NVDP_REGISTRY_TOKEN": secret, "AWS_SECRET_ACCESS_KEY": secret, "KUBECONFIG": f"/{secret}"}
    daemon = start(build_config(share=4), "--log-level", "debug", wait=True, environment=environment)
    config_map.publish("sharing: [")
    daemon.log.wait_for("ConfigRefused")
    daemon.wait_ready()

    told = [str(list(daemon.log)), str(daemon.probe("/readyz")), str(daemon.probe("/healthz")), str(daemon.metrics())]
    told += [path.read_text() for path in (root / "state").iterdir()]
    assert not [text for text in told if secret in text]


def test_sharing_says_that_it_isolates_nothing(kubelet, daemon):
    line = daemon.log.wait_for("SharingUnisolated")

    assert "4 containers share the 22 GiB of one GPU; no memory limit is enforced" in line["msg"]


def test_a_request_for_which_there_is_no_thread_is_told_and_survived(kubelet, start):
    daemon = start(build_config(devices={"rescanInterval": "1m"}), wait=True)
    wait_until(lambda: _can_connect(daemon.port), what="the port")
    memory = int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.prlimit(daemon.pid, resource.RLIMIT_AS)
    # Room for everything but the stack of another thread, which has 8 MiB.
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (memory + 4 * 2**20, most))
    idle = [socket.create_connection(("127.0.0.1", daemon.port)) for _ in range(12)]

    line = daemon.log.wait_for("ServiceRestarted", text="a request to the metrics port failed")
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (most, most))
    for connection in idle:
        connection.close()

    assert "thread" in line["error"]
    daemon.wait_ready()
    daemon.has_defects = True


def test_the_log_can_be_read_by_people(kubelet, machine, root):
    daemon = Daemon(
        *("--kubelet-root", kubelet.directory.parent, "--simulated-node", machine.path),
        *("--state-dir", root / "state", "--run-dir", root / "run", "--log-format", "text"),
    )
    try:
        kubelet.wait_until(lambda: healthy(kubelet), LIMIT_S)
        assert daemon.stop().code == 0
    finally:
        daemon.kill()
    assert len(daemon.log) == 0
    for text in daemon.log.texts:
        time, level, reason = text.split()[:3]
        assert LOG_TIME.fullmatch(time)
        assert level in {"INFO", "WARN"}
        assert reason in {found.word for found in Reason}


def test_every_reason_of_the_vocabulary_is_waited_for_somewhere_in_these_tests():
    """Each word of the log is the outcome of some staged fault here; the fixtures hold every line against its row."""
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    waited_for = set(re.findall(r'log\.wait_for\(\s*"(\w+)"', text)) | set(re.findall(r'log\.of\("(\w+)"', text))
    by_table = {"DriverMissing", "DriverMismatch", "Stopped"}

    assert {reason.word for reason in Reason} - waited_for - by_table == set()


def _can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
