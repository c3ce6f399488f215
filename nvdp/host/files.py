"""Files that others write while we watch them: has one changed, can it change at all, and what is in it."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

import msgspec

from nvdp.errors import HostError

_MAX_LINKS = 40  # as the kernel, which gives up a path with more symbolic links
_SETTLE_S: Final = 0.1
_SETTLE_EMPTY_S: Final = 0.5
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link",
}


class FileFingerprint(msgspec.Struct, frozen=True):
    """A file's content as an individual, without reading it. Another value: look again.

    The change time stands beside the modification time because permissions are part of the question, and because a
    writer may set the latter back.
    """

    real_path: str
    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


def config_fingerprint(path: Path) -> FileFingerprint | None:
    """The fingerprint of what ``path`` leads to now; None if there is nothing.

    Differs after every way to change a configuration: a ConfigMap's ``..data`` link that is swapped, another file
    renamed over it, a write in place, deletion and re-creation, a directory that is exchanged.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 - every second; Path adds frames
    except OSError:
        return None
    return FileFingerprint(
        _find_real_path(path), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )


def _find_real_path(path: Path) -> str:
    """Where ``path`` leads to; itself if a link on the way goes between two looks of realpath, which then raises."""
    try:
        return os.path.realpath(path)
    except OSError:
        return os.path.abspath(path)  # noqa: PTH100 - of Path.absolute ".." remains


def config_settle_s(before: FileFingerprint | None, after: FileFingerprint | None) -> float:
    """How long a change must stand still before the file is read, in seconds.

    A swapped link is whole at once. Everything else may be half of a write or of an editor's dance, and half a
    configuration can be a valid one: an empty file is all defaults, and would take every shared device away.
    """
    if before is not None and after is not None and before.real_path != after.real_path:
        return 0.0
    if before is not None and after is not None and after.size_bytes == 0:
        return _SETTLE_EMPTY_S
    return _SETTLE_S


def config_directories(path: Path) -> tuple[Path, ...]:
    """The directories in which a change of ``path`` happens: its own, and that of every symbolic link's target."""
    directories: dict[Path, None] = {}
    hop = path
    for _ in range(_MAX_LINKS):
        directory = Path(_find_real_path(hop.parent))
        directories[directory] = None
        try:
            hop = directory / os.readlink(directory / hop.name)  # noqa: PTH115 - OSError is the normal end here
        except OSError:
            break
    return tuple(directories)


def load_text(path: Path, *, limit_bytes: int, follow_symlinks: bool = True) -> bytes | None:
    """The content of a regular file, at most ``limit_bytes`` and one more; None if there is no file.

    One byte too many tells the caller that the file is too large. A file that is written in place may be read half
    done: its fingerprint changes again with the next write, so read it again then, and see ``config_settle_s``.

    Raises HostError in words if it is no regular file or may not be read. Blocks as long as the disk does, never on
    a named pipe or a device.
    """
    try:
        seen = path.stat(follow_symlinks=follow_symlinks)
        _check_regular(path, seen)  # before the open: opening some devices does something
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        descriptor = os.open(path, flags if follow_symlinks else flags | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise HostError(f"{path}: cannot be read: {error.strerror}") from error
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        _check_regular(path, os.fstat(descriptor))
        try:
            return file.read(limit_bytes + 1)
        except OSError as error:
            raise HostError(f"{path}: cannot be read: {error.strerror}") from error


def _check_regular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise HostError(f"{path}: is {kind}; a file is needed")


def find_static_mount(path: Path, *, mountinfo: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether the file itself is a mount point, as with ``subPath``: then no swap or rename ever reaches us.

    Its content stays what it was when the container started. False where mounts cannot be read.
    """
    names = {os.fsencode(os.path.abspath(path)), os.fsencode(_find_real_path(path))}  # noqa: PTH100 - as above
    return not names.isdisjoint(_load_mount_points(mountinfo))


def is_mounted(directory: Path, *, mountinfo: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether the directory, or one above it short of the root, is a mount point. True where mounts cannot be read.

    In a container nothing else is of the node: what is written elsewhere, nobody outside sees.
    """
    mounts = _load_mount_points(mountinfo)
    real = Path(_find_real_path(directory))
    return not mounts or any(os.fsencode(path) in mounts for path in (real, *real.parents[:-1]))


def _load_mount_points(mountinfo: Path) -> set[bytes]:
    """All of this process; none where they cannot be read."""
    try:
        return set(map(_mount_point, mountinfo.read_bytes().splitlines()))
    except OSError:
        return set()


def _mount_point(line: bytes) -> bytes:
    """The fifth field of a line of mountinfo, where space, tab, newline and backslash stand as octal numbers."""
    fields = line.split(b" ", 5)
    if len(fields) < 6:  # noqa: PLR2004 - the line's own layout
        return b""
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), fields[4])
