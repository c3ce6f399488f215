"""What must outlive the process: the state directory, one JSON file in it.

A restart must neither lose a good configuration nor move a device between resources (invariants 9 and 10).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from nvdp.errors import HostError
from nvdp.host.files import load_text
from nvdp.log import Log
from nvdp.model.chosen import Chosen
from nvdp.model.inventory import Inventory
from nvdp.model.reasons import Reason
from nvdp.planning.course import Record

VERSION: Final = 1
_LIMIT_BYTES: Final = 16 * 2**20  # two configurations have at most 1 MiB each, and JSON may need six bytes for one
_NAME: Final = "state.json"
_DAMAGED_NAME: Final = "state.json.damaged"
_TEMPORARY_PREFIX: Final = "state.json."
_TEMPORARY_SUFFIX: Final = ".tmp"
_ABANDONED_S: Final = 60.0  # a temporary file this old belongs to nobody who is still writing it


class AppliedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A good configuration: the file as it was, the name it is known by, its hash, and by what it was chosen."""

    text: str
    source: str
    hash: str
    chosen: Chosen | None = None


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs that were known last, by which driver, and in which boot.

    They are shown while nobody may look, and compared with the first scan.
    """

    boot_id: str
    inventory: Inventory


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is kept. ``pins`` are the UUIDs behind references by index or count, by reference.

    ``config`` was in force last. ``candidate`` is a newer valid one that was not judged against the GPUs yet.
    ``resources`` are the names that were advertised: what pods hold of them must stay listed. ``health`` is by GPU what
    is known of its faults, which a restart does not cure. ``indices`` are those under which GPUs were handed out, by
    resource and device ID, while pods hold them: the kubelet goes on to use them. With UUIDs there are none.
    ``parents`` are the GPUs of MIG devices, by UUID: of those that there are, and of the last that are gone. ``by_cdi``
    are by resource the device IDs that pods hold and may have got by CDI, whose names must resolve until they are gone.
    ``by_mps`` are by resource the UUIDs of devices whose IDs were last on offer by MPS, which the IDs do not tell.
    """

    config: AppliedConfig | None = None
    candidate: AppliedConfig | None = None
    pins: Mapping[str, str] = {}
    resources: tuple[str, ...] = ()
    health: Mapping[str, Record] = {}
    seen: Seen | None = None
    indices: Mapping[str, Mapping[str, str]] = {}
    parents: Mapping[str, str] = {}
    by_cdi: Mapping[str, tuple[str, ...]] = {}
    by_mps: Mapping[str, tuple[str, ...]] = {}


class _Versioned(msgspec.Struct, frozen=True):
    version: int


class _Document(msgspec.Struct, frozen=True):
    version: int
    state: State


def read_state(directory: Path) -> State:
    """What was saved last, or an empty state; for who only looks: nothing is touched, a damaged file stays where it is.

    Raises HostError, in one line, if there is a file and it cannot be used. Blocks for the disk.
    """
    path = directory / _NAME
    try:
        return _load(path) or State()
    except (ValueError, RecursionError) as error:
        raise HostError(f"{path}: cannot be used: {error}") from error


class StateDirectory:
    """The state directory of this node. One thread at a time; several processes may overlap, the last write counts."""

    def __init__(self, path: Path, *, log: Log) -> None:
        self._directory = path
        self._path = path / _NAME
        self._log = log
        self._saved: State | None = None

    def load_state(self) -> State:
        """What was saved last, or an empty state.

        A file that is damaged, too large, of a newer version or no regular file is ignored with ``StateDamaged`` and
        kept aside as ``state.json.damaged``. Raises nothing. Blocks for the disk.
        """
        self._remove_abandoned()
        try:
            self._saved = _load(self._path)
        except (HostError, ValueError, RecursionError) as error:
            why = str(error).removeprefix(f"{self._path}: ")
            self._log(Reason.STATE_DAMAGED, f"{self._path}: ignored: {why}; {self._set_aside()}", error=why)
            return State()
        return self._saved or State()

    @property
    def is_kept(self) -> bool:
        """Whether there is still a file, if one was saved or found: somebody may have removed it. Blocks."""
        return self._saved is None or os.path.lexists(self._path)

    def save_state(self, state: State) -> None:
        """Replace what is saved, whole or not at all; nothing is written if it is saved already, and still there.

        The directory is made, for root alone, if it is missing. Raises HostError if it cannot be written (full,
        read-only, not a directory); the state before is then untouched, and another call tries again. Blocks for the
        disk.
        """
        if state == self._saved and self.is_kept:
            return
        try:
            self._replace(msgspec.json.encode(_Document(VERSION, state)))
        except OSError as error:
            raise HostError(f"{self._path}: cannot be written: {error.strerror}") from error
        self._saved = state

    def _replace(self, data: bytes) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(_TEMPORARY_SUFFIX, _TEMPORARY_PREFIX, self._directory)  # mode 0600
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            os.replace(temporary, self._path)  # noqa: PTH105 - replaces a symbolic link itself, never its target
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        self._sync_directory()

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _set_aside(self) -> str:
        aside = self._directory / _DAMAGED_NAME
        try:
            self._path.replace(aside)
        except OSError as error:
            return f"it could not be kept aside: {error.strerror}"
        return f"kept as {aside.name}"

    def _remove_abandoned(self) -> None:
        """Remove what a process left that died between writing and renaming."""
        abandoned_before = time.time() - _ABANDONED_S
        try:
            for entry in self._directory.glob(f"{_TEMPORARY_PREFIX}*{_TEMPORARY_SUFFIX}"):
                if entry.lstat().st_mtime < abandoned_before:
                    entry.unlink()
        except OSError:
            return  # no directory yet, or one that saving will complain about


def _load(path: Path) -> State | None:
    """None if there is no file. HostError if it cannot be read, ValueError or RecursionError if it is no state."""
    data = load_text(path, limit_bytes=_LIMIT_BYTES, follow_symlinks=False)
    return None if data is None else _parse_state(data)


def _parse_state(data: bytes) -> State:
    """Raises ValueError, in words, for anything but a whole document of a version that we know."""
    if len(data) > _LIMIT_BYTES:
        raise ValueError(f"larger than {_LIMIT_BYTES // 2**20} MiB")
    version = msgspec.json.decode(data, type=_Versioned).version
    if version != VERSION:
        raise ValueError(f"version {version}, and this program knows {VERSION}")
    return msgspec.json.decode(data, type=_Document).state
