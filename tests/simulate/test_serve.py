"""``nvdp simulate --serve``: what is edited by hand shows its effect at once."""

from __future__ import annotations

import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

CONFIG = """\
devices: {rescanInterval: 1s}
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: %d}]}}
health: {recovery: {holdOff: 1s}}
flags: {plugin: {deviceListStrategy: [envvar, cdi-cri]}}
"""
BUSY = "gpus: [{model: l4, count: 2, processes: [{pid: 2147483646, memoryBytes: 3145728}]}]\n"


class Screen:
    """The output of the command as it comes."""

    def __init__(self, process):
        self.process = process
        self.lines = queue.SimpleQueue()
        self.seen = []
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        with self.process.stdout:
            for line in self.process.stdout:
                self.lines.put(line)

    def wait(self, pattern, limit_s=15.0):
        """The match of the first line from here on that has the pattern."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                self.seen.append(self.lines.get(timeout=max(0.01, deadline - time.monotonic())))
            except queue.Empty:
                raise AssertionError(f"not within {limit_s} s: {pattern}\n{''.join(self.seen)}") from None
            if match := re.search(pattern, self.seen[-1]):
                return match

    def type(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()


@pytest.fixture
def served(command):
    """The command on files of the test's own, from its start to Ctrl-C."""
    processes = []

    def serve(*arguments):
        processes.append(command.start("--serve", *arguments))
        return Screen(processes[-1])

    yield serve
    for process in processes:
        process.kill()
        process.wait()
        process.stdin.close()


def test_edits_of_the_users_own_files_are_followed_and_pods_come_and_go(served, command, short_path):
    config, node = short_path / "c.yaml", short_path / "n.yaml"
    config.write_text(CONFIG % 2)
    node.write_text("gpus: [{model: l4, count: 2}]\n")
    screen = served("--config", str(config), "--node", str(node))
    screen.wait(rf"config +{config} ")
    screen.wait(rf"node file +{node} ")
    screen.wait(r"nvidia.com/gpu:  allocatable 0 -> 4   capacity 0 -> 4")

    screen.type("pod train 2")
    screen.wait(r"pod train has GPU-\S+::0, GPU-\S+::0")
    screen.wait(r"NVIDIA_VISIBLE_DEVICES=GPU-\S+,GPU-\S+")
    screen.wait(r"CDI k8s.device-plugin.nvidia.com/gpu=GPU-")
    config.write_text(CONFIG % 3)
    screen.wait(r"nvidia.com/gpu:  allocatable 4 -> 6   capacity 4 -> 6")
    config.write_text("nonsense: true\n")
    screen.wait(r"\| ERROR ConfigRefused .*nonsense: unknown key")

    node.write_text("gpus: [{model: l4, count: 2}]\nlost: [1]\n")
    screen.wait(r"allocatable 6 -> 3   capacity 6   Unhealthy: GPU 1 \(3\)")
    node.write_text("gpus: [{model: l4, count: 2}]\n")
    screen.wait(r"allocatable 3 -> 6   capacity 6")

    screen.type("restart")
    screen.wait(r"\| INFO  KubeletRestarted ")
    unavailable = "requested number of devices unavailable for nvidia.com/gpu. Requested: 7, Available: 4"
    answer = ""
    while unavailable not in answer:  # the kubelet may have read no list yet
        screen.type("pod greedy 7")
        answer = screen.wait(rf"{unavailable}|no healthy devices present").group()
    screen.type("pod train")
    screen.wait(r"pod train: there is one of that name")
    screen.type("pod lost 1 nvidia.com/gpx")
    screen.wait(r"pod lost: the node has no nvidia.com/gpx; there is nvidia.com/gpu$")
    screen.type("pods")
    screen.wait(r"pod train has GPU-\S+::0, GPU-\S+::0  \(nvidia.com/gpu\)$")
    screen.type("end train")
    screen.wait(r"pod train is gone")
    screen.type("end train")
    screen.wait(r"no such pod; there are none")
    screen.type("pods")
    screen.wait(r"no pods$")
    screen.type("dance")
    screen.wait(r"dance: no such command; type help")
    screen.type("help")
    screen.wait(r"restart +the kubelet restarts")

    screen.type("quit")
    assert screen.process.wait(10) == 130
    assert command.left == []


def test_the_tours_own_files_can_be_edited_where_they_are(served, command):
    screen = served()
    config = Path(screen.wait(r"config +(\S+) ")[1])
    node = Path(screen.wait(r"node file +(\S+) ")[1])
    ask = screen.wait(r"ask +\S*nvdp (status --run-dir \S+) |ask +\S+ -m nvdp (status --run-dir \S+) ")
    ask = ask[1] or ask[2]
    screen.wait(r"order +\S.* pause --run-dir \S+ +also resume, and health clear 0")
    screen.wait(r"allocatable 0 -> 32 ")
    asked = subprocess.run(
        [sys.executable, "-m", "nvdp", *ask.split()], capture_output=True, text=True, check=False, timeout=20
    )
    assert "nvidia.com/gpu       32       32  time-slicing × 4" in asked.stdout
    config.write_text(config.read_text().replace("replicas: 4", "replicas: 5"))
    screen.wait(r"allocatable 32 -> 40 ")
    assert "lost: []" in node.read_text()
    screen.process.stdin.close()
    screen.process.send_signal(signal.SIGTERM)
    assert screen.process.wait(10) == 143
    assert command.left == []


def test_a_pod_whose_container_may_not_start_keeps_its_gpu_until_it_is_ended(served, short_path):
    config, node = short_path / "c.yaml", short_path / "n.yaml"
    config.write_text("allocation: {preStartCheck: idle, preStartTimeout: 1s}\n")
    node.write_text(BUSY)
    screen = served("--config", str(config), "--node", str(node))
    screen.wait(r"allocatable 0 -> 2 ")
    screen.type("pod waiting")
    screen.wait(r"PID 2147483646")
    screen.type("end waiting")
    screen.wait(r"pod waiting is gone")
    screen.process.send_signal(signal.SIGTERM)
    assert screen.process.wait(10) == 143


def test_a_daemon_that_ends_ends_the_command(served):
    screen = served("--daemon", "sh -c 'echo no such luck; exit 7'")
    screen.wait(r"\| no such luck")
    screen.wait(r"the daemon ended with 7")
    assert screen.process.wait(10) == 1
