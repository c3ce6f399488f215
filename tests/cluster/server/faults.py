"""What goes wrong on demand, request by request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tests.cluster.server.store import RefusedError

if TYPE_CHECKING:
    from tests.cluster.server.handler import Handler

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"

Action = Callable[["Handler"], None]


class BrokenError(Exception):
    """The connection is to end here, without a word. ``code`` is what was sent of an answer before that, else 0."""

    def __init__(self, code: int = 0) -> None:
        super().__init__()
        self.code = code


class _Fault(NamedTuple):
    action: Action
    verb: str
    resource: str
    name: str


class Faults:
    """Faults that wait for the requests they concern. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[_Fault, float]] = []

    def add(
        self, action: Action, *, verb: str = "", resource: str = "", name: str = "", times: float = float("inf")
    ) -> None:
        """Empty words are any. ``resource`` has its subresource."""
        with self._lock:
            self._waiting.append((_Fault(action, verb, resource, name), times))

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()

    def take(self, *, verb: str, resource: str, name: str) -> Action | None:
        with self._lock:
            for index, (fault, times) in enumerate(self._waiting):
                if fault.verb in {"", verb} and fault.resource in {"", resource} and fault.name in {"", name}:
                    self._waiting[index : index + 1] = [(fault, times - 1)] if times > 1 else []
                    return fault.action
        return None


def answer(code: int, message: str = "as ordered", *, retry_after: str = "", reason: str = "Ordered") -> Action:
    """A Status of this code."""

    def act(_: Handler) -> None:
        raise RefusedError(code, reason, message, retry_after=retry_after)

    return act


def drop() -> Action:
    """The connection ends without an answer."""

    def act(_: Handler) -> None:
        raise BrokenError

    return act


def hang(release: threading.Event) -> Action:
    """No answer until ``release`` is set, and none then; the connection stays."""

    def act(handler: Handler) -> None:
        while not release.wait(0.05) and not handler.owner.is_stopping:
            pass
        raise BrokenError

    return act


def garbage(body: bytes, *, raw: bool = False, code: int = 200) -> Action:
    """An answer with this body; ``raw``: these are the very bytes on the wire, without a head."""

    def act(handler: Handler) -> None:
        if not raw:
            handler.send_head(code, length=len(body))
        handler.send_bytes(body)
        raise BrokenError(0 if raw else code)

    return act


def slow(
    chunk: bytes, *, every_s: float, head: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
) -> Action:
    """``head``, and then this piece of a body again and again."""

    def act(handler: Handler) -> None:
        handler.send_bytes(head)
        while not handler.owner.is_stopping:
            handler.send_bytes(chunk)
            time.sleep(every_s)
        raise BrokenError

    return act


def cut_after(seconds: float) -> Action:
    """A watch is served, and its connection ends after this time."""

    def act(handler: Handler) -> None:
        handler.cut_at = time.monotonic() + seconds

    return act


def stream_error(code: int, message: str = "as ordered") -> Action:
    """A watch begins, and its first event is this error."""

    def act(handler: Handler) -> None:
        handler.first_error = (code, message)

    return act
