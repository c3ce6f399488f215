"""The twin's PodResources service, version v1 (the kubelet contract, B)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import grpc

from nvdp.kubelet import protocol
from nvdp.kubelet.proto import podresources_v1_pb2 as podresources
from nvdp.simulate.kubelet.behaviour import Behaviour
from nvdp.simulate.kubelet.devices import DeviceManager
from nvdp.simulate.kubelet.faults import Faults
from nvdp.simulate.kubelet.history import History
from nvdp.simulate.kubelet.records import HEALTHY, Pod
from nvdp.simulate.kubelet.topology import WITHOUT_NODE

RATE_PER_S = 100.0
BURST = 10


class RateLimit:
    """A bucket of ``BURST`` calls that fills at ``RATE_PER_S``; shared by all readers of the node."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._level = float(BURST)
        self._filled_at = time.monotonic()

    def take(self) -> bool:
        with self._lock:
            now = time.monotonic()
            self._level = min(float(BURST), self._level + (now - self._filled_at) * RATE_PER_S)
            self._filled_at = now
            if self._level < 1:
                return False
            self._level -= 1
            return True


class PodResources:
    """Answers for one kubelet's life. ``pods`` gives the pods that the kubelet knows."""

    def __init__(
        self,
        *,
        devices: DeviceManager,
        history: History,
        behaviour: Behaviour,
        faults: Faults,
        pods: Callable[[], Iterable[Pod]],
    ) -> None:
        self._devices = devices
        self._changes = history.changes
        self._behaviour = behaviour
        self._faults = faults
        self._pods = pods
        self._rate = RateLimit()

    def build_service(self) -> grpc.GenericRpcHandler[Any, Any]:
        return protocol.build_service(
            protocol.POD_RESOURCES,
            {
                protocol.LIST_POD_RESOURCES: protocol.LIST_POD_RESOURCES.unary_handler(self._list),
                protocol.GET_ALLOCATABLE_RESOURCES: protocol.GET_ALLOCATABLE_RESOURCES.unary_handler(self._allocatable),
                protocol.GET_POD_RESOURCES: protocol.GET_POD_RESOURCES.unary_handler(self._get),
            },
        )

    def _list(
        self, _: podresources.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> podresources.ListPodResourcesResponse:
        self._admit_call(context)
        with self._changes:
            self._devices.release_finished_pods()
            return podresources.ListPodResourcesResponse(
                pod_resources=[
                    self._describe(pod) for pod in self._pods() if pod.active or self._behaviour.lists_finished_pods
                ]
            )

    def _allocatable(
        self, _: podresources.AllocatableResourcesRequest, context: grpc.ServicerContext
    ) -> podresources.AllocatableResourcesResponse:
        self._admit_call(context)
        with self._changes:
            return podresources.AllocatableResourcesResponse(
                devices=[
                    entry
                    for resource in self._devices.resources()
                    for device, state in self._devices.states(resource).items()
                    if state.health == HEALTHY
                    for entry in _entries(resource, dict.fromkeys(state.numa or (WITHOUT_NODE,), (device,)))
                ]
            )

    def _get(
        self, request: podresources.GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> podresources.GetPodResourcesResponse:
        self._admit_call(context)
        if not self._behaviour.get:
            _refuse(context, grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        with self._changes:
            named = [
                pod for pod in self._pods() if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name)
            ]
            if named:
                return podresources.GetPodResourcesResponse(pod_resources=self._describe(named[-1]))
        return _refuse(
            context,
            grpc.StatusCode.UNKNOWN,
            f"pod {request.pod_name} in namespace {request.pod_namespace} not found",
        )

    def _admit_call(self, context: grpc.ServicerContext) -> None:
        if not self._rate.take():
            _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        given_up = threading.Event()
        context.add_callback(given_up.set)
        given_up.wait(self._faults.list_pods_delay_s)
        if self._faults.list_pods_error is not None:
            _refuse(context, *self._faults.list_pods_error)

    def _describe(self, pod: Pod) -> podresources.PodResources:
        """Init containers never appear. The allocations of a pod that is over are remembered by the pod only."""
        return podresources.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[
                podresources.ContainerResources(
                    name=container,
                    devices=[
                        entry
                        for resource, by_node in self._given(pod, container)
                        for entry in _entries(resource, by_node)
                    ],
                )
                for container in pod.containers
            ],
        )

    def _given(self, pod: Pod, container: str) -> Iterator[tuple[str, Mapping[int, tuple[str, ...]]]]:
        if pod.active:
            for resource, given in self._devices.table.of_container(pod.uid, container).items():
                yield resource, given.by_node
            return
        for (owner, resource), allocation in pod.allocations.items():
            if owner == container:
                yield resource, {WITHOUT_NODE: allocation.ids}


def _entries(resource: str, by_node: Mapping[int, tuple[str, ...]]) -> Iterator[podresources.ContainerDevices]:
    """One entry for each device and each of its NUMA nodes."""
    for node, devices in by_node.items():
        for device in devices:
            entry = podresources.ContainerDevices(resource_name=resource, device_ids=[device])
            if node != WITHOUT_NODE:
                entry.topology.nodes.add(id=node)
            yield entry


def _refuse(context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
    context.abort(code, text)
    raise AssertionError("abort never returns")
