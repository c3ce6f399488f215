"""What can be said to ``nvdp simulate``: other nodes and files, one step, a directory that stays, an early end."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from pathlib import Path

import pytest

SHARED = """
sharing: {timeSlicing: {renameByDefault: true, failRequestsGreaterThanOne: true, resources: [{replicas: 5, name: gpu}]}}
flags: {plugin: {deviceIDStrategy: index, deviceListStrategy: [volume-mounts]}}
"""


def wait_for_line(process, text):
    """Read on until a line has ``text``; the command ends by itself otherwise."""
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"the output ended without {text!r}")


def test_a_node_and_a_configuration_of_ones_own_are_played(command, short_path):
    config, node = short_path / "my.yaml", short_path / "node.yaml"
    config.write_text(SHARED)
    node.write_text("gpus: [{model: l4, count: 3}]\nremoved: [1]\n")
    done = command.run("--config", str(config), "--node", str(node))
    assert done.returncode == 0, done.stdout
    assert "nvidia.com/gpu.shared:  0 -> 10     (2 GPUs x 5, all healthy)" in done.stdout
    assert "2 x NVIDIA L4" in done.stdout
    assert "train      nvidia.com/gpu.shared: 1" in done.stdout
    assert "NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices" in done.stdout
    assert (config.read_text(), node.read_text()) == (SHARED, "gpus: [{model: l4, count: 3}]\nremoved: [1]\n")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("devices: {exclude: [0]}", "GPU 0 is not on offer (devices.exclude[0]: excluded)"),
        ('devices: {cordon: ["1"]}', "GPU 1 takes no pods (devices.cordon[0])"),
        ("resources: {gpus: [{pattern: '*', name: card}]}", "GPU 0 is offered in another way (resources.gpus[0])"),
        ("devices: {paused: true}", "no GPU takes pods (devices.paused)"),
    ],
)
def test_a_configuration_that_does_not_share_all_gpus_alike_is_refused_and_not_played(command, short_path, more, why):
    config = short_path / "my.yaml"
    config.write_text(f"{more}\n{SHARED.strip()}")
    done = command.run("--config", str(config))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{config}: {why}")
    assert done.stderr.endswith(
        ", and the tour counts on all of them in sharing.timeSlicing.resources[0]; "
        "nvdp simulate --serve takes any configuration\n"
    )


def test_where_each_share_must_be_of_another_gpu_pods_ask_for_no_more_than_there_are(command, short_path):
    config = short_path / "my.yaml"
    config.write_text(
        "sharing: {timeSlicing: {requireDistinctGPUs: true, resources: [{name: gpu, replicas: 4}]}}\n"
        "allocation: {sharedPolicy: packed}\n"
    )
    several = command.run("--config", str(config), "--step", "pods")
    assert several.returncode == 0, several.stdout
    assert "two different GPUs" in several.stdout
    one = command.run("--config", str(config), "--node", "t4", "--step", "pods")
    assert one.returncode == 0, one.stdout
    assert "train      nvidia.com/gpu: 1" in one.stdout


def test_a_file_that_hands_devices_over_by_cdi_is_played_and_touches_no_spec_of_the_machine(command, short_path):
    config = short_path / "my.yaml"
    config.write_text(SHARED.replace("volume-mounts", "cdi-cri"))
    done = command.run("--config", str(config), "--step", "pods", "--keep", str(short_path / "kept"))
    assert done.returncode == 0, done.stdout
    assert "k8s.device-plugin.nvidia.com/gpu=0" in done.stdout
    assert (short_path / "kept/cdi/k8s.device-plugin.nvidia.com-gpu.json").exists()
    assert "CDIFailed" not in (short_path / "kept/daemon.log").read_text()


def test_what_is_not_built_and_withholds_nothing_here_does_not_keep_the_tour_from_playing(command, short_path):
    config = short_path / "my.yaml"
    config.write_text(SHARED.replace("{plugin", "{migStrategy: mixed, mpsRoot: /m, plugin"))
    assert command.run("--config", str(config), "--step", "capacity").returncode == 0


def test_a_step_that_takes_longer_than_its_limit_fails(command, short_path):
    slow = f"sh -c 'sleep 1.1; exec {sys.executable} -m nvdp \"$@\"' nvdp"
    done = command.run_strictly("--daemon", slow, "--step", "capacity", TMPDIR=str(short_path))
    assert done.returncode == 1
    assert re.search(
        r"limit 1 s   FAILED\n +expected  all of it within 1 s\n +seen      all of it, after \d", done.stdout
    )
    assert command.run("--daemon", slow, "--step", "capacity").returncode == 0


def test_a_node_with_one_gpu_gives_two_shares_of_it(command):
    done = command.run("--node", "t4", "--step", "pods")
    assert done.returncode == 0, done.stdout
    assert "->  GPU 0         two shares of it" in done.stdout


def test_one_step_is_shown_alone(command):
    done = command.run("--step", "share-more", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert report["ok"]
    assert [step["name"] for step in report["steps"]] == ["share-more"]
    assert report["notRun"] == 0


def test_variables_of_the_environment_do_not_change_the_tour(command):
    done = command.run("--step", "capacity", MIG_STRATEGY="mixed", NVDP_LOG_LEVEL="error", CONFIG_FILE="/nowhere")
    assert done.returncode == 0, done.stdout


def test_the_directory_to_keep_has_configuration_logs_and_sockets(command, short_path):
    kept = short_path / "kept"
    done = command.run("--keep", str(kept), "--step", "capacity")
    assert done.returncode == 0, done.stdout
    assert (kept / "config/config.yaml").read_text().startswith("version: v1\n")
    assert "ConfigApplied" in (kept / "daemon.log").read_text()
    assert "Register nvidia.com/gpu" in (kept / "kubelet.log").read_text()
    assert (kept / "device-plugins/kubelet.sock").is_socket()
    again = command.run("--keep", str(kept))
    assert again.returncode == 2
    assert again.stderr == f"{kept} is not empty; name a directory that is, or one that does not exist yet\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_tour_takes_everything_with_it(number, command):
    process = command.start("--pace", "60s", "--slack", "5")
    pid = int(wait_for_line(process, "real ").split("pid ")[1].split(")")[0])
    wait_for_line(process, "[1/")
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == (130 if number == signal.SIGINT else 128 + number)
    assert not Path(f"/proc/{pid}").exists()
    assert command.left == []


def test_the_pace_is_waited_between_steps(command):
    began = time.monotonic()
    done = command.run("--pace", "300ms", "--json")
    assert done.returncode == 0
    assert time.monotonic() - began > json.loads(done.stdout)["seconds"] > 5 * 0.3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--pace", "soon"], 'nvdp simulate: Invalid value for --pace: "soon" is not a duration; '),
        (["--pace", "infinite"], "the tour would never end"),
        (["--step", "xid"], "'xid' is not one of 'capacity', 'pods', 'share-more', 'typo', 'kubelet-restart', 'stop'"),
        (["--serve", "--step", "pods"], "--serve plays no steps; leave out --step."),
        (["--serve", "--json"], "--serve plays no steps; leave out --json."),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments, text, command):
    done = command.run(*arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_configuration_that_is_not_valid_is_refused_with_all_its_mistakes(command, short_path):
    path = short_path / "bad.yaml"
    path.write_text("sharing:\n  timeSlicing:\n    resources:\n    - name: gpu\n      replicas: 0\nflag: 1\n")
    done = command.run("--config", str(path))
    assert done.returncode == 2
    assert f"{path}:5:17: sharing.timeSlicing.resources[0].replicas: 0 is too small" in done.stderr
    assert f"{path}:6:1: flag: unknown key" in done.stderr


def test_a_configuration_that_shares_nothing_is_for_serve(command, short_path):
    path = short_path / "plain.yaml"
    path.write_text("version: v1\n")
    done = command.run("--config", str(path))
    assert done.returncode == 2
    assert "nvdp simulate --serve takes any configuration" in done.stderr


def test_too_few_devices_for_the_three_pods_are_said_at_once(command, short_path):
    path = short_path / "few.yaml"
    path.write_text("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n")
    done = command.run("--config", str(path), "--node", "t4")
    assert done.returncode == 2
    assert "the tour's pods ask for 4 devices, and this node offers 2" in done.stderr
    assert command.left == []


@pytest.mark.parametrize("platform", ["wsl", "tegra"])
def test_a_node_with_one_device_for_all_its_gpus_is_for_serve(command, short_path, platform):
    path = short_path / "node.yaml"
    path.write_text(f"platform: {platform}\n" + ("gpus: [{model: l4}]\n" if platform == "wsl" else ""))
    done = command.run("--node", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"{path}: platform {platform} has one device for all its GPUs, and the tour tells GPUs apart; "
        "nvdp simulate --serve takes any node\n"
    )


@pytest.mark.parametrize("arguments", [["--config", "/nowhere.yaml"], ["--node", "dgx-h1000"]])
def test_a_file_that_is_not_there_is_one_line_and_exit_code_1(arguments, command):
    done = command.run(*arguments)
    assert done.returncode == 1
    assert arguments[1] in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_directory_too_deep_for_sockets_is_said_in_words(command, short_path):
    deep = short_path / ("d" * 70)
    deep.mkdir()
    done = command.run(TMPDIR=str(deep))
    assert done.returncode == 1
    assert f"the directory for temporary files, {deep}, is too deep for Unix sockets" in done.stderr
    assert "their path may have 107 bytes" in done.stderr
    assert "set TMPDIR=/tmp" in done.stderr
    kept = command.run("--keep", str(deep))
    assert kept.returncode == 1
    assert "choose one like /tmp/tour" in kept.stderr
