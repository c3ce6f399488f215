"""The order to let go of the driver, kept in the run directory: it outlives the plugin's pod, and not the boot."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from nvdp.errors import HostError
from nvdp.host.files import load_text
from nvdp.model.pause import Pause

_NAME: Final = "paused.json"
_LIMIT_BYTES: Final = 65536


class _Kept(msgspec.Struct, frozen=True):
    boot_id: str
    pause: Pause


class PauseFile:
    """One file in ``run_dir``. ``boot_id`` tells boots apart where that directory outlives them; empty if unknown.

    Any thread; of two who write at once the last one counts. All calls block for the disk, which is memory as a rule.
    """

    def __init__(self, run_dir: Path, *, boot_id: str) -> None:
        self._path = run_dir / _NAME
        self._boot_id = boot_id

    @property
    def path(self) -> Path:
        return self._path

    def load(self) -> Pause | None:
        """The order that stands, None if there is none, or if it is of another boot.

        A file that cannot be read or understood is an order too: whoever wrote it had the driver let go of, and to
        hold on to nothing is what harms nobody. Raises nothing.
        """
        try:
            text = load_text(self._path, limit_bytes=_LIMIT_BYTES, follow_symlinks=False)
            if text is None:
                return None
            kept = msgspec.json.decode(text, type=_Kept)
        except (HostError, ValueError, RecursionError) as error:
            why = str(error).removeprefix(f"{self._path}: ")
            return Pause(by=f"{self._path}", note=f"which is damaged: {why}", since=0.0)
        return kept.pause if not self._boot_id or kept.boot_id in {"", self._boot_id} else None

    def save(self, pause: Pause) -> None:
        """Keep the order, whole or not at all, in a directory that is made for root alone if it is missing.

        Raises HostError if it cannot be kept.
        """
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(".tmp", f"{_NAME}.", self._path.parent)  # mode 0600
            try:
                with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
                    file.write(msgspec.json.encode(_Kept(self._boot_id, pause)))
                os.replace(temporary, self._path)  # noqa: PTH105 - replaces a symbolic link itself, never its target
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise HostError(f"{self._path}: cannot be written: {error.strerror}") from error

    def remove(self) -> None:
        """Forget the order, if there is one. Raises HostError if it cannot be removed."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise HostError(f"{self._path}: cannot be removed: {error.strerror}") from error
