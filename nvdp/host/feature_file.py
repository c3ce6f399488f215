"""The file of labels for node-feature-discovery: it reads every file of its directory whose name begins with no dot."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nvdp.errors import HostError
from nvdp.host.files import is_mounted, load_text
from nvdp.planning.label_changes import LabelWrite, find_changes, keep_timestamp
from nvdp.planning.label_text import PREFIX

_LIMIT_BYTES: Final = 1 << 20
_MODE: Final = 0o644
_TEMPORARY_SUFFIX: Final = ".tmp"
_ABANDONED_S: Final = 60.0  # a temporary file this old belongs to nobody who is still writing it
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class FeatureFile:
    """One file of ``key=value`` lines at ``path``, absolute. One thread at a time; every call blocks for the disk.

    It is replaced as a whole or not at all. A symbolic link in its place is replaced, never followed, and a file that
    holds anything but labels like ours is left as it is. ``in_pod``: what is not mounted is of our container alone.
    """

    def __init__(self, path: Path, *, in_pod: bool = False, mountinfo: Path = Path("/proc/self/mountinfo")) -> None:
        self._path = path
        self._in_pod = in_pod
        self._mountinfo = mountinfo

    def __str__(self) -> str:
        return str(self._path)

    def write(self, labels: Mapping[str, str]) -> LabelWrite:
        """Replace it if it says something else. HostError, in one line, if that cannot be."""
        self._check_directory()
        content = self._load()
        there = _parse(content)
        wanted = keep_timestamp(labels, there)
        text = "".join(f"{key}={value}\n" for key, value in sorted(wanted.items()))
        if text.encode() == content and self._is_readable():
            return LabelWrite(labels=wanted)
        try:
            self._replace(text.encode())
        except OSError as error:
            raise self._explain(error, "written") from error
        return LabelWrite(labels=wanted, changed=find_changes(there, wanted), is_written=True)

    def remove(self) -> tuple[str, ...]:
        """Remove it; the keys that it had. HostError if that cannot be."""
        content = self._load()
        if content is None and not self._path.is_symlink():
            return ()
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise self._explain(error, "removed") from error
        return tuple(sorted(_parse(content)))

    def forget(self) -> None:
        """Nothing of it is remembered."""

    def _load(self) -> bytes | None:
        """What it says; None if there is no file, or a symbolic link."""
        try:
            content = None if self._path.is_symlink() else load_text(self._path, limit_bytes=_LIMIT_BYTES)
        except OSError as error:
            raise self._explain(error, "read") from error
        if content is not None and (len(content) > _LIMIT_BYTES or not _is_ours(content)):
            raise HostError(
                f"{self._path}: holds something else than labels about GPUs, and is left as it is: remove it, or set "
                "flags.gfd.outputFile to another path"
            )
        return content

    def _is_readable(self) -> bool:
        """Whether node-feature-discovery, which is another user, may read it."""
        try:
            return self._path.lstat().st_mode & _MODE == _MODE
        except OSError:
            return False

    def _check_directory(self) -> None:
        directory = self._path.parent
        if not directory.is_dir():
            raise HostError(
                f"{self._path}: there is no directory {directory}: mount it from the node, where "
                "node-feature-discovery reads it"
            )
        if self._in_pod and not is_mounted(directory, mountinfo=self._mountinfo):
            raise HostError(
                f"{self._path}: {directory} is of this container alone: mount the directory of that name from the "
                "node, where node-feature-discovery reads it"
            )

    def _explain(self, error: OSError, what: str) -> HostError:
        remedy = {
            errno.EROFS: ": mount its directory without readOnly",
            errno.EACCES: ": the directory does not allow it",
            **dict.fromkeys(_FULL, ": free some space there"),
        }.get(error.errno or 0, "")
        return HostError(f"{self._path}: cannot be {what}: {error.strerror}{remedy}")

    def _replace(self, content: bytes) -> None:
        directory = self._path.parent
        self._remove_abandoned()
        descriptor, temporary = tempfile.mkstemp(_TEMPORARY_SUFFIX, f".{self._path.name}.", directory)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
                file.write(content)
                file.flush()
                os.fchmod(descriptor, _MODE)
                os.fsync(descriptor)
            os.replace(temporary, self._path)  # noqa: PTH105 - replaces a symbolic link itself, never its target
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _remove_abandoned(self) -> None:
        """Remove what a process left that died between writing and renaming."""
        abandoned_before = time.time() - _ABANDONED_S
        try:
            for entry in self._path.parent.glob(f".{self._path.name}.*{_TEMPORARY_SUFFIX}"):
                if entry.lstat().st_mtime < abandoned_before:
                    entry.unlink()
        except OSError:
            return  # somebody else did, or writing will complain


def _lines(content: bytes | None) -> list[str]:
    """Without blank ones, and without the zeros that a crash of the node may leave of a file."""
    return [line for line in (content or b"").replace(b"\0", b"").decode(errors="replace").splitlines() if line.strip()]


def _parse(content: bytes | None) -> dict[str, str]:
    pairs = (line.partition("=") for line in _lines(content) if "=" in line)
    return {key: value for key, _, value in pairs}


def _is_ours(content: bytes) -> bool:
    """Whether it is what nvdp or NVIDIA's program writes; comments are node-feature-discovery's orders."""
    return all(line.startswith((PREFIX, "#")) for line in _lines(content))
