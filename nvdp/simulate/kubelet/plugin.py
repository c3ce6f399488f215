"""The kubelet's connection to one plugin: dial, options, the list stream, and the calls of admission."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from nvdp.kubelet import protocol
from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.simulate.kubelet.history import History
from nvdp.simulate.kubelet.records import PluginCall

RECEIVE_LIMIT_BYTES = 4 * 1024 * 1024  # grpc-go's default, which the kubelet leaves alone
_LOOK_EVERY_S = 0.05
_STATE_WAIT_S = 1.0
_PRE_START_LIMIT_S = 30.0
_GO_NAMES = {grpc.StatusCode.CANCELLED: "Canceled"}

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


class PluginError(Exception):
    """A call to the plugin failed; the text is as grpc-go words it, for that is what reaches the user."""


class PluginConnection:
    """One client of one plugin socket. Nothing here redials: the stream is the plugin's life, as for the kubelet."""

    def __init__(self, resource: str, socket: Path, history: History) -> None:
        self.resource = resource
        self.socket = socket
        self.number = 0
        self._history = history
        self._stream: Any = None
        self._channel = grpc.insecure_channel(
            f"unix:{socket}",
            options=[
                ("grpc.default_authority", "localhost"),
                ("grpc.max_receive_message_length", RECEIVE_LIMIT_BYTES),
                ("grpc.use_local_subchannel_pool", 1),  # else two connections to one path would be one
            ],
        )

    def connect(self, *, dial_limit_s: float, cancelled: threading.Event) -> deviceplugin.DevicePluginOptions:
        """Dial for at most ``dial_limit_s``, then ask for the options without a limit, as the kubelet does.

        Raise PluginError if the socket cannot be reached, the plugin answers an error, or ``cancelled`` is set.
        """
        over = threading.Event()
        ask = protocol.GET_DEVICE_PLUGIN_OPTIONS.unary(self._channel)
        call: Any = ask.future(deviceplugin.Empty(), wait_for_ready=True)
        call.add_done_callback(lambda _: over.set())
        deadline = time.monotonic() + dial_limit_s
        dialled = False
        while not over.wait(_LOOK_EVERY_S):
            if cancelled.is_set():
                call.cancel()
                raise PluginError("failed to dial device plugin: context canceled")
            if not dialled and time.monotonic() >= deadline:
                dialled = self._is_connected()
                if not dialled:
                    call.cancel()
                    raise PluginError("failed to dial device plugin: context deadline exceeded")
        try:
            options: deviceplugin.DevicePluginOptions = call.result()
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            raise PluginError(f"failed to get device plugin options: {describe_rpc_error(error)}") from error
        return options

    def run(self, receive: Callable[[bytes], None]) -> str:
        """Read the list stream until it ends, however it ends; return why. Blocks; close() from elsewhere ends it."""
        stream = self._channel.unary_stream(
            protocol.LIST_AND_WATCH.path,
            request_serializer=deviceplugin.Empty.SerializeToString,
            response_deserializer=bytes,
        )
        try:
            call = stream(deviceplugin.Empty())
            self._stream = call
            for raw in call:
                receive(raw)
        except grpc.RpcError as error:
            return describe_rpc_error(error)
        except ValueError:  # the channel was closed before the call began
            return "the connection was closed"
        return "EOF"

    def drop_stream(self) -> None:
        """End the list stream from the kubelet's side."""
        if self._stream is not None:
            self._stream.cancel()

    def close(self) -> None:
        """End everything on this connection. Idempotent."""
        self._channel.close()

    def allocate(self, ids: tuple[str, ...]) -> deviceplugin.AllocateResponse:
        """Allocate for one container, without a deadline. Raise PluginError."""
        request = deviceplugin.AllocateRequest(
            container_requests=[deviceplugin.ContainerAllocateRequest(devices_ids=ids)]
        )
        return self._call(protocol.ALLOCATE, request, ids=ids)

    def prefer(
        self, available: tuple[str, ...], must_include: tuple[str, ...], size: int
    ) -> deviceplugin.PreferredAllocationResponse:
        """GetPreferredAllocation for one container, without a deadline. Raise PluginError."""
        request = deviceplugin.PreferredAllocationRequest(
            container_requests=[
                deviceplugin.ContainerPreferredAllocationRequest(
                    available_device_ids=available, must_include_device_ids=must_include, allocation_size=size
                )
            ]
        )
        return self._call(
            protocol.GET_PREFERRED_ALLOCATION, request, ids=available, must_include=must_include, size=size
        )

    def pre_start(self, ids: tuple[str, ...]) -> None:
        """PreStartContainer, within 30 s. Raise PluginError."""
        request = deviceplugin.PreStartContainerRequest(devices_ids=ids)
        self._call(protocol.PRE_START_CONTAINER, request, ids=ids, limit_s=_PRE_START_LIMIT_S)

    def _call(
        self,
        call: protocol.Call[Q, A],
        request: Q,
        *,
        ids: Collection[str],
        must_include: Collection[str] = (),
        size: int = 0,
        limit_s: float | None = None,
    ) -> A:
        began = time.monotonic()
        answer: A | None = None
        failure: str | None = None
        try:
            answer = call.unary(self._channel)(request, timeout=limit_s)
        except grpc.RpcError as error:
            failure = describe_rpc_error(error)
            raise PluginError(failure) from error
        except ValueError as error:
            failure = "rpc error: code = Canceled desc = grpc: the client connection is closing"
            raise PluginError(failure) from error
        else:
            return answer
        finally:
            self._history.called(
                PluginCall(
                    at=began,
                    seconds=time.monotonic() - began,
                    method=call.method,
                    resource=self.resource,
                    ids=tuple(ids),
                    must_include=tuple(must_include),
                    size=size,
                    answer=_preferred(answer),
                    error=failure,
                )
            )

    def _is_connected(self) -> bool:
        told = threading.Event()
        states: list[grpc.ChannelConnectivity] = []

        def note(state: grpc.ChannelConnectivity) -> None:
            states.append(state)
            told.set()

        self._channel.subscribe(note)
        told.wait(_STATE_WAIT_S)
        self._channel.unsubscribe(note)
        return states[-1:] == [grpc.ChannelConnectivity.READY]


def describe_rpc_error(error: Exception) -> str:
    """The error as grpc-go prints it: ``rpc error: code = InvalidArgument desc = …``."""
    call: Any = error  # a call's error is the call itself; grpc's types do not say so
    if not hasattr(call, "code"):
        return str(error)
    code = call.code()
    word = _GO_NAMES.get(code) or code.name.replace("_", " ").title().replace(" ", "")
    return f"rpc error: code = {word} desc = {call.details()}"


def _preferred(answer: Message | None) -> tuple[str, ...]:
    if isinstance(answer, deviceplugin.PreferredAllocationResponse):
        return tuple(device for container in answer.container_responses for device in container.device_ids)
    return ()
