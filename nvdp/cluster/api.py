"""Requests to the API server, as plain JSON: typed models of Kubernetes would cost more memory than all of nvdp."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from nvdp import __version__
from nvdp.cluster.access import Access, Way
from nvdp.cluster.answers import Attempt, build_failure, build_refusal, parse_object
from nvdp.cluster.transport import FAILURES, Connection, Kept, Request
from nvdp.cluster.watch import Watch
from nvdp.errors import ClusterError
from nvdp.model.cluster import ObjectPath

LIMIT_S: Final = 10.0
_WATCH_S: Final = (3000, 3900)
_USER_AGENT: Final = f"nvdp/{__version__}"
_JSON: Final = "application/json"
_MERGE: Final = "application/merge-patch+json"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
_SUCCESS: Final = range(200, 300)
_UNKNOWN: Final = 401

Count = Callable[[str, str, str], None]


class Api:
    """Any thread, and several at once. A call blocks for 10 s at most, and raises ClusterError if it was not done.

    Nothing is tried again, but for credentials that were renewed: those are read, and used at once. ``count`` hears of
    each request: verb, resource, and the HTTP status, or ``unreachable``.
    """

    def __init__(
        self,
        access: Access,
        *,
        count: Count = lambda _verb, _resource, _code: None,
        random: Random | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._access = access
        self._count = count
        self._random = random or Random()  # noqa: S311 - spreads requests
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._kept = Kept()

    def read(self, path: ObjectPath) -> dict[str, Any]:
        return self._ask(Attempt("get", path), "GET", path.url)

    def create(self, path: ObjectPath, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make the object, which the body names."""
        return self._ask(Attempt("create", path), "POST", path.collection, body=body)

    def replace(self, path: ObjectPath, body: Mapping[str, Any]) -> dict[str, Any]:
        """Put the body in its place. CONFLICT if the body's ``resourceVersion`` is not the newest."""
        return self._ask(Attempt("update", path), "PUT", path.url, body=body)

    def patch(
        self, path: ObjectPath, body: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, strategic: bool = False
    ) -> dict[str, Any]:
        """Change what the body names: a mapping is merged, a sequence are the steps of a JSON patch.

        With ``strategic`` a mapping's lists are merged by their keys, as a Node's conditions are, and not replaced.
        """
        merge = _STRATEGIC if strategic else _MERGE
        kind = merge if isinstance(body, Mapping) else _JSON_PATCH
        return self._ask(Attempt("patch", path), "PATCH", path.url, body=body, kind=kind)

    def delete(self, path: ObjectPath) -> None:
        self._ask(Attempt("delete", path), "DELETE", path.url)

    def watch(self, path: ObjectPath, *, version: str = "") -> Watch:
        """Follow one object: all changes after ``version``; without one its present state, and then its changes.

        The server ends it after about an hour. GONE, from here or out of the watch: the version is too old.
        """
        attempt = Attempt("watch", path)
        seconds = self._random.randint(*_WATCH_S)
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={path.name}",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        if version:
            query["resourceVersion"] = version
        request = self._build_request("GET", f"{_escape(path.collection)}?{urlencode(query)}")
        connection = self._open(attempt, request)
        return Watch(connection, attempt, ends_at=time.monotonic() + seconds + self._limit_s)

    def close(self) -> None:
        """Close what is kept open. Watches go on."""
        with self._lock:
            self._kept.close()

    def _ask(
        self, attempt: Attempt, method: str, url: str, *, body: object = None, kind: str = _JSON
    ) -> dict[str, Any]:
        request = self._build_request(method, _escape(url), body=body, kind=kind)
        connection = self._open(attempt, request)
        return parse_object(self._read(connection, attempt), attempt)

    def _open(self, attempt: Attempt, request: Request) -> Connection:
        """Send a request; an answer of success is ready to be read then."""
        deadline = time.monotonic() + self._limit_s
        connection, response = self._send(attempt, request, deadline=deadline)
        if response.status == _UNKNOWN and self._renew():
            connection.close()
            connection, response = self._send(attempt, request, deadline=deadline)
        if response.status in _SUCCESS:
            return connection
        retry_after = response.headers.get("Retry-After", "")
        body = self._read(connection, attempt)
        raise build_refusal(attempt, response.status, body, retry_after=retry_after, hide=connection.way.hide_secret)

    def _renew(self) -> bool:
        try:
            return self._access.renew()
        except ClusterError:
            return False  # the server's answer says more

    def _send(
        self, attempt: Attempt, request: Request, *, deadline: float
    ) -> tuple[Connection, http.client.HTTPResponse]:
        try:
            way = self._access.find_way()
        except ClusterError:
            self._count(attempt.verb, attempt.resource, "unreachable")
            raise
        if way.authorization:
            request = msgspec.structs.replace(request, headers={**request.headers, "Authorization": way.authorization})
        connection: Connection | None = None
        try:
            connection, response = self._exchange(way, request, deadline=deadline)
        except FAILURES as error:
            self._count(attempt.verb, attempt.resource, "unreachable")
            raise build_failure(attempt, f"{way.host}:{way.port}", error) from error
        self._count(attempt.verb, attempt.resource, str(response.status))
        return connection, response

    def _exchange(self, way: Way, request: Request, *, deadline: float) -> tuple[Connection, http.client.HTTPResponse]:
        with self._lock:
            kept = self._kept.take(way)
        connection = kept or Connection(way, deadline=deadline)
        try:
            return connection, connection.send(request, deadline=deadline)
        except BaseException:
            connection.close()
            raise

    def _read(self, connection: Connection, attempt: Attempt) -> bytes:
        """The body of an answer; the connection is kept for the next request, or closed."""
        try:
            body = connection.read_body()
        except FAILURES as error:
            connection.close()
            raise build_failure(attempt, f"{connection.way.host}:{connection.way.port}", error) from error
        with self._lock:
            self._kept.keep(connection)
        return body

    def _build_request(self, method: str, path: str, *, body: object = None, kind: str = _JSON) -> Request:
        headers = {"Accept": _JSON, "User-Agent": _USER_AGENT}
        if body is None:
            return Request(method=method, path=path, headers=headers)
        return Request(
            method=method, path=path, headers={**headers, "Content-Type": kind}, body=msgspec.json.encode(body)
        )


def _escape(url: str) -> str:
    return quote(url, safe="/:")
