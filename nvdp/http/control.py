"""The control socket, from the side of a command that asks or orders.

The answers are for nvdp itself, of the same version: what people and programs may rely on is what
``nvdp status --json`` makes of them.
"""

from __future__ import annotations

import http.client
import socket
import struct
import time
import urllib.parse
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from nvdp.errors import HostError, quote
from nvdp.http.control_socket import SOCKET_NAME
from nvdp.http.routes import STATUS_PATH, Query
from nvdp.model.orders import Carried
from nvdp.model.status import Status

_ANSWER_LIMIT_BYTES: Final = 64 * 2**20  # 8,000 holders make 2 MiB
_CHUNK_BYTES: Final = 2**18
_LEAST_WAIT_S: Final = 0.001  # none at all would mean not to wait for what is there
_FAILURES: Final = (
    (FileNotFoundError, "no nvdp runs here, or its --run-dir is another one; look at its pod and its log"),
    (ConnectionRefusedError, "nvdp has ended; the log of its pod says why (kubectl logs --previous)"),
    (PermissionError, "only the user that nvdp runs as may ask, which is root"),
    (TimeoutError, "nvdp runs, and does not get to an answer; look at its log and at /healthz"),
    (BlockingIOError, "too many are asking nvdp already; try again"),
    (ConnectionError, "it hung up: nvdp is ending, or only another user may ask, which is root"),
    (http.client.HTTPException, "what listens there is not nvdp"),
)
_ABSENT: Final = (FileNotFoundError, ConnectionRefusedError)
_REFUSALS: Final = {
    HTTPStatus.SERVICE_UNAVAILABLE: "too many are asking nvdp already; try again",
    HTTPStatus.INTERNAL_SERVER_ERROR: "a defect of nvdp; its log has it",
}
_REFUSED_ELSE: Final = "no nvdp of this version answers there; run the nvdp that is in the daemon's own container"

_Answer = TypeVar("_Answer")


class AbsentError(HostError):
    """No daemon is there that could be asked."""


def load_status(run_dir: Path, *, timeout_s: float) -> Status:
    """The state of the daemon whose control socket is in ``run_dir``.

    Blocks for at most ``timeout_s``. Raises HostError, in one line with what to do, if there is no daemon
    (AbsentError), if it may not be asked, or if what it answers is not a state.
    """
    return _ask(run_dir, "GET", STATUS_PATH, timeout_s=timeout_s, answer=Status)


def send_order(run_dir: Path, path: str, query: Query, *, timeout_s: float) -> Carried:
    """What became of an order to that daemon; ``path`` and the keys of ``query`` are of ``http.routes``.

    Blocks and raises as ``load_status`` does. An order whose answer did not come in time may be carried out yet.
    """
    request = f"{path}?{urllib.parse.urlencode(query)}"
    return _ask(run_dir, "POST", request, timeout_s=timeout_s, answer=Carried)


def _ask(run_dir: Path, method: str, request: str, *, timeout_s: float, answer: type[_Answer]) -> _Answer:
    """Raises HostError."""
    path = run_dir / SOCKET_NAME
    body = _exchange(path, method, request, timeout_s=timeout_s)
    try:
        return msgspec.json.decode(body, type=answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HostError(f"{path}: {_REFUSED_ELSE} ({error})") from error


def _exchange(path: Path, method: str, request: str, *, timeout_s: float) -> bytes:
    """The body of an answer. Raises HostError."""
    deadline = time.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            # Where the queue is full the kernel waits for a place in it, but only for a socket that blocks.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _build_timeval(timeout_s))
            connection.connect(str(path))
            status, body = _converse(connection, method, request, deadline=deadline)
    except (OSError, http.client.HTTPException) as error:
        kind = AbsentError if isinstance(error, _ABSENT) else HostError
        why = next((text for what, text in _FAILURES if isinstance(error, what)), "cannot be asked; see --run-dir")
        raise kind(f"{path}: {why} ({getattr(error, 'strerror', None) or quote(str(error))})") from error
    if status is not HTTPStatus.OK:
        raise HostError(f"{path}: {_REFUSALS.get(status, _REFUSED_ELSE)} ({status} {status.phrase})")
    return body


def _build_timeval(seconds: float) -> bytes:
    whole, rest = divmod(seconds, 1)
    return struct.pack("@ll", int(whole), int(rest * 1e6))


def _converse(connection: socket.socket, method: str, request: str, *, deadline: float) -> tuple[HTTPStatus, bytes]:
    """The status of an answer, and its body. Raises OSError, and HTTPException also for what is too large."""
    conversation = http.client.HTTPConnection("nvdp")
    conversation.sock = connection
    connection.settimeout(max(_LEAST_WAIT_S, deadline - time.monotonic()))
    conversation.request(method, request, headers={"Connection": "close"})
    with conversation.getresponse() as response:
        body = bytearray()
        while chunk := response.read1(_CHUNK_BYTES):
            body += chunk
            if len(body) > _ANSWER_LIMIT_BYTES:
                raise http.client.HTTPException(f"more than {_ANSWER_LIMIT_BYTES} bytes")
            connection.settimeout(max(_LEAST_WAIT_S, deadline - time.monotonic()))
        if response.length:
            raise http.client.IncompleteRead(bytes(body), response.length)
        try:
            return HTTPStatus(response.status), bytes(body)
        except ValueError as error:
            raise http.client.HTTPException(f"{response.status} {response.reason}") from error
