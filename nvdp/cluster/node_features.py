"""Labels as an object for node-feature-discovery, which writes them to the Node: a right that nvdp then needs not.

The object is NVIDIA's by name and form, so that a cluster moves over without leftovers (nvidia-plugin.md 9.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from nvdp.cluster.owners import load_owners, parse_owners
from nvdp.errors import ClusterError, ClusterFault
from nvdp.model.cluster import ObjectPath, ObjectSeen
from nvdp.planning.label_changes import LabelWrite, check_answer, find_changes, keep_timestamp, read_texts

if TYPE_CHECKING:
    from nvdp.cluster.api import Api

GROUP: Final = "nfd.k8s-sigs.io"
VERSION: Final = "v1alpha1"
_NODE_LABEL: Final = "nfd.node.kubernetes.io/node-name"
_MARK: Final = {"app.kubernetes.io/managed-by": "nvdp"}
_LABEL_LIMIT: Final = 63  # characters of a label's value
_TRIES: Final = 3  # of one write, if somebody else writes at the same time
_LATE: Final = frozenset({ClusterFault.CONFLICT, ClusterFault.MISSING})  # made, changed or removed since it was read


def build_path(node_name: str, namespace: str) -> ObjectPath:
    return ObjectPath("nodefeatures", f"nvidia-features-for-{node_name}", namespace, GROUP, VERSION)


class NodeFeatureObject:
    """The object of one node, in ``namespace``. One thread at a time; each call blocks for some requests.

    It is read once and then known by the answers to what is written: nobody else is to write it. If somebody did, that
    shows at the next write, which the server then refuses, and it is read again; or at once, if the Node is watched
    (``see``).
    """

    def __init__(self, api: Api, *, node_name: str, namespace: str, pod_name: str) -> None:
        self._api = api
        self._node_name = node_name
        self._namespace = namespace
        self._pod_name = pod_name
        self._path = build_path(node_name, namespace)
        self._known: Mapping[str, Any] | None = None
        self._is_read = False  # whether it is known, or known not to be there
        self._owners: tuple[dict[str, Any], ...] | None = None
        self._labels: Mapping[str, str] = {}
        self._was_on_node = False

    def __str__(self) -> str:
        return str(self._path)

    def write(self, labels: Mapping[str, str]) -> LabelWrite:
        """Create it, or change what differs. ClusterError if that cannot be."""
        if len(self._node_name) > _LABEL_LIMIT:
            raise ClusterError(
                f"{self._path}: node-feature-discovery takes node names of at most {_LABEL_LIMIT} characters; "
                "set --write-labels node",
                fault=ClusterFault.REFUSED,
            )
        for _ in range(_TRIES - 1):
            try:
                return self._write(labels)
            except ClusterError as error:
                if error.fault not in _LATE:
                    raise
        return self._write(labels)

    def remove(self) -> tuple[str, ...]:
        """Remove it if nvdp wrote it last; the keys of its labels. ClusterError if that cannot be."""
        self.forget()
        found = self._load()
        if found is None or not _is_marked(found):
            return ()
        try:
            self._api.delete(self._path)
        except ClusterError as error:
            if error.fault is not ClusterFault.MISSING:
                raise
        self._known = None
        return tuple(sorted(read_texts(found, "spec", "labels")))

    def see(self, seen: ObjectSeen) -> bool:
        """The Node, as it is now. Whether it has lost labels that it had from here, so that a look is worth it."""
        if seen.object is None:
            return False
        labels = self._labels
        is_whole = labels.items() <= read_texts(seen.object, "metadata", "labels").items()
        is_lost = self._was_on_node and not is_whole
        self._was_on_node = bool(labels) and is_whole
        if is_lost:
            self.forget()
        return is_lost

    def forget(self) -> None:
        """Read it before the next write."""
        self._is_read = False

    def _write(self, labels: Mapping[str, str]) -> LabelWrite:
        found = self._load()
        there = read_texts(found, "spec", "labels")
        wanted = keep_timestamp(labels, there)
        changed = find_changes(there, wanted)
        owners, problem = self._find_owners(found)
        patch = _build_patch(found, self._build(wanted, owners), changed=changed)
        if found is None:
            self._create(self._build(wanted, owners))
        elif patch:
            self._patch(found, patch, labels=wanted)
        if wanted != self._labels:
            self._labels, self._was_on_node = wanted, False
        is_written = found is None or bool(patch)
        return LabelWrite(labels=wanted, changed=changed, is_written=is_written, problem=problem)

    def _load(self) -> Mapping[str, Any] | None:
        if not self._is_read:
            try:
                self._known = self._api.read(self._path)
            except ClusterError as error:
                if error.fault is not ClusterFault.MISSING:
                    raise
                self._known = None
            self._is_read = True
        return self._known

    def _create(self, wanted: dict[str, Any]) -> None:
        try:
            answer = self._api.create(self._path, wanted)
        except ClusterError as error:
            if error.fault is ClusterFault.CONFLICT:
                self._is_read = False  # somebody was quicker
            if error.fault is not ClusterFault.MISSING:
                raise
            # A fault of its own: the object is known not to be there, and a look would not help.
            raise ClusterError(
                f"{self._path}: the cluster has no NodeFeature objects, or no namespace {self._namespace}: install "
                "node-feature-discovery, or set --write-labels node",
                fault=ClusterFault.REFUSED,
            ) from error
        self._keep(answer, wanted["spec"]["labels"])

    def _patch(self, found: Mapping[str, Any], patch: dict[str, Any], *, labels: Mapping[str, str]) -> None:
        version = read_texts(found, "metadata").get("resourceVersion")
        named = {"metadata": {"resourceVersion": version}} if version else {}
        patch = {**patch, "metadata": {**named.get("metadata", {}), **patch.get("metadata", {})}}
        self._is_read = False  # until the answer has come
        self._keep(self._api.patch(self._path, patch), labels)

    def _keep(self, answer: Mapping[str, Any], labels: Mapping[str, str]) -> None:
        """Know the object by the answer; what is no object with the labels is not believed."""
        self._is_read = False
        check_answer(self, labels, answer, "spec", "labels")
        self._known, self._is_read = answer, True

    def _find_owners(self, found: Mapping[str, Any] | None) -> tuple[tuple[dict[str, Any], ...], ClusterError | None]:
        """The owners that it is to have; those that it has where they cannot be found out, and why not."""
        there = parse_owners(_get_metadata(found).get("ownerReferences"))
        if self._owners is None:
            try:
                self._owners = load_owners(self._api, namespace=self._namespace, pod_name=self._pod_name)
            except ClusterError as error:
                text = f"{self._path}: its owners stay as they are: {error}"
                return there, ClusterError(text, fault=error.fault, retry_after_s=error.retry_after_s)
        return self._owners, None

    def _build(self, labels: Mapping[str, str], owners: tuple[dict[str, Any], ...]) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "name": self._path.name,
            "namespace": self._namespace,
            "labels": {_NODE_LABEL: self._node_name, **_MARK},
        }
        if owners:
            metadata["ownerReferences"] = list(owners)
        return {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "NodeFeature",
            "metadata": metadata,
            "spec": {"features": {"attributes": {}, "flags": {}, "instances": {}}, "labels": dict(labels)},
        }


def _build_patch(
    found: Mapping[str, Any] | None, wanted: Mapping[str, Any], *, changed: tuple[str, ...]
) -> dict[str, Any]:
    """The merge patch that makes ``found`` as ``wanted``; empty if it is."""
    metadata: dict[str, Any] = {}
    there = read_texts(found, "metadata", "labels")
    marks = {key: value for key, value in wanted["metadata"]["labels"].items() if there.get(key) != value}
    if marks:
        metadata["labels"] = marks
    owners = wanted["metadata"].get("ownerReferences", [])
    if list(parse_owners(_get_metadata(found).get("ownerReferences"))) != owners:
        metadata["ownerReferences"] = owners or None
    labels = wanted["spec"]["labels"]
    spec = {"spec": {"labels": {key: labels.get(key) for key in changed}}} if changed else {}
    return {**({"metadata": metadata} if metadata else {}), **spec}


def _get_metadata(found: Mapping[str, Any] | None) -> Mapping[str, Any]:
    metadata = (found or {}).get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}


def _is_marked(found: Mapping[str, Any]) -> bool:
    return read_texts(found, "metadata", "labels").items() >= _MARK.items()
