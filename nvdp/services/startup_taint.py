"""Takes a start-up taint off a Node once it advertises what the plan says: once, and never puts one on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from nvdp.errors import ClusterError, ClusterFault
from nvdp.log import Log
from nvdp.model.cluster import ObjectSeen
from nvdp.model.reasons import Reason
from nvdp.model.status import Status
from nvdp.planning.startup_taint import (
    ALLOCATABLE_WAIT_S,
    build_removal,
    find_taints,
    has_allocatable,
    list_advertised,
)
from nvdp.services.node_events import find_uid
from nvdp.services.node_writer import NodeReconciler
from nvdp.services.write_attempts import WriteAttempts

_CONFLICTS: Final = 5  # refusals that are taken for a Node that has changed meanwhile

_Write: TypeAlias = tuple[Mapping[str, Any], str, Mapping[str, int]]  # the Node, its uid, and what is advertised


class TaintRemover(Protocol):
    """Who takes it off (cluster/node_status.py). Blocks for a request at most and raises ClusterError."""

    def remove(self, patch: Sequence[Mapping[str, Any]], /) -> None: ...


class StartupTaintService(NodeReconciler[_Write]):
    """Is done with a Node when the taint is gone, by us or by somebody else. One that is made anew has another uid.

    The Node's allocatable devices are waited for as well, for half a minute: an autoscaler that saw the taint go before
    them would take it for a node without GPUs. What comes after the taint was gone is left alone: pods wait for it that
    are somebody else's.
    """

    THREAD = "startup-taint"

    def __init__(
        self,
        remover: TaintRemover,
        *,
        key: str,
        node_name: str,
        log: Log,
        rng: random.Random,
        first_delay_s: float = 0.0,
        allocatable_wait_s: float = ALLOCATABLE_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        what = f"taint {key} of the node cannot be removed"
        attempts = WriteAttempts(what, first_delay_s=first_delay_s, log=log, rng=rng, clock=clock)
        super().__init__(attempts, clock=clock)
        self._remover = remover
        self._key = key
        self._node_name = node_name
        self._log = log
        self._allocatable_wait_s = allocatable_wait_s
        self._refusals = 0
        # ``_changed`` guards what follows.
        self._advertised: Mapping[str, int] = {}
        self._shown_by = 0.0  # when the Node is to show it
        self._node: Mapping[str, Any] | None = None
        self._uid = ""
        self._done_uid: str | None = None

    def follow(self, status: Status) -> None:
        advertised = list_advertised(status)
        with self._changed:
            if advertised != self._advertised:
                if not self._advertised:
                    self._shown_by = self._clock() + self._allocatable_wait_s
                self._advertised = advertised
                self._changed.notify_all()

    def see(self, seen: ObjectSeen) -> None:
        if not seen.problem:
            uid = find_uid(seen)
            with self._changed:
                self._node = seen.object
                if uid and uid != self._uid:
                    if self._uid:  # made anew: nothing of it is shown yet
                        self._shown_by = self._clock() + self._allocatable_wait_s
                    self._uid = uid
                self._changed.notify_all()
        super().see(seen)

    def _write(self, write: _Write) -> None:
        node, uid, advertised = write
        taints = find_taints(node, self._key)
        if taints:
            self._remover.remove(build_removal(node, self._key))
        self._refusals = 0
        with self._changed:
            self._done_uid = uid
        if taints:
            self._tell(taints, advertised)

    def _tell(self, taints: Sequence[Mapping[str, Any]], advertised: Mapping[str, int]) -> None:
        named = ", ".join(f"{self._key}:{taint.get('effect', '')}" for taint in taints)
        devices = ", ".join(f"{count} of {resource}" for resource, count in advertised.items())
        self._log(Reason.STARTUP_TAINT_REMOVED, f"node {self._node_name}: taint {named} removed; advertised: {devices}")

    def _find_due(self, now: float) -> tuple[_Write, float] | None:
        node, advertised = self._node, self._advertised
        if node is None or not advertised or self._uid == self._done_uid:
            return None
        is_early = bool(find_taints(node, self._key)) and not has_allocatable(node, advertised)
        return (node, self._uid, advertised), self._shown_by if is_early else now

    def _fail(self, error: ClusterError) -> None:
        """A test of the patch that failed looks like any refusal: the Node has changed, and will be seen anew."""
        fault = error.fault
        if fault is ClusterFault.REFUSED:
            self._refusals += 1
            if self._refusals <= _CONFLICTS:
                fault = ClusterFault.CONFLICT
        super()._fail(ClusterError(str(error), fault=fault, retry_after_s=error.retry_after_s))
