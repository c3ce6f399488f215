"""Open ListAndWatch streams of one server: each sends the whole list at once, and again when it changed.

A stream blocks a thread. They have a pool of their own, so that no number of streams keeps a unary call waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

import grpc

from nvdp.kubelet.feed import Feed, Watcher
from nvdp.kubelet.messages import ListEncoder
from nvdp.kubelet.pool import CallPool

MAX_STREAMS = 256  # the kubelet opens one per registration; more than a few are somebody's mistake
_SPARE_THREADS = 16  # newcomers beyond MAX_STREAMS run here while the oldest streams give up their threads

# (method, gRPC code name, seconds) of each call that ended; of a ListAndWatch the seconds until its first list left.
Observe: TypeAlias = Callable[[str, str, float], None]


class Stream:
    """One open stream. ``opened_at`` is monotonic; ``asked`` is true once we ended it ourselves."""

    def __init__(self, watcher: Watcher, context: grpc.ServicerContext, *, opened_at: float) -> None:
        self.opened_at = opened_at
        self.asked = False
        self._watcher = watcher
        self._context = context

    @property
    def taken(self) -> bool:
        """Whether at least one list has left through this stream."""
        return self._watcher.taken > 0

    def end(self) -> None:
        """End the stream regularly; it was our wish."""
        self.asked = True
        self._watcher.end()

    def cut(self) -> None:
        """End the stream even if its peer has stopped reading."""
        self._context.cancel()  # type: ignore[no-untyped-call] # grpc's stubs leave it untyped


class StreamListener(Protocol):
    """Hears of streams, each call on the stream's own thread. Must neither block nor raise."""

    def stream_opened(self, stream: Stream) -> None: ...

    def list_taken(self, stream: Stream) -> None:
        """The kubelet's side of the connection has been given the newest list this stream knows."""
        ...

    def stream_ended(self, stream: Stream) -> None: ...


class ListStreams:
    """The open streams of one server, as the handler of its ListAndWatch."""

    def __init__(
        self,
        feed: Feed,
        encoder: ListEncoder,
        *,
        listener: StreamListener,
        observe: Observe,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._feed = feed
        self._encoder = encoder
        self._listener = listener
        self._observe = observe
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[Stream, None] = {}  # oldest first
        self._ending = False
        self._pool = CallPool(MAX_STREAMS + _SPARE_THREADS, name="list-stream")

    @property
    def count(self) -> int:
        """Streams that are open now."""
        return len(self._open)

    def build_handler(self) -> Callable[[Any, grpc.ServicerContext], Iterator[bytes]]:
        """The method's behaviour, with our pool attached as grpc wants it.

        grpc runs a behaviour that has this attribute on that pool (grpc's own health service is made so).
        """

        def list_and_watch(_request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
            return self._stream(context)

        list_and_watch.experimental_thread_pool = self._pool  # type: ignore[attr-defined]
        return list_and_watch

    def end_all(self) -> None:
        """End every stream, and those still to come. Does not wait."""
        with self._lock:
            self._ending = True
            streams = list(self._open)
        for stream in streams:
            stream.end()

    def close(self) -> None:
        """Let go of the threads. Only after the server has stopped: it must not be given work any more."""
        self._pool.shutdown(wait=False)

    def _stream(self, context: grpc.ServicerContext) -> Iterator[bytes]:
        """The lists for one peer. grpc asks for the next message once the one before has left."""
        opened_at = self._clock()
        watcher = self._feed.watch()
        # False means that the peer was gone before we came to listen: no callback will ever tell.
        if not context.add_callback(watcher.end):
            self._feed.leave(watcher)
            return
        stream = Stream(watcher, context, opened_at=opened_at)
        self._admit(stream)
        first_list_s: float | None = None
        try:
            self._listener.stream_opened(stream)
            while (snapshot := watcher.wait_newer()) is not None:
                yield self._encoder.encode(snapshot)
                watcher.note_taken(snapshot.version)
                if first_list_s is None:
                    first_list_s = self._clock() - opened_at
                self._listener.list_taken(stream)
        finally:
            with self._lock:
                self._open.pop(stream, None)
            self._feed.leave(watcher)
            code = "OK" if stream.asked or self._feed.closed else "CANCELLED"
            self._observe("ListAndWatch", code, self._clock() - opened_at if first_list_s is None else first_list_s)
            self._listener.stream_ended(stream)

    def _admit(self, stream: Stream) -> None:
        """Room for the newest stream, which is the kubelet's after a restart: the oldest goes, as if it was lost."""
        with self._lock:
            self._open[stream] = None
            oldest = next(iter(self._open)) if len(self._open) > MAX_STREAMS else None
            if oldest is not None:
                del self._open[oldest]
            ending = self._ending
        if oldest is not None:
            oldest.cut()
        if ending:
            stream.end()
