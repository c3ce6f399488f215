"""A simulated node for one daemon: the kubelet's twin in this process, eight GPUs, and a configuration to edit."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import psutil

from nvdp.nvml.simulated.nodefile import find_node_file
from nvdp.simulate.configmap import ConfigMapDirectory
from nvdp.simulate.kubelet import Kubelet, ListMessage, Registration
from nvdp.simulate.process import DaemonProcess, find_free_port
from tests.bench.installation import Installation

T = TypeVar("T")

GPU = "nvidia.com/gpu"
GPUS = 8
LIMIT_S = 20.0
_LOOK_EVERY_S = 0.01


def build_config(share: int) -> str:
    """Every GPU shared by ``share``; all else as it is without a word in the file."""
    return (
        f"version: v1\nsharing: {{timeSlicing: {{resources: [{{name: {GPU}, replicas: {share}}}]}}}}\n"
        if share > 1
        else "version: v1\n"
    )


class Node:
    """A node and its daemon, from entering to leaving. ``plain`` has a configuration file that is no ConfigMap's.

    With a ``driver_root`` its library is used, else the driver is simulated. ``by_label`` are flags in the place of the
    configuration file, ``program`` what is run in the place of the installation's. Methods that wait raise
    TimeoutError after 20 s, with the kubelet's journal.
    """

    def __init__(
        self,
        installation: Installation,
        *,
        share: int,
        plain: bool = False,
        driver_root: Path | None = None,
        by_label: Mapping[str, str | Path] | None = None,
        program: Sequence[str] = (),
    ) -> None:
        self._program = program or installation.nvdp
        self._by_label = by_label
        self._plain = plain
        self._driver_root = driver_root
        self.share = share

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="nv", dir="/tmp")
        root = Path(self._directory.name)
        self.kubelet = Kubelet(root / "k")
        self.kubelet.start()
        mounted = root / "config"
        mounted.mkdir()
        self._map = ConfigMapDirectory(mounted)
        self.file = mounted / "config.yaml"
        if self._plain:
            self.file.write_text(build_config(self.share))
        else:
            self._map.write(build_config(self.share))
        flags = {
            **(self._by_label or {"config-file": self.file}),
            "kubelet-root": root / "k",
            "state-dir": root / "state",
            "run-dir": root / "run",
            "metrics-port": (port := find_free_port()),
            "log-format": "json",
            **(
                {"simulated-node": find_node_file("dgx-h100")}
                if self._driver_root is None
                else {"container-driver-root": self._driver_root}
            ),
        }
        command = [*self._program, "run", *(f"--{flag}={value}" for flag, value in flags.items())]
        self.daemon = DaemonProcess(command, log=root / "daemon.log", port=port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.daemon.close()
        self.kubelet.stop()
        self._directory.cleanup()

    def wait_pids(self) -> tuple[int, int]:
        """The daemon and its NVML child, once that is the only one: a fresh look at the GPUs takes a second."""
        daemon = psutil.Process(self.daemon.pid)
        self.wait_for(lambda: len(daemon.children()) == 1, what="one NVML child")
        return daemon.pid, daemon.children()[0].pid

    @property
    def socket(self) -> Path:
        """The one that was registered last."""
        return self.kubelet.directory / self.kubelet.registrations[-1].endpoint

    @property
    def newest(self) -> ListMessage:
        return self.kubelet.messages(GPU)[-1]

    def wait_registered(self, *, after: int = 0) -> Registration:
        """The first registration beyond the first ``after`` that the kubelet has accepted."""

        def find() -> Registration | None:
            found = self.kubelet.registrations[after:]
            return next((one for one in found if one.answered_at is not None and one.error is None), None)

        return self._wait(find, f"registration {after + 1}")

    def wait_list(self, *, after: int = 0, lost: int = 0) -> ListMessage:
        """The first list beyond the first ``after`` that offers every GPU but ``lost``, shared as configured."""
        count = (GPUS - lost) * self.share

        def find() -> ListMessage | None:
            found = self.kubelet.messages(GPU)[after:]
            return next((one for one in found if len(one.healthy) == count), None)

        return self._wait(find, f"a list of {count} Healthy devices")

    def wait_ready(self) -> None:
        """Until the daemon's port says so. As a cluster does, this loads what answers there."""
        self.wait_for(lambda: (self.daemon.find_answer("/readyz") or (0, ""))[0] == 200, what="/readyz says 200")

    def wait_for(self, look: Callable[[], bool], *, what: str) -> None:
        """For what the kubelet does not see."""
        deadline = time.monotonic() + LIMIT_S
        while not look():
            if time.monotonic() >= deadline:
                raise TimeoutError(f"not within {LIMIT_S:g} s: {what}; {self.daemon.last_line}")
            time.sleep(_LOOK_EVERY_S)

    def swap(self, share: int | None = None) -> float:
        """``share`` replicas of each GPU, or one more, as an edit of a ConfigMap comes; the monotonic time of it."""
        self.share = self.share + 1 if share is None else share
        return self._map.write(build_config(self.share))

    def rename(self) -> float:
        """The same in a new file that takes the old one's name."""
        self.share += 1
        fresh = self.file.with_suffix(".new")
        fresh.write_text(build_config(self.share))
        at = time.monotonic()
        fresh.rename(self.file)
        return at

    def write_in_place(self) -> float:
        """The same in the file that is there."""
        self.share += 1
        at = time.monotonic()
        self.file.write_text(build_config(self.share))
        return at

    def _wait(self, find: Callable[[], T | None], what: str) -> T:
        try:
            found = self.kubelet.wait_until(find, LIMIT_S, what=what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the daemon's last line: {self.daemon.last_line}") from error
        assert found is not None  # what is waited for is true
        return found
