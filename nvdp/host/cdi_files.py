"""The directory that container runtimes read CDI specs from: our files in it, and nothing else.

Runtimes look there whenever something changes, and a file that they cannot read makes all its devices unusable. So a
file is only ever replaced as a whole, and what is half done has a name that they do not read (kubelet contract D).
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from nvdp.errors import HostError
from nvdp.host.files import is_mounted, load_text
from nvdp.model.cdi import VENDOR, CdiClass

_NAMES: Final = tuple(cdi_class.file_name for cdi_class in CdiClass)
_LIMIT_BYTES: Final = 8 << 20  # a spec of 16 GPUs, all cut into 7, has 0.2 MiB
_TEMPORARY_SUFFIX: Final = ".tmp"
_ABANDONED_S: Final = 60.0  # a temporary file this old belongs to nobody who is still writing it
_UNMOUNTED: Final = frozenset({errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM})

Fingerprint: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]


class CdiFiles:
    """Our spec files in ``directory``, by name. One thread at a time; several processes may overlap.

    All methods block for the disk; those that raise raise HostError, in one line. ``in_pod``: what is not mounted is
    of our container alone, and runtimes do not see it.
    """

    def __init__(
        self, directory: Path, *, in_pod: bool = False, mountinfo: Path = Path("/proc/self/mountinfo")
    ) -> None:
        self.directory = directory
        self._in_pod = in_pod
        self._mountinfo = mountinfo

    def load(self) -> dict[str, bytes]:
        """What there is. A file that is no regular one or far too large has the content of a damaged one: none."""
        try:
            present = set(os.listdir(self.directory))  # noqa: PTH208 - Path.iterdir builds a Path for each file of others
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise HostError(f"{self.directory}: cannot be read: {error.strerror}") from error
        return {name: self._load(self.directory / name) for name in _NAMES if name in present}

    @property
    def is_there(self) -> bool:
        """False if the directory is none: runtimes find nothing then. True, too, where that cannot be told."""
        try:
            return self.directory.is_dir()
        except OSError:
            return True

    def write(self, name: str, content: bytes) -> None:
        """Replace the file, whole or not at all; readable by all, as what it says is no secret.

        The directory is made if it is missing. A symbolic link of that name is replaced, never followed.
        """
        self._attempt(name, "written", lambda: self._replace(self.directory / name, content))

    def check_writable(self, name: str) -> None:
        """Raise what ``write`` would raise, as far as that shows before anything is written."""
        self._attempt(name, "written", self._check_directory)

    def remove(self, name: str) -> None:
        """Remove the file, if there is one."""
        self._attempt(name, "removed", lambda: (self.directory / name).unlink(missing_ok=True))

    def remove_abandoned(self) -> None:
        """Remove what a process of ours left that died between writing and renaming. Raises nothing."""
        abandoned_before = time.time() - _ABANDONED_S
        try:
            for path in self.directory.glob(f"{VENDOR}-*{_TEMPORARY_SUFFIX}"):
                if path.lstat().st_mtime < abandoned_before:
                    path.unlink()
        except OSError:
            return  # somebody else did, or writing will complain

    def fingerprint(self) -> Fingerprint:
        """Another value whenever one of our files, or the directory, is another than it was. Raises nothing."""
        found = []
        for path in (self.directory, *(self.directory / name for name in _NAMES)):
            try:
                seen = os.stat(path, follow_symlinks=path == self.directory)  # noqa: PTH116 - every second; Path adds frames
            except OSError:
                continue
            identity = (seen.st_dev, seen.st_ino)
            content = () if path == self.directory else (seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
            found.append((path.name, identity + content))
        return tuple(found)

    def _load(self, path: Path) -> bytes:
        try:
            content = load_text(path, limit_bytes=_LIMIT_BYTES, follow_symlinks=False) or b""
        except HostError:
            return b""
        return content if len(content) <= _LIMIT_BYTES else b""

    def _attempt(self, name: str, what: str, action: Callable[[], None]) -> None:
        path = self.directory / name
        try:
            if self._in_pod and not is_mounted(self.directory, mountinfo=self._mountinfo):
                raise FileNotFoundError(errno.ENOENT, "the directory is not mounted")
            action()
        except OSError as error:
            raise HostError(f"{path}: cannot be {what}: {error.strerror}; {self._find_remedy(error.errno)}") from error

    def _find_remedy(self, code: int | None) -> str:
        if code not in _UNMOUNTED:
            return "free some space there" if code in {errno.ENOSPC, errno.EDQUOT} else "see dmesg"
        if self._is_deleted():
            return "the directory was deleted on the node: delete this pod, and its successor gets the new one"
        return f"mount hostPath {self.directory} (type DirectoryOrCreate) into nvdp's container, not readOnly"

    def _is_deleted(self) -> bool:
        try:
            return os.stat(self.directory).st_nlink == 0  # noqa: PTH116 - beside the other one
        except OSError:
            return False

    def _replace(self, path: Path, content: bytes) -> None:
        self._make_directory()
        self.remove_abandoned()
        descriptor, temporary = tempfile.mkstemp(_TEMPORARY_SUFFIX, f"{path.name}.", self.directory)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
                file.write(content)
                file.flush()
                os.fchmod(descriptor, 0o644)
                os.fsync(descriptor)
            os.replace(temporary, path)  # noqa: PTH105 - replaces a symbolic link itself, never its target
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        self._sync_directory()

    def _check_directory(self) -> None:
        """Raises OSError. Nothing of the directory need be there: it would be made."""
        there = next(path for path in (self.directory, *self.directory.parents) if os.path.lexists(path))
        seen = os.statvfs(there)
        if self._is_deleted():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if seen.f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if seen.f_blocks and not seen.f_bavail:  # a tmpfs without a limit counts neither
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(parents=True)
        except FileExistsError:
            return
        self.directory.chmod(0o755)  # whatever our umask is

    def _sync_directory(self) -> None:
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
