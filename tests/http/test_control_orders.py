"""Orders over the real control socket: who is heard, with which method, and that they keep nobody from asking."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from nvdp.errors import HostError
from nvdp.http.control import AbsentError, load_status, send_order
from nvdp.http.control_server import ControlServer
from nvdp.http.control_socket import SOCKET_NAME, open_socket
from nvdp.http.listener import MAX_ORDERS
from nvdp.http.routes import DEVICE, NOTE, PAUSE_PATH, STATUS_PATH, Response
from nvdp.model.orders import Carried
from nvdp.model.status import Status

LIMIT_S = 10.0
STATUS = Status(ready=True, reason="")
DONE = Carried(done=True, text="paused")


class Orders:
    """What was ordered; each order is carried out, once ``release`` is set."""

    def __init__(self) -> None:
        self.given: list[Mapping[str, str]] = []
        self.begun = threading.Semaphore(0)
        self.release = threading.Event()
        self.release.set()

    def pause(self, query: Mapping[str, str]) -> Response:
        self.given.append(dict(query))
        self.begun.release()
        assert self.release.wait(LIMIT_S)
        return Response(body=msgspec.json.encode(DONE))


@contextlib.contextmanager
def serve(order: Callable[[Mapping[str, str]], Response]) -> Iterator[Path]:
    run_dir = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    heard: list[object] = []
    server = ControlServer(
        run_dir,
        routes={STATUS_PATH: lambda _query: Response(body=msgspec.json.encode(STATUS))},
        orders={PAUSE_PATH: order},
        log=lambda *told, **_fields: heard.append(told),
        defect=heard.append,
        look_every_s=0.05,
    )
    server.start()
    deadline = time.monotonic() + LIMIT_S
    while not (run_dir / SOCKET_NAME).exists():
        assert time.monotonic() < deadline, heard
        time.sleep(0.01)
    try:
        yield run_dir
    finally:
        server.stop()
        shutil.rmtree(run_dir)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Path, Orders]]:
    orders = Orders()
    with serve(orders.pause) as run_dir:
        yield run_dir, orders


@contextlib.contextmanager
def connect(run_dir: Path) -> Iterator[socket.socket]:
    """A connection; where the queue is full this waits."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(run_dir / SOCKET_NAME))
        connection.settimeout(LIMIT_S)
        yield connection


def send(run_dir: Path, data: bytes) -> str:
    """Everything that comes back for ``data``, until the server closes."""
    with connect(run_dir) as connection, contextlib.suppress(OSError):
        received = b""
        connection.sendall(data)
        while part := connection.recv(65536):
            received += part
    return received.decode()


def test_an_order_arrives_with_all_that_it_says_and_what_became_of_it_comes_back(served: tuple[Path, Orders]):
    run_dir, orders = served
    query = {NOTE: 'a driver & "another" = ünïcode?#', DEVICE: "0000:65:00.0"}
    assert send_order(run_dir, PAUSE_PATH, query, timeout_s=LIMIT_S) == DONE
    assert orders.given[-1] == query
    assert send_order(run_dir, PAUSE_PATH, {}, timeout_s=LIMIT_S) == DONE
    assert orders.given[-1] == {}


@pytest.mark.parametrize(
    ("request_line", "answered"),
    [
        ("GET /pause", ("405 Method Not Allowed", "Allow: POST")),
        ("HEAD /pause?note=x", ("405 Method Not Allowed", "Allow: POST")),
        ("PUT /pause", ("405 Method Not Allowed", "Allow: POST")),
        ("POST /status", ("405 Method Not Allowed", "Allow: GET, HEAD")),
        ("DELETE /nowhere", ("405 Method Not Allowed", "Allow: GET, HEAD")),
        ("POST /nowhere", ("404 Not Found", "")),
        ("POST /pause/", ("404 Not Found", "")),
        ("POST /pause?" + "a=1&" * 20, ("400 Bad Request", "")),
        ("POST /pause?" + "a" * 20_000, ("", "")),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_reading_is_get_and_ordering_is_post_and_neither_is_the_other(
    served: tuple[Path, Orders], request_line: str, answered: tuple[str, str]
):
    run_dir, orders = served
    before = len(orders.given)
    answer = send(run_dir, f"{request_line} HTTP/1.0\r\n\r\n".encode())
    assert all(part in answer for part in answered)
    assert "200 OK" not in answer
    assert len(orders.given) == before


@pytest.mark.parametrize("header", ["Content-Length: 1000000000", "Content-Length: x", "Transfer-Encoding: chunked"])
def test_an_order_with_a_body_is_refused_unread(served: tuple[Path, Orders], header: str):
    run_dir, orders = served
    before = len(orders.given)
    assert " 413 " in send(run_dir, f"POST /pause HTTP/1.0\r\n{header}\r\n\r\n".encode())
    assert len(orders.given) == before


def test_orders_that_take_long_and_peers_that_say_nothing_keep_nobody_from_asking_or_ordering():
    orders = Orders()
    orders.release.clear()
    with serve(orders.pause) as run_dir, contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(connect(run_dir)) for _ in range(MAX_ORDERS)]
        for connection in waiting:
            connection.sendall(b"POST /pause HTTP/1.0\r\n\r\n")
            assert orders.begun.acquire(timeout=LIMIT_S)
        for number in range(200):
            silent = stack.enter_context(connect(run_dir))
            silent.sendall(b"POST /pau" if number % 2 else b"GET /sta")
        assert load_status(run_dir, timeout_s=LIMIT_S) == STATUS
        with pytest.raises(HostError, match="too many are asking nvdp already; try again"):
            send_order(run_dir, PAUSE_PATH, {}, timeout_s=LIMIT_S)
        orders.release.set()
        assert all(connection.recv(100).startswith(b"HTTP/1.0 200") for connection in waiting)
        assert send_order(run_dir, PAUSE_PATH, {}, timeout_s=LIMIT_S) == DONE
    assert len(orders.given) == MAX_ORDERS + 1


def test_an_order_is_carried_out_also_if_the_one_who_gave_it_does_not_wait():
    orders = Orders()
    orders.release.clear()
    with serve(orders.pause) as run_dir:
        with pytest.raises(HostError, match="nvdp runs, and does not get to an answer"):
            send_order(run_dir, PAUSE_PATH, {}, timeout_s=0.2)
        assert orders.begun.acquire(timeout=LIMIT_S)
        orders.release.set()
        assert load_status(run_dir, timeout_s=LIMIT_S) == STATUS


def test_a_daemon_that_is_not_there_is_told_apart_from_one_that_cannot_be_asked(tmp_path: Path):
    run_dir = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    try:
        with pytest.raises(AbsentError, match="no nvdp runs here"):
            send_order(run_dir, PAUSE_PATH, {}, timeout_s=LIMIT_S)
        open_socket(run_dir / SOCKET_NAME)[0].close()
        with pytest.raises(AbsentError, match="nvdp has ended"):
            send_order(run_dir, PAUSE_PATH, {}, timeout_s=LIMIT_S)
    finally:
        shutil.rmtree(run_dir)
    with pytest.raises(HostError, match="see --run-dir") as caught:
        send_order(tmp_path / ("d" * 100), PAUSE_PATH, {}, timeout_s=LIMIT_S)
    assert not isinstance(caught.value, AbsentError)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Response(body=b'{"done": true}'), "no nvdp of this version answers there; run the nvdp that is in"),
        (Response(status=400, body=b"?"), "no nvdp of this version answers there; .*400 Bad Request"),
        (Response(status=404, body=b"?"), "no nvdp of this version answers there; .*404 Not Found"),
        (Response(status=503, body=b"?"), "too many are asking nvdp already; try again .503 Service Unavailable"),
    ],
)
def test_an_answer_that_is_none_is_one_line_with_what_to_do(answer: Response, told: str):
    with serve(lambda _query: answer) as run_dir, pytest.raises(HostError, match=told) as caught:
        send_order(run_dir, PAUSE_PATH, {}, timeout_s=LIMIT_S)
    assert "\n" not in str(caught.value)
