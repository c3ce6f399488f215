"""One connection: requests are routed, let in or refused, and answered; watches are streamed."""

from __future__ import annotations

import contextlib
import re
import ssl
import time
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from tests.cluster.server.faults import BrokenError
from tests.cluster.server.patches import PatchError, patch
from tests.cluster.server.roles import Wish
from tests.cluster.server.store import Kind, RefusedError

if TYPE_CHECKING:
    from tests.cluster.server.server import ApiServer

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<part>[^/]+))?)?"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_GONE = (ConnectionError, ssl.SSLError, TimeoutError, ValueError)  # a client that went; ValueError: a closed file


class Call(NamedTuple):
    """A request as far as it is understood."""

    wish: Wish
    kind: Kind
    query: dict[str, str]
    body: Any

    @property
    def resource(self) -> str:
        return f"{self.wish.resource}/{self.wish.subresource}" if self.wish.subresource else self.wish.resource


class Admission(NamedTuple):
    """A write that is about to be done, for the hook that may refuse it. ``old`` is None for a create."""

    user: str
    wish: Wish
    old: dict[str, Any] | None
    new: dict[str, Any]


class Handler(BaseHTTPRequestHandler):
    """Runs on a thread of its connection."""

    protocol_version = "HTTP/1.1"
    owner: ApiServer
    number = 0
    cut_at = float("inf")
    first_error: tuple[int, str] | None = None

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the names are the base's

    def log_message(self, *_: object) -> None:
        pass

    def send_head(self, code: int, *, length: int | None, retry_after: str = "") -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        if length is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(length))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()

    def send_bytes(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()

    def _serve(self) -> None:
        self.cut_at, self.first_error = float("inf"), None
        length = int(self.headers.get("Content-Length", 0))
        content = self.rfile.read(length)
        wish, user, self._noted = Wish("", "", self.path, "", "", ""), "", False
        try:
            call = self._parse(content)
            wish = call.wish
            action = self.owner.faults.take(verb=wish.verb, resource=call.resource, name=wish.name)
            if action is not None:
                action(self)
            user = self._authenticate()
            self._authorize(user, call)
            if wish.verb == "watch":
                self._watch(user, call)
            else:
                with self.owner.journal.under_way():
                    code, body = self._carry_out(user, call)
                    self._note(wish, user, code)
                self._answer(wish, user, code, body)
        except RefusedError as refused:
            if self._noted:  # in the middle of a stream
                self.close_connection = True
                return
            status = _build_status(refused.code, refused.reason, refused.message)
            self._answer(wish, user, refused.code, status, retry_after=refused.retry_after)
        except BrokenError as broken:
            self.close_connection = True
            self._note(wish, user, broken.code)
        except _GONE:
            self.close_connection = True
            self._note(wish, user, 0)

    def _parse(self, content: bytes) -> Call:
        parts = urlsplit(self.path)
        found = _PATH.fullmatch(parts.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        if found is None:
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        group, namespace, name, part = (unquote(found[key] or "") for key in ("group", "namespace", "name", "part"))
        kind = self.owner.store.kinds.get((group, found["version"], found["resource"]))
        verb = _VERBS.get(self.command) or ("get" if name else "watch" if query.get("watch") == "true" else "list")
        if verb in {"watch", "list"}:
            name = query.get("fieldSelector", "").removeprefix("metadata.name=")
        wish = Wish(verb, group, found["resource"], part, namespace, name)
        if kind is None or (part and part not in kind.subresources) or (namespace and not kind.is_namespaced):
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        try:
            body = msgspec.json.decode(content) if content else None
        except msgspec.DecodeError as error:
            raise RefusedError(400, "BadRequest", str(error)) from error
        return Call(wish, kind, query, body)

    def _authenticate(self) -> str:
        if isinstance(self.connection, ssl.SSLSocket) and self.connection.getpeercert():
            return self.owner.certified
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        user = self.owner.tokens.get(token) if kind == "Bearer" else None
        if user is None:
            raise RefusedError(401, "Unauthorized", "Unauthorized")
        return user

    def _authorize(self, user: str, call: Call) -> None:
        wish, roles = call.wish, self.owner.roles
        if roles is None or roles.allow(user, wish if wish.verb != "create" else wish._replace(name="")):
            return
        where = f'in the namespace "{wish.namespace}"' if wish.namespace else "at the cluster scope"
        text = f'User "{user}" cannot {wish.verb} resource "{call.resource}" in API group "{wish.group}" {where}'
        raise RefusedError(403, "Forbidden", f'{wish.resource} "{wish.name}" is forbidden: {text}')

    def _carry_out(self, user: str, call: Call) -> tuple[int, dict[str, Any]]:
        store, wish, kind = self.owner.store, call.wish, call.kind
        if wish.verb == "get":
            return 200, store.read(kind, wish.namespace, wish.name)
        if wish.verb == "list":
            items = store.list(wish.resource, namespace=wish.namespace, name=wish.name)
            return 200, {
                "kind": f"{kind.kind}List",
                "metadata": {"resourceVersion": str(store.version)},
                "items": items,
            }
        if wish.verb == "create":
            name = call.body.get("metadata", {}).get("name", "")
            self._admit(Admission(user, wish._replace(name=name), None, call.body))
            return 201, store.create(kind, wish.namespace, call.body)
        if wish.verb == "delete":
            return 200, store.delete(kind, wish.namespace, wish.name)

        def change(old: dict[str, Any]) -> dict[str, Any]:
            new = call.body if wish.verb == "update" else self._patch(old, call.body)
            self._admit(Admission(user, wish, old, new))
            return new

        return 200, store.update(kind, wish.namespace, wish.name, change, part=wish.subresource)[1]

    def _patch(self, old: dict[str, Any], body: Any) -> dict[str, Any]:
        kind = self.headers.get("Content-Type", "")
        try:
            return patch(kind, old, body)
        except KeyError as error:
            raise RefusedError(
                415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {kind}"
            ) from error
        except PatchError as error:
            raise RefusedError(422, "Invalid", f"the server rejected our request: {error}") from error

    def _admit(self, admission: Admission) -> None:
        refusal = self.owner.admit(admission)
        if refusal:
            raise RefusedError(
                403, "Forbidden", f'{admission.wish.resource} "{admission.wish.name}" is forbidden: {refusal}'
            )

    def _watch(self, user: str, call: Call) -> None:
        store, wish, asked = self.owner.store, call.wish, call.query.get("resourceVersion", "")
        version = store.version
        initial = []
        if asked in {"", "0"}:
            found = store.list(wish.resource, namespace=wish.namespace, name=wish.name)
            initial = [{"type": "ADDED", "object": one} for one in found]
        else:
            version = int(asked)
            store.wait_changes(version, wish.resource, 0)  # 410 as the answer, where it is too old already
        generation = self.owner.generation
        self._note(wish, user, 200)
        self.send_head(200, length=None)
        if self.first_error is not None:
            code, message = self.first_error
            initial = [{"type": "ERROR", "object": _build_status(code, "Ordered", message)}]
        ends_at = time.monotonic() + min(float(call.query.get("timeoutSeconds", 1800)), self.owner.watch_limit_s)
        for event in initial:
            self._send_event(event)
        while self.first_error is None and time.monotonic() < ends_at and generation == self.owner.generation:
            if self.owner.is_stopping or time.monotonic() >= self.cut_at or not self._is_heard():
                raise BrokenError
            try:
                changes, version, is_due = store.wait_changes(version, wish.resource, 0.1)
            except RefusedError as refused:
                status = _build_status(refused.code, refused.reason, refused.message)
                self._send_event({"type": "ERROR", "object": status})
                break
            for change in changes:
                metadata = change.object["metadata"]
                if wish.name in {"", metadata["name"]} and wish.namespace in {"", metadata.get("namespace", "")}:
                    self._send_event({"type": change.kind, "object": change.object})
            if is_due and call.query.get("allowWatchBookmarks") == "true":
                metadata = {"resourceVersion": str(version), "creationTimestamp": None}
                self._send_event({"type": "BOOKMARK", "object": {"kind": call.kind.kind, "metadata": metadata}})
        self.send_bytes(b"0\r\n\r\n")

    def _send_event(self, event: dict[str, Any]) -> None:
        line = msgspec.json.encode(event) + b"\n"
        self.send_bytes(b"%x\r\n%s\r\n" % (len(line), line))

    def _is_heard(self) -> bool:
        """Whether the client is still there."""
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            self.connection.settimeout(0)
            try:
                return bool(self.connection.recv(1))
            finally:
                self.connection.settimeout(None)
        return True

    def _answer(self, wish: Wish, user: str, code: int, body: dict[str, Any], *, retry_after: str = "") -> None:
        content = msgspec.json.encode(body)
        self._note(wish, user, code)
        self.send_head(code, length=len(content), retry_after=retry_after)
        self.send_bytes(content)

    def _note(self, wish: Wish, user: str, code: int) -> None:
        if self._noted:
            return
        self._noted = True
        self.owner.journal.add(
            verb=wish.verb,
            resource=f"{wish.resource}/{wish.subresource}" if wish.subresource else wish.resource,
            namespace=wish.namespace,
            name=wish.name,
            code=code,
            user=user,
            agent=self.headers.get("User-Agent", ""),
            version=parse_qs(urlsplit(self.path).query).get("resourceVersion", [""])[-1],
            connection=self.number,
        )


def _build_status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
