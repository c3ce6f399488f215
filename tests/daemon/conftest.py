"""A node for each test: a kubelet's twin, a simulated machine, a ConfigMap, and daemons that run between them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvdp.simulate.kubelet import Kubelet
from tests.daemon.compiled import CompiledMachine
from tests.daemon.mps import Keeper, MpsSide
from tests.daemon.node import GPU, KUBELETS, ConfigMap, Machine, build_config, healthy
from tests.daemon.process import LIMIT_S, Daemon, check_line

# Kinds of kubelet differ in how they take registrations, the ends of streams, and plugins beside each other: see
# docs/twin.md. Of the other requirements 1.36 is the harder one to please, where they differ at all.
KINDS_DIFFER = {1, 2, 5, 8, 15, 16, 18, 19, 20, 23, 43, 51}


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name."""
    path = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def settings() -> dict[str, dict[str, Any]]:
    """Arguments of the ``kubelet`` and of the ``machine``; tests give their own through ``on_node``."""
    return {}


@pytest.fixture
def version() -> str:
    """The kubelet's, 1.36 as a rule: it dies of what the other forgives. ``make campaign`` has all of it with 1.37."""
    return os.environ.get("NVDP_KUBELET", "1.36")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With both kinds of kubelet: requirements on which they differ, and what has ``both_kubelets``."""
    numbers = {mark.args[0] for mark in metafunc.definition.iter_markers("requirement")}
    campaign = metafunc.definition.get_closest_marker("campaign") is not None
    given = any("version" in str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize"))
    if numbers & KINDS_DIFFER and not campaign and "version" in metafunc.fixturenames and not given:
        metafunc.parametrize("version", KUBELETS)


@pytest.fixture
def unstarted_kubelet(root: Path, version: str, settings: dict[str, Any]) -> Iterator[Kubelet]:
    kubelet = Kubelet(root / "k", version=version, **settings.get("kubelet", {}))
    kubelet.faults.list_delay_s = float(os.environ.get("NVDP_LIST_DELAY", "0"))  # tests are not to depend on it
    yield kubelet
    kubelet.stop()
    print("the kubelet's journal:", *kubelet.journal, sep="\n")  # noqa: T201 - pytest shows it if the test fails
    kubelet.assert_alive()


@pytest.fixture
def kubelet(unstarted_kubelet: Kubelet) -> Kubelet:
    """Runs from the start of the test; at its end it must not have crashed."""
    unstarted_kubelet.start()
    return unstarted_kubelet


@pytest.fixture
def library() -> str:
    """What the daemon asks: a ``simulated`` driver, or a ``compiled`` libnvidia-ml (see ``both_libraries``).

    The scenarios of faults, health and driver can all be had on the second: NVDP_LIBRARY=compiled.
    """
    return os.environ.get("NVDP_LIBRARY", "simulated")


@pytest.fixture
def machine(root: Path, settings: dict[str, Any], library: str) -> Machine | CompiledMachine:
    if library == "compiled":
        return CompiledMachine(root / "driver")
    return Machine(root / "node.yaml", **settings.get("machine", {}))


@pytest.fixture
def config_map(root: Path) -> ConfigMap:
    """Empty: ``start`` publishes the first version, unless there is one."""
    return ConfigMap(root / "config")


@pytest.fixture
def mps(root: Path, machine: Machine, config_map: ConfigMap) -> Iterator[MpsSide]:
    """``nvdp mps`` with the control daemon's twin; runs from ``mps.start()`` on."""
    side = MpsSide(root, machine, config_map)
    yield side
    side.end()
    for keeper in side.keepers:
        print(f"the log of nvdp mps {keeper.pid}:", *keeper.log, *keeper.log.texts, sep="\n")  # noqa: T201 - as above
        assert not keeper.log.texts
        for line in keeper.log:
            check_line(line)


@pytest.fixture
def keeper(root: Path) -> Iterator[Keeper]:
    """Stands in for ``nvdp mps`` from the start of the test."""
    standing_in = Keeper(root / "mps", root / "state")
    yield standing_in
    standing_in.stop()


class Start:
    """Starts daemons of this node. Those that still run at the end are stopped, and must end well and quickly."""

    def __init__(self, root: Path, kubelet: Kubelet, machine: Machine, config_map: ConfigMap) -> None:
        self._root = root
        self._kubelet = kubelet
        self._machine = machine
        self._config_map = config_map
        self.daemons: list[Daemon] = []

    def __call__(
        self,
        config: dict[str, Any] | str | None = None,
        *flags: str | Path,
        config_file: Path | None = None,
        by_label: bool = False,
        wait: bool = False,
        **options: Any,
    ) -> Daemon:
        """``config`` is published first (none: the file stays as it is). With ``wait`` the kubelet has its list.

        ``by_label``: there is no file; ``flags`` say what the node's label chooses from.
        """
        if config is not None:
            self._config_map.publish(config)
        daemon = Daemon(
            *(() if by_label else ("--config-file", config_file or self._config_map.file)),
            *("--kubelet-root", self._kubelet.directory.parent),
            *self._machine.flags,
            *("--state-dir", self._root / "state", "--run-dir", self._root / "run", "--mps-dir", self._root / "mps"),
            *("--log-format", "json"),
            *flags,
            **options,
        )
        self.daemons.append(daemon)
        if wait:
            self._kubelet.wait_until(lambda: self._kubelet.devices(GPU), LIMIT_S, what="a list")
        return daemon


@pytest.fixture
def start(root: Path, unstarted_kubelet: Kubelet, machine: Machine, config_map: ConfigMap) -> Iterator[Start]:
    started = Start(root, unstarted_kubelet, machine, config_map)
    yield started
    ends = [daemon.stop() if daemon.running else None for daemon in started.daemons]
    for daemon in started.daemons:
        print(f"the log of {daemon.pid}:", *daemon.log, *daemon.log.texts, sep="\n")  # noqa: T201 - as above
    assert all(ended is None or (ended.code == 0 and ended.seconds < 5) for ended in ends), ends
    for daemon in started.daemons:
        assert daemon.has_defects or not daemon.log.of("ServiceRestarted")
        assert not daemon.log.texts
        for line in daemon.log:
            check_line(line)


@pytest.fixture
def daemon(kubelet: Kubelet, start: Start, machine: Machine) -> Daemon:
    """Registered, with 4 replicas of each GPU."""
    count = 4 * len(machine.uuids)
    found = start(build_config(share=4))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == count, LIMIT_S, what=f"{count} Healthy devices")
    return found
