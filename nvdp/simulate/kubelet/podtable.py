"""Which container of which pod was given which devices: the kubelet's cache, as its checkpoint keeps it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.simulate.kubelet.records import Allocation
from nvdp.simulate.kubelet.topology import WITHOUT_NODE


class Slot(NamedTuple):
    """What an allocation belongs to."""

    pod_uid: str
    container: str
    resource: str


class Given(NamedTuple):
    """Devices by NUMA node (a device on two nodes stands under both), and the plugin's answer."""

    by_node: Mapping[int, tuple[str, ...]]
    response: deviceplugin.ContainerAllocateResponse

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(device for devices in self.by_node.values() for device in devices)

    @property
    def allocation(self) -> Allocation:
        return Allocation(tuple(sorted(self.ids)), self.response)


class PodTable:
    """The cache. Not locked by itself: the device manager's lock covers it."""

    def __init__(self, entries: Mapping[Slot, Given] | None = None) -> None:
        self._by_container: dict[tuple[str, str], dict[str, Given]] = {}
        for slot, given in (entries or {}).items():
            self._by_container.setdefault(slot[:2], {})[slot.resource] = given

    def __iter__(self) -> Iterator[tuple[Slot, Given]]:
        for (pod_uid, container), resources in self._by_container.items():
            for resource, given in resources.items():
                yield Slot(pod_uid, container, resource), given

    def find(self, slot: Slot) -> Given | None:
        return self._by_container.get(slot[:2], {}).get(slot.resource)

    def insert(
        self, slot: Slot, nodes: Mapping[str, Collection[int]], response: deviceplugin.ContainerAllocateResponse
    ) -> Given:
        """Keep what ``slot`` was given: ``nodes`` maps each device to its NUMA nodes."""
        by_node: dict[int, list[str]] = {}
        for device, its_nodes in nodes.items():
            for node in its_nodes or (WITHOUT_NODE,):
                by_node.setdefault(node, []).append(device)
        given = Given({node: tuple(devices) for node, devices in by_node.items()}, response)
        self._by_container.setdefault(slot[:2], {})[slot.resource] = given
        return given

    def keep_only(self, pod_uids: Collection[str]) -> bool:
        """Forget all pods but these; whether there was one to forget."""
        over = [key for key in self._by_container if key[0] not in pod_uids]
        for key in over:
            del self._by_container[key]
        return bool(over)

    def of_container(self, pod_uid: str, container: str) -> Mapping[str, Given]:
        """By resource."""
        return self._by_container.get((pod_uid, container), {})

    def taken(self) -> dict[str, set[str]]:
        """All devices that are given to somebody, by resource."""
        taken: dict[str, set[str]] = {}
        for slot, given in self:
            taken.setdefault(slot.resource, set()).update(given.ids)
        return taken
