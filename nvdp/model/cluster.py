"""Objects of the cluster as far as nvdp reads and writes them: where they are, and how they were seen last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class ObjectPath(msgspec.Struct, frozen=True):
    """One object of the Kubernetes API. ``group`` is empty for the core; ``namespace`` for what is the whole cluster's.

    ``resource`` is the plural in lower case (``nodes``), ``subresource`` a part of the object that has rights of its
    own (``status``).
    """

    resource: str
    name: str
    namespace: str = ""
    group: str = ""
    version: str = "v1"
    subresource: str = ""

    @property
    def collection(self) -> str:
        """The path of the collection on the server, as ``/api/v1/namespaces/nvdp/configmaps``."""
        root = f"/apis/{self.group}" if self.group else "/api"
        scope = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{root}/{self.version}{scope}/{self.resource}"

    @property
    def url(self) -> str:
        """The path of the object, or of its part."""
        return f"{self.collection}/{self.name}" + (f"/{self.subresource}" if self.subresource else "")

    def __str__(self) -> str:
        """For people: ``configmap nvdp/nvdp-configs``, ``node gpu-a3``."""
        kind = self.resource.removesuffix("s")
        return f"{kind} {self.namespace}/{self.name}" if self.namespace else f"{kind} {self.name}"


def build_node_path(name: str, *, subresource: str = "") -> ObjectPath:
    """A Node, or its status."""
    return ObjectPath("nodes", name, subresource=subresource)


def build_config_map_path(namespace: str, name: str) -> ObjectPath:
    return ObjectPath("configmaps", name, namespace)


class ObjectSeen(msgspec.Struct, frozen=True, kw_only=True):
    """How an object was seen. With a ``problem``, a sentence, it cannot be asked now and what was seen before stands.

    Without one, ``object`` is the object as JSON, or None if there is none. ``at`` is monotonic seconds.
    """

    object: Mapping[str, Any] | None = None
    problem: str = ""
    at: float
