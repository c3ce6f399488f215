"""The shared memory of control daemons and their clients: a tmpfs below the MPS root, as ``/dev/shm`` of all of them.

The server of a daemon makes its segments in ``/dev/shm``, and clients in pods open them there. The plugin mounts the
same tmpfs into each pod. No shell is used: the image has none.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from nvdp.errors import HostError
from nvdp.mps.directories import make_directories

NAME: Final = "shm"
"""The directory in the MPS root."""

_SOURCE: Final = "nvdp-mps-shm"  # in the list of mounts: what has this name, one of us has mounted
_MS_NOSUID: Final = 2
_MS_NODEV: Final = 4
_MS_NOEXEC: Final = 8
_MS_BIND: Final = 4096
_MS_RELATIME: Final = 1 << 21
_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8
_MOUNT_POINT: Final = 4  # a field of a line of mountinfo
_OPTIONAL: Final = 6  # the first of those that say how it propagates; there may be none
_SHARED: Final = b"shared:"
_FALLBACK_KIB: Final = 65536  # as NVIDIA's plugin, where the memory of the node cannot be read


class _Mount(NamedTuple):
    """A line of mountinfo. ``is_shared``: what is mounted below it comes up in other mount namespaces as well."""

    point: bytes
    is_shared: bool
    source: bytes


class SharedMemory:
    """``mps_dir/shm`` as a tmpfs, and bound onto ``own``, the ``/dev/shm`` of this container. One thread at a time.

    ``own`` None leaves this process's own ``/dev/shm`` alone, and so does a process in no container, whose ``/dev/shm``
    is everybody's. ``size_kib`` None is half of the node's memory, which tmpfs takes only as it is used. Blocks for
    the disk only. Pods see the tmpfs if ``mps_dir`` is mounted with Bidirectional propagation.
    """

    def __init__(
        self,
        mps_dir: Path,
        *,
        own: Path | None = Path("/dev/shm"),  # noqa: S108 - the directory itself is meant
        size_kib: int | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        self._mps_dir = mps_dir
        self._path = mps_dir / NAME
        self._own = own
        self._size_kib = size_kib
        self._proc = proc
        self._bound = False
        self._has_mounted = False

    def mount(self) -> None:
        """Mount what is not mounted yet. What is there, an earlier ``nvdp mps`` has left: pods use it, and it stays.

        Raises HostError, in one line that says what to do.
        """
        if self._find_source() is None:
            with make_directories(self._mps_dir, (NAME,)):
                pass
            size_kib = self._size_kib if self._size_kib is not None else _load_half_of_memory_kib(self._proc)
            flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | _MS_RELATIME
            _mount(_SOURCE, self._path, "tmpfs", flags, f"mode=1777,size={size_kib}k")
            self._has_mounted = True
        if self._own is not None and not self._is_where_pods_are_made() and not _is_same(self._own, self._path):
            _mount(str(self._path), self._own, "", _MS_BIND, "")
            self._bound = True

    def unmount(self) -> None:
        """Take away what one of us has mounted, and the directory. Idempotent. Clients that run keep what they have.

        Raises HostError if it stays.
        """
        if self._bound and self._own is not None:
            _unmount(self._own)
            self._bound = False
        if self._find_source() == _SOURCE:
            _unmount(self._path)
            self._has_mounted = False
        if self._find_source() is None:
            try:
                self._path.rmdir()
            except FileNotFoundError:
                return
            except OSError as error:
                raise HostError(f"{self._path}: cannot be removed: {error.strerror}") from error

    def find_unseen(self) -> str:
        """Why pods do not see what ``mount`` has mounted, in a sentence; empty if they do, or as far as is known.

        Their containers are made from the node's mounts. What another process mounted here came from there; what this
        one mounts gets there only if the mount that it is below is shared, as Bidirectional propagation makes it.
        Raises HostError if the mounts cannot be read.
        """
        if not self._has_mounted or self._is_where_pods_are_made():
            return ""
        real = os.fsencode(os.path.realpath(self._mps_dir))
        above = [mount for mount in self._load_mounts() if _is_below(real, mount.point)]
        if not above or max(reversed(above), key=lambda mount: len(mount.point)).is_shared:
            return ""
        return (
            f"pods do not see the shared memory in {self._path}, and cannot use MPS: {self._mps_dir} is mounted "
            "without mountPropagation: Bidirectional; set it for that volume of nvdp mps"
        )

    def _is_where_pods_are_made(self) -> bool:
        """Whether this process is in no container: the node's first process has the same mounts, and is another one."""
        spaces = []
        for name in ("1", "self"):
            try:
                spaces.append((self._proc / name / "ns/mnt").readlink())
            except OSError:
                return False
        return os.getpid() != 1 and spaces[0] == spaces[1]

    def _find_source(self) -> str | None:
        """What is mounted at our directory, topmost; None if nothing is."""
        real = os.fsencode(os.path.realpath(self._path))
        sources = [mount.source for mount in self._load_mounts() if mount.point == real]
        return os.fsdecode(sources[-1]) if sources else None

    def _load_mounts(self) -> Iterator[_Mount]:
        """In the order in which they were made. Raises HostError."""
        try:
            lines = (self._proc / "self/mountinfo").read_bytes().splitlines()
        except OSError as error:
            raise HostError(f"{self._proc}/self/mountinfo: cannot be read: {error.strerror}") from error
        for line in lines:
            fields, _, rest = line.partition(b" - ")
            words = fields.split(b" ")
            if len(words) > _MOUNT_POINT:
                yield _Mount(
                    point=_unescape(words[_MOUNT_POINT]),
                    is_shared=any(word.startswith(_SHARED) for word in words[_OPTIONAL:]),
                    source=_unescape(rest.split(b" ")[1]),
                )


def _unescape(word: bytes) -> bytes:
    """Space, tab, newline and backslash stand as octal numbers there."""
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), word)


def _is_below(path: bytes, above: bytes) -> bool:
    """Whether it is that directory, or in it."""
    return path == above or path.startswith(above.rstrip(b"/") + b"/")


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(one.stat(), other.stat())
    except OSError as error:
        raise HostError(f"{error.filename}: cannot be used for shared memory: {error.strerror}") from error


def _load_half_of_memory_kib(proc: Path) -> int:
    try:
        found = re.search(r"^MemTotal: +(\d+) kB$", (proc / "meminfo").read_text(encoding="ascii"), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        found = None
    return int(found[1]) // 2 if found is not None else _FALLBACK_KIB


def _mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = (os.fsencode(source), os.fsencode(target), os.fsencode(kind) or None)
    if libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(options) or None) != 0:
        raise HostError(
            f"{target}: shared memory cannot be mounted there: {os.strerror(ctypes.get_errno())}; the container of "
            "nvdp mps must be privileged, and its MPS directory mounted with Bidirectional propagation"
        )


def _unmount(target: Path) -> None:
    """At once, though somebody still uses it: it goes when the last one is through."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
        raise HostError(f"{target}: shared memory cannot be unmounted: {os.strerror(ctypes.get_errno())}")
