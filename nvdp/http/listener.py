"""Connections and requests: the part that needs the standard library's HTTP server, whose import takes its time.

Bounded on every side, since anyone in the cluster may connect: size of a request, number of connections, silence.
Nothing of a request is ever written back.
"""

from __future__ import annotations

import contextlib
import errno
import io
import socket
import socketserver
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from nvdp.http.routes import NO_ROUTES, TEXT, Response, Routes

MAX_ASKING = 32  # connections whose request is still coming
MAX_ANSWERING = 32
MAX_ORDERS = 4  # at work at once; they take seconds, and what is only asked is not to wait for them
BACKLOG = 64
_IDLE_S = 5.0  # between two bytes
_REQUEST_LIMIT_BYTES = 16384


def open_port(port: int) -> socket.socket:
    """Listen on both kinds of address, or on IPv4 alone where the node has no IPv6. Raises OSError."""
    try:
        return _open(socket.AF_INET6, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        return _open(socket.AF_INET, port)


def _open(family: socket.AddressFamily, port: int) -> socket.socket:
    """A listening socket on all addresses of the family."""
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind(("", port))
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


class _Desk(NamedTuple):
    """Where the requests of some methods go, and how many of them are at work at most."""

    methods: str
    routes: Routes
    places: threading.Semaphore


class Listener(socketserver.BaseServer):
    """Accepts the connections of a listening socket, which it owns from now on, and gives each a thread.

    A newcomer always gets in: of those who do not come to the point, the oldest makes room. So nobody can keep the
    kubelet's probes out by opening connections and staying silent. ``admits`` says whether a peer is heard at all.
    ``routes`` are read (GET, HEAD), ``orders`` are given (POST); neither can use up the places of the other.
    """

    def __init__(
        self,
        listening: socket.socket,
        routes: Routes,
        defect: Callable[[Exception], None],
        stopped: threading.Event,
        *,
        orders: Routes = NO_ROUTES,
        admits: Callable[[socket.socket], bool] | None = None,
    ) -> None:
        self.reading = _Desk("GET, HEAD", routes, threading.Semaphore(MAX_ANSWERING))
        self.ordering = _Desk("POST", orders, threading.Semaphore(MAX_ORDERS))
        self.defect = defect
        self.socket = listening
        self._stopped = stopped
        self._admits = admits
        self._lock = threading.Lock()
        self._asking: dict[socket.socket, None] = {}  # oldest first
        super().__init__(listening.getsockname(), _Handler)

    def fileno(self) -> int:
        return self.socket.fileno()

    def server_close(self) -> None:
        self.socket.close()

    def close(self) -> None:
        """Wake the thread that waits for connections; it closes the port."""
        with contextlib.suppress(OSError):  # closed already
            self.socket.shutdown(socket.SHUT_RDWR)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return self.socket.accept()
        except OSError:
            self._stopped.wait(0.2)  # out of file descriptors: do not spin until there are some again
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        del client_address
        return self._admits is None or self._admits(request)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = next(iter(self._asking)) if len(self._asking) >= MAX_ASKING else None
            if oldest is not None:
                del self._asking[oldest]
            self._asking[request] = None
        if oldest is not None:
            with contextlib.suppress(OSError):  # gone by itself
                oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes and closes it
        threading.Thread(target=self._serve, args=(request, client_address), name="http-request", daemon=True).start()

    def shutdown_request(self, request: Any) -> None:
        with contextlib.suppress(OSError):  # gone by itself
            request.shutdown(socket.SHUT_WR)
        self.close_request(request)

    def close_request(self, request: Any) -> None:
        request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """No thread was to be had for a connection; the standard library would print a traceback."""
        del request, client_address
        error = sys.exception()
        if isinstance(error, Exception):
            self.defect(error)

    @contextlib.contextmanager
    def answering(self, request: socket.socket, desk: _Desk) -> Iterator[bool]:
        """Around the work for a request that has come in whole. False: too many are at work already."""
        with self._lock:
            self._asking.pop(request, None)
        admitted = desk.places.acquire(blocking=False)
        try:
            yield admitted
        finally:
            if admitted:
                desk.places.release()

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # the peer went away
        finally:
            with self._lock:
                self._asking.pop(request, None)
            self.shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    """One request on one connection."""

    server: Listener
    timeout = _IDLE_S
    server_version = "nvdp"
    sys_version = ""
    default_request_version = "HTTP/1.0"  # answers have a status line, whatever the request looked like

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Bounded(self.connection))

    def do_GET(self) -> None:
        self._handle(self.server.reading)

    do_HEAD = do_GET  # noqa: N815 - the name that the standard library looks for

    def do_POST(self) -> None:
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)  # all that an order says is in its query
        else:
            self._handle(self.server.ordering)

    def _handle(self, desk: _Desk) -> None:
        with self.server.answering(self.connection, desk) as admitted:
            if admitted:
                self._ask_route(desk)
            else:
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)

    def _ask_route(self, desk: _Desk) -> None:
        path, _, query = self.path.partition("?")
        route = desk.routes.get(path)
        if route is None:
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED if self._list_methods() else HTTPStatus.NOT_FOUND)
            return
        try:
            asked = dict(urllib.parse.parse_qsl(query, max_num_fields=16))
        except ValueError:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        try:
            response = route(asked)
        except Exception as error:  # noqa: BLE001 - a defect costs one answer, not the server
            self.server.defect(error)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        self._answer(response)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """The status alone: the standard library's page repeats parts of the request."""
        del message, explain
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self._answer(Response(status=status, body=f"{status.phrase}\n".encode(), content_type=TEXT))

    def _answer(self, response: Response) -> None:
        self.send_response_only(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if response.status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", self._list_methods() or self.server.reading.methods)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def _list_methods(self) -> str:
        """The methods with which the path may be asked; empty if there is no such path."""
        path, _, _ = self.path.partition("?")
        return ", ".join(desk.methods for desk in (self.server.reading, self.server.ordering) if path in desk.routes)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's name
        """Requests are not worth a line: probes come all the time."""


class _Bounded(io.RawIOBase):
    """The bytes of a connection, up to the limit of a request: beyond it the connection is as good as broken."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left = _REQUEST_LIMIT_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            raise OSError("the request is too long")
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count
