"""Labels written to the Node itself: those of our catalogue, and no others.

Which of them are ours is kept in an annotation, so that a later process knows what to take away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from nvdp.model.cluster import ObjectSeen, build_node_path
from nvdp.planning.label_changes import (
    LabelWrite,
    NodeSeen,
    build_node_removal,
    check_answer,
    find_owned,
    parse_node,
    plan_node,
)

if TYPE_CHECKING:
    from nvdp.cluster.api import Api

_LATE_S: Final = 60.0  # a watch that tells of a lower version after that has another past: its server was restored


class NodeLabels:
    """The labels of one Node. ``is_ours`` tells the keys of our catalogue.

    ``see`` comes from any thread and does not block; the other calls block for some requests, from one thread at a
    time. Without anybody who watches the Node and calls ``see``, it is read once and then known by our own writes.
    """

    def __init__(
        self,
        api: Api,
        *,
        node_name: str,
        is_ours: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._path = build_node_path(node_name)
        self._is_ours = is_ours
        self._clock = clock
        self._lock = threading.Lock()  # guards what follows
        self._node: NodeSeen | None = None
        self._known_at = 0.0
        self._wanted: Mapping[str, str] | None = None

    def __str__(self) -> str:
        return str(self._path)

    def see(self, seen: ObjectSeen) -> bool:
        """The Node, as it is now. Whether somebody changed there what was written last."""
        if seen.object is None:
            if not seen.problem:
                self.forget()
            return False
        node = self._keep(seen.object)
        wanted = self._wanted
        return wanted is not None and bool(plan_node(node, wanted, is_ours=self._is_ours)[0])

    def write(self, labels: Mapping[str, str]) -> LabelWrite:
        """Change what differs from the Node as it was seen last. ClusterError if that cannot be."""
        patch, outcome = plan_node(self._load(), labels, is_ours=self._is_ours)
        self._wanted = outcome.labels
        if patch:
            self.forget()  # until an answer that is to be believed has come
            answer = self._api.patch(self._path, patch)
            check_answer(self, outcome.labels, answer, "metadata", "labels")
            self._keep(answer)
        return outcome

    def remove(self) -> tuple[str, ...]:
        """Take away what is ours; the keys. ClusterError if that cannot be."""
        self._wanted = None
        node = self._load()
        if patch := build_node_removal(node, is_ours=self._is_ours):
            self.forget()
            self._api.patch(self._path, patch)
        return tuple(find_owned(node, is_ours=self._is_ours))

    def forget(self) -> None:
        """Read the Node before the next write, whoever watches it."""
        with self._lock:
            self._node = None

    def _load(self) -> NodeSeen:
        with self._lock:
            node = self._node
        return node or self._keep(self._api.read(self._path))

    def _keep(self, answer: Mapping[str, Any]) -> NodeSeen:
        """The newest of what is known: a watch may tell late of what was before our own write."""
        node = parse_node(answer)
        with self._lock:
            now = self._clock()
            if self._node is None or not node.is_older_than(self._node) or now >= self._known_at + _LATE_S:
                self._node, self._known_at = node, now
            return self._node
