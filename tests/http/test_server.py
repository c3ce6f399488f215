"""The HTTP server over real connections, polite and otherwise."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdp.http.listener import MAX_ANSWERING, MAX_ASKING
from nvdp.http.routes import Response
from nvdp.http.server import HttpServer
from nvdp.model.reasons import Reason
from nvdp.model.status import Trouble


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Heard:
    """What the server logged, and the exceptions it reported."""

    def __init__(self) -> None:
        self.log: list[tuple[Reason, str]] = []
        self.defects: list[Exception] = []
        self.changed = threading.Condition()

    def write(self, reason: Reason, msg: str, /, **fields: object) -> None:
        with self.changed:
            self.log.append((reason, msg))
            self.changed.notify_all()


@contextlib.contextmanager
def serve(routes: Mapping[str, Callable], *, port: int | None = None, heard: Heard | None = None) -> Iterator[int]:
    heard = heard or Heard()
    chosen = port or free_port()
    server = HttpServer(port=chosen, routes=routes, log=heard.write, defect=heard.defects.append)
    server.start()
    try:
        assert server.wait_listening(5)
        yield chosen
    finally:
        server.stop()


def get(port: int, path: str, *, method: str = "GET", host: str = "127.0.0.1") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def send(port: int, data: bytes) -> bytes:
    """Everything that comes back for ``data``, until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        received = b""
        with contextlib.suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                received += part
        return received


def hello(query: Mapping[str, str]) -> Response:
    return Response(body=b"hello " + query.get("format", "json").encode())


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serve({"/hello": hello, "/busy": lambda _: Response(status=503, body=b"{}")}) as chosen:
        yield chosen


def test_a_route_answers_with_its_status_body_and_type_and_knows_its_query(port: int):
    status, headers, body = get(port, "/hello?format=text&x")
    assert (status, body) == (200, b"hello text")
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert "Server" not in headers
    assert get(port, "/busy")[0] == 503


def test_head_has_the_headers_without_the_body(port: int):
    status, headers, body = get(port, "/hello", method="HEAD")
    assert (status, headers["Content-Length"], body) == (200, "10", b"")


def test_other_methods_are_not_allowed(port: int):
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"):
        status, headers, _ = get(port, "/hello", method=method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /<script>secret HTTP/1.0",
        b"GET /hello/../secret HTTP/1.0",
        b"<secret> / HTTP/1.0",
        b"GET /secret HTTP/9.x",
    ],
)
def test_nothing_of_a_request_is_written_back(port: int, request_line: bytes):
    answer = send(port, request_line + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 4")
    assert b"secret" not in answer


def test_both_families_of_addresses_are_served(port: int):
    assert get(port, "/hello", host="127.0.0.1")[0] == 200
    if socket.has_dualstack_ipv6() and os.path.exists("/proc/net/if_inet6"):  # noqa: PTH110 - not a path of ours
        assert get(port, "/hello", host="::1")[0] == 200


def test_oversized_requests_are_cut_off_and_the_next_one_is_served(port: int):
    for data in (
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.0\r\n\r\n",
        b"GET /hello HTTP/1.0\r\n" + b"X: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"GET /hello HTTP/1.0\r\n" + b"X: a\r\n" * 100_000 + b"\r\n",
        b"GET /hello?" + b"a=1&" * 3000 + b" HTTP/1.0\r\n\r\n",
    ):
        assert b"hello" not in send(port, data)
    assert get(port, "/hello")[0] == 200


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=300) | st.text(max_size=300).map(lambda text: f"GET {text} HTTP/1.1\r\n\r\n".encode()))
def test_no_bytes_break_the_server(port: int, data: bytes):
    send(port, data)
    assert get(port, "/hello")[0] == 200


def test_silent_connections_do_not_keep_probes_out():
    with serve({"/hello": hello}) as port, contextlib.ExitStack() as stack:
        for _ in range(3 * MAX_ASKING):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
            silent.sendall(b"GET /hel")
        started = time.monotonic()
        assert get(port, "/hello")[0] == 200
        assert time.monotonic() - started < 5.0, "a silent one may say nothing for as long"


def test_a_silent_connection_is_closed_after_some_seconds():
    with serve({"/hello": hello}) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
        silent.sendall(b"GET /")
        assert silent.recv(100) == b""


def test_slow_answers_are_limited_in_number_and_the_rest_is_told_so():
    release, inside = threading.Event(), threading.Semaphore(0)

    def slow(_query: Mapping[str, str]) -> Response:
        inside.release()
        assert release.wait(20)
        return Response(body=b"{}")

    with serve({"/slow": slow}) as port, contextlib.ExitStack() as stack:
        waiting = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(MAX_ANSWERING)
        ]
        for connection in waiting:
            connection.sendall(b"GET /slow HTTP/1.0\r\n\r\n")
            assert inside.acquire(timeout=5)
        assert get(port, "/slow")[0] == 503
        release.set()
        assert all(connection.recv(100).startswith(b"HTTP/1.0 200") for connection in waiting)


def test_a_defect_in_a_route_costs_one_answer_and_is_reported():
    heard = Heard()

    def broken(_query: Mapping[str, str]) -> Response:
        raise KeyError("secret")

    with serve({"/broken": broken, "/hello": hello}, heard=heard) as port:
        status, _, body = get(port, "/broken")
        assert (status, body) == (500, b"Internal Server Error\n")
        assert get(port, "/hello")[0] == 200
    assert [type(error) for error in heard.defects] == [KeyError]


def test_a_port_in_use_is_a_warning_and_taken_once_it_is_free():
    heard, port = Heard(), free_port()
    occupant = socket.create_server(("", port))
    routes = {"/readyz": hello, "/hello": hello}
    server = HttpServer(port=port, routes=routes, log=heard.write, defect=heard.defects.append, retry_s=0.05)
    server.start()
    try:
        with heard.changed:
            assert heard.changed.wait_for(lambda: heard.log, 5)
        text = f"port {port} is in use: no /hello, /readyz; choose another with --metrics-port"
        assert heard.log[0] == (Reason.PORT_TAKEN, f"{text}. Trying again every 0.05s")
        assert server.trouble == Trouble(reason="PortTaken", text=text)
        occupant.close()
        assert server.wait_listening(5)
        assert server.trouble is None
        assert get(port, "/hello")[0] == 200
    finally:
        server.stop()
        occupant.close()
    assert len(heard.log) == 1


def test_port_zero_is_off():
    server = HttpServer(port=0, routes={}, log=Heard().write, defect=lambda _: None)
    before = set(threading.enumerate())
    server.start()
    server.stop()
    assert set(threading.enumerate()) <= before
    assert not server.wait_listening(0)


def test_stopping_closes_the_port_at_once_and_it_can_be_served_again():
    port = free_port()
    for _ in range(3):
        with serve({"/hello": hello}, port=port):
            assert get(port, "/hello")[0] == 200
        with pytest.raises(ConnectionRefusedError):
            get(port, "/hello")
