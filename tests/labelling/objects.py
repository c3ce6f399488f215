"""An API server's objects in memory, as ``nvdp.cluster.api.Api`` has them: versions, patches, failures, a journal."""

from __future__ import annotations

import copy
import threading

from nvdp.errors import ClusterError, ClusterFault
from nvdp.model.cluster import ObjectPath

NODE = ObjectPath("nodes", "gpu-a3")
FEATURE = ObjectPath("nodefeatures", "nvidia-features-for-gpu-a3", "nvdp", "nfd.k8s-sigs.io", "v1alpha1")
POD = ObjectPath("pods", "nvdp-x7", "nvdp")


class Objects:
    """``journal`` has the verb and resource of each request; ``failures`` the errors of the next ones, by verb.

    ``absent`` names resources of which the server knows nothing. ``before`` is called with verb and path ahead of each
    request, outside of the lock: another writer.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._version = 100
        self._objects = {}
        self.journal = []
        self.failures = {}
        self.absent = set()
        self.before = lambda _verb, _path: None

    def put(self, path, **content):
        """As somebody else has it from now on."""
        with self._lock:
            return self._put(path, content)

    def get(self, path):
        with self._lock:
            return copy.deepcopy(self._objects.get(path))

    def merge(self, path, patch):
        """As somebody else changes it."""
        with self._lock:
            return self._put(path, _merge(self._objects[path], patch))

    def drop(self, path):
        with self._lock:
            del self._objects[path]

    def count(self, *verbs):
        return sum(verb in verbs for verb, _ in self.journal)

    def fail(self, verb, fault, *, times=1, retry_after_s=None):
        error = ClusterError(f"{verb}: {fault.value}", fault=fault, retry_after_s=retry_after_s)
        self.failures.setdefault(verb, []).extend([error] * times)

    def mend(self):
        """No more failures."""
        with self._lock:
            self.failures.clear()

    def read(self, path):
        self._enter("read", path)
        with self._lock:
            return copy.deepcopy(self._find(path))

    def create(self, path, body):
        self._enter("create", path)
        with self._lock:
            if path.resource in self.absent:
                raise ClusterError(f"{path.collection}: not found", fault=ClusterFault.MISSING)
            if path in self._objects:
                raise ClusterError(f"{path}: exists already", fault=ClusterFault.CONFLICT)
            return copy.deepcopy(self._put(path, body))

    def patch(self, path, body):
        self._enter("patch", path)
        with self._lock:
            found = self._find(path)
            version = body.get("metadata", {}).get("resourceVersion")
            if version not in (None, found["metadata"]["resourceVersion"]):
                raise ClusterError(f"{path}: has been modified", fault=ClusterFault.CONFLICT)
            return copy.deepcopy(self._put(path, _merge(found, body)))

    def delete(self, path):
        self._enter("delete", path)
        with self._lock:
            self._find(path)
            del self._objects[path]

    def _enter(self, verb, path):
        self.before(verb, path)
        self.journal.append((verb, path.resource))
        with self._lock:
            error = self.failures[verb].pop(0) if self.failures.get(verb) else None
        if error is not None:
            raise error

    def _find(self, path):
        if path not in self._objects:
            raise ClusterError(f"{path}: not found", fault=ClusterFault.MISSING)
        return self._objects[path]

    def _put(self, path, content):
        there = self._objects.get(path)
        metadata = {key: value for key, value in content.get("metadata", {}).items() if key != "resourceVersion"}
        if there is not None and _strip(there) == {**content, "metadata": metadata}:
            return there
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        self._objects[path] = copy.deepcopy({**content, "metadata": metadata})
        return self._objects[path]


def _strip(found):
    return {**found, "metadata": {key: value for key, value in found["metadata"].items() if key != "resourceVersion"}}


def _merge(whole, patch):
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(whole) if isinstance(whole, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


def owner(kind, name, uid, *, controller=False):
    version = "v1" if kind == "Pod" else "apps/v1"
    found = {"apiVersion": version, "kind": kind, "name": name, "uid": uid}
    return {**found, "controller": True} if controller else found


DAEMON_SET = owner("DaemonSet", "nvdp", "ds-1", controller=True)
OWN_POD = owner("Pod", "nvdp-x7", "pod-1")


def put_pod(objects, *owners, uid="pod-1"):
    """The pod of nvdp, as its owners' controllers make it."""
    references = [{**one, "blockOwnerDeletion": True} for one in owners]
    objects.put(POD, metadata={"name": "nvdp-x7", "uid": uid, "ownerReferences": references})


def is_at_rest(service):
    """Whether a label service is not at work, and owes nothing; a retry that waits is owed."""
    return not service._owes_change and not service._owes_repair and service._began_at is None
