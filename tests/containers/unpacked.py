"""The runtimes that .ci/containerd unpacked, and how they are run: as if they were installed, and nobody else sees it.

Each runs in a process, a mount and a network namespace of its own, where what was unpacked lies over /usr and /run is
empty, so that its end is the end of all that it started and mounted, whatever a test did.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

DIRECTORY = Path(__file__).parents[2] / "build/containerd"
PROGRAMS = DIRECTORY / "usr/bin"
_ISOLATED = ("unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc")
# The network namespace is new: its loopback is down.
_PREPARE = f"""\
mount -t overlay -o lowerdir={DIRECTORY}/usr:/usr none /usr
mount -t tmpfs none /run
busybox ifconfig lo 127.0.0.1 up
"""


def find_obstacle() -> str:
    """Why no container can run here; empty where one can."""
    if os.geteuid() != 0:
        return "needs root"
    if not PROGRAMS.exists():
        return "needs a containerd: run .ci/containerd, as `make campaign` does"
    tried = subprocess.run([*_ISOLATED, "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"needs namespaces: {tried.stderr.strip()}"


def build_command(command: Sequence[str | Path], *, prepare: str = "true") -> list[str | Path]:
    """The command line that runs ``command`` so, after the shell's ``prepare``."""
    # The shell stays, as the process that every orphan of the namespace is handed to.
    return [*_ISOLATED, "sh", "-ec", f'{_PREPARE}\n{prepare}\n"$@"; exit $?', "sh", *command]
