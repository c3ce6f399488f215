"""Unix sockets of the device-plugin directory: who they are, and whether their path fits."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from nvdp.errors import HostError

PATH_LIMIT_BYTES = 107  # sun_path without its terminator


class SocketIdentity(msgspec.Struct, frozen=True):
    """A socket file as an individual. Inode numbers are reused at once, so the ctime is part of it."""

    device: int
    inode: int
    ctime_ns: int


def find_socket_identity(path: Path) -> SocketIdentity | None:
    """The identity of the socket at ``path``; None if there is none, or if it is not a socket."""
    try:
        found = os.stat(path)  # noqa: PTH116 - polled every second; Path adds frames
    except OSError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        return None
    return SocketIdentity(found.st_dev, found.st_ino, found.st_ctime_ns)


def socket_directory_fingerprint(directory: Path) -> Mapping[str, SocketIdentity]:
    """All sockets of a directory by file name; empty if it is missing. Another value: a socket came, went or is new."""
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208 - every second; Path adds frames
    except OSError:
        return {}
    found = {name: find_socket_identity(directory / name) for name in names}
    return {name: identity for name, identity in found.items() if identity is not None}


def check_socket_path(path: Path) -> None:
    """Raise HostError if the kernel would not take ``path`` as a socket address."""
    length = len(os.fsencode(path))
    if length > PATH_LIMIT_BYTES:
        raise HostError(
            f"{path}: a socket path may have {PATH_LIMIT_BYTES} bytes, this one has {length}; "
            "use a shorter --kubelet-root or --kubelet-socket"
        )


def is_listening(path: Path) -> bool:
    """Whether a process listens on the socket at ``path``. Does not block.

    A full queue or missing rights are no refusal: somebody is there. While this process has no file descriptor to ask
    with, nobody is known to listen.
    """
    try:
        connect_once(path)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return False
    return True


def connect_once(path: Path) -> None:
    """Connect to the socket at ``path`` and hang up. Does not block; raises OSError if that cannot be done at once."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
        client.connect(str(path))


def check_socket_directory(directory: Path) -> None:
    """Raise HostError if sockets cannot be made in ``directory``. One that is missing is waited for, so it is fine."""
    if directory.exists() and not os.access(directory, os.W_OK | os.X_OK):
        raise HostError(
            f"{directory}: no permission to make sockets; run as uid 0 with the directory mounted read-write, "
            "and with SELinux set seLinuxOptions.type of the container"
        )
