"""The end of the process, whatever hangs: a thread that is ready before it is needed.

A signal handler may not start threads or take locks, so the thread waits on a pipe from the start; one byte, which a
handler may write, starts the clock.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

LIMIT_S = 4.0


class Deadline:
    """``start`` from anywhere, a signal handler included: after ``limit_s`` the process exits with 0."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self._read_end, True)
        threading.Thread(target=self._wait, name="deadline", daemon=True).start()

    def start(self) -> None:
        """Start the clock; again and again does no harm."""
        with contextlib.suppress(BlockingIOError):  # full of starts
            os.write(self._write_end, b"x")

    def _wait(self) -> None:
        os.read(self._read_end, 1)
        time.sleep(self._limit_s)
        os._exit(0)
