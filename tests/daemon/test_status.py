"""Staged faults: the first lines of ``nvdp status`` name cause and remedy of each, and its exit code how bad it is."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from nvdp.__main__ import main
from nvdp.errors import HostError
from nvdp.http.control import load_status
from tests.daemon.kernel import exhaust_inotify, mount, refuse
from tests.daemon.node import GPU, SHARED, build_config, gpu_uuid, on_node
from tests.daemon.process import wait_until

MPS = {"mps": {"resources": [{"name": GPU, "rename": "nvidia.com/gpu.mps", "devices": [1], "replicas": 2}]}}


class Asked(NamedTuple):
    """What ``nvdp status`` said: exit code, verdict, findings as one line each, and the rest."""

    code: int
    verdict: str
    findings: list[str]
    rest: str


class Done(NamedTuple):
    """How the command ended, and all that it wrote."""

    returncode: int
    stdout: str
    stderr: str


def run_status(root: Path, *flags: str) -> Done:
    """In this process: tests/commands has the command as a process."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(["status", "--run-dir", str(root / "run"), *flags])
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture
def status(root) -> Callable[..., Asked]:
    """Ask until the first finding, a line with its remedy, has ``found`` in it; without it, once."""

    def ask() -> Asked:
        done = run_status(root)
        assert max((len(line) for line in done.stdout.splitlines()), default=0) <= 100
        verdict, _, rest = (done.stdout or done.stderr).partition("\n\n")
        told, _, rest = rest.partition("\n\nDEVICES")
        told, _, _ = f"\n{told}".partition("\nRESOURCES")
        findings = [re.sub(r"\s+", " ", one).strip() for one in re.split(r"\n(?=\w)", told) if one.strip()]
        return Asked(done.returncode, verdict.strip(), findings, rest)

    def ask_until(found: str = "") -> Asked:
        seen: list[Asked] = []

        def look() -> bool:
            seen.append(ask())
            is_judged = seen[-1].verdict != "not ready: Starting"  # the file may be read last
            return not found or (is_judged and any(found in one for one in seen[-1].findings[:1]))

        try:
            wait_until(look, what=found)
        except AssertionError as error:
            raise AssertionError(f"{error}; last: {seen[-1]}") from error
        return seen[-1]

    return ask_until


def test_all_is_well(kubelet, daemon, status):
    daemon.wait_ready()
    kubelet.admit("team-a/nb-1", {"main": {GPU: 1}})

    asked = status()

    assert (asked.code, asked.verdict, asked.findings) == (0, "ready", [])
    assert re.search(r"HELD BY\nGPU \d  nvidia.com/gpu  1  team-a/nb-1\n", asked.rest)  # a moment after it started


def test_no_driver(kubelet, machine, start, status):
    machine.change(driver={"state": "missing"})
    start(build_config(share=4))

    asked = status("DriverMissing: ")

    assert (asked.code, asked.verdict) == (4, "not ready: DriverMissing")
    assert "→ if nvidia-smi fails on the node too, install the driver; else" in asked.findings[0]


def test_a_driver_whose_library_is_another_version(kubelet, machine, start, status):
    machine.change(driver={"kernel": "535.54.03"})
    start(build_config(share=4))

    asked = status("DriverMismatch: ")

    assert (asked.code, asked.verdict) == (4, "not ready: DriverMismatch")
    assert re.search(
        r"kernel module \S+, library \S+; .*→ drain the node and reload the kernel module", asked.findings[0]
    )


def test_a_driver_that_was_lost(kubelet, daemon, machine, status):
    daemon.wait_ready()
    machine.change(driver={"state": "not-loaded"})

    asked = status("DriverLost: ")

    assert (asked.code, asked.verdict, len(asked.findings)) == (4, "not ready: DriverLost", 1)
    assert "→ dmesg | grep -i -e nvrm -e xid on the node" in asked.findings[0]


def test_a_configuration_that_is_refused(daemon, config_map, status):
    daemon.wait_ready()
    config_map.publish("version: v1\nsharin: {}\ndevices: {cordon: 3}\n")

    asked = status("ConfigRefused: ")

    assert (asked.code, asked.verdict) == (3, "ready, but degraded")
    assert f"{config_map.file}:2:1: sharin: unknown key; did you mean sharing? (the first of 2" in asked.findings[0]
    assert "stays in force) → correct line 2 of" in asked.findings[0]


def test_a_first_configuration_that_is_refused(kubelet, start, status):
    start("version: v2\n")

    asked = status("ConfigRefused: ")

    assert (asked.code, asked.verdict) == (4, "not ready: ConfigRefused")
    assert "(nothing is in force) → correct line 1 of" in asked.findings[0]


def test_no_configuration(kubelet, start, root, status):
    start(config_file=root / "nowhere.yaml")

    asked = status("ConfigMissing: ")

    assert (asked.code, asked.verdict) == (4, "not ready: ConfigMissing")
    assert f"{root}/nowhere.yaml: there is no such file" in asked.findings[0]
    assert "→ create it" in asked.findings[0]


KUBELET_MISSING = {
    True: (
        "kubelet.sock: no such socket",
        "start the kubelet; if it runs, its directory is another one: set --kubelet-root",
    ),
    False: ("device-plugins: no such directory", "mount the kubelet's device-plugins directory; one that is elsewhere"),
}


@pytest.mark.parametrize("exists", KUBELET_MISSING)
def test_no_kubelet(root, start, status, exists):
    cause, remedy = KUBELET_MISSING[exists]
    if exists:
        (root / "k" / "device-plugins").mkdir(parents=True)
    start(build_config(share=4))

    asked = status(cause)

    assert (asked.code, asked.verdict) == (4, "not ready: NotRegistered")
    assert re.match(rf"RegistrationFailed: nvidia.com/gpu: \S+/{cause}", asked.findings[0])
    assert f"→ {remedy}" in asked.findings[0]


def test_a_kubelet_that_refuses(kubelet, start, status):
    kubelet.faults.refuse_registrations(1000, "the resource is not to my taste")
    start(build_config(share=4))

    asked = status("RegistrationFailed: nvidia.com/gpu: the kubelet refuses: ")

    assert (asked.code, asked.verdict) == (4, "not ready: NotRegistered")
    assert "the kubelet refuses: the resource is not to my taste → journalctl -u kubelet" in asked.findings[0]


def test_a_lost_gpu(kubelet, daemon, machine, status):
    daemon.wait_ready()
    pod = kubelet.admit("team-a/nb-1", {"main": {GPU: 1}})
    (device_id,) = pod.ids(GPU)
    number = next(number for number in range(4) if device_id.startswith(gpu_uuid(number)))
    machine.change(lost=[str(number)])

    asked = status("DeviceUnhealthy: ")

    assert (asked.code, asked.verdict) == (3, "ready, but degraded")
    assert f"GPU {number} ({gpu_uuid(number)}, 0000:" in asked.findings[0]
    assert "used by team-a/nb-1 → drain the node and reboot it" in asked.findings[0]


def test_a_gpu_that_hangs(daemon, machine, config_map, status):
    daemon.wait_ready()
    config_map.publish(build_config(share=4, health={"callTimeout": "1s"}))
    machine.fault("nvmlDeviceGetMemoryInfo", gpu=2, hang=True)

    asked = status("DeviceUnhealthy: GPU 2 ")

    assert asked.code == 3
    assert "CallTimeout: nvmlDeviceGetMemoryInfo" in asked.findings[0]
    assert "did not return within 1s; no new pods there → the driver hangs: look for NVRM in dmesg" in asked.findings[0]


def test_a_driver_that_hangs_as_a_whole(daemon, machine, config_map, status):
    daemon.wait_ready()
    config_map.publish(build_config(share=4, health={"callTimeout": "1s"}))
    machine.fault("nvmlDeviceGetCount", hang=True)

    asked = status("DriverLost: ")

    assert asked.code == 4
    assert "nvmlDeviceGetCount did not return within 1s → the driver hangs: look for NVRM in dmesg" in asked.findings[0]


@on_node(machine={"computeCapability": "6.1"})
def test_an_entry_that_the_card_cannot_do(kubelet, start, status):
    start(build_config(sharing=MPS)).wait_ready()

    asked = status("MPSUnsupported: ")

    assert (asked.code, asked.verdict) == (3, "ready, but degraded")
    assert "has compute capability 6.1; MPS needs 7.0; not on offer" in asked.findings[0]
    assert f"not on offer: GPU 1 ({gpu_uuid(1)}" in asked.findings[0]
    assert "→ correct sharing.mps.resources[0] in " in asked.findings[0]


def test_a_control_daemon_that_is_not_there(kubelet, start, status):
    start(build_config(sharing=MPS), wait=True)

    asked = status("MPSDaemonFailed: ")

    assert (asked.code, asked.verdict) == (4, "not ready: NotRegistered")
    assert "nvidia.com/gpu.mps: nvdp mps does not run on this node" in asked.findings[0]
    assert "→ is there a pod of the DaemonSet nvdp-mps on this node?" in asked.findings[0]


def test_holders_that_nobody_knows(kubelet, daemon, status):
    daemon.wait_ready()
    kubelet.drop_pod_resources()
    kubelet.corrupt_checkpoint()

    asked = status("HoldersUnknown: ")

    assert (asked.code, asked.verdict) == (3, "ready, but degraded")
    assert "→ mount the kubelet's pod-resources directory, see --pod-resources-socket" in asked.findings[0]


def test_a_change_of_sharing_that_waits_for_a_pod(kubelet, start, config_map, status):
    start(build_config(), wait=True)
    pod = kubelet.admit("team-a/train-7", {"main": {GPU: 1}})
    config_map.publish(build_config(share=4, timeSlicing={"renameByDefault": True}))

    asked = status("ModeChangeWaiting: ")

    assert (asked.code, asked.verdict) == (0, "ready")
    assert f"{GPU} → {SHARED} waits for team-a/train-7 since 20" in asked.findings[0]
    assert (
        "→ it comes by itself once they have ended, or end them: kubectl -n team-a delete pod train-7"
        in asked.findings[0]
    )
    kubelet.delete(pod)
    wait_until(lambda: not status().findings, what="nothing to tell")


def test_a_reference_to_nothing(kubelet, start, status):
    start(build_config(devices={"cordon": [7]})).wait_ready()

    asked = status("ConfigReferenceUnmatched: ")

    assert (asked.code, asked.verdict) == (0, "ready")
    assert "devices.cordon[0]: 7 is not on this node" in asked.findings[0]
    assert "→ compare with nvdp devices; correct it in" in asked.findings[0]


def test_a_card_that_is_cordoned(kubelet, start, status):
    start(build_config(devices={"cordon": [2]})).wait_ready()

    asked = status("DeviceCordoned: ")

    assert (asked.code, asked.verdict) == (0, "ready")
    assert "no new pods there, as devices.cordon[0] says → take it out of devices.cordon[0] in" in asked.findings[0]


def test_a_metrics_port_that_is_taken(kubelet, start, status):
    with socket.create_server(("", 0)) as occupant:
        start(build_config(share=4), port=occupant.getsockname()[1], wait=True)

        asked = status("PortTaken: ")

    assert asked.code in {3, 4}  # the kubelet has its list, and the loop may not have heard of it yet
    assert re.search(r"port \d+ is in use: .*; choose another with --metrics-port → ss -ltnp", asked.findings[-1])


def test_a_driver_that_tells_no_events(kubelet, start, machine, status):
    machine.change(faults=[{"call": "nvmlEventSetCreate", "error": 999}])
    daemon = start(build_config(share=4))
    daemon.wait_ready()

    asked = status("WatchDegraded: ")

    assert asked.code == 3
    assert re.search(r"nvmlEventSetCreate: .*no XID of any GPU is heard.*→ dmesg", asked.findings[0])
    assert daemon.log.wait_for("WatchDegraded")["level"] == "error"

    machine.change(faults=[])
    daemon.look()
    wait_until(lambda: status().code == 0, what="events again")
    daemon.log.wait_for("WatchRestored")
    assert len(daemon.log.of("WatchDegraded")) == 1


def test_no_inotify(kubelet, start, status):
    start(build_config(share=4), wait=True, launcher=exhaust_inotify()).wait_ready()

    asked = status("WatchDegraded: ")

    assert asked.code == 3
    assert "no notification of changes" in asked.findings[0]
    assert "→ raise fs.inotify.max_user_instances" in asked.findings[0]


def test_a_state_directory_that_is_full(kubelet, start, status):
    start(build_config(share=4), wait=True, launcher=refuse("fsync", errno.ENOSPC)).wait_ready()

    asked = status("StateDamaged: ")

    assert asked.code == 3
    assert f"{os.strerror(errno.ENOSPC)}; nvdp goes on" in asked.findings[0]
    assert "→ space and permissions of --state-dir" in asked.findings[0]


def test_a_file_that_no_edit_reaches(kubelet, start, config_map, root, status):
    config_map.publish(build_config(share=4))
    mounted = root / "mounted.yaml"
    mounted.touch()
    launcher = mount(["mount", "--bind", config_map.file.resolve(), mounted])
    start(config_file=mounted, wait=True, launcher=launcher).wait_ready()

    asked = status("ConfigMountStatic: ")

    assert asked.code == 3
    assert "→ mount the ConfigMap as a directory, without subPath" in asked.findings[0]


def test_no_daemon(root):
    done = run_status(root)

    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"{root}/run/control.sock: no nvdp runs here, or its --run-dir is another one; look at its pod"
    )


def test_a_daemon_that_was_killed_and_its_successor(kubelet, daemon, root, start, status):
    daemon.wait_ready()
    daemon.kill()

    done = run_status(root)

    assert (done.returncode, done.stdout) == (1, "")
    assert "nvdp has ended; the log of its pod says why" in done.stderr
    start().wait_ready()
    assert status().verdict == "ready"


def test_a_daemon_that_does_not_get_to_it(daemon, root):
    daemon.wait_ready()
    daemon.send(signal.SIGSTOP)
    try:
        with pytest.raises(HostError, match="nvdp runs, and does not get to an answer"):
            load_status(root / "run", timeout_s=0.5)
    finally:
        daemon.send(signal.SIGCONT)


def test_a_daemon_that_stops_takes_its_socket_along(daemon, root):
    daemon.wait_ready()
    assert (root / "run" / "control.sock").exists()
    assert daemon.stop().code == 0
    assert not (root / "run" / "control.sock").exists()


def test_two_daemons_of_one_run_directory_serve_one_after_the_other(kubelet, daemon, root, start, status):
    daemon.wait_ready()
    second = start()
    assert "another nvdp serves it" in second.log.wait_for("PortTaken")["msg"]
    assert daemon.stop().code == 0

    wait_until(lambda: run_status(root).returncode == 0, what="the second one's status")


@pytest.mark.invariant(1)
def test_a_run_directory_that_cannot_be_had_costs_a_warning(kubelet, root, start):
    (root / "run").touch()
    daemon = start(build_config(share=4), wait=True)

    assert f"{root}/run/control.sock: cannot be made" in daemon.log.wait_for("PortTaken")["msg"]
    daemon.wait_ready()
    (root / "run").unlink()
    wait_until(lambda: run_status(root).returncode == 0, what="a status")


@on_node(machine={"count": 8})
def test_json_is_what_the_text_says(kubelet, start, root):
    start(build_config(share=1000), wait=True).wait_ready()
    kubelet.admit("team-a/nb-1", {"main": {GPU: 1}})

    def look():
        done = run_status(root, "--json")
        return done if json.loads(done.stdout)["holders"] else None

    done = wait_until(look, what="the holder")
    document = json.loads(done.stdout)

    assert (done.returncode, document["ready"], document["findings"]) == (0, True, [])
    (resource,) = document["resources"]
    assert (resource["name"], resource["healthy"], resource["registered"]) == (GPU, 8000, True)
    assert [one["pod"] for one in document["holders"]] == ["nb-1"]
    assert len(done.stdout) < 20_000
