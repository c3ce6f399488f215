"""Credentials from a program that a kubeconfig names (``exec``), as client.authentication.k8s.io describes it."""

from __future__ import annotations

import base64
import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from nvdp.errors import ClusterError, ClusterFault, quote

_LIMIT_S: Final = 8.0
_OUTPUT_LIMIT: Final = 2**18  # bytes: a token and two certificates
_EARLY_S: Final = 10.0  # a token is not used in its last seconds
_KIND: Final = "ExecCredential"


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """``expires_at`` is seconds since the epoch, infinite if the program does not say. ``certificate`` is in the form
    of a kubeconfig's user.
    """

    token: str
    certificate: dict[str, Any] | None
    expires_at: float


def run_plugin(plugin: dict[str, Any], *, directory: Path, limit_s: float = _LIMIT_S) -> Credential:
    """Run it, without a terminal. Blocks for ``limit_s`` at most; raises ClusterError (UNREACHABLE)."""
    command = str(plugin.get("command", ""))
    program = str(directory / command) if "/" in command else command
    about = {"apiVersion": str(plugin.get("apiVersion", "")), "kind": _KIND, "spec": {"interactive": False}}
    try:
        arguments = [program, *map(str, plugin.get("args") or [])]
        variables = {str(one["name"]): str(one["value"]) for one in plugin.get("env") or []}
        environment = {**os.environ, **variables, "KUBERNETES_EXEC_INFO": msgspec.json.encode(about).decode()}
        code, output = _run(arguments, environment, limit_s=limit_s)
    except OSError as error:
        raise _refuse(command, error.strerror or "cannot be run") from error
    except (TypeError, KeyError, ValueError) as error:
        raise _refuse(command, "its args and env are not as they should be") from error
    if code is None:
        raise _refuse(command, f"did not end within {limit_s:g} s, or wrote too much")
    if code:
        raise _refuse(command, f"failed with {code}")
    return _parse(output, command)


def _run(arguments: Sequence[str], environment: Mapping[str, str], *, limit_s: float) -> tuple[int | None, bytes]:
    """Its exit code and what it wrote. One that takes too long, or writes too much, has none: it is killed, with all
    that it started.
    """
    ends_at = time.monotonic() + limit_s
    with subprocess.Popen(  # noqa: S603 - the file that says so belongs to whoever runs us
        arguments,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            output = _read(process.stdout.fileno(), ends_at=ends_at)
            if output is not None:
                return process.wait(max(0.0, ends_at - time.monotonic())), output
        except subprocess.TimeoutExpired:
            return None, b""
        finally:
            if process.returncode is None:  # not waited for: the number is still its own
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    return None, b""


def _read(descriptor: int, *, ends_at: float) -> bytes | None:
    """All until the end; None if that does not come in time, or after too much."""
    output = bytearray()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while poll.poll(max(0.0, ends_at - time.monotonic()) * 1000):
        chunk = os.read(descriptor, 65536)
        if not chunk:
            return bytes(output)
        output += chunk
        if len(output) > _OUTPUT_LIMIT:
            return None
    return None


def _parse(output: bytes, command: str) -> Credential:
    """What it wrote is a secret: nothing of it is told."""
    try:
        status = msgspec.json.decode(output)["status"]
        expires = status.get("expirationTimestamp")
        pem, key = status.get("clientCertificateData"), status.get("clientKeyData")
        pair = {"client-certificate-data": _encode(pem), "client-key-data": _encode(key)} if pem and key else None
        return Credential(
            token=str(status.get("token") or ""),
            certificate=pair,
            expires_at=datetime.fromisoformat(expires).timestamp() - _EARLY_S if expires else float("inf"),
        )
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise _refuse(command, "wrote no ExecCredential") from error


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _refuse(command: str, text: str) -> ClusterError:
    return ClusterError(f"exec {quote(command)}: {text}", fault=ClusterFault.UNREACHABLE)
