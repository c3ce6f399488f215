"""A node with the plugin, ``nvdp mps`` and the control daemon's twin, and with pods whose programs are MPS clients."""

from __future__ import annotations

import contextlib
import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from nvdp.host.mps_report import load_report
from nvdp.model.mps import DaemonReport, MpsReport, Phase
from nvdp.simulate.kubelet import AdmissionError, Kubelet, Pod
from nvdp.simulate.mps.clients import MpsClient
from tests.daemon.keeping.wish import ALREADY_EXCLUSIVE, Wish, find_card
from tests.daemon.mps import MpsSide
from tests.daemon.node import ConfigMap, Machine, gpu_uuid
from tests.daemon.process import LIMIT_S, Daemon, wait_until

_FOREIGN = "not ours"  # a file of somebody else's in the MPS root
_USERS = (0, 1000)
_START_S = 75.0  # a driver that hangs where it starts is given a minute


class ModedMachine(Machine):
    """One of its cards begins with the compute mode that MPS gives to others."""

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__(path, **settings)
        self._modes_path = path.with_name(f"{path.name}.modes.json")
        self._cards[ALREADY_EXCLUSIVE]["computeMode"] = "ExclusiveProcess"
        self._write()

    def find_changed_modes(self) -> set[str]:
        """The UUIDs of the cards that have not the mode with which they began."""
        try:
            return {*json.loads(self._modes_path.read_text())}
        except FileNotFoundError:
            return set()


class Held:
    """A pod with one ID, and its program: an MPS client if it was handed out through MPS. ``inode`` is that of the
    pipe directory, which the pod has mounted.
    """

    def __init__(self, pod: Pod, resource: str, device: str, *, by_mps: bool) -> None:
        self.pod, self.resource, self.device, self.by_mps = pod, resource, device, by_mps
        self.card = find_card(device)
        self.client: MpsClient | None = None
        self.inode: int | None = None


class Node:
    """Both processes run after ``begin``; either may be away for a while. ``wish`` is what the file says that is in
    force; ``lost`` are the cards that the driver does not reach. Whoever draws anything draws it of ``chance``.
    """

    def __init__(
        self, *, kubelet: Kubelet, machine: ModedMachine, config_map: ConfigMap, start: Any, mps: MpsSide
    ) -> None:
        self.kubelet, self.machine, self.mps = kubelet, machine, mps
        self.chance = random.Random(0)
        self.wish = Wish()
        self.is_broken = False
        self.lost: set[int] = set()
        self.pods: list[Held] = []
        self.plugin: Daemon | None = None
        self.keeper: Daemon | None = None
        self._config_map = config_map
        self._start = start
        self._names = iter(range(1_000_000))
        (mps.directory / _FOREIGN).write_text("stays")

    # --- its processes

    def start_missing(self) -> None:
        """Start what does not run. Both obey signals when this returns."""
        self.plugin = self.plugin or self._start()
        self.keeper = self.keeper or self.mps.start()
        for daemon in (self.plugin, self.keeper):
            daemon.log.wait_for("Starting")

    def end_plugin(self, number: signal.Signals) -> None:
        if self.plugin is not None:
            _end(self.plugin, number)
            self.plugin = None

    def end_keeper(self, number: signal.Signals) -> None:
        if self.keeper is not None:
            _end(self.keeper, number)
            self.keeper = None

    @property
    def report(self) -> MpsReport:
        return load_report(self.mps.directory) or MpsReport(at=0.0)

    def list_daemons(self) -> dict[str, DaemonReport]:
        """The control daemons that run, by resource."""
        return {name: daemon for name, daemon in self.report.daemons.items() if daemon.pid is not None}

    def list_ready(self) -> list[str]:
        """The resources whose control daemon answers."""
        return sorted(name for name, daemon in self.list_daemons().items() if daemon.phase is Phase.READY)

    def list_processes(self) -> list[str]:
        """What runs on this node, as command lines."""
        return [" ".join(words) for words in _list_commands() if any(str(self._root) in word for word in words)]

    @property
    def _root(self) -> Path:
        return self.mps.directory.parent

    # --- the file and the cards

    def publish(self, **changes: Any) -> None:
        """Change what the file says."""
        self.wish = self.wish._replace(**changes)
        self.is_broken = False
        self._config_map.publish(self.wish.build_file())

    def publish_broken(self) -> None:
        """A file that nobody can use: what was in force stays so."""
        self.is_broken = True
        self._config_map.publish("version: v1\nsharing: {mps: nonsense}\n")

    def lose(self, *cards: int) -> None:
        """From now on these cards are lost, and no others."""
        self.lost = {*cards}
        self.machine.change(lost=[*cards])

    # --- its pods

    def holds(self, resource: str) -> list[Held]:
        """The pods that hold something of the resource through MPS."""
        return [held for held in self.pods if held.by_mps and held.resource == resource]

    def admit(self, resource: str) -> None:
        """A pod comes, if the kubelet has something for it; what was on offer a moment ago may be refused."""
        if not self.kubelet.allocatable(resource):
            return
        name = f"team/pod-{next(self._names)}"
        try:
            pod = self.kubelet.admit(name, {"main": {resource: 1}})
        except AdmissionError:
            return
        (device,) = pod.ids(resource)
        by_mps = "CUDA_MPS_PIPE_DIRECTORY" in pod.response(resource).envs
        held = Held(pod, resource, device, by_mps=by_mps)
        self.pods.append(held)
        self.connect(held)

    def connect(self, held: Held) -> bool:
        """Have the pod's program served, as its container starts (again). False if there is no daemon."""
        if not held.by_mps or (held.client is not None and not held.client.is_cut):
            return True
        self.forget_cut()
        pipe = self.mps.pipe(held.resource)
        try:
            held.client = MpsClient(pipe, user=self.chance.choice(_USERS))
            held.inode = pipe.stat().st_ino
        except (OSError, TimeoutError):
            return False
        return held.client.wait_served(LIMIT_S)

    def forget_cut(self) -> None:
        """Programs end when their server does."""
        for held in self.pods:
            if held.client is not None and held.client.is_cut:
                held.client.close()
                held.client = None

    def dismiss(self, held: Held) -> None:
        """The pod goes."""
        if held.client is not None:
            held.client.close()
        self.pods.remove(held)
        self.kubelet.delete(held.pod)

    def dismiss_all(self) -> None:
        for held in [*self.pods]:
            self.dismiss(held)

    # --- the end

    def find_leftovers(self) -> list[str]:
        """What is not as it was before nvdp came, once both processes have ended; empty if everything is."""
        left = sorted(entry.name for entry in self.mps.directory.iterdir() if entry.name != _FOREIGN)
        assert (self.mps.directory / _FOREIGN).read_text() == "stays"
        modes = sorted(f"mode of {uuid}" for uuid in self.machine.find_changed_modes())
        return left + modes + self.list_processes()


def name_lost(node: Node) -> set[str]:
    """The UUIDs of the cards that are lost."""
    return {gpu_uuid(card) for card in node.lost}


def wait_new_child(daemon: Daemon, before: psutil.Process, limit_s: float = _START_S) -> None:
    """Wait until the daemon has given up an NVML child and has another, or needs none any more."""
    wait_until(lambda: before not in daemon.children, limit_s, what="an end of the NVML child")


def _end(daemon: Daemon, number: signal.Signals) -> None:
    if number is signal.SIGKILL:
        daemon.kill()
        return
    ended = daemon.stop(number)
    assert ended.code == 0, ended


def _list_commands() -> Iterator[list[str]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process.cmdline()
