"""Connections to the API server whose every read and write ends at a deadline, and which any thread can break off.

The standard library's time limits begin anew with each byte that comes: a peer that sends one now and then holds a
thread for hours. Here the time left is set before each read and write.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import Any, Final

# A peer that went without a word is found after 30 + 3 × 10 s.
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


class OverdueError(OSError):
    """The deadline passed. No TimeoutError: after one of these Python's buffered readers refuse to read on."""


class TimedSocket(socket.socket):
    """A socket with ``deadline``, in monotonic seconds; reads and writes raise OverdueError once it has passed."""

    deadline: float = float("inf")

    def set_deadline(self, deadline: float) -> None:
        """For what follows. Raises OverdueError if it has passed already."""
        self.deadline = deadline
        self._set_time_left()  # what the standard library sends in one go asks for no more

    def recv_into(self, *args: Any) -> int:
        try:
            self._set_time_left()
            return super().recv_into(*args)
        except TimeoutError as error:
            raise OverdueError("no answer in time") from error

    def send(self, *args: Any) -> int:
        try:
            self._set_time_left()
            return super().send(*args)
        except TimeoutError as error:
            raise OverdueError("not taken in time") from error

    def break_off(self) -> None:
        """End reads and writes under way, and all that follow. Any thread; again and again."""
        with contextlib.suppress(OSError):  # it is broken already
            socket.socket.shutdown(self, socket.SHUT_RDWR)  # not that of TLS, which takes the reader's session away

    def _set_time_left(self) -> None:
        if self.deadline == float("inf"):
            self.settimeout(None)
            return
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise OverdueError("no time left")
        self.settimeout(left_s)


class TimedTlsSocket(TimedSocket, ssl.SSLSocket):
    """The same over TLS. Made by a context whose ``sslsocket_class`` it is."""

    def __del__(self) -> None:
        self.close()  # the context forgets one whose peer went before it had begun


def connect(host: str, port: int, *, context: ssl.SSLContext | None, server_name: str, deadline: float) -> TimedSocket:
    """A connection to the first address of ``host`` that answers. Blocks until the deadline; raises OSError.

    ``context`` None is without TLS; ``server_name`` is whom the certificate must name. A name server is asked by the
    C library, which keeps limits of its own.
    """
    failure: OSError = OSError(f"no address of {host}")
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
        made = TimedSocket(family, kind, protocol)
        try:
            made.set_deadline(_share(deadline, len(addresses) - tried))
            return _open(made, address, context=context, server_name=server_name)
        except OSError as error:
            made.close()
            failure = error
        except BaseException:
            made.close()
            raise
    raise failure


def _share(deadline: float, addresses: int) -> float:
    """An address that does not answer leaves time for the others."""
    now = time.monotonic()
    return now + (deadline - now) / addresses


def _open(made: TimedSocket, address: Any, *, context: ssl.SSLContext | None, server_name: str) -> TimedSocket:
    for option in _KEEPALIVE:
        made.setsockopt(*option)
    try:
        made.connect(address)
        if context is None:
            return made
        made.set_deadline(made.deadline)
        secured = context.wrap_socket(made, server_hostname=server_name)
    except TimeoutError as error:
        raise OverdueError("no answer in time") from error
    assert isinstance(secured, TimedTlsSocket)
    return secured
