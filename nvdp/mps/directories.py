"""Directories below the MPS root: made one by one, open to all users for passing, never through a symbolic link.

The server of a client runs as that client's user and must pass every directory up to the pipe; where one of them is
closed, the client is refused with an error that names no directory.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from nvdp.errors import HostError

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MODE: Final = 0o755
_TRIES: Final = 5


@contextlib.contextmanager
def make_directories(root: Path, names: Sequence[str]) -> Iterator[int]:
    """The directory ``names`` below ``root``, as a descriptor for the time of the block.

    What is missing is made. All of them, ``root`` included, have mode 0755 afterwards, whatever the umask. ``root`` is
    the operator's word and may be a link; below it a link is refused. Raises HostError.
    """
    descriptor = _make(root, names)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_directories(root: Path, names: Sequence[str]) -> Iterator[int | None]:
    """The same without making or changing anything: None where one of them is missing. Raises HostError."""
    descriptor = _find(root, names)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def open_below(directory: int, name: str) -> int:
    """The directory of that name in that one, as a descriptor to be closed. Raises OSError, for a link too."""
    return os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=directory)


def _make(root: Path, names: Sequence[str]) -> int:
    for attempt in range(_TRIES):
        try:
            return _walk(root, names, making=True)
        except FileNotFoundError as error:  # who removes the last resource below a directory takes that one along
            if attempt == _TRIES - 1:
                raise _explain(root, names, error) from error
        except OSError as error:
            raise _explain(root, names, error) from error
    raise AssertionError


def _find(root: Path, names: Sequence[str]) -> int | None:
    try:
        return _walk(root, names, making=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _explain(root, names, error) from error


def _walk(root: Path, names: Sequence[str], *, making: bool) -> int:
    if making:
        _make_parents(root)
    descriptor = os.open(root, _OPEN)
    try:
        if making:
            _open_to_all(descriptor)
        for name in names:
            below = _step(descriptor, name, making=making)
            os.close(descriptor)
            descriptor = below
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _step(parent: int, name: str, *, making: bool) -> int:
    if making:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, _MODE, dir_fd=parent)
    descriptor = open_below(parent, name)
    try:
        if making:
            _open_to_all(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make_parents(root: Path) -> None:
    for path in (*reversed(root.parents), root):
        with contextlib.suppress(FileExistsError):
            path.mkdir(_MODE)
            path.chmod(_MODE)  # past the umask; those that were there are somebody's


def _open_to_all(descriptor: int) -> None:
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != _MODE:
        os.fchmod(descriptor, _MODE)


def _explain(root: Path, names: Sequence[str], error: OSError) -> HostError:
    path = root.joinpath(*names)
    if isinstance(error, NotADirectoryError):  # what O_NOFOLLOW with O_DIRECTORY makes of a link, too
        return HostError(f"{path}: a part of it is no directory, or a symbolic link; remove what stands there")
    return HostError(f"{path}: cannot be used as a directory: {error.strerror}")
