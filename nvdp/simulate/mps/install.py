"""Puts a program ``nvidia-cuda-mps-control`` on disk that is the twin, for ``--mps-control`` or a PATH."""

from __future__ import annotations

import sys
from pathlib import Path

import nvdp

NAME = "nvidia-cuda-mps-control"

# Isolated and without site: it is started once a second for each daemon, and takes a third of the time so.
_SCRIPT = """\
#!{interpreter} -IS
import sys

sys.path.insert(0, {packages!r})
from nvdp.simulate.mps.control import main

sys.exit(main({program!r}, sys.argv[1:]))
"""


def install_control(directory: Path) -> Path:
    """Write the program into ``directory``, which exists; its path. Its orders and its journal lie beside it."""
    program = directory.absolute() / NAME
    packages = str(Path(nvdp.__file__).parent.parent)
    program.write_text(_SCRIPT.format(interpreter=sys.executable, packages=packages, program=str(program)))
    program.chmod(0o755)
    return program
