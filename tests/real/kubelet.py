"""A real kubelet between a real API server and a containerd, for as long as a test needs it."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import yaml

from tests.daemon.process import find_free_port, wait_until
from tests.real.cluster import NODE
from tests.real.controlplane import ControlPlane, Program
from tests.real.noderuntime import NodeRuntime

_LIMIT_S = 90.0
_CONFIG = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "address": "127.0.0.1",
    "readOnlyPort": 0,
    "healthzPort": 0,
    "nodeStatusUpdateFrequency": "1s",
    "nodeStatusReportFrequency": "1s",
    "syncFrequency": "1s",
    "cgroupDriver": "cgroupfs",
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "failSwapOn": False,
    "evictionHard": {"nodefs.available": "1%"},
    "imageGCHighThresholdPercent": 100,
    "makeIPTablesUtilChains": False,
    "oomScoreAdj": 0,
    "maxOpenFiles": 1000,
    "volumePluginDir": "/var/lib/kubelet/volumeplugins",
}


class RealKubelet:
    """``start`` it, and again after ``end``. What it keeps is in ``root``, which nvdp is given as --kubelet-root.

    Pods go on while it is away. They have the network of the containerd (``hostNetwork``) and need no token.
    """

    def __init__(self, control: ControlPlane, runtime: NodeRuntime, directory: Path) -> None:
        self._control = control
        self._runtime = runtime
        self._log = directory / "kubelet.log"
        self._config = directory / "kubelet.yaml"
        self._program: Program | None = None
        self.root = runtime.kubelet_root

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def start(self, **settings: object) -> None:
        """With keys of its configuration beside those of every test. Blocks until its Node is Ready."""
        before = self._read_heartbeat()
        self.launch(**settings)
        wait_until(lambda: self._is_ready(before), _LIMIT_S, what="that the Node is Ready")

    def launch(self, **settings: object) -> None:
        """The same without waiting, which needs no API server."""
        self._config.write_text(yaml.safe_dump({**_CONFIG, "port": find_free_port(), **settings}))
        self._program = Program(
            self._runtime.build_command(
                [
                    *(self._control.programs / "kubelet", f"--config={self._config}"),
                    *(f"--kubeconfig={self._control.admin}", f"--hostname-override={NODE}", "--v=2"),
                    *("--container-runtime=remote", f"--container-runtime-endpoint=unix://{self._runtime.socket}"),
                ]
            ),
            self._log,
        )

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """By a signal; its containers stay."""
        program, self._program = self._program, None
        assert program is not None
        program.check()
        for inside in psutil.Process(program.pid).children():
            inside.send_signal(number)
        program.stop(signal.SIGCONT)  # nsenter ends when the kubelet does, and by itself

    def stop(self) -> None:
        if self._program is not None:
            self.end(signal.SIGKILL)

    def _is_ready(self, before: str) -> bool:
        assert self._program is not None
        self._program.check()
        return self._read_heartbeat() > before

    def _read_heartbeat(self) -> str:
        """When the Node was last said to be Ready, as the API server writes it; empty if it is not."""
        nodes = self._control.get("nodes")["items"]
        conditions = [one for node in nodes for one in node["status"].get("conditions", []) if one["type"] == "Ready"]
        return max((one["lastHeartbeatTime"] for one in conditions if one["status"] == "True"), default="")
