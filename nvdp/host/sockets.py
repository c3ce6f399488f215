"""Unix sockets of the device-plugin directory: who they are, and whether their path fits."""

from __future__ import annotations

import os
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
