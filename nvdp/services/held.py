"""Who holds our devices: asked of the kubelet whenever something depends on it, and now and then otherwise.

A withdrawn device may leave a list only when an answer, requested late enough, says that nobody holds it (invariants 3
and 4). Kubelets before 1.34 may name pods that are over, and a checkpoint pods that are gone: both hold longer than
they should, which is the safe side.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Final, Protocol

import msgspec

from nvdp.errors import HostError, KubeletError
from nvdp.log import Log
from nvdp.model.held import Held, Holding, Source
from nvdp.model.reasons import Reason
from nvdp.model.replica import parse_replica_id
from nvdp.service_thread import ServiceThread
from nvdp.services.events import CheckpointDoubted, HeldRead, Post
from nvdp.services.settling import Settling

LIST_LIMIT_S = 5.0
_IDLE_S = 30.0
_WAITING_S = 1.0
_GAP_S = 0.1  # between two questions, whoever asks: the kubelet's rate limit is shared by the node


class PodResources(Protocol):
    """The better source. ``list`` raises KubeletError; ``close`` ends a call under way, for good.

    ``kubelet`` tells which process gave the last answer.
    """

    @property
    def kubelet(self) -> Hashable: ...

    def list(self, timeout_s: float, /) -> tuple[Holding, ...]: ...

    def close(self) -> None: ...


class HeldService:
    """Posts ``HeldRead`` with each answer, and when a source of answers is lost or is there again.

    ``CheckpointDoubted`` is posted when a kubelet still does not name all holders of its checkpoint.

    PodResources is asked, else the checkpoint read (``load_checkpoint`` raises HostError). While nobody listens on the
    kubelet's registration socket (``kubelet_answers`` is false) no pod can get or lose a device: the last answer
    stands. Only IDs in our own format are kept.

    One thread; methods may be called from any and do not block, but for those that have a time limit. An exception
    that nobody expects ends the thread; ``start`` may then be called again.
    """

    THREAD: Final = "held"

    def __init__(
        self,
        post: Post,
        *,
        pod_resources: PodResources,
        load_checkpoint: Callable[[], tuple[Holding, ...]],
        kubelet_answers: Callable[[], bool],
        log: Log,
    ) -> None:
        self._post = post
        self._pod_resources = pod_resources
        self._load_checkpoint = load_checkpoint
        self._settling = Settling(load_checkpoint)
        self._kubelet_answers = kubelet_answers
        self._log = log
        self._changed = threading.Condition()
        self._thread: ServiceThread | None = None
        self._stopping = False
        self._waiting = False
        self._asked_at = float("-inf")
        self._held = Held()
        self._seen: frozenset[Holding] = frozenset()
        self._podresources_up = False
        self._told = HeldRead(held=self._held)

    def start(self) -> None:
        """Begin to ask, at once. Nothing happens if it does already."""
        with self._changed:
            if self._thread is not None and self._thread.is_at_work:
                return
            self._thread = ServiceThread(self._run, name=self.THREAD)
            self._thread.start()

    def stop(self) -> None:
        """Ask no more; a call under way is cut off. For good."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._pod_resources.close()

    def ask(self) -> None:
        """Have an answer that is requested at or after this moment, as soon as there can be one."""
        with self._changed:
            self._asked_at = time.monotonic()
            self._changed.notify_all()

    def refresh(self, timeout_s: float) -> bool:
        """Ask, and wait at most ``timeout_s`` for the answer: whether it has come, and is posted."""
        at = time.monotonic()
        self.ask()
        with self._changed:
            self._changed.wait_for(lambda: self._held.requested_at >= at or self._stopping, timeout_s)
            return self._held.requested_at >= at

    def set_waiting(self, waiting: bool) -> None:  # noqa: FBT001 - a setter's one value
        """While true an answer is asked for every second."""
        with self._changed:
            self._waiting = waiting
            self._changed.notify_all()

    def first_answer(self, timeout_s: float = 1.0) -> Held | None:
        """The first answer ever; waits for at most ``timeout_s``, then None."""
        with self._changed:
            self._changed.wait_for(lambda: self._held.source is not None or self._stopping, timeout_s)
            return self._held if self._held.source is not None else None

    def _run(self) -> None:
        began = time.monotonic()
        while True:
            asked = time.monotonic()
            self._take(self._read(asked))
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, _GAP_S)
                while not self._stopping and self._asked_at <= asked:
                    pause_s = self._pause_s(asked - began)
                    look_at = self._settling.look_at
                    if look_at is not None and look_at > asked:
                        pause_s = min(pause_s, look_at - asked)
                    left = asked + pause_s - time.monotonic()
                    if left <= 0:
                        break
                    self._changed.wait(left)
                if self._stopping:
                    return

    def _pause_s(self, running_s: float) -> float:
        """From one question to the next, if nobody asks."""
        if self._held.source is None:
            return _GAP_S if running_s < _WAITING_S else _WAITING_S  # the first list waits for the first answer
        unanswered = self._asked_at > self._held.requested_at
        return _WAITING_S if self._waiting or unanswered else _IDLE_S

    def _read(self, asked: float) -> Held:
        """One round. Blocks for at most LIST_LIMIT_S."""
        try:
            holdings = self._pod_resources.list(LIST_LIMIT_S)
        except KubeletError as error:
            refusal = str(error)
        else:
            self._podresources_up = True
            complete = self._settling.complete(holdings, kubelet=self._pod_resources.kubelet, now=asked)
            if self._settling.take_doubt(asked):
                self._post(CheckpointDoubted())
            return self._answer(Source.POD_RESOURCES, asked, complete)
        self._podresources_up = False
        up = self._kubelet_answers()
        if not up and self._held.source is not None:
            return msgspec.structs.replace(self._held, unreadable_since=None)
        try:
            return self._answer(Source.CHECKPOINT, asked, self._load_checkpoint())
        except HostError as error:
            if not up:
                return msgspec.structs.replace(self._held, unreadable_since=None)
            if self._held.unreadable_since is not None:
                return self._held
            self._log(
                Reason.HOLDERS_UNKNOWN,
                f"cannot tell which pods hold GPUs, devices to be withdrawn stay listed meanwhile; {refusal}; {error}",
                error=refusal,
            )
            return msgspec.structs.replace(self._held, unreadable_since=asked)

    def _answer(self, source: Source, asked: float, holdings: tuple[Holding, ...]) -> Held:
        ours = tuple(holding for holding in holdings if parse_replica_id(holding.device_id) is not None)
        return Held(source=source, requested_at=asked, holdings=ours)

    def _take(self, held: Held) -> None:
        read = HeldRead(held=held, podresources_up=self._podresources_up)
        with self._changed:
            if self._stopping or read == self._told:
                return
            self._held, self._told = held, read
            self._post(read)
            self._changed.notify_all()
        if held.source is Source.POD_RESOURCES:
            self._tell_new_holders(frozenset(held.holdings))

    def _tell_new_holders(self, now: frozenset[Holding]) -> None:
        """One line for each container that got something of a resource since the last answer, where it has a name."""
        got: dict[tuple[str, str, str, str], list[str]] = {}
        for new in sorted(now - self._seen):
            if new.namespace:
                got.setdefault((new.resource, new.namespace, new.pod, new.container), []).append(new.device_id)
        self._seen = now
        for (resource, namespace, pod, container), ids in got.items():
            self._log(
                Reason.ALLOCATION_SEEN,
                f"{resource}: {', '.join(ids)} held by {namespace}/{pod}",
                resource=resource,
                namespace=namespace,
                pod=pod,
                container=container,
            )
