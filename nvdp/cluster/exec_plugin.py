"""Credentials from a program that a kubeconfig names (``exec``), as client.authentication.k8s.io describes it."""

from __future__ import annotations

import base64
import os
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from nvdp.errors import ClusterError, ClusterFault, quote

_LIMIT_S: Final = 8.0
_EARLY_S: Final = 10.0  # a token is not used in its last seconds
_KIND: Final = "ExecCredential"


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """``expires_at`` is seconds since the epoch, infinite if the program does not say. ``certificate`` is in the form
    of a kubeconfig's user.
    """

    token: str
    certificate: dict[str, Any] | None
    expires_at: float


def run_plugin(plugin: dict[str, Any], *, directory: Path) -> Credential:
    """Run it, without a terminal. Blocks for 8 s at most; raises ClusterError (UNREACHABLE)."""
    command = str(plugin.get("command", ""))
    program = str(directory / command) if "/" in command else command
    about = {"apiVersion": str(plugin.get("apiVersion", "")), "kind": _KIND, "spec": {"interactive": False}}
    try:
        arguments = [program, *map(str, plugin.get("args") or [])]
        variables = {str(one["name"]): str(one["value"]) for one in plugin.get("env") or []}
        done = subprocess.run(  # noqa: S603 - the file that says so belongs to whoever runs us
            arguments,
            env={**os.environ, **variables, "KUBERNETES_EXEC_INFO": msgspec.json.encode(about).decode()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except OSError as error:
        raise _refuse(command, error.strerror or "cannot be run") from error
    except (TypeError, KeyError, ValueError) as error:
        raise _refuse(command, "its args and env are not as they should be") from error
    except subprocess.TimeoutExpired as error:
        raise _refuse(command, f"did not end within {_LIMIT_S:.0f} s") from error
    if done.returncode:
        raise _refuse(command, f"failed with {done.returncode}")
    return _parse(done.stdout, command)


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
