"""The twin of ``nvidia-cuda-mps-control``: the same program is the daemon, with ``-f``, and who asks it, without.

It needs no GPU and no driver. What of NVIDIA's program is documented it does as documented; what is not (texts, exit
codes), as users' logs show it. It is started once a second for each daemon: only what the standard library has quickly
is imported, and what only the daemon needs not before it is one.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from nvdp.simulate.mps.wire import ASK, PACKET_BYTES, SOCKET_NAME

_FOREGROUND = "-f"
_MULTI_USER = "-multiuser-server"
_PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
_DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's own default


def main(program: str, arguments: list[str]) -> int:
    """The exit code. ``program`` is the path beside which orders and journal lie."""
    pipe_dir = Path(os.environ.get(_PIPE_DIRECTORY, _DEFAULT_PIPE_DIRECTORY))
    if not arguments:
        return _ask_all(pipe_dir)
    unknown = [argument for argument in arguments if argument not in {_FOREGROUND, _MULTI_USER}]
    if unknown or _FOREGROUND not in arguments:
        return complain(f"Unknown option {(unknown or arguments)[0]}")
    from nvdp.simulate.mps.daemon import run_daemon  # noqa: PLC0415 - twice the imports, which who asks does not need

    return run_daemon(program, pipe_dir, arguments=arguments, multi_user=_MULTI_USER in arguments)


def complain(text: str) -> int:
    """Say it, and the exit code of a program that did not do what it was asked."""
    sys.stderr.write(f"{text}\n")
    return 1


def _ask_all(pipe_dir: Path) -> int:
    """Each line of the standard input is a command. Waits for an answer as long as it takes, as NVIDIA's does."""
    exit_code = 0
    for line in sys.stdin:
        command = line.strip()
        if not command:
            continue
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.connect(str(pipe_dir / SOCKET_NAME))
                connection.send(ASK + command.encode())
                answer = connection.recv(PACKET_BYTES).decode()
        except OSError:
            return complain("Cannot find MPS control daemon process")
        if not answer:
            return complain("Failed to communicate with the MPS control daemon")
        if answer[1:]:
            sys.stdout.write(f"{answer[1:]}\n")
        exit_code = exit_code or int(answer[0])
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[0], sys.argv[1:]))
