"""What the tour plays on: a directory with a kubelet, a configuration, a node file, and the daemon as a process.

Everything is in that directory, and nothing else of the machine is touched.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from nvdp.errors import HostError, UsageError
from nvdp.host.driver_places import EXPECTED_BINARIES, EXPECTED_LIBRARIES
from nvdp.kubelet.sockets import PATH_LIMIT_BYTES
from nvdp.nvml.simulated.nodefile import find_node_file, load_node
from nvdp.simulate.configmap import ConfigMapDirectory
from nvdp.simulate.kubelet import Kubelet
from nvdp.simulate.mps.install import install_control
from nvdp.simulate.process import OWN_COMMAND, PACKAGES, DaemonProcess, find_free_port

T = TypeVar("T")

_LONGEST_SOCKET = Path("device-plugins", f"nvdp-{'x' * 12}.sock")  # the daemon's names give way down to this
_LOOK_EVERY_S = 0.005


class Stage:
    """As a context manager it sets everything up but the daemon, and takes everything down again.

    ``node`` is a node file or the name of one; ``keep`` an empty directory that stays. Raises HostError or UsageError,
    in words, before anything is started. ``command`` is what runs as ``nvdp``.
    """

    def __init__(self, *, node: str, keep: Path | None = None, command: Sequence[str] = OWN_COMMAND) -> None:
        self.node_source = find_node_file(node)
        self.node = load_node(str(self.node_source))
        self._command = command
        self.keeps = keep is not None
        self.root = _make_root(keep)
        self.port = find_free_port()
        self.kubelet = Kubelet(self.root)
        (self.root / "config").mkdir()
        self.config = ConfigMapDirectory(self.root / "config")
        self.run_dir = self.root / "run"
        self._mps_dir = self.root / "mps"
        self._mps_dir.mkdir()
        self.node_file = self.root / "node.yaml"
        self.node_file.write_bytes(self.node_source.read_bytes())
        self._driver_root = _lay_driver(self.root / "driver", version=self.node.driver.version)
        self._daemon: DaemonProcess | None = None

    def __enter__(self) -> Self:
        try:
            self.kubelet.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def daemon(self) -> DaemonProcess:
        assert self._daemon is not None, "start_daemon comes first"
        return self._daemon

    def start_daemon(self, *, config: Path | None = None, node_file: Path | None = None) -> DaemonProcess:
        """Start it, on the stage's own configuration and node file unless others are given. Does not wait."""
        flags = {
            **self._build_common_flags(config or self.config.path, node_file or self.node_file),
            "kubelet-root": self.root,
            "cdi-dir": self.root / "cdi",
            "container-driver-root": self._driver_root,
            "metrics-port": self.port,
            "log-format": "text",
        }
        command = [*self._command, "run", *_spell(flags)]
        self._daemon = DaemonProcess(command, log=self.root / "daemon.log", port=self.port)
        return self._daemon

    def write_mps_script(self, *, config: Path, node_file: Path) -> Path:
        """A program that is ``nvdp mps`` of this node, with the twin of the control daemon; nothing is started."""
        programs = self.root / "bin"
        programs.mkdir()
        flags = {
            **self._build_common_flags(config.absolute(), node_file.absolute()),
            "mps-control": install_control(programs),
            "metrics-port": 0,
        }
        command = shlex.join([*self._command, "mps", *_spell(flags)])
        script = programs / "nvdp-mps"
        script.write_text(
            f"#!/bin/sh\nexport PYTHONPATH={shlex.quote(str(PACKAGES))}\nexec {command}\n", encoding="utf-8"
        )
        script.chmod(0o755)
        return script

    def _build_common_flags(self, config: Path, node_file: Path) -> dict[str, object]:
        """What the plugin and ``nvdp mps`` of one node have in common."""
        return {
            "config-file": config,
            "simulated-node": node_file,
            "state-dir": self.root / "state",
            "run-dir": self.run_dir,
            "mps-dir": self._mps_dir,
        }

    def wait_for(self, find: Callable[[], T], limit_s: float) -> T | None:
        """What ``find`` finds, asked again and again for ``limit_s``; None if that is nothing, or if the daemon ended.

        For what the kubelet does not see; for the rest there is ``kubelet.wait_until``.
        """
        deadline = time.monotonic() + limit_s
        while not (found := find()):
            if self.daemon.exit_code is not None or time.monotonic() >= deadline:
                return None
            self.kubelet.assert_alive()
            time.sleep(_LOOK_EVERY_S)
        return found

    def write_journal(self) -> None:
        """Put the kubelet's journal beside the daemon's log."""
        (self.root / "kubelet.log").write_text("".join(f"{line}\n" for line in self.kubelet.journal), encoding="utf-8")

    def close(self) -> None:
        """End what was started; remove the directory unless it is to stay. Idempotent."""
        if self._daemon is not None:
            self._daemon.close()
        self.kubelet.stop()
        if self.keeps:
            self.write_journal()
        else:
            shutil.rmtree(self.root, ignore_errors=True)


def _spell(flags: Mapping[str, object]) -> list[str]:
    return [f"--{flag}={value}" for flag, value in flags.items()]


def _lay_driver(root: Path, *, version: str) -> Path:
    """As much of a node's files as CDI specs must have: empty, since no container runs and no hook is started."""
    libraries, programs = root / "usr/lib64", root / "usr/bin"
    firmware = root / "usr/lib/firmware/nvidia" / version
    for directory in (libraries, programs, firmware):
        directory.mkdir(parents=True)
    for name in EXPECTED_LIBRARIES:
        (libraries / f"{name}.so.{version}").touch()
    for name in (*EXPECTED_BINARIES, "nvidia-ctk"):
        (programs / name).touch(mode=0o755)
    (firmware / "gsp.bin").touch()
    return root


def _make_root(keep: Path | None) -> Path:
    """The directory of everything. Raises HostError, UsageError."""
    if keep is None:
        parent = Path(tempfile.gettempdir())
        _check_depth(parent / "nvdp-tour-xxxxxxxx", f"the directory for temporary files, {parent},", "set TMPDIR=/tmp")
        return Path(tempfile.mkdtemp(prefix="nvdp-tour-", dir=parent))
    root = keep.absolute()
    _check_depth(root, str(root), "choose one like /tmp/tour")
    try:
        root.mkdir(parents=True, exist_ok=True)
        occupied = any(root.iterdir())
    except OSError as error:
        raise HostError(f"{root}: cannot be used: {error.strerror}") from error
    if occupied:
        raise UsageError(f"{root} is not empty; name a directory that is, or one that does not exist yet")
    return root


def _check_depth(root: Path, what: str, remedy: str) -> None:
    length = len(os.fsencode(root / _LONGEST_SOCKET))
    if length > PATH_LIMIT_BYTES:
        raise HostError(
            f"{what} is too deep for Unix sockets: their path may have {PATH_LIMIT_BYTES} bytes, "
            f"and would have {length}; {remedy}"
        )
