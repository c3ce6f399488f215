"""Stands in for one resource's actor: a real feed, and a stream that takes lists after a moment."""

from __future__ import annotations

from typing import Protocol

from nvdp.kubelet.feed import Feed, Watcher
from nvdp.kubelet.sockets import SocketIdentity
from nvdp.model.listing import ResourceList
from nvdp.services.events import ResourceReport
from tests.virtual.clock import Clock

STREAM_S = 0.005  # until a stream is open, or has taken a list


class Kubelet(Protocol):
    """What an actor must know of the node: whether there is a kubelet, and how slowly it reads."""

    clock: Clock
    kubelet: SocketIdentity | None
    stream_s: float


class VirtualActor:
    """What it was told is in its attributes; ``taken`` are the lists that its stream took, and when."""

    def __init__(self, listed: ResourceList, node: Kubelet) -> None:
        self.feed = Feed(listed, clock=lambda: node.clock.now)
        self.resource = listed.resource
        self.stopped = ""
        self.looks = self.reclaims = 0
        self.taken: list[tuple[float, ResourceList]] = []
        self._node = node
        self._stream: Watcher | None = None
        self._seen = node.kubelet
        self._under_way = False

    def start(self) -> None:
        self._report()
        self._connect()

    def look(self) -> None:
        self.looks += 1
        if self._node.kubelet != self._seen:
            self._seen = self._node.kubelet
            self.lose_stream()
            self._connect()

    def confirm(self, requested_at: float) -> None:
        """No stream of it is ever in doubt."""

    def reclaim(self) -> None:
        self.reclaims += 1

    def stop(self, reason: str) -> None:
        self.stopped = reason
        self.lose_stream()
        self._node.clock.after(STREAM_S, lambda: self._report(stopped=True))

    def join(self, timeout_s: float) -> bool:
        return bool(self.stopped)

    def probe(self, timeout_s: float) -> bool:
        return True

    def lose_stream(self) -> None:
        if self._stream is not None:
            self.feed.leave(self._stream)
            self._stream = None
            self._report()

    def take_news(self) -> None:
        """If the stream has not seen the newest list, it takes it in a moment."""
        if self._stream is not None and not self._under_way and self._stream.taken < self.feed.current.version:
            self._under_way = True
            self._node.clock.after(self._node.stream_s, self._take)

    def _connect(self) -> None:
        if self._node.kubelet is not None and not self.stopped and self._stream is None:
            self._node.clock.after(STREAM_S, self._open)

    def _open(self) -> None:
        if self._node.kubelet is not None and not self.stopped and self._stream is None:
            self._stream = self.feed.watch()
            self._take()

    def _take(self) -> None:
        self._under_way = False
        if self._stream is not None:
            current = self.feed.current
            self._stream.note_taken(current.version)
            self.taken.append((self._node.clock.now, current.listed))
            self._report()

    def _report(self, *, stopped: bool = False) -> None:
        streams = self.feed.streams
        self._node.clock.put(
            ResourceReport(
                resource=self.resource,
                registered=streams > 0,
                streams=streams,
                taken_version=self.feed.taken_version,
                kubelet=self._node.kubelet,
                missing=None if streams else "no stream",
                stopped=stopped,
            )
        )
