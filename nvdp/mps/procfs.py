"""What /proc tells of a process that may be a control daemon: since when it runs, in which session, with what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from nvdp.mps.program import DEFAULT_PIPE_DIRECTORY, PIPE_DIRECTORY

PROC: Final = Path("/proc")

_ENDED_STATES: Final = frozenset("ZXx")


class ProcessStat(msgspec.Struct, frozen=True):
    """``started`` is in clock ticks since boot: with the PID it names one process of this boot."""

    pid: int
    state: str
    session: int
    started: int

    @property
    def has_ended(self) -> bool:
        """Whether only its exit code is left."""
        return self.state in _ENDED_STATES


def list_pids(proc: Path = PROC) -> Iterator[int]:
    """All processes that are seen from here; those that end meanwhile may be among them."""
    names = os.listdir(proc)  # noqa: PTH208 - hundreds of them, once in a while; Path makes an object of each
    return (int(name) for name in names if name.isascii() and name.isdigit())


def find_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """None if there is no such process."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()  # the name before may hold anything, parentheses too
        return ProcessStat(pid, fields[0], int(fields[3]), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def find_argv(pid: int, proc: Path = PROC) -> tuple[str, ...]:
    """The words that it was started with; none if it has ended."""
    return tuple(_find_words(proc / str(pid) / "cmdline") or ())


def find_environment(pid: int, proc: Path = PROC) -> dict[str, str] | None:
    """The environment that it was started with; None if it has ended, or if we may not see it."""
    words = _find_words(proc / str(pid) / "environ")
    return None if words is None else dict(word.partition("=")[::2] for word in words)


def owns_pipe(pid: int, environment: dict[str, str], pipe_dir: Path, proc: Path = PROC) -> bool:
    """Whether a process with that environment has that pipe directory: the same individual, whatever it calls it.

    In another container the same path may be another directory, and the same directory may have another path. Where
    it cannot be looked at, the path decides.
    """
    path = environment.get(PIPE_DIRECTORY, DEFAULT_PIPE_DIRECTORY)
    try:
        theirs = os.stat(f"{proc}/{pid}/root/{path.lstrip('/')}")  # noqa: PTH116 - Path would resolve nothing of it
        return os.path.samestat(theirs, pipe_dir.stat())
    except OSError:
        return path == str(pipe_dir)


def _find_words(path: Path) -> list[str] | None:
    try:
        text = path.read_bytes()
    except OSError:
        return None
    return [os.fsdecode(word) for word in text.rstrip(b"\0").split(b"\0")] if text else []
