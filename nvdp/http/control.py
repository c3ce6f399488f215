"""The control socket, from the side of a command that asks.

The answers are for nvdp itself, of the same version: what people and programs may rely on is what
``nvdp status --json`` makes of them.
"""

from __future__ import annotations

import http.client
import socket
import struct
import time
from pathlib import Path
from typing import Final

import msgspec

from nvdp.errors import HostError, quote
from nvdp.http.control_socket import SOCKET_NAME
from nvdp.http.routes import STATUS_PATH
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
            # Where the queue is full the kernel waits for a place in it, but only for a socket that blocks.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _build_timeval(timeout_s))
            connection.connect(str(path))
            return _converse(connection, request, deadline=deadline)
    except (OSError, http.client.HTTPException) as error:
        why = next((text for kind, text in _FAILURES if isinstance(error, kind)), "cannot be asked; see --run-dir")
        raise HostError(f"{path}: {why} ({getattr(error, 'strerror', None) or quote(str(error))})") from error


def _build_timeval(seconds: float) -> bytes:
    whole, rest = divmod(seconds, 1)
    return struct.pack("@ll", int(whole), int(rest * 1e6))


def _converse(connection: socket.socket, request: str, *, deadline: float) -> bytes:
    """Raises OSError, HTTPException, and HostError for an answer that is too large or no success."""
    conversation = http.client.HTTPConnection("nvdp")
    conversation.sock = connection
    connection.settimeout(max(_LEAST_WAIT_S, deadline - time.monotonic()))
    conversation.request("GET", request, headers={"Connection": "close"})
    with conversation.getresponse() as response:
        body = bytearray()
        while chunk := response.read1(_CHUNK_BYTES):
            body += chunk
            if len(body) > _ANSWER_LIMIT_BYTES:
                raise http.client.HTTPException(f"more than {_ANSWER_LIMIT_BYTES} bytes")
            connection.settimeout(max(_LEAST_WAIT_S, deadline - time.monotonic()))
        if response.length:
            raise http.client.IncompleteRead(bytes(body), response.length)
        if response.status != http.client.OK:
            raise http.client.HTTPException(f"{response.status} {response.reason}")
        return bytes(body)
