"""A containerd with its own directories and configuration, for as long as a test needs it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.containers.cri import Runtime
from tests.containers.image import IMAGE, build_image
from tests.containers.unpacked import PROGRAMS, build_command
from tests.daemon.process import wait_until

_LIMIT_S = 30
_CONFIG = """\
version = 2
root = "{root}/root"
state = "{root}/state"

[grpc]
  address = "{root}/c.sock"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  cdi_spec_dirs = [{directories}]
  restrict_oom_score_adj = true  # lowering it takes a capability that not every root has
{cri}"""


class Containerd:
    """Runs until ``stop``. ``cri`` are lines of its CRI plugin's configuration; ``cdi`` are directories of specs.

    ``root`` needs a short path: it holds sockets.
    """

    def __init__(self, root: Path, *, cdi: Sequence[Path], cri: str = "") -> None:
        root.mkdir(exist_ok=True)
        self.config = root / "config.toml"
        self.socket = root / "c.sock"
        directories = ", ".join(f'"{directory}"' for directory in cdi)
        self.config.write_text(_CONFIG.format(root=root, image=IMAGE, directories=directories, cri=cri))
        with (root / "log").open("wb") as log:
            self._process = subprocess.Popen(
                build_command(["containerd", "--config", self.config]), stdout=log, stderr=log
            )
        self._log = root / "log"
        self.runtime = Runtime(self.socket)

    def wait_ready(self) -> Runtime:
        """Wait until it answers and has the image."""
        wait_until(self._is_up, _LIMIT_S, what="containerd")
        archive = self.config.with_name("image.tar")
        build_image(PROGRAMS / "busybox", archive)
        command = [
            PROGRAMS / "ctr",
            "--address",
            self.socket,
            "--namespace",
            "k8s.io",
            "images",
            "import",
            archive,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        wait_until(self.runtime.has_image, _LIMIT_S, what="the image")
        return self.runtime

    def stop(self) -> None:
        """The end of it and of all that it started, at once."""
        self.runtime.close()
        (first,) = psutil.Process(self._process.pid).children() or (None,)
        self._process.kill()
        self._process.wait()
        if first is not None:
            first.wait(_LIMIT_S)  # the first process of the namespace ends last

    @property
    def log(self) -> str:
        return self._log.read_text()

    def _is_up(self) -> bool:
        assert self._process.poll() is None, self.log
        return self.socket.exists() and "containerd successfully booted" in self.log
