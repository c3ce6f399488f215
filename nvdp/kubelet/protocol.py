"""The calls of the kubelet's protocols, typed: their URLs, messages, and how to make or to answer one.

The sources are api/*.proto. Service names and fields are spec'd by Kubernetes and never change within a version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.kubelet.proto import podresources_v1_pb2 as podresources

REGISTRATION = "v1beta1.Registration"
DEVICE_PLUGIN = "v1beta1.DevicePlugin"
POD_RESOURCES = "v1.PodResourcesLister"

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


class Call(Generic[Q, A]):
    """One method of a service: ``request`` and ``answer`` are its messages."""

    def __init__(self, service: str, method: str, *, request: type[Q], answer: type[A]) -> None:
        self.service = service
        self.method = method
        self.path = f"/{service}/{method}"
        self.request = request
        self.answer = answer

    def unary(self, channel: grpc.Channel) -> grpc.UnaryUnaryMultiCallable[Q, A]:
        """The call, ready to be made on ``channel``."""
        return channel.unary_unary(
            self.path, request_serializer=self.request.SerializeToString, response_deserializer=self.answer.FromString
        )

    def stream(self, channel: grpc.Channel) -> grpc.UnaryStreamMultiCallable[Q, A]:
        """The same for a call with many answers."""
        return channel.unary_stream(
            self.path, request_serializer=self.request.SerializeToString, response_deserializer=self.answer.FromString
        )

    def unary_handler(self, answer: Callable[[Q, grpc.ServicerContext], A]) -> grpc.RpcMethodHandler[Q, A]:
        """What a server needs to answer the call."""
        return grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=self.request.FromString, response_serializer=self.answer.SerializeToString
        )

    def stream_handler(self, answer: Callable[[Q, grpc.ServicerContext], Iterator[A]]) -> grpc.RpcMethodHandler[Q, A]:
        """The same for a call with many answers."""
        return grpc.unary_stream_rpc_method_handler(
            answer, request_deserializer=self.request.FromString, response_serializer=self.answer.SerializeToString
        )


def build_service(
    name: str, handlers: dict[Call[Any, Any], grpc.RpcMethodHandler[Any, Any]]
) -> grpc.GenericRpcHandler[Any, Any]:
    """A service for ``grpc.Server.add_generic_rpc_handlers`` out of the handlers of its calls."""
    return grpc.method_handlers_generic_handler(name, {call.method: handler for call, handler in handlers.items()})


REGISTER = Call(REGISTRATION, "Register", request=deviceplugin.RegisterRequest, answer=deviceplugin.Empty)

GET_DEVICE_PLUGIN_OPTIONS = Call(
    DEVICE_PLUGIN, "GetDevicePluginOptions", request=deviceplugin.Empty, answer=deviceplugin.DevicePluginOptions
)
LIST_AND_WATCH = Call(
    DEVICE_PLUGIN, "ListAndWatch", request=deviceplugin.Empty, answer=deviceplugin.ListAndWatchResponse
)
GET_PREFERRED_ALLOCATION = Call(
    DEVICE_PLUGIN,
    "GetPreferredAllocation",
    request=deviceplugin.PreferredAllocationRequest,
    answer=deviceplugin.PreferredAllocationResponse,
)
ALLOCATE = Call(DEVICE_PLUGIN, "Allocate", request=deviceplugin.AllocateRequest, answer=deviceplugin.AllocateResponse)
PRE_START_CONTAINER = Call(
    DEVICE_PLUGIN,
    "PreStartContainer",
    request=deviceplugin.PreStartContainerRequest,
    answer=deviceplugin.PreStartContainerResponse,
)

LIST_POD_RESOURCES = Call(
    POD_RESOURCES,
    "List",
    request=podresources.ListPodResourcesRequest,
    answer=podresources.ListPodResourcesResponse,
)
GET_ALLOCATABLE_RESOURCES = Call(
    POD_RESOURCES,
    "GetAllocatableResources",
    request=podresources.AllocatableResourcesRequest,
    answer=podresources.AllocatableResourcesResponse,
)
GET_POD_RESOURCES = Call(
    POD_RESOURCES, "Get", request=podresources.GetPodResourcesRequest, answer=podresources.GetPodResourcesResponse
)
