"""Control daemons of others on this node: two on one GPU would keep each other's servers from starting."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from nvdp.mps.procfs import PROC, find_argv, find_environment, find_stat, list_pids, owns_pipe
from nvdp.mps.program import CONTROL, DEFAULT_PIPE_DIRECTORY, PIPE_DIRECTORY, VISIBLE_DEVICES

# Without one of these the program only asks a daemon.
_DAEMON_OPTIONS: Final = ("-d", "-f", "--daemon", "--foreground")
_PROGRAM_WORDS: Final = 3  # a script has its interpreter and the interpreter's options before its name


class Foreign(msgspec.Struct, frozen=True):
    """A control daemon that is not ours. ``pipe_dir`` is as that process sees it, empty if it cannot be known."""

    pid: int
    pipe_dir: str

    def __str__(self) -> str:
        where = f" with the pipe directory {self.pipe_dir}" if self.pipe_dir else ""
        return f"another MPS control daemon, PID {self.pid}{where}"


def find_foreign(own_pids: Collection[int], pipe_dir: Path, gpus: Collection[str], proc: Path = PROC) -> Foreign | None:
    """The control daemon, lowest PID first, that leaves no room for one of ours; None if there is none.

    That is one that serves a GPU of ``gpus`` (UUIDs), or may do so for all we know, or has ``pipe_dir``. ``own_pids``
    are our daemons; what runs in their sessions is theirs. Only processes of our PID namespace, or below it, are seen.
    Does not block; some 20 µs for each process of the node.
    """
    for pid in sorted(list_pids(proc)):
        if pid in own_pids or not _is_daemon(find_argv(pid, proc)):
            continue
        stat = find_stat(pid, proc)
        if stat is None or stat.has_ended or stat.session in own_pids:
            continue
        environment = find_environment(pid, proc)
        if environment is None:
            return Foreign(pid, "")
        if _may_serve(environment.get(VISIBLE_DEVICES), gpus) or owns_pipe(pid, environment, pipe_dir, proc):
            return Foreign(pid, environment.get(PIPE_DIRECTORY, DEFAULT_PIPE_DIRECTORY))
    return None


def _is_daemon(argv: tuple[str, ...]) -> bool:
    for position, word in enumerate(argv[:_PROGRAM_WORDS]):
        if word.rpartition("/")[2] == CONTROL:
            return any(option.startswith(_DAEMON_OPTIONS) for option in argv[position + 1 :])
    return False


def _may_serve(visible: str | None, gpus: Collection[str]) -> bool:
    """Whether a daemon with that list of devices may have one of the GPUs: all without a list, and any by number."""
    if visible is None:
        return True
    return any(
        word.isdigit() or (word.startswith("GPU-") and any(gpu.startswith(word) for gpu in gpus))
        for word in map(str.strip, visible.split(","))
    )
