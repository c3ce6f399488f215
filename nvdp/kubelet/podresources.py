"""What the kubelet's pod-resources socket says: which container holds which device, and what pods are offered.

Source: the kubelet contract, B. There is no watch, so a reader polls. Kubelets before 1.34 may name pods that are over:
then a device counts as held for longer than it is, which is the safe side, and nothing here tries to know better.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from nvdp.errors import KubeletError
from nvdp.kubelet.proto import podresources_v1_pb2 as podresources
from nvdp.kubelet.protocol import GET_ALLOCATABLE_RESOURCES, LIST_POD_RESOURCES, Call
from nvdp.kubelet.server import build_address
from nvdp.model.held import Holding, merge_holdings

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

RECEIVE_LIMIT_BYTES = 16 * 1024 * 1024  # a reply lists every pod of the node, and grpc stops at 4 MiB
_RATE_LIMIT_WORDS = "rate limit"  # the same status as for a reply that is too large: only the text differs
_FIRST_PAUSE_S = 0.05
_OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", RECEIVE_LIMIT_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits the back-off of the one before
    ("grpc.enable_retries", 0),
)
_Identity = tuple[int, int, int]


class PodResourcesClient:
    """Asks one kubelet, from one thread at a time; ``close`` is for any, and it ends a call under way.

    Where the kubelet's rate limit is hit (it is shared by all readers of the node) a question is asked again, with
    growing pauses, within its time. Questions raise KubeletError in one line.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._channel: grpc.Channel | None = None
        self._connected_to: _Identity | None = None
        self._answered_by: _Identity | None = None

    def list(self, timeout_s: float) -> tuple[Holding, ...]:
        """All device IDs that containers hold, sorted, each once per container. Blocks for at most ``timeout_s``."""
        return build_holdings(self._ask(LIST_POD_RESOURCES, podresources.ListPodResourcesRequest(), timeout_s))

    def list_offered(self, timeout_s: float) -> frozenset[str]:
        """The resources of which the kubelet has Healthy devices, taken or not. Blocks for at most ``timeout_s``."""
        return frozenset(self.list_healthy(timeout_s))

    def list_healthy(self, timeout_s: float) -> dict[str, frozenset[str]]:
        """The IDs of Healthy devices by resource, taken or not. Blocks for at most ``timeout_s``."""
        answer = self._ask(GET_ALLOCATABLE_RESOURCES, podresources.AllocatableResourcesRequest(), timeout_s)
        found: dict[str, set[str]] = {}
        for devices in answer.devices:
            found.setdefault(devices.resource_name, set()).update(devices.device_ids)
        return {resource: frozenset(device_ids) for resource, device_ids in found.items()}

    def _ask(self, call: Call[Q, A], question: Q, timeout_s: float) -> A:
        deadline = time.monotonic() + timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            left_s = deadline - time.monotonic()
            try:
                channel, before = self._connect()
                answer = call.unary(channel)(question, timeout=max(left_s, 0.0))
            except (grpc.RpcError, ValueError) as error:  # ValueError: the channel was closed meanwhile
                if not _is_rate_limit(error) or left_s <= pause_s:
                    self._disconnect()
                    raise KubeletError(f"{self._socket}: {_describe(error, timeout_s)}") from error
            else:
                # If it was replaced meanwhile, the answer may be the old one's or the new one's.
                self._answered_by = before if self._find_identity() == before else None
                return answer
            self._closed.wait(pause_s)
            pause_s *= 2

    @property
    def kubelet(self) -> Hashable:
        """Which kubelet process gave the last answer, as a value to compare: its socket's identity.

        None if that is not sure: the socket was replaced while it was asked.
        """
        return self._answered_by

    def close(self) -> None:
        """No more answers. Idempotent."""
        self._closed.set()
        self._disconnect()

    def _connect(self) -> tuple[grpc.Channel, _Identity]:
        """The channel to the socket that is there now, and which that is: a kubelet that restarted has another."""
        identity = self._find_identity()
        with self._lock:
            if self._closed.is_set():
                raise KubeletError(f"{self._socket}: closed")
            if self._channel is not None and identity != self._connected_to:
                self._channel.close()
                self._channel = None
            if identity is None:
                raise KubeletError(f"{self._socket}: {self._describe_missing()}")
            if self._channel is None:
                self._channel = grpc.insecure_channel(build_address(self._socket), options=_OPTIONS)
                self._connected_to = identity
            return self._channel, identity

    def _disconnect(self) -> None:
        with self._lock:
            if self._channel is not None:
                self._channel.close()
                self._channel = None

    def _describe_missing(self) -> str:
        try:
            self._socket.stat()
        except PermissionError:
            return "only root may look; run as uid 0"
        except OSError:
            pass  # not there
        return (
            "no such socket; the kubelet is not running, or its pod-resources directory is not mounted "
            "(--pod-resources-socket)"
        )

    def _find_identity(self) -> _Identity | None:
        try:
            found = os.stat(self._socket)  # noqa: PTH116 - once a second while something waits; Path adds frames
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_ctime_ns


def build_holdings(answer: podresources.ListPodResourcesResponse) -> tuple[Holding, ...]:
    """A device on two NUMA nodes comes twice and counts once. Devices of ResourceClaims are not ours and not listed."""
    return merge_holdings(
        Holding(
            resource=devices.resource_name,
            device_id=device_id,
            namespace=pod.namespace,
            pod=pod.name,
            container=container.name,
            numa_node=min((node.id for node in devices.topology.nodes), default=None),
        )
        for pod in answer.pod_resources
        for container in pod.containers
        for devices in container.devices
        for device_id in devices.device_ids
    )


def _is_rate_limit(error: Any) -> bool:
    return (
        isinstance(error, grpc.RpcError)
        and error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        and _RATE_LIMIT_WORDS in (error.details() or "")
    )


def _describe(error: Any, timeout_s: float) -> str:
    if not isinstance(error, grpc.RpcError):
        return "closed"
    if _is_rate_limit(error):
        return f"the kubelet's rate limit left no room for {timeout_s:g} s; another program asks too often"
    sentences = {
        grpc.StatusCode.RESOURCE_EXHAUSTED: f"the list of pods is larger than {RECEIVE_LIMIT_BYTES >> 20} MiB",
        grpc.StatusCode.DEADLINE_EXCEEDED: f"the kubelet did not answer within {timeout_s:g} s",
        grpc.StatusCode.UNAVAILABLE: "nobody answers; the kubelet is not running",
        grpc.StatusCode.UNIMPLEMENTED: "the kubelet does not offer PodResources v1",
        grpc.StatusCode.CANCELLED: "closed",
    }
    code = error.code()
    return sentences.get(code) or " ".join(f"the kubelet refuses: {code.name}: {error.details()}".split())
