"""Where lines of the log go, and how long they may take: whoever reads them may be stuck, and nobody waits for that.

A thread that logs may be answering the kubelet, which admits no pod of the node meanwhile. So a line waits half a
second for its reader, and is lost then; while the reader stays stuck the lines after it are lost at once.
"""

from __future__ import annotations

import os
import select
import time
from typing import Final, TextIO

_PATIENCE_S: Final = 0.5
_CHUNK_BYTES: Final = 4096  # PIPE_BUF: so much fits whenever a pipe is writable at all, without blocking


class Sink:
    """Writes lines to a stream; one that has a file descriptor is written to by that. Not thread-safe.

    ``lost`` counts the lines that could not be written since the last one that could.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._poll = select.poll()
        self._descriptor = _find_descriptor(stream)
        if self._descriptor is not None:
            self._poll.register(self._descriptor, select.POLLOUT)
        self._is_stuck = False
        self._is_torn = False
        self.lost = 0

    def write(self, line: str) -> None:
        """Write one line, its end excluded. Raises nothing; blocks for half a second at most."""
        written = self._write_text(line) if self._descriptor is None else self._write_bytes(line, self._descriptor)
        self.lost = 0 if written else self.lost + 1

    def _write_text(self, line: str) -> bool:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return False  # closed or full, and there is no other place to say so
        return True

    def _write_bytes(self, line: str, descriptor: int) -> bool:
        data = f"{line}\n".encode("utf-8", "backslashreplace")
        if self._is_torn:
            data = b"\n" + data
        deadline = time.monotonic() + (0.0 if self._is_stuck else _PATIENCE_S)
        left = memoryview(data)
        try:
            while left:
                if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    self._is_stuck = True
                    break
                left = left[os.write(descriptor, left[:_CHUNK_BYTES]) :]
        except OSError:
            pass  # its reader is gone, or the disk is full
        if len(left) < len(data):
            self._is_torn = bool(left)
        self._is_stuck = self._is_stuck and bool(left)
        return not left


def _find_descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):  # a stream in memory, or one that is closed
        return None
