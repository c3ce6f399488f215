"""A caller of a device plugin, as the kubelet is one; and what a plugin told its observers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import grpc

from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.kubelet.protocol import (
    ALLOCATE,
    GET_DEVICE_PLUGIN_OPTIONS,
    GET_PREFERRED_ALLOCATION,
    LIST_AND_WATCH,
    PRE_START_CONTAINER,
)
from nvdp.kubelet.server import build_address

LIMIT_S = 10


class PluginClient:
    """Calls on one connection of its own. Close it."""

    def __init__(self, path: Path, **options: object) -> None:
        channel_options = {"grpc.use_local_subchannel_pool": 1, "grpc.max_receive_message_length": -1, **options}
        self.channel = grpc.insecure_channel(build_address(path), options=tuple(channel_options.items()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def options(self):
        return GET_DEVICE_PLUGIN_OPTIONS.unary(self.channel)(deviceplugin.Empty(), timeout=LIMIT_S)

    def watch(self, *, timeout_s: float = LIMIT_S):
        return LIST_AND_WATCH.stream(self.channel)(deviceplugin.Empty(), timeout=timeout_s)

    def allocate(self, *containers: list[str]):
        return self.allocate_later(*containers).result()

    def allocate_later(self, *containers: list[str]):
        requests = [deviceplugin.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        return ALLOCATE.unary(self.channel).future(
            deviceplugin.AllocateRequest(container_requests=requests), timeout=LIMIT_S
        )

    def prefer(self, *, available: list[str], must_include: tuple[str, ...] = (), size: int) -> list[str]:
        request = deviceplugin.ContainerPreferredAllocationRequest(
            available_device_ids=available, must_include_device_ids=must_include, allocation_size=size
        )
        answer = GET_PREFERRED_ALLOCATION.unary(self.channel)(
            deviceplugin.PreferredAllocationRequest(container_requests=[request]), timeout=LIMIT_S
        )
        return list(answer.container_responses[0].device_ids)

    def pre_start(self, ids: list[str]):
        return self.pre_start_later(ids).result()

    def pre_start_later(self, ids: list[str]):
        return PRE_START_CONTAINER.unary(self.channel).future(
            deviceplugin.PreStartContainerRequest(devices_ids=ids), timeout=LIMIT_S
        )


def visible_devices(response) -> list[str]:
    """What each container of an AllocateResponse gets to see."""
    return [container.envs["NVIDIA_VISIBLE_DEVICES"] for container in response.container_responses]


class Notes:
    """Everything that is reported, by kind; ``wait_for`` blocks until a condition on it holds."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.items: list[tuple[object, ...]] = []

    def add(self, *item: object) -> None:
        with self._changed:
            self.items.append(item)
            self._changed.notify_all()

    def of(self, kind: str) -> list[tuple[object, ...]]:
        with self._changed:
            return [item[1:] for item in self.items if item[0] == kind]

    def wait_for(self, kind: str, count: int = 1, *, limit_s: float = LIMIT_S) -> list[tuple[object, ...]]:
        with self._changed:
            if not self._changed.wait_for(lambda: sum(item[0] == kind for item in self.items) >= count, limit_s):
                raise AssertionError(f"only {self.items} and not {count} of {kind}")
        return self.of(kind)


@contextmanager
def stalled_reader(path: Path) -> Iterator[socket.socket]:
    """A peer that opened a ListAndWatch and reads nothing of the answer, as a stopped process does."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(str(path))
        connection.sendall(_PREFACE + _frame(4, 0, 0, b"") + _frame(1, 0x4, 1, _HEADERS) + _frame(0, 0x1, 1, bytes(5)))
        yield connection


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _literal(name: str, value: str) -> bytes:
    return b"".join([b"\x00", *(bytes([len(text)]) + text.encode() for text in (name, value))])


_HEADERS = b"".join(
    _literal(name, value)
    for name, value in (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v1beta1.DevicePlugin/ListAndWatch"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )
)
