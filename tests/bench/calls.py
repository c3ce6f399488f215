"""Calls to a plugin as the kubelet makes them, with messages made beforehand, and how long each takes."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc

from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.kubelet.protocol import ALLOCATE, GET_PREFERRED_ALLOCATION, LIST_AND_WATCH
from nvdp.kubelet.server import build_address
from tests.bench.bare import METHOD as EMPTY

LIMIT_S = 10.0
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))
_WARM_UP = 20


class Caller:
    """One connection. Close it."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(build_address(socket), options=_OPTIONS)

    def close(self) -> None:
        self._channel.close()

    def unary(self, path: str, request: bytes) -> Callable[[], bytes]:
        """A call of ``path`` that sends ``request`` and blocks for the answer, encoded."""
        method = self._channel.unary_unary(path)
        return lambda: method(request, timeout=LIMIT_S)

    def empty(self, request: bytes = b"") -> Callable[[], bytes]:
        """A call of the bare server."""
        return self.unary(EMPTY, request)

    def allocate(self, ids: Sequence[str]) -> Callable[[], bytes]:
        container = deviceplugin.ContainerAllocateRequest(devices_ids=ids)
        request = deviceplugin.AllocateRequest(container_requests=[container])
        return self.unary(ALLOCATE.path, request.SerializeToString())

    def prefer(self, available: Sequence[str], size: int) -> Callable[[], bytes]:
        return self.unary(GET_PREFERRED_ALLOCATION.path, build_preferred_request(available, size))


def build_preferred_request(available: Sequence[str], size: int) -> bytes:
    container = deviceplugin.ContainerPreferredAllocationRequest(available_device_ids=available, allocation_size=size)
    return deviceplugin.PreferredAllocationRequest(container_requests=[container]).SerializeToString()


def reconnect(socket: Path) -> bytes:
    """A connection of its own that opens ListAndWatch, takes one list, encoded, and goes."""
    with grpc.insecure_channel(build_address(socket), options=_OPTIONS) as channel:
        stream = channel.unary_stream(LIST_AND_WATCH.path)(b"", timeout=LIMIT_S)
        first: bytes = next(stream)
        stream.cancel()
        return first


def time_in_turn(*calls: Callable[[], bytes], rounds: int) -> tuple[list[float], ...]:
    """Seconds of each of ``calls``, which take turns: what disturbs the machine disturbs them alike."""
    with _no_garbage():
        for call in itertools.chain.from_iterable(itertools.repeat(calls, min(rounds, _WARM_UP))):
            call()
        times: tuple[list[float], ...] = tuple([] for _ in calls)
        for _ in range(rounds):
            for call, taken in zip(calls, times, strict=True):
                began = time.perf_counter()
                call()
                taken.append(time.perf_counter() - began)
    return times


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Our own collector would be counted as the plugin's time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
