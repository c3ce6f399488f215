"""One watch: the events of one object, as the API server sends them, a line of JSON each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final, Self

import msgspec

from nvdp.cluster.answers import Attempt, build_failure, build_fault, build_nonsense, parse_object
from nvdp.cluster.sockets import OverdueError
from nvdp.cluster.transport import BODY_LIMIT, FAILURES, Connection, OversizedError
from nvdp.errors import ClusterError, ClusterFault

_SILENCE_S: Final = 900.0
_EVENT_S: Final = 60.0  # from its first byte to its last: an object of 1 MiB, the largest there is, at 140 kbit/s
_NEVER: Final = float("inf")
_BOOKMARK: Final = "BOOKMARK"
_ERROR: Final = "ERROR"
_KINDS: Final = ("ADDED", "MODIFIED", "DELETED", _BOOKMARK)


class WatchEvent(msgspec.Struct, frozen=True):
    """``kind`` is ADDED, MODIFIED, DELETED or BOOKMARK; of a bookmark's object only its ``resourceVersion`` counts."""

    kind: str
    object: dict[str, Any]


class Watch:
    """Iterates over events until the server ends the watch. Raises ClusterError: the server told an error in place of
    an event (GONE), broke off, fell silent (GONE: a version that it tells nothing of is none to go on from), or sent
    what is none.

    Servers send bookmarks every minute or, old ones, every ten. One that sent some and is silent for longer is not
    there any more: a proxy between us may keep the connection for as long as it likes, and edits would be lost. Nor is
    one that begins an event and does not come to its end within a minute.

    ``has_bookmarks`` is whether the server is known to send them; it may be set by who knows of watches before.

    For one thread, that ``close`` may be called from any.
    """

    def __init__(
        self, connection: Connection, attempt: Attempt, *, ends_at: float, silence_s: float = _SILENCE_S
    ) -> None:
        """``ends_at``, in monotonic seconds: a server that goes on beyond that is left."""
        self._connection = connection
        self._attempt = attempt
        self._ends_at = ends_at
        self._silence_s = silence_s
        self._event_s = _EVENT_S
        self._whole_at = _NEVER  # when the event that has begun is to be there as a whole
        self.has_bookmarks = False
        self._rest = bytearray()
        self._is_over = False
        self._is_closed = False

    def __iter__(self) -> Iterator[WatchEvent]:
        """Blocks between events. Ends, too, when the watch is closed."""
        try:
            for line in self._read_lines():
                yield self._parse(line)
        except FAILURES as error:
            if not self._is_closed:
                way = self._connection.way
                raise build_failure(self._attempt, f"{way.host}:{way.port}", error) from error
        finally:
            self._is_over = True
            self._connection.close()

    def hears_within(self, timeout_s: float) -> bool:
        """Whether something is told, or the watch ends, within ``timeout_s``. Blocks so long; takes nothing away."""
        if self._is_over or self._rest:
            return True
        try:
            is_told = self._connection.hears(deadline=time.monotonic() + timeout_s)
        except FAILURES:
            return True  # reading on says what it is
        if is_told:
            self._note_begun()
        return is_told

    def close(self) -> None:
        """End the watch. Any thread; whoever waits for an event returns at once."""
        self._is_closed = True
        self._connection.break_off()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._connection.close()

    def _read_lines(self) -> Iterator[bytes]:
        while not self._is_closed:
            chunk = self._read_some()
            if not chunk:
                return  # what is left without an end of line is half an event
            start = len(self._rest)
            self._rest += chunk
            while (end := self._rest.find(b"\n", start)) >= 0:
                line = bytes(self._rest[:end]).strip()
                del self._rest[: end + 1]
                start = 0
                self._whole_at = _NEVER
                if line:
                    yield line
            if self._rest:
                self._note_begun()
            if len(self._rest) > BODY_LIMIT:
                raise OversizedError(f"an event of more than {BODY_LIMIT} bytes")

    def _read_some(self) -> bytes:
        silent_at = time.monotonic() + self._silence_s if self.has_bookmarks else _NEVER
        known_at = min(self._ends_at, self._whole_at)
        try:
            return self._connection.read_some(deadline=min(silent_at, known_at))
        except OverdueError as error:
            if known_at <= silent_at:
                raise
            text = f"{self._attempt}: no answer in time: the API server sent bookmarks, and sends none any more"
            raise ClusterError(text, fault=ClusterFault.GONE) from error

    def _note_begun(self) -> None:
        """Some of an event is there: its time runs from now, if it does not yet."""
        self._whole_at = min(self._whole_at, time.monotonic() + self._event_s)

    def _parse(self, line: bytes) -> WatchEvent:
        event = parse_object(line, self._attempt)
        kind, found = event.get("type"), event.get("object")
        if kind == _ERROR and isinstance(found, dict):
            code = found.get("code")
            status = code if isinstance(code, int) else int(HTTPStatus.INTERNAL_SERVER_ERROR)
            message = self._connection.way.hide_secret(str(found.get("message", "")))
            raise build_fault(self._attempt, status, message, retry_after_s=None)
        if not isinstance(kind, str) or kind not in _KINDS or not isinstance(found, dict):
            raise build_nonsense(self._attempt)
        self.has_bookmarks = self.has_bookmarks or kind == _BOOKMARK
        return WatchEvent(kind, found)
