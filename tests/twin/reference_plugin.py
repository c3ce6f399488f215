"""The smallest device plugin that the twin can be shown with. It does what it is told and obeys no rule."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import grpc

from nvdp.kubelet import protocol
from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin

RESOURCE = "nvidia.com/gpu"


def device(name: str, health: str = "Healthy", numa: tuple[int, ...] = ()) -> deviceplugin.Device:
    found = deviceplugin.Device(id=name, health=health)
    for node in numa:
        found.topology.nodes.add(id=node)
    return found


def devices(count: int, *, health: str = "Healthy", numa: bool = False) -> list[deviceplugin.Device]:
    return [device(f"dev-{n}", health, (n % 2,) if numa else ()) for n in range(count)]


class ReferencePlugin:
    def __init__(
        self,
        directory: Path,
        *,
        name: str = "reference.sock",
        resource: str = RESOURCE,
        listed: list[deviceplugin.Device] | None = None,
        preferred: bool = False,
        pre_start: bool = False,
    ) -> None:
        self.directory = directory
        self.name = name
        self.resource = resource
        self.options = deviceplugin.DevicePluginOptions(
            get_preferred_allocation_available=preferred, pre_start_required=pre_start
        )
        self.listed = devices(4) if listed is None else listed
        self.version = 1
        self.changed = threading.Condition()
        self.stopping = False
        self.streams_open = 0
        self.streams_ended = 0
        self.options_asked = 0
        self.options_hang = threading.Event()
        self.options_hang.set()
        self.allocate_error = ""
        self.no_containers = False
        self.prefer_error = ""
        self.pre_start_error = ""
        self.prefer_answer: list[str] = []
        self.server = grpc.server(ThreadPoolExecutor(200), maximum_concurrent_rpcs=None)
        handlers = {
            protocol.GET_DEVICE_PLUGIN_OPTIONS: protocol.GET_DEVICE_PLUGIN_OPTIONS.unary_handler(self._options),
            protocol.LIST_AND_WATCH: protocol.LIST_AND_WATCH.stream_handler(self._list_and_watch),
            protocol.GET_PREFERRED_ALLOCATION: protocol.GET_PREFERRED_ALLOCATION.unary_handler(self._prefer),
            protocol.ALLOCATE: protocol.ALLOCATE.unary_handler(self._allocate),
            protocol.PRE_START_CONTAINER: protocol.PRE_START_CONTAINER.unary_handler(self._pre_start),
        }
        self.server.add_generic_rpc_handlers((protocol.build_service(protocol.DEVICE_PLUGIN, handlers),))
        self.server.add_insecure_port(f"unix:{directory / name}")
        self.server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def register(
        self,
        *,
        version: str = "v1beta1",
        endpoint: str | None = None,
        resource: str | None = None,
        timeout_s: float = 15.0,
    ) -> None:
        with grpc.insecure_channel(f"unix:{self.directory / 'kubelet.sock'}") as channel:
            protocol.REGISTER.unary(channel)(
                deviceplugin.RegisterRequest(
                    version=version,
                    endpoint=self.name if endpoint is None else endpoint,
                    resource_name=resource or self.resource,
                    options=self.options,
                ),
                timeout=timeout_s,
            )

    def update(self, listed: list[deviceplugin.Device]) -> None:
        with self.changed:
            self.listed = listed
            self.version += 1
            self.changed.notify_all()

    def end_streams(self) -> None:
        """End them from this side, and serve on."""
        with self.changed:
            self.version = -abs(self.version)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.streams_open == 0, 5)
            self.version = abs(self.version)

    def stop(self) -> None:
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
        self.options_hang.set()
        self.server.stop(None).wait()

    def wait_stream_ended(self, count: int = 1) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.streams_ended >= count, 5)

    def _options(self, _, context):
        self.options_asked += 1
        self.options_hang.wait(20)
        return self.options

    def _list_and_watch(self, _, context) -> Iterator[deviceplugin.ListAndWatchResponse]:
        gone = threading.Event()

        def on_end() -> None:
            gone.set()
            with self.changed:
                self.changed.notify_all()

        if not context.add_callback(on_end):
            return
        with self.changed:
            self.streams_open += 1
        sent = [0]
        try:
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: gone.is_set() or self.stopping or self.version != sent[0])
                    if gone.is_set() or self.stopping or self.version < 0:
                        return
                    sent[0], listed = self.version, list(self.listed)
                yield deviceplugin.ListAndWatchResponse(devices=listed)
        finally:
            with self.changed:
                self.streams_open -= 1
                self.streams_ended += 1
                self.changed.notify_all()

    def _prefer(self, request, context):
        if self.prefer_error:
            context.abort(grpc.StatusCode.INTERNAL, self.prefer_error)
        return deviceplugin.PreferredAllocationResponse(
            container_responses=[
                deviceplugin.ContainerPreferredAllocationResponse(device_ids=self.prefer_answer)
                for _ in request.container_requests
            ]
        )

    def _allocate(self, request, context):
        if self.allocate_error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.allocate_error)
        if self.no_containers:
            return deviceplugin.AllocateResponse()
        return deviceplugin.AllocateResponse(
            container_responses=[
                deviceplugin.ContainerAllocateResponse(envs={"DEVICES": ",".join(sorted(asked.devices_ids))})
                for asked in request.container_requests
            ]
        )

    def _pre_start(self, _, context):
        if self.pre_start_error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.pre_start_error)
        return deviceplugin.PreStartContainerResponse()
