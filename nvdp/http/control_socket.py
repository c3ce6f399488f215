"""The control socket as a file: where it is, who may use it, and what becomes of one that is in the way."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Final, TypeAlias

from nvdp.errors import HostError

SOCKET_NAME: Final = "control.sock"
_PATH_LIMIT_BYTES: Final = 107  # sun_path without its terminator
_BACKLOG: Final = 64
_ROOT: Final = 0
_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

File: TypeAlias = tuple[int, int]
"""Device and inode of a socket's file, which no other file has while the socket is open."""


def open_socket(path: Path) -> tuple[socket.socket, File]:
    """Listen at ``path`` with mode 0600, in a directory that is made for root alone if it is missing.

    What a dead process has left there is replaced. Raises HostError, in one line with what to do, if somebody listens
    there already or the path cannot be used. Of several that do this at the same moment the last one has the path.
    """
    length = len(os.fsencode(path))
    if length > _PATH_LIMIT_BYTES:
        limit = f"a socket path may have {_PATH_LIMIT_BYTES} bytes, this one has {length}"
        raise HostError(f"{path}: {limit}; choose a shorter --run-dir")
    try:
        _make_private(path.parent)
        _check_free(path)
        return _listen(path)
    except OSError as error:
        raise HostError(f"{path}: cannot be made: {error.strerror}; see --run-dir") from error


def find_file(path: Path) -> File | None:
    """Who the file at ``path`` is; None if there is none."""
    try:
        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - every two seconds; Path adds frames
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_admitted(connection: socket.socket) -> bool:
    """Whether the peer, by the word of the kernel, is root or the user that this process runs as."""
    try:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return False
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return user in {_ROOT, os.geteuid()}


def _make_private(directory: Path) -> None:
    """Raises OSError, and HostError for a directory in which others could put a socket in the place of ours."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    if found.st_uid not in {_ROOT, os.geteuid()} or found.st_mode & _OTHERS_MAY_WRITE:
        mode, owner = stat.S_IMODE(found.st_mode), found.st_uid
        raise HostError(
            f"{directory}: others may write there (owner {owner}, mode {mode:o}); chmod it to 700, "
            "or choose a directory of nvdp's own with --run-dir"
        )


def _check_free(path: Path) -> None:
    """Raises HostError if there is something else than a socket on which nobody listens."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise HostError(f"{path}: is no socket; remove it")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return
        except BlockingIOError:
            pass  # its queue is full: somebody is there
    raise HostError(f"{path}: another nvdp serves it; end that one, or choose another --run-dir")


def _listen(path: Path) -> tuple[socket.socket, File]:
    """Raises OSError. The socket listens before it has its name, so that nobody takes it for a dead one's."""
    fresh = path.with_name(f".{os.urandom(4).hex()}")  # not longer than the name, for the sake of the limit
    with contextlib.ExitStack() as undo:
        listening = undo.enter_context(socket.socket(socket.AF_UNIX))
        os.fchmod(listening.fileno(), 0o600)  # what bind makes has this mode from the first moment
        listening.bind(str(fresh))
        undo.callback(fresh.unlink)
        found = fresh.lstat()
        listening.listen(_BACKLOG)
        fresh.rename(path)
        undo.pop_all()
    return listening, (found.st_dev, found.st_ino)
