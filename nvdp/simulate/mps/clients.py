"""CUDA programs of pods as the twin knows them: each a connection to a daemon, which it holds for its life."""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from nvdp.simulate.mps.wire import END, JOIN, PACKET_BYTES, REFUSED, SERVED, SOCKET_NAME, STATE

_WORD_LIMIT_S = 10.0


class MpsClient:
    """Joins the daemon of ``pipe_dir`` as a process of that user; leaves with ``close``. For one thread.

    Raises OSError if there is no daemon, TimeoutError if it says nothing within 10 s. ``pid`` is ours if it is not
    given.
    """

    def __init__(self, pipe_dir: Path, *, user: int = 0, pid: int | None = None) -> None:
        self.pid = pid if pid is not None else os.getpid()
        self._words: list[bytes] = []
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._connection.connect(str(pipe_dir / SOCKET_NAME))
            self._connection.send(JOIN + f"{self.pid} {user}".encode())
            heard = self._hear(_WORD_LIMIT_S)
        except BaseException:
            self._connection.close()
            raise
        if not heard:
            self._connection.close()
            raise TimeoutError(f"{pipe_dir}: no word from the daemon within {_WORD_LIMIT_S:g} s")

    @property
    def is_served(self) -> bool:
        """Whether a server has taken it; it does not wait any more."""
        self._hear(0.0)
        return self._words[-1] == SERVED

    @property
    def is_refused(self) -> bool:
        """Whether it was turned away."""
        self._hear(0.0)
        return self._words[-1] == REFUSED

    @property
    def is_cut(self) -> bool:
        """Whether its server or its daemon has ended under it."""
        self._hear(0.0)
        return self._words[-1] == b""

    def wait_served(self, limit_s: float) -> bool:
        """Whether a server has taken it within ``limit_s``."""
        while not self.is_served and not self.is_cut:
            if not self._hear(limit_s):
                return False
        return self.is_served

    def close(self) -> None:
        """End, as a program that is through. Idempotent."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _hear(self, limit_s: float) -> bool:
        """Take in what was said until now; whether anything was, within ``limit_s``."""
        heard = False
        while not (self._words and self._words[-1] == b""):
            ready, _, _ = select.select([self._connection], [], [], 0.0 if heard else limit_s)
            if not ready:
                break
            try:
                self._words.append(self._connection.recv(PACKET_BYTES))
            except OSError:
                self._words.append(b"")
            heard = True
        return heard


def set_server_state(pipe_dir: Path, state: str) -> None:
    """Put the server into ``ACTIVE`` or ``FAULT``, as a fatal error of the GPU does. Raises OSError without daemon."""
    _tell(pipe_dir, STATE + state.encode())


def end_server(pipe_dir: Path, status: int) -> None:
    """Let the server die with that exit status, and its clients with it. Raises OSError without daemon."""
    _tell(pipe_dir, END + str(status).encode())


def _tell(pipe_dir: Path, packet: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(pipe_dir / SOCKET_NAME))
        connection.send(packet)
