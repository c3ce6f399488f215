"""The objects of a cluster, each change with a version, and whoever waits for changes."""

from __future__ import annotations

import copy
import re
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class Kind(NamedTuple):
    """A kind of object that the server knows."""

    group: str
    version: str
    resource: str
    kind: str
    is_namespaced: bool
    subresources: tuple[str, ...] = ()


KINDS = (
    Kind("", "v1", "nodes", "Node", is_namespaced=False, subresources=("status",)),
    Kind("", "v1", "configmaps", "ConfigMap", is_namespaced=True),
    Kind("", "v1", "pods", "Pod", is_namespaced=True, subresources=("status",)),
    Kind("apps", "v1", "daemonsets", "DaemonSet", is_namespaced=True, subresources=("status",)),
    Kind("events.k8s.io", "v1", "events", "Event", is_namespaced=True),
    Kind("nfd.k8s-sigs.io", "v1alpha1", "nodefeatures", "NodeFeature", is_namespaced=True),
)


class RefusedError(Exception):
    """The server's Status: an HTTP status, the word for it, and a sentence."""

    def __init__(self, code: int, reason: str, message: str, *, retry_after: str = "") -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.retry_after = code, reason, message, retry_after


class Change(NamedTuple):
    version: int
    kind: str
    resource: str
    object: dict[str, Any]


class Store:
    """Any thread. Objects go in and out as copies."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._history: list[Change] = []
        self._version = 1000
        self._oldest = 1000
        self._bookmarked = 0
        self.kinds = {(one.group, one.version, one.resource): one for one in KINDS}

    @property
    def version(self) -> int:
        with self._changed:
            return self._version

    def put(self, resource: str, found: dict[str, Any]) -> dict[str, Any]:
        """Create or replace an object, whatever there is: for tests."""
        kind = self._find_kind(resource)
        name, namespace = found["metadata"]["name"], found["metadata"].get("namespace", "")
        with self._changed:
            old = self._objects.get((resource, namespace, name))
            if old is None:
                return self.create(kind, namespace, found)
            return self._write(kind, namespace, {**found, "metadata": {**_own(old), **found["metadata"]}}, old)

    def edit(
        self, resource: str, name: str, change: Callable[[dict[str, Any]], object], *, namespace: str = ""
    ) -> dict[str, Any]:
        """Let ``change`` alter an object in place: for tests, as kubectl edit."""
        kind = self._find_kind(resource)
        with self._changed:
            old = self._get(resource, namespace, name)
            new = copy.deepcopy(old)
            change(new)
            return self._write(kind, namespace, new, old)

    def label(self, node: str, **labels: str | None) -> dict[str, Any]:
        """Set labels of a node, or take them away with None. Keys are given as ``**{"nvidia.com/x": "y"}``."""

        def change(found: dict[str, Any]) -> None:
            merged = {**found["metadata"].get("labels", {}), **labels}
            found["metadata"]["labels"] = {key: value for key, value in merged.items() if value is not None}

        return self.edit("nodes", node, change)

    def find(self, resource: str, name: str, *, namespace: str = "") -> dict[str, Any] | None:
        with self._changed:
            return copy.deepcopy(self._objects.get((resource, namespace, name)))

    def list(self, resource: str, *, namespace: str = "", name: str = "") -> list[dict[str, Any]]:
        """Objects of a namespace, or of all if that is empty."""
        with self._changed:
            return [
                copy.deepcopy(found)
                for (of, where, called), found in sorted(self._objects.items())
                if of == resource and namespace in {"", where} and name in {"", called}
            ]

    def read(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        with self._changed:
            return copy.deepcopy(self._get(kind.resource, namespace, name))

    def create(self, kind: Kind, namespace: str, found: dict[str, Any]) -> dict[str, Any]:
        given = found.get("metadata", {})
        name = given.get("name") or (given["generateName"] + uuid.uuid4().hex[:5] if "generateName" in given else "")
        if not name:
            raise RefusedError(422, "Invalid", f"{kind.kind} is invalid: metadata.name: Required value")
        if given.get("namespace", namespace) != namespace:
            raise RefusedError(400, "BadRequest", "the namespace of the object is not that of the request")
        with self._changed:
            if (kind.resource, namespace, name) in self._objects:
                raise RefusedError(409, "AlreadyExists", f'{kind.resource} "{name}" already exists')
            made_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            own = {"name": name, "uid": str(uuid.uuid4()), "creationTimestamp": made_at}
            if kind.is_namespaced:
                own["namespace"] = namespace
            return self._write(kind, namespace, {**found, "metadata": {**given, **own}}, None)

    def update(
        self, kind: Kind, namespace: str, name: str, change: Callable[[dict[str, Any]], dict[str, Any]], *, part: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Replace an object by what ``change`` makes of it: old and new. A version in the new one must be the newest.

        ``part`` is the subresource concerned; what it does not own stays as it is.
        """
        with self._changed:
            old = self._get(kind.resource, namespace, name)
            new = copy.deepcopy(change(copy.deepcopy(old)))
            asked = new.get("metadata", {}).get("resourceVersion", "")
            if asked and asked != old["metadata"]["resourceVersion"]:
                text = f'Operation cannot be fulfilled on {kind.resource} "{name}": the object has been modified'
                raise RefusedError(409, "Conflict", text)
            if new.get("metadata", {}).get("name", name) != name:
                raise RefusedError(400, "BadRequest", "the name of the object does not match the name on the URL")
            if part == "status":
                new = {**old, "metadata": new["metadata"], "status": new.get("status", {})}
            elif "status" in kind.subresources:
                new.pop("status", None)
                new = {**new, "status": old["status"]} if "status" in old else new
            return copy.deepcopy(old), self._write(kind, namespace, new, old)

    def delete(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        with self._changed:
            gone = self._get(kind.resource, namespace, name)
            del self._objects[kind.resource, namespace, name]
            self._version += 1
            gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self._version)}}
            self._note(Change(self._version, "DELETED", kind.resource, gone))
            return gone

    def remove(self, resource: str, name: str, *, namespace: str = "") -> None:
        """Delete an object: for tests."""
        self.delete(self._find_kind(resource), namespace, name)

    def forget(self) -> None:
        """Compact: no watch can go on from a version before the present one (410)."""
        with self._changed:
            self._history.clear()
            self._version += 1
            self._oldest = self._version
            self._changed.notify_all()

    def bookmark(self) -> None:
        """Let every watch send a bookmark with the present version."""
        with self._changed:
            self._version += 1
            self._bookmarked = self._version
            self._changed.notify_all()

    def wait_changes(self, after: int, resource: str, timeout_s: float) -> tuple[list[Change], int, bool]:
        """Changes since ``after``, the version that they lead to, and whether a bookmark is due; empty in time."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if after < self._oldest:
                    raise RefusedError(410, "Expired", f"too old resource version: {after} ({self._oldest})")
                found = [one for one in self._history if one.version > after and one.resource == resource]
                is_due = self._bookmarked > after
                left_s = deadline - time.monotonic()
                if found or is_due or left_s <= 0:
                    return found, self._version, is_due
                self._changed.wait(left_s)

    def wake(self) -> None:
        """Let whoever waits look at what has changed elsewhere."""
        with self._changed:
            self._changed.notify_all()

    def _find_kind(self, resource: str) -> Kind:
        return next(one for one in KINDS if one.resource == resource)

    def _get(self, resource: str, namespace: str, name: str) -> dict[str, Any]:
        found = self._objects.get((resource, namespace, name))
        if found is None:
            raise RefusedError(404, "NotFound", f'{resource} "{name}" not found')
        return found

    def _write(self, kind: Kind, namespace: str, new: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
        _check_labels(kind, new)
        new = copy.deepcopy({**new, "kind": kind.kind, "apiVersion": f"{kind.group}/{kind.version}".lstrip("/")})
        new["metadata"] = {**new["metadata"], **(_own(old) if old else {})}
        if old is not None and new == old:
            return copy.deepcopy(old)  # as the real one: a write that changes nothing makes no version
        self._version += 1
        new["metadata"]["resourceVersion"] = str(self._version)
        self._objects[kind.resource, namespace, new["metadata"]["name"]] = new
        self._note(Change(self._version, "MODIFIED" if old else "ADDED", kind.resource, new))
        return copy.deepcopy(new)

    def _note(self, change: Change) -> None:
        self._history.append(change)
        self._changed.notify_all()


def _own(old: dict[str, Any]) -> dict[str, Any]:
    """What only the server sets."""
    names = ("name", "namespace", "uid", "creationTimestamp", "resourceVersion")
    return {name: old["metadata"][name] for name in names if name in old["metadata"]}


def _check_labels(kind: Kind, found: dict[str, Any]) -> None:
    for key, value in (found["metadata"].get("labels") or {}).items():
        if not isinstance(value, str) or not _LABEL_VALUE.fullmatch(value) or not _LABEL_KEY.fullmatch(key):
            text = f"metadata.labels: Invalid value: {value!r} of {key}: a valid label must be an empty string or …"
            raise RefusedError(422, "Invalid", f'{kind.kind} "{found["metadata"]["name"]}" is invalid: {text}')
