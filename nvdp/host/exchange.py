"""Files by which two processes of a node tell each other what they know: one JSON value each, replaced as a whole.

A reader finds the old value or the new one, never a part; it trusts neither the size nor the content.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from nvdp.errors import HostError
from nvdp.host.files import load_text

LIMIT_BYTES: Final = 2**20
_TEMPORARY_SUFFIX: Final = ".tmp"

T = TypeVar("T")


def load_value(path: Path, kind: type[T]) -> T | None:
    """The value that was written last, None if there is no file.

    Raises HostError, in one line, for a file that cannot be read, is larger than 1 MiB or says something else. Blocks
    for the disk.
    """
    data = load_text(path, limit_bytes=LIMIT_BYTES, follow_symlinks=False)
    if data is None:
        return None
    if len(data) > LIMIT_BYTES:
        raise HostError(f"{path}: larger than {LIMIT_BYTES // 2**20} MiB, which nvdp never writes; remove it")
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise HostError(f"{path}: is damaged, or of another version of nvdp: {error}") from error


def replace_value(path: Path, value: Any, *, mode: int, sync: bool) -> None:
    """Replace what the file says, whole or not at all; its directory must be there.

    With ``sync`` it also outlives a crash of the node once this returns. Raises HostError if it cannot be written; the
    value before then stands. Blocks for the disk.
    """
    try:
        descriptor, temporary = tempfile.mkstemp(_TEMPORARY_SUFFIX, f"{path.name}.", path.parent)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
                file.write(msgspec.json.encode(value))
                file.flush()
                os.fchmod(descriptor, mode)
                if sync:
                    os.fsync(descriptor)
            os.replace(temporary, path)  # noqa: PTH105 - replaces a symbolic link itself, never its target
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        if sync:
            _sync_directory(path.parent)
    except OSError as error:
        raise HostError(f"{path}: cannot be written: {error.strerror}") from error


def remove_value(path: Path) -> None:
    """Remove the file, and what a process left of it that died while it wrote. HostError if that cannot be."""
    try:
        path.unlink(missing_ok=True)
        for abandoned in path.parent.glob(f"{path.name}.*{_TEMPORARY_SUFFIX}"):
            abandoned.unlink(missing_ok=True)
    except OSError as error:
        raise HostError(f"{path}: cannot be removed: {error.strerror}") from error


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
