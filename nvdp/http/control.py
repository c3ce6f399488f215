"""The control socket, from its user's side: where it is, what it is asked, and how an answer becomes a value again.

Whoever may open the socket is root on this node. The answers are for nvdp itself, of the same version: what people and
programs may rely on is what ``nvdp status --json`` makes of them.
"""

from __future__ import annotations

import http.client
import socket
import time
from pathlib import Path
from typing import Final

import msgspec

from nvdp.errors import HostError
from nvdp.http.routes import Response
from nvdp.model.status import Status

SOCKET_NAME: Final = "control.sock"
STATUS_PATH: Final = "/status"
_ANSWER_LIMIT_BYTES: Final = 64 * 2**20  # 8,000 holders make 2 MiB
_CHUNK_BYTES: Final = 2**18
_FAILURES: Final = (
    (FileNotFoundError, "no nvdp runs here, or its --run-dir is another one; look at its pod and its log"),
    (ConnectionRefusedError, "nvdp has ended; the log of its pod says why (kubectl logs --previous)"),
    (PermissionError, "only the user that nvdp runs as may ask, which is root"),
    (TimeoutError, "nvdp runs, and does not get to an answer; look at its log and at /healthz"),
    (BlockingIOError, "too many are asking nvdp already; try again"),
    (http.client.RemoteDisconnected, "it hung up: nvdp is ending, or only another user may ask, which is root"),
    (http.client.HTTPException, "what listens there is not nvdp"),
)


def build_status_response(status: Status) -> Response:
    """What the daemon answers: the whole of its state."""
    return Response(body=msgspec.json.encode(status))


def load_status(run_dir: Path, *, timeout_s: float) -> Status:
    """The state of the daemon whose control socket is in ``run_dir``.

    Blocks for at most ``timeout_s``. Raises HostError, in one line with what to do, if there is no daemon, if it may
    not be asked, or if what it answers is not a state.
    """
    path = run_dir / SOCKET_NAME
    answer = _ask(path, STATUS_PATH, timeout_s=timeout_s)
    try:
        return msgspec.json.decode(answer, type=Status)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HostError(
            f"{path}: the answer is not the state of an nvdp of this version ({error}); "
            "run the nvdp that is in the daemon's own container"
        ) from error


def _ask(path: Path, request: str, *, timeout_s: float) -> bytes:
    """The body of an answer. Raises HostError."""
    deadline = time.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            return _converse(connection, request, deadline=deadline)
    except (OSError, http.client.HTTPException) as error:
        why = next((text for kind, text in _FAILURES if isinstance(error, kind)), "cannot be asked; see --run-dir")
        raise HostError(f"{path}: {why} ({getattr(error, 'strerror', None) or error})") from error


def _converse(connection: socket.socket, request: str, *, deadline: float) -> bytes:
    """Raises OSError, HTTPException, and HostError for an answer that is too large or no success."""
    conversation = http.client.HTTPConnection("nvdp")
    conversation.sock = connection
    conversation.request("GET", request, headers={"Connection": "close"})
    with conversation.getresponse() as response:
        body = bytearray()
        while True:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = response.read(_CHUNK_BYTES)
            body += chunk
            if not chunk:
                break
            if len(body) > _ANSWER_LIMIT_BYTES:
                raise http.client.HTTPException(f"more than {_ANSWER_LIMIT_BYTES} bytes")
        if response.status != http.client.OK:
            raise http.client.HTTPException(f"{response.status} {response.reason}")
        return bytes(body)
