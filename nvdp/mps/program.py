"""The program ``nvidia-cuda-mps-control``: its options, the environment that it gets, and where it may be missing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CONTROL: Final = "nvidia-cuda-mps-control"
"""Its name, as the driver's container files bring it."""
FOREGROUND: Final = "-f"
"""Stay the child of who starts it, and log to the standard output."""
MULTI_USER: Final = "-multiuser-server"
"""One server for the clients of all users, with one dash as NVIDIA documents it; needs root."""
PIPE_DIRECTORY: Final = "CUDA_MPS_PIPE_DIRECTORY"
LOG_DIRECTORY: Final = "CUDA_MPS_LOG_DIRECTORY"
VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
DEFAULT_PIPE_DIRECTORY: Final = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's own default, of daemons of others
"""The pipe directory of a daemon whose environment names none."""

_INHERITED = ("PATH", "LD_LIBRARY_PATH")


def build_environment(pipe_dir: Path, **more: str) -> dict[str, str]:
    """The whole environment of a control program for that pipe directory; ``more`` are further variables.

    Of ours it gets what finds programs and libraries, and nothing else: a variable that is set in our container for
    another purpose (``CUDA_MPS_PROTOCOL_VERSION``, a limit) would change the daemon and all its clients.
    """
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**inherited, PIPE_DIRECTORY: str(pipe_dir), **more}


def explain_start(program: str, error: OSError) -> str:
    """Why the program could not be started, in one line that says what to do."""
    if isinstance(error, FileNotFoundError):
        return (
            f"{program}: not found; the NVIDIA runtime brings it into a container that has "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility, elsewhere --mps-control names it"
        )
    return f"{program}: cannot be started: {error.strerror}"
