"""The compute modes that were set on a simulated machine: as a driver's, they outlive the process that set them.

They are kept in a file ``NODE-FILE.modes.json`` beside the node file, so that every process that uses it sees them. A
node that comes with nvdp, or whose directory cannot be written, has it in ``$TMPDIR``, or ``/tmp``.
"""

# ruff: noqa: PTH100, PTH118, PTH120, PTH123 - no pathlib in the child

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from typing import Final

import msgspec

from nvdp.model.inventory import ComputeMode

_COMES_ALONG: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nodes")


class _Kept(msgspec.Struct, frozen=True):
    """A mode that was set while the node file said ``over``; once it says something else, that was set later."""

    mode: ComputeMode
    over: ComputeMode


class KeptModes:
    """Those of one node file. Any number of processes may use it at once; in each, one thread at a time.

    A card is known by any ``key`` that stays the same; ``told`` is what the node file says of it.
    """

    def __init__(self, node_file: str) -> None:
        self.path = _choose_path(os.path.abspath(node_file))
        self._seen: tuple[int, int, int] | None = None
        self._modes: dict[str, _Kept] = {}

    def find(self, key: str, told: ComputeMode) -> ComputeMode:
        """The mode that a card has now. A file that cannot be read says nothing."""
        kept = self._load().get(key)
        return kept.mode if kept is not None and kept.over is told else told

    def set(self, key: str, mode: ComputeMode, told: ComputeMode) -> None:
        """Raises OSError. There is no file as long as every card has the mode that the node file says."""
        with self._lock():
            modes = {**self._load(), key: _Kept(mode, told)}
            if mode is told:
                del modes[key]
            if not modes:
                self.forget()
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            fresh = f"{self.path}.new"
            with open(os.open(fresh, flags, 0o644), "wb") as file:
                file.write(msgspec.json.encode(modes))
            os.replace(fresh, self.path)  # noqa: PTH105 - as above

    def forget(self) -> None:
        """The driver was unloaded: every card has the mode again that the node file says."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)  # noqa: PTH108 - as above

    def _load(self) -> dict[str, _Kept]:
        try:
            found = os.stat(self.path)  # noqa: PTH116 - as above
            seen = (found.st_mtime_ns, found.st_size, found.st_ino)
            if seen != self._seen:
                with open(self.path, "rb") as file:
                    self._modes, self._seen = msgspec.json.decode(file.read(), type=dict[str, _Kept]), seen
        except (OSError, ValueError):
            self._modes, self._seen = {}, None
        return self._modes

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Until the end nobody else sets a mode. Locks the directory: files in it are replaced."""
        directory = os.open(os.path.dirname(self.path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield
        finally:
            os.close(directory)


def _choose_path(node_file: str) -> str:
    directory = os.path.dirname(node_file)
    if directory != _COMES_ALONG and os.access(directory, os.W_OK):
        return f"{node_file}.modes.json"
    name = hashlib.sha256(node_file.encode()).hexdigest()[:12]
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"nvdp-{name}.modes.json")  # noqa: S108 - replaced, never followed
