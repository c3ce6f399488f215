"""A directory that one process of the node owns at a time: a lock that ends with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from nvdp.errors import HostError


class SoleOwner:
    """Of ``directory``, which must be there; the lock is on the directory itself, so that nothing is left in it.

    Whoever reaches it by another path, from another container, is kept out too. Does not block.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor: int | None = None

    def try_own(self) -> bool:
        """Whether this process owns it from now on until its end; False while another one does.

        Raises HostError if that cannot be found out.
        """
        if self._descriptor is not None:
            return True
        descriptor = -1
        try:
            descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return False
            raise HostError(f"{self._directory}: cannot be locked: {error.strerror}") from error
        self._descriptor = descriptor
        return True

    def close(self) -> None:
        """Let go of it. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
