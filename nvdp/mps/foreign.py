"""Control daemons of others on this node: two on one GPU would keep each other's servers from starting.

A pod says what it likes: it may call any program ``nvidia-cuda-mps-control``, and name any GPU in its environment. What
counts is therefore what the kernel tells wherever it does: the program that a process executes, the socket that it
listens on, the nodes of GPUs that it has. Nobody can block a GPU by words alone. A pod that has a GPU may run a control
daemon there, as some users do on GPUs that are theirs alone; one with the right to make device nodes may look as if it
had one. Then no daemon of ours is started on that GPU, and what runs goes on.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from nvdp.mps.directories import open_below
from nvdp.mps.procfs import PROC, find_argv, find_environment, find_stat, list_pids, owns_pipe
from nvdp.mps.program import CONTROL, DEFAULT_PIPE_DIRECTORY, PIPE_DIRECTORY, VISIBLE_DEVICES

# Without one of these the program only asks a daemon.
_DAEMON_OPTIONS: Final = ("-d", "-f", "--daemon", "--foreground")
_PROGRAM_WORDS: Final = 3  # a script has its interpreter and the interpreter's options before its name
_CONTAINER_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
_GPU: Final = "GPU-"
_DELETED: Final = " (deleted)"  # what the kernel adds to the path of a program that was replaced since
_SOCKET: Final = "control"
_WORDS_WITH_PATH: Final = 8  # of a line on a Unix socket in /proc
_LISTENS: Final = 0x10000  # among its flags
_WE: Final = "self"
_MAJOR: Final = 195  # of /dev/nvidia<minor>
_NO_MINORS: Final[Mapping[str, int]] = MappingProxyType({})


class Foreign(msgspec.Struct, frozen=True):
    """A control daemon that is not ours. ``pipe_dir`` is as that process sees it, empty if it cannot be known."""

    pid: int
    pipe_dir: str

    def __str__(self) -> str:
        where = f" with the pipe directory {self.pipe_dir}" if self.pipe_dir else ""
        return f"another MPS control daemon, PID {self.pid}{where}"


def find_foreign(
    own_pids: Collection[int],
    pipe_dir: Path,
    gpus: Collection[str],
    proc: Path = PROC,
    *,
    minors: Mapping[str, int] = _NO_MINORS,
) -> Foreign | None:
    """The control daemon, lowest PID first, that leaves no room for one of ours; None if there is none.

    That is one that serves a GPU of ``gpus`` (UUIDs), or may do so for all we know, or has ``pipe_dir``. ``minors`` are
    the numbers of the GPUs' nodes, by UUID: who has no such node cannot use the GPU; of a GPU whose number is missing
    the nodes say nothing. ``own_pids`` are our daemons; what runs in their sessions is theirs. Only processes of our
    PID namespace, or below it, are seen. Does not block; some 20 µs for each process of the node.
    """
    for pid in sorted(list_pids(proc)):
        if pid in own_pids or not _is_called_daemon(find_argv(pid, proc)):
            continue
        found = find_stat(pid, proc)
        if found is None or found.has_ended or found.session in own_pids or not _is_daemon(pid, proc):
            continue
        environment = find_environment(pid, proc)
        if environment is None:
            return Foreign(pid, "")
        if _has_pipe(pid, environment, pipe_dir, proc) or _may_serve(pid, environment, gpus, minors, proc):
            return Foreign(pid, environment.get(PIPE_DIRECTORY, DEFAULT_PIPE_DIRECTORY))
    return None


def _is_called_daemon(argv: tuple[str, ...]) -> bool:
    for position, word in enumerate(argv[:_PROGRAM_WORDS]):
        if word.rpartition("/")[2] == CONTROL:
            return any(option.startswith(_DAEMON_OPTIONS) for option in argv[position + 1 :])
    return False


def _is_daemon(pid: int, proc: Path) -> bool:
    """Whether a process that is called so is one.

    NVIDIA's executes its program. Of a script, which executes its interpreter, as the simulated one does, only the
    socket tells.
    """
    try:
        program = os.readlink(proc / str(pid) / "exe")  # noqa: PTH115 - Path would take the mark of a deleted one along
    except FileNotFoundError:
        return False  # it has just ended
    except OSError:
        return True  # we may not see it
    return program.removesuffix(_DELETED).rpartition("/")[2] == CONTROL or _listens(pid, proc)


def _listens(pid: int, proc: Path) -> bool:
    """Whether the process listens on a control socket."""
    place = proc / str(pid)
    try:
        lines = (place / "net" / "unix").read_text(errors="replace").splitlines()[1:]
        sockets = (words for line in lines if len(words := line.split()) == _WORDS_WITH_PATH)
        listening = {
            f"socket:[{inode}]"
            for _at, _count, _protocol, flags, _type, _state, inode, path in sockets
            if int(flags, 16) & _LISTENS and path.rpartition("/")[2] == _SOCKET
        }
        return any(_find_target(place / "fd" / name) in listening for name in os.listdir(place / "fd"))  # noqa: PTH208
    except (OSError, ValueError):
        return False


def _find_target(link: Path) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 - it is no path
    except OSError:
        return ""


def _has_pipe(pid: int, environment: dict[str, str], pipe_dir: Path, proc: Path) -> bool:
    """Whether a process with that environment has our pipe directory.

    In a container no link counts: from here it would lead through our directories, and any pod can have one.
    """
    try:
        root = _open_root(str(pid), proc)
    except OSError:
        return owns_pipe(pid, environment, pipe_dir, proc)
    try:
        if os.path.samestat(os.fstat(root), os.stat("/")):  # noqa: PTH116 - as the other two
            return owns_pipe(pid, environment, pipe_dir, proc)
        return _is_below(root, environment.get(PIPE_DIRECTORY, DEFAULT_PIPE_DIRECTORY), pipe_dir)
    finally:
        os.close(root)


def _is_below(root: int, path: str, directory: Path) -> bool:
    """Whether ``path`` below ``root`` is that directory, without links and without a way out."""
    found = os.dup(root)
    try:
        for name in filter(None, path.split("/")):
            if name == "..":
                return False
            below = open_below(found, name)
            os.close(found)
            found = below
        return os.path.samestat(os.fstat(found), directory.stat())
    except OSError:
        return False
    finally:
        os.close(found)


def _open_root(process: str, proc: Path) -> int:
    return os.open(proc / process / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _may_serve(
    pid: int, environment: Mapping[str, str], gpus: Collection[str], minors: Mapping[str, int], proc: Path
) -> bool:
    """Whether a daemon with that environment may have one of the GPUs.

    Of those whose nodes it has, or may have for all we know, its list of devices tells; without one it has all that its
    container has, and numbers count those. Only where the nodes cannot be known, the list of the container tells.
    """
    nodes = {gpu: _find_node(minors.get(gpu), pid, proc) for gpu in gpus}
    within = [gpu for gpu in gpus if nodes[gpu] is not False]
    if VISIBLE_DEVICES in environment:
        words = _split(environment[VISIBLE_DEVICES])
        if any(_names_one(word, within) for word in words):
            return True
        if not any(word.isdigit() for word in words):
            return False
    if any(nodes.values()):
        return True
    given = [word for word in _split(environment.get(_CONTAINER_DEVICES, "")) if word.startswith(_GPU)]
    return bool(within) and (not given or any(_names_one(word, within) for word in given))


def _split(devices: str) -> list[str]:
    return [word.strip() for word in devices.split(",")]


def _names_one(word: str, gpus: Collection[str]) -> bool:
    return word.startswith(_GPU) and any(gpu.startswith(word) for gpu in gpus)


def _find_node(minor: int | None, pid: int, proc: Path) -> bool | None:
    """Whether the process has the node of that GPU; None if that cannot be known.

    It cannot where we have no such node, as with simulated GPUs.
    """
    return _has_node(minor, str(pid), proc) if minor is not None and _has_node(minor, _WE, proc) else None


def _has_node(minor: int, process: str, proc: Path) -> bool | None:
    """None if its devices cannot be looked at. No link is followed: in another container it would lead into ours."""
    try:
        root = _open_root(process, proc)
        try:
            devices = open_below(root, "dev")
        finally:
            os.close(root)
    except OSError:
        return None
    try:
        found = os.lstat(f"nvidia{minor}", dir_fd=devices)
    except OSError:
        return False
    finally:
        os.close(devices)
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(_MAJOR, minor)
