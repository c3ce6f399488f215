"""What the twin saw and did, as values for tests and for the tour. Times are ``time.monotonic()`` seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin

HEALTHY = "Healthy"


class AdmissionError(Exception):
    """The kubelet refused a pod: ``reason`` is the pod's, the text its message, as a user would read them."""

    def __init__(self, text: str, *, reason: str = "UnexpectedAdmissionError") -> None:
        super().__init__(text)
        self.reason = reason


class KubeletCrashedError(AssertionError):
    """The plugin did what crashes a real kubelet; the text is the story."""


class Device(NamedTuple):
    """A device as a plugin listed it. ``numa`` is empty if no topology was sent."""

    id: str
    health: str
    numa: tuple[int, ...] = ()


class DeviceState(NamedTuple):
    """A device as the kubelet counts it: Healthy, or Unhealthy for whatever reason."""

    health: str
    numa: tuple[int, ...]


class NodeAmount(NamedTuple):
    """One extended resource in the Node's status."""

    capacity: int
    allocatable: int


@dataclass
class Registration:
    """One Register call. ``options`` is what the plugin answered to GetDevicePluginOptions during it."""

    at: float
    version: str
    endpoint: str
    resource: str
    request_options: deviceplugin.DevicePluginOptions
    options: deviceplugin.DevicePluginOptions | None = None
    stream: int | None = None
    error: str | None = None
    answered_at: float | None = None


@dataclass(frozen=True)
class ListMessage:
    """One message of a ListAndWatch stream; ``stream`` counts the streams that this kubelet opened, from 1."""

    at: float
    resource: str
    stream: int
    raw: bytes
    devices: tuple[Device, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(device.id for device in self.devices)

    @property
    def healthy(self) -> tuple[str, ...]:
        return tuple(device.id for device in self.devices if device.health == HEALTHY)


@dataclass(frozen=True, kw_only=True)
class PluginCall:
    """A GetPreferredAllocation, Allocate or PreStartContainer that the kubelet made, as it ended."""

    at: float
    seconds: float
    method: str
    resource: str
    ids: tuple[str, ...]
    must_include: tuple[str, ...] = ()
    size: int = 0
    answer: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Allocation:
    """What one container was given of one resource."""

    ids: tuple[str, ...]
    response: deviceplugin.ContainerAllocateResponse


@dataclass
class Pod:
    """A pod of the node. ``containers`` and ``init_containers`` are limits: container to resource to number.

    ``phase`` is the Kubernetes word. ``allocations`` is keyed by container and resource. ``restarted`` are containers
    that were started more than once.
    """

    namespace: str
    name: str
    uid: str
    containers: Mapping[str, Mapping[str, int]]
    init_containers: Mapping[str, Mapping[str, int]]
    phase: str = "Pending"
    deleted: bool = False
    error: AdmissionError | None = None
    allocations: dict[tuple[str, str], Allocation] = field(default_factory=dict)
    restarted: set[str] = field(default_factory=set)

    @property
    def active(self) -> bool:
        return not self.deleted and self.phase in {"Pending", "Running"}

    @property
    def all_containers(self) -> Mapping[str, Mapping[str, int]]:
        """Init containers first: the order of admission."""
        return {**self.init_containers, **self.containers}

    def ids(self, resource: str) -> frozenset[str]:
        """The IDs of ``resource`` that the pod's containers were given."""
        return frozenset(
            device for (_, name), given in self.allocations.items() if name == resource for device in given.ids
        )

    def response(self, resource: str, container: str | None = None) -> deviceplugin.ContainerAllocateResponse:
        """The plugin's answer that the kubelet keeps; ``container`` may be left out if only one has the resource."""
        found = [
            given.response
            for (owner, name), given in self.allocations.items()
            if name == resource and container in {None, owner}
        ]
        if len(found) != 1:
            raise LookupError(f"{self.namespace}/{self.name}: {len(found)} containers have {resource}")
        return found[0]
