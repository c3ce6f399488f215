"""What the API server answers, as values and errors: JSON objects, and failures in one line for a person."""

from __future__ import annotations

import http.client
import re
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import msgspec

from nvdp.errors import ClusterError, ClusterFault
from nvdp.model.cluster import ObjectPath

RETRY_AFTER_MOST_S: Final = 120.0
_MESSAGE_LIMIT: Final = 240  # characters of the server's own text
_FAULTS: Final = {
    401: ClusterFault.DENIED,
    403: ClusterFault.DENIED,
    404: ClusterFault.MISSING,
    409: ClusterFault.CONFLICT,
    410: ClusterFault.GONE,
    429: ClusterFault.THROTTLED,
}
_SERVER_ERROR: Final = 500
_REFUSALS: Final = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY})
_ADMISSION: Final = re.compile(r"denied (the )?request")  # of a webhook and of a policy; RBAC says what one cannot do


class Attempt(msgspec.Struct, frozen=True):
    """What was tried, in the words of the API: a verb and the object."""

    verb: str
    path: ObjectPath

    @property
    def resource(self) -> str:
        """``nodes/status``, as roles and metrics name it."""
        return f"{self.path.resource}/{self.path.subresource}" if self.path.subresource else self.path.resource

    def __str__(self) -> str:
        part = f" ({self.path.subresource})" if self.path.subresource else ""
        return f"{self.verb} {self.path}{part}"


def parse_object(body: bytes, attempt: Attempt) -> dict[str, Any]:
    """The JSON object of an answer. Raises ClusterError (UNREACHABLE): whoever sends this is no API server."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise build_nonsense(attempt) from error
    if not isinstance(found, dict):
        raise build_nonsense(attempt)
    return found


def build_refusal(
    attempt: Attempt, status: int, body: bytes, *, retry_after: str, hide: Callable[[str], str]
) -> ClusterError:
    """The error that an answer other than 2xx stands for. ``retry_after`` is the header of that name; ``hide`` takes
    out of the server's text what is nobody's business.
    """
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        told = None
    message = str(told.get("message", "")) if isinstance(told, dict) else ""
    return build_fault(attempt, status, hide(message), retry_after_s=parse_retry_after(retry_after))


def build_fault(attempt: Attempt, status: int, message: str, *, retry_after_s: float | None) -> ClusterError:
    """The same for a status that came by whatever way."""
    fault = _FAULTS.get(status)
    if fault is None:
        fault = ClusterFault.FAILED if status >= _SERVER_ERROR else ClusterFault.REFUSED
    said = _shorten(message)
    text = f"{attempt}: {_say(attempt, status, said)}" + (f": {said}" if said else "")
    return ClusterError(text, fault=fault, retry_after_s=retry_after_s)


def build_failure(attempt: Attempt, server: str, error: Exception) -> ClusterError:
    """No answer, or none that is HTTP."""
    text = f"{attempt}: the API server at {server} cannot be reached: {_describe(error)}"
    return ClusterError(text, fault=ClusterFault.UNREACHABLE)


def parse_retry_after(text: str) -> float | None:
    """Seconds, at most two minutes of them; None for anything else, a date too."""
    text = text.strip()
    if not text.isascii() or not text.isdecimal():
        return None
    return RETRY_AFTER_MOST_S if len(text) > len("999") else min(RETRY_AFTER_MOST_S, float(text))


def _say(attempt: Attempt, status: int, said: str) -> str:
    if status in _REFUSALS and _ADMISSION.search(said):
        return f"an admission rule of the cluster refuses it ({status})"
    if status == HTTPStatus.UNAUTHORIZED:
        return "the API server does not know our credentials (401)"
    if status == HTTPStatus.FORBIDDEN:
        return f"not allowed (403): needs the right to {attempt.verb} {attempt.resource}, which nvdp's manifests grant"
    try:
        name = HTTPStatus(status).phrase
    except ValueError:
        name = "unknown"
    return f"the API server answers {status} ({name})"


def _describe(error: Exception) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            told = f"its certificate is not to be trusted ({_shorten(error.verify_message)})"
        case ssl.SSLError():
            told = f"TLS fails ({_shorten(error.reason or 'broken off')})"
        case http.client.RemoteDisconnected():
            told = "it closed the connection"
        case http.client.HTTPException():
            told = f"its answer is no HTTP ({type(error).__name__})"
        case OSError():
            told = _shorten(error.strerror or str(error) or type(error).__name__)
        case _:
            told = type(error).__name__
    return told


def build_nonsense(attempt: Attempt) -> ClusterError:
    """JSON, or something else, that no API server sends."""
    return ClusterError(f"{attempt}: the answer is no JSON object of an API server", fault=ClusterFault.UNREACHABLE)


def _shorten(text: str) -> str:
    shown = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _MESSAGE_LIMIT]).split())
    return shown if len(shown) <= _MESSAGE_LIMIT else f"{shown[:_MESSAGE_LIMIT]}…"
