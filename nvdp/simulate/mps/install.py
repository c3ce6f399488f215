"""Puts the twin of ``nvidia-cuda-mps-control`` on disk as a program, for ``--mps-control`` or a PATH."""

from __future__ import annotations

import sys
from pathlib import Path

import nvdp

REAL_NAME = "nvidia-cuda-mps-control"
TWIN_NAME = "mps-control-twin"

# Isolated and without site: it is started once a second for each daemon, and takes a third of the time so.
_SCRIPT = """\
#!{interpreter} -IS
import sys

sys.path.insert(0, {packages!r})
from nvdp.simulate.mps.control import main

sys.exit(main({program!r}, sys.argv[1:]))
"""


def install_control(directory: Path, *, name: str = TWIN_NAME) -> Path:
    """Write the program into ``directory``, which exists; its path. Its orders and its journal lie beside it.

    With ``REAL_NAME`` every ``nvdp mps`` of the machine takes its daemons for control daemons, and refuses to start
    its own on GPUs of the same UUIDs. With another name none does, so that simulated nodes do not see each other.
    """
    program = directory.absolute() / name
    packages = str(Path(nvdp.__file__).parent.parent)
    program.write_text(_SCRIPT.format(interpreter=sys.executable, packages=packages, program=str(program)))
    program.chmod(0o755)
    return program
