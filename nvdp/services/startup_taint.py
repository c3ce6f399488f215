"""Takes a start-up taint off the Node once it advertises what the plan says: once, and never puts one on."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from nvdp.errors import ClusterError, ClusterFault
from nvdp.log import Log
from nvdp.model.cluster import ObjectSeen
from nvdp.model.reasons import Reason
from nvdp.model.status import Status, Trouble
from nvdp.planning.startup_taint import (
    ALLOCATABLE_WAIT_S,
    build_removal,
    find_taints,
    has_allocatable,
    list_advertised,
)
from nvdp.services.write_attempts import WriteAttempts

_CONFLICTS: Final = 5  # refusals that are taken for a Node that has changed meanwhile


class TaintRemover(Protocol):
    """Who takes it off (cluster/node_status.py). Blocks for a request at most and raises ClusterError."""

    def remove(self, patch: Sequence[Mapping[str, Any]], /) -> None: ...


class StartupTaintService:
    """One thread, ``startup-taint``, which ends when the taint is gone, by us or by somebody else.

    ``follow`` comes from the main thread after every turn, ``see`` from whoever watches the Node; neither blocks. The
    Node's allocatable devices are waited for as well, for half a minute: an autoscaler that saw the taint go before
    them would take it for a node without GPUs. What comes after the taint was gone is left alone: pods wait for it that
    are somebody else's.
    """

    THREAD: Final = "startup-taint"

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
        self._remover = remover
        self._key = key
        self._node_name = node_name
        self._log = log
        self._allocatable_wait_s = allocatable_wait_s
        self._clock = clock
        self._first_at = clock() + first_delay_s
        self._attempts = WriteAttempts(f"taint {key} of the node cannot be removed", log=log, rng=rng)
        self._refusals = 0
        self._changed = threading.Condition()  # guards what follows
        self._advertised: Mapping[str, int] = {}
        self._advertised_at = 0.0
        self._node: Mapping[str, Any] | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.done = False

    @property
    def trouble(self) -> Trouble | None:
        """Why the taint is still there."""
        return self._attempts.trouble

    def start(self) -> None:
        """Begin to wait for it. Nothing if it does already, or all is done."""
        if not self.done and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._run, name=self.THREAD, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Remove nothing more. Does not wait."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def follow(self, status: Status) -> None:
        """The state of now."""
        if self.done:
            return
        advertised = list_advertised(status)
        with self._changed:
            if advertised != self._advertised:
                if not self._advertised:
                    self._advertised_at = self._clock()
                self._advertised = advertised
                self._changed.notify_all()

    def see(self, seen: ObjectSeen) -> None:
        """The Node as it is now."""
        if not self.done and not seen.problem:
            with self._changed:
                self._node = seen.object
                self._changed.notify_all()

    def look(self) -> None:
        """Try again now what waits for another try."""
        with self._changed:
            self._attempts.hurry()
            self._changed.notify_all()

    def _run(self) -> None:
        while (due := self._wait_due()) is not None:
            node, advertised = due
            taints = find_taints(node, self._key)
            try:
                if taints:
                    self._remover.remove(build_removal(node, self._key))
            except ClusterError as error:
                self._fail(error)
                continue
            self.done = True
            self._attempts.succeed()
            if taints:
                self._tell(taints, advertised)
            return

    def _tell(self, taints: Sequence[Mapping[str, Any]], advertised: Mapping[str, int]) -> None:
        named = ", ".join(f"{self._key}:{taint.get('effect', '')}" for taint in taints)
        devices = ", ".join(f"{count} of {resource}" for resource, count in advertised.items())
        self._log(Reason.STARTUP_TAINT_REMOVED, f"node {self._node_name}: taint {named} removed; advertised: {devices}")

    def _wait_due(self) -> tuple[Mapping[str, Any], Mapping[str, int]] | None:
        """The Node and what it advertises, once it is time; None to stop."""
        with self._changed:
            while not self._stopping:
                node, advertised = self._node, self._advertised
                if node is None or not advertised:
                    self._changed.wait()
                    continue
                due_at = max(self._first_at, self._attempts.next_at)
                if find_taints(node, self._key) and not has_allocatable(node, advertised):
                    due_at = max(due_at, self._advertised_at + self._allocatable_wait_s)
                now = self._clock()
                if due_at <= now:
                    return node, advertised
                self._changed.wait(due_at - now)
            return None

    def _fail(self, error: ClusterError) -> None:
        """A test of the patch that failed looks like any refusal: the Node has changed, and will be seen anew."""
        fault = error.fault
        if fault is ClusterFault.REFUSED:
            self._refusals += 1
            if self._refusals <= _CONFLICTS:
                fault = ClusterFault.CONFLICT
        told = ClusterError(str(error), fault=fault, retry_after_s=error.retry_after_s)
        self._attempts.fail(told, now=self._clock())
