"""Waiting until a node file may have been edited, without looking at it all the time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import time
from typing import Final

_CLOSED_AFTER_WRITING: Final = 0x8
_MOVED_HERE: Final = 0x80
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC  # the kernel's IN_NONBLOCK and IN_CLOEXEC are these
# Where inotify is exhausted the file is looked at so often: often enough for an event to seem to come at once.
_LOOK_EVERY_S: Final = 0.015


class Edits:
    """Notices when the file ``path`` is written or replaced. Used by one thread at a time.

    The directories are watched in which the name and, behind links, the file itself are.
    """

    def __init__(self, path: str) -> None:
        libc = ctypes.CDLL(None)
        self._fd: int = libc.inotify_init1(_FLAGS)
        directories = {os.path.dirname(os.path.abspath(one)) for one in (path, os.path.realpath(path))}  # noqa: PTH100, PTH120 - no pathlib in the child
        watches = [
            libc.inotify_add_watch(self._fd, os.fsencode(directory), _CLOSED_AFTER_WRITING | _MOVED_HERE)
            for directory in directories
        ]
        self._is_told = self._fd >= 0 and min(watches) >= 0
        self._poll = select.poll()
        if self._is_told:
            self._poll.register(self._fd, select.POLLIN)

    def wait(self, limit_s: float) -> None:
        """Return when the file may have changed, or after ``limit_s``."""
        if not self._is_told:
            time.sleep(max(0.0, min(limit_s, _LOOK_EVERY_S)))
        elif self._poll.poll(max(0.0, limit_s) * 1000):
            with contextlib.suppress(BlockingIOError):
                while os.read(self._fd, 4096):
                    pass
