"""The other side of MPS on a test's node: ``nvdp mps`` with the control daemon's twin, or a stand-in for both."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import psutil

from nvdp.host.mps_grants import load_grants
from nvdp.host.mps_report import load_report, remove_report, write_report
from nvdp.model.mps import DaemonReport, DaemonSpec, Grant, MpsReport, Phase
from nvdp.simulate.mps.install import install_control
from nvdp.simulate.mps.journal import Journal
from nvdp.simulate.mps.orders import Orders
from tests.daemon.node import GPU, ConfigMap, Machine, build_config
from tests.daemon.process import LIMIT_S, Daemon, wait_until

MPS = f"{GPU}.mps"
_TICK_S = 0.05


def build_mps(*entries: dict[str, Any], **blocks: Any) -> dict[str, Any]:
    """A configuration in which MPS shares some cards by four under another name, as each entry says."""
    resources = [{"name": GPU, "rename": MPS, "replicas": 4, **entry} for entry in entries]
    sharing = {"mps": {"resources": resources}, **blocks.pop("sharing", {})}
    return build_config(sharing=sharing, **blocks)


class MpsSide:
    """``nvdp mps`` of a node, beside the plugin's daemon: on the same machine, file and state directory."""

    def __init__(self, root: Path, machine: Machine, config_map: ConfigMap) -> None:
        self.directory = root / "mps"
        self.directory.mkdir(exist_ok=True)
        programs = root / "bin"
        programs.mkdir(exist_ok=True)
        self.program = install_control(programs)
        self.orders = Orders(self.program)
        self.journal = Journal(self.program)
        self._root = root
        self._machine = machine
        self._config_map = config_map
        self.keepers: list[Daemon] = []

    def start(self, *flags: str | Path, by_label: bool = False, **options: Any) -> Daemon:
        """The process, which is called a daemon here as it is watched like one; ``by_label`` as in ``start``."""
        keeper = Daemon(
            *(() if by_label else ("--config-file", self._config_map.file)),
            *self._machine.flags,
            *("--state-dir", self._root / "state", "--run-dir", self._root / "run"),
            *("--mps-dir", self.directory, "--mps-control", self.program),
            *("--log-format", "json"),
            *flags,
            subcommand="mps",
            **options,
        )
        self.keepers.append(keeper)
        return keeper

    def find_pid(self, resource: str = MPS) -> int:
        """The process of the control daemon that answers for a resource, waited for."""

        def look() -> int | None:
            report = load_report(self.directory)
            daemon = report.daemons.get(resource) if report is not None else None
            return daemon.pid if daemon is not None and daemon.phase is Phase.READY else None

        found: int = wait_until(look, what=f"a control daemon of {resource}")
        return found

    def pipe(self, resource: str = MPS) -> Path:
        return self.directory / resource / "pipe"

    def end(self) -> None:
        """Stop what still runs; no control daemon outlives this."""
        for keeper in self.keepers:
            if keeper.running:
                keeper.stop()
        for start in self.journal.list_starts():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(start["pid"])
                if str(self.program) in process.cmdline():
                    process.kill()


class Keeper:
    """Stands in for ``nvdp mps`` where its processes are not the matter: takes what is free, and gives back what no
    pod holds, as the grants say, from one moment to the next. Its daemons always answer.
    """

    def __init__(self, mps_dir: Path, state_dir: Path) -> None:
        mps_dir.mkdir(exist_ok=True)
        self._mps_dir = mps_dir
        self._state_dir = state_dir
        self._running: dict[str, DaemonSpec] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stand-in for nvdp mps", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take the report away, as at an orderly end."""
        self._ending.set()
        self._thread.join(LIMIT_S)
        remove_report(self._mps_dir)

    def _run(self) -> None:
        while not self._ending.wait(_TICK_S):
            grants = load_grants(self._state_dir)
            wishes = grants.resources if grants is not None else {}
            for resource in [*self._running]:
                self._reconsider(resource, wishes.get(resource, Grant()))
            for resource, grant in wishes.items():
                self._consider(resource, grant)
            gpus = frozenset(uuid for spec in self._running.values() for uuid in spec.gpus)
            write_report(self._mps_dir, self._build_report(wishes.keys(), gpus))

    def _reconsider(self, resource: str, grant: Grant) -> None:
        if grant.wanted != self._running[resource] and (grant.at_once or not grant.held):
            del self._running[resource]

    def _consider(self, resource: str, grant: Grant) -> None:
        taken = {uuid for spec in self._running.values() for uuid in spec.gpus}
        if grant.wanted is None or resource in self._running or taken.intersection(grant.wanted.gpus):
            return
        if grant.at_once or set(grant.wanted.gpus) <= {*grant.free, *grant.held}:
            self._running[resource] = grant.wanted

    def _build_report(self, wanted: Collection[str], gpus: frozenset[str]) -> MpsReport:
        daemons = {}
        for resource in {*wanted, *self._running}:
            running = self._running.get(resource)
            if running is None:
                daemons[resource] = DaemonReport(phase=Phase.WAITING, text="its GPUs are not free")
            else:
                daemons[resource] = DaemonReport(phase=Phase.READY, running=running, pid=1, started=1)
        return MpsReport(at=time.monotonic(), daemons=daemons, claims=dict.fromkeys(gpus, "Default"))
