"""The mark that labels were taken away by command, kept in the run directory: the daemon that runs writes none then."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nvdp.errors import HostError

_NAME: Final = "labels-removed"


class LabelsHold:
    """One empty file in ``run_dir``, and a lock on that directory.

    Any thread; all calls block for the disk, which is memory as a rule.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / _NAME

    @property
    def is_set(self) -> bool:
        """Raises nothing."""
        try:
            return self._path.is_file()
        except OSError:
            return False

    def set(self) -> bool:
        """Have no labels written until the next start; false if there is no run directory, and so no daemon here.

        Raises HostError if the mark cannot be made.
        """
        if not self._path.parent.is_dir():
            return False
        try:
            self._path.touch(mode=0o600)
        except OSError as error:
            raise HostError(f"{self._path}: cannot be written: {error.strerror}") from error
        return True

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """No other process of the node writes labels or takes them away meanwhile. Blocks until those that do are done.

        Without a run directory, or where that cannot be locked, nobody is waited for.
        """
        directory = -1
        try:
            with contextlib.suppress(OSError):
                directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(directory, fcntl.LOCK_EX)
            yield
        finally:
            if directory >= 0:
                os.close(directory)

    def clear(self) -> None:
        """Labels may be written again. Raises HostError if the mark cannot be removed."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise HostError(f"{self._path}: cannot be removed: {error.strerror}") from error
