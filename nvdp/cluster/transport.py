"""One HTTP request at a time over a connection to the API server, and connections that are kept for the next one."""

from __future__ import annotations

import http.client
import select
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from nvdp.cluster.access import Way
from nvdp.cluster.sockets import OverdueError, TimedSocket, connect

BODY_LIMIT: Final = 4 * 2**20  # bytes of an answer, or of one line of a watch
_CHUNK: Final = 65536
_KEPT: Final = 2
_KEPT_FOR_S: Final = 30.0  # servers keep idle connections for longer, so that none is used that is about to be closed

FAILURES: Final = (OSError, http.client.HTTPException, UnicodeError)
"""What sending and reading may raise."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None = None


class OversizedError(OSError):
    """More bytes than are read."""


class Connection:
    """Raises ``FAILURES`` from everything but ``break_off`` and ``close``. Used by one thread at a time."""

    def __init__(self, way: Way, *, deadline: float) -> None:
        """Connects, and blocks until the deadline at most."""
        self.way = way
        self._socket: TimedSocket = connect(
            way.host, way.port, context=way.context, server_name=way.server_name, deadline=deadline
        )
        self._http = http.client.HTTPConnection(way.host, way.port)
        self._http.auto_open = 0  # never by itself, and without TLS
        self._http.sock = self._socket
        self._response: http.client.HTTPResponse | None = None
        self.used_at = time.monotonic()

    @property
    def is_reusable(self) -> bool:
        """Whether it can carry another request: the last answer was read to its end, and the server stays."""
        response = self._response
        return self._http.sock is not None and (response is None or response.isclosed())

    @property
    def is_stale(self) -> bool:
        """Whether something came unasked while it was kept, as a rule its end."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, request: Request, *, deadline: float) -> http.client.HTTPResponse:
        """The answer, its body not read yet."""
        self._socket.set_deadline(deadline)
        self._http.request(request.method, self.way.prefix + request.path, request.body, dict(request.headers))
        self._response = self._http.getresponse()
        return self._response

    def read_body(self) -> bytes:
        """All of it, within the request's deadline. Raises OversizedError beyond the limit."""
        assert self._response is not None
        body = bytearray()
        while chunk := self._response.read(_CHUNK):
            body += chunk
            if len(body) > BODY_LIMIT:
                raise OversizedError(f"an answer of more than {BODY_LIMIT} bytes")
        self.used_at = time.monotonic()
        return bytes(body)

    def read_some(self, *, deadline: float) -> bytes:
        """What comes next of the body; empty at its end."""
        assert self._response is not None
        self._socket.deadline = deadline
        return self._response.read1(_CHUNK)

    def hears(self, *, deadline: float) -> bool:
        """Whether the body goes on, or ends, before the deadline. Nothing is taken of it."""
        assert self._response is not None
        if self._response.isclosed():
            return True
        self._socket.deadline = deadline
        try:
            self._response.fp.peek(1)
        except OverdueError:
            return False
        return True

    def break_off(self) -> None:
        """End what is under way. Any thread."""
        self._socket.break_off()

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        self._http.close()
        self._socket.close()


class Kept:
    """Connections that wait for the next request, and are closed with it. Used under its owner's lock."""

    def __init__(self) -> None:
        self._waiting: list[Connection] = []

    def take(self, way: Way) -> Connection | None:
        """One that leads where ``way`` does, and is not old; the others are closed."""
        youngest_first, self._waiting = self._waiting[::-1], []
        found = None
        for one in youngest_first:
            is_young = time.monotonic() - one.used_at < _KEPT_FOR_S
            if found is None and _is_same(one.way, way) and is_young and not one.is_stale:
                found = one
            elif found is not None and len(self._waiting) < _KEPT:
                self._waiting.insert(0, one)
            else:
                one.close()
        return found

    def keep(self, connection: Connection) -> None:
        """Keep it, if it can be used again and there is room."""
        if connection.is_reusable and len(self._waiting) < _KEPT:
            self._waiting.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        for one in self._waiting:
            one.close()
        self._waiting = []

    def __del__(self) -> None:
        self.close()


def _is_same(one: Way, other: Way) -> bool:
    return (one.host, one.port, one.server_name) == (other.host, other.port, other.server_name) and (
        one.context is other.context
    )
