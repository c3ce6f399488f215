"""Podman, whose CDI library is older than containerd's where the machine is: containers that run one command."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.containers.unpacked import PROGRAMS, build_command

_LIMIT_S = 30
_CONFIG = """\
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""


def run_in_podman(root: Path, *, cdi: Path, devices: Sequence[str], command: Sequence[str]) -> str:
    """What ``command`` prints in a new container with these devices, by the specs in the directory ``cdi``.

    Its root is a bare busybox. AssertionError with podman's complaint if it fails.
    """
    filesystem = root / "rootfs"
    (filesystem / "bin").mkdir(parents=True)
    for name in ("dev", "etc", "proc", "run", "sys", "tmp", "usr", "var"):
        (filesystem / name).mkdir()
    (filesystem / "bin/busybox").write_bytes((PROGRAMS / "busybox").read_bytes())
    (filesystem / "bin/busybox").chmod(0o755)
    config = root / "containers.conf"
    config.write_text(_CONFIG)
    podman = ["podman", "--root", root / "storage", "--runroot", root / "run", "--storage-driver", "vfs"]
    options = ["--rm", "--network", "host", *(f"--device={device}" for device in devices), "--rootfs", filesystem]
    done = subprocess.run(
        build_command(
            [*podman, "run", *options, "/bin/busybox", *command],
            prepare=f"mkdir /run/cdi; mount --bind {cdi} /run/cdi",
        ),
        env={"PATH": os.environ["PATH"], "CONTAINERS_CONF": str(config)},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
