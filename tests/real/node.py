"""A node as it is on a cluster: API server, scheduler, kubelet and containerd are real, only the GPUs are simulated."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvdp.__main__ import main
from tests.daemon.node import ConfigMap, Machine
from tests.daemon.process import LIMIT_S, Daemon, wait_until
from tests.real.controlplane import ControlPlane
from tests.real.kubelet import RealKubelet
from tests.real.noderuntime import NodeRuntime
from tests.real.pods import Pods
from tests.real.scheduling import Scheduling


class RealNode:
    """All runs but nvdp, which ``run`` starts; ``stop`` ends all of it. ``root`` needs a short path."""

    def __init__(self, control: ControlPlane, root: Path, *, machine: Machine, config_map: ConfigMap) -> None:
        self._root = root
        self.machine = machine
        self.config_map = config_map
        self.daemons: list[Daemon] = []
        self._scheduling = Scheduling(control, root)
        self._runtime = NodeRuntime(root / "c")
        self.kubelet = RealKubelet(control, self._runtime, root)
        self.pods = Pods(control, self.kubelet, self._runtime.runtime)

    def start(self, **settings: Any) -> None:
        """With keys of the kubelet's configuration. Blocks until the Node is Ready."""
        self._runtime.wait_ready()
        self.kubelet.start(**settings)

    def run(
        self, config: dict[str, Any] | None = None, *, by_label: Sequence[str | Path] = (), launcher: Sequence[str] = ()
    ) -> Daemon:
        """Start nvdp. ``config`` is published first (none: the file stays as it is).

        ``by_label``: there is no file; these flags say what the node's label chooses from.
        """
        if config is not None:
            self.config_map.publish(config)
        daemon = Daemon(
            *(by_label or ("--config-file", self.config_map.file)),
            *("--kubelet-root", self.kubelet.root, *self.machine.flags),
            *("--state-dir", self._root / "state", "--run-dir", self._root / "run", "--mps-dir", self._root / "mps"),
            *("--log-format", "json"),
            launcher=launcher,
        )
        self.daemons.append(daemon)
        return daemon

    def kill(self) -> None:
        """The end of nvdp without a word."""
        self.daemons[-1].kill()

    def status(self) -> dict[str, Any]:
        """What ``nvdp status --json`` says."""
        with contextlib.redirect_stdout(io.StringIO()) as out:
            main(["status", "--json", "--run-dir", str(self._root / "run")])
        found: dict[str, Any] = json.loads(out.getvalue())
        return found

    def wait_holders(self, *pods: str) -> None:
        """Until ``nvdp status`` names these pods, and no others, as those that hold devices."""
        wanted = {f"default/{pod}" for pod in pods}
        wait_until(lambda: self._read_holders() == wanted, 3 * LIMIT_S, what=f"holders {wanted}")

    def _read_holders(self) -> set[str]:
        return {f"{one['namespace']}/{one['pod']}" for one in self.status()["holders"]}

    def stop(self) -> None:
        for daemon in self.daemons:
            if daemon.running:
                daemon.stop()
        self.kubelet.stop()
        self._runtime.stop()
        self._scheduling.stop()

    def describe(self) -> str:
        """The logs of all of it."""
        logs = [line for daemon in self.daemons for line in (*map(str, daemon.log), *daemon.log.texts, "---")]
        return "\n".join([*logs, "the kubelet:", self.kubelet.log[-20000:]])
