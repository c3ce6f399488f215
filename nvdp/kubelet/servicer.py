"""The five methods that the kubelet calls, answered from the feed alone: no NVML, no file, no network.

Every answer is bounded by computation on one snapshot, so that no pod's admission ever waits for a GPU. The one that
may wait is PreStartContainer, if a check is on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from nvdp.errors import AllocationError
from nvdp.kubelet.feed import Feed
from nvdp.kubelet.messages import build_container_response, build_options
from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.kubelet.protocol import (
    ALLOCATE,
    DEVICE_PLUGIN,
    GET_DEVICE_PLUGIN_OPTIONS,
    GET_PREFERRED_ALLOCATION,
    LIST_AND_WATCH,
    PRE_START_CONTAINER,
    Call,
    build_service,
)
from nvdp.kubelet.starts import STOPPING, ContainerStarts
from nvdp.kubelet.streams import ListStreams, Observe
from nvdp.log import Log, describe_exception
from nvdp.model.reasons import Level, Reason
from nvdp.planning.preferred import choose_preferred
from nvdp.planning.response import ContainerAllocation, build_allocation

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

# By AllocationError.reason; what is not named is the request's own fault.
_CODES = {
    "unknown_device": grpc.StatusCode.NOT_FOUND,
    "unhealthy": grpc.StatusCode.FAILED_PRECONDITION,
    "not_idle": grpc.StatusCode.FAILED_PRECONDITION,
    STOPPING: grpc.StatusCode.UNAVAILABLE,
}
_MAX_NAMED = 8  # IDs in a line for people; the field has them all


class DevicePluginServicer:
    """Answers for one resource; every method runs on a thread of the server, any number at once.

    ``answered`` is called after each Allocate that handed devices out, ``refused`` with the reason of each that must
    not. An exception that nobody expected is logged and costs its caller INTERNAL, or the preference; the rest goes on.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        log: Log,
        log_allocations: bool,
        observe: Observe,
        answered: Callable[[], None],
        refused: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._feed = feed
        self._log = log
        self._log_allocations = log_allocations
        self._observe = observe
        self._answered = answered
        self._refused = refused
        self._clock = clock

    def build_service(
        self, streams: ListStreams, starts: ContainerStarts | None = None
    ) -> grpc.GenericRpcHandler[Any, Any]:
        """The service for a server, with ``streams`` to answer ListAndWatch. Its lists come encoded.

        PreStartContainer is asked for, and waits, only with ``starts``.
        """
        options = build_options(pre_start_required=starts is not None)
        return build_service(
            DEVICE_PLUGIN,
            {
                GET_DEVICE_PLUGIN_OPTIONS: self._handler(GET_DEVICE_PLUGIN_OPTIONS, lambda _: options),
                LIST_AND_WATCH: grpc.unary_stream_rpc_method_handler(
                    streams.build_handler(), request_deserializer=LIST_AND_WATCH.request.FromString
                ),
                GET_PREFERRED_ALLOCATION: self._handler(
                    GET_PREFERRED_ALLOCATION, self.get_preferred_allocation, otherwise=_prefer_nothing
                ),
                ALLOCATE: self._handler(ALLOCATE, self.allocate),
                PRE_START_CONTAINER: self._handler(PRE_START_CONTAINER, _let_start)
                if starts is None
                else self._pre_start_handler(starts),
            },
        )

    def get_preferred_allocation(
        self, request: deviceplugin.PreferredAllocationRequest
    ) -> deviceplugin.PreferredAllocationResponse:
        """One answer for each container asked, in order; an empty one where the request cannot be met."""
        snapshot = self._feed.current
        return deviceplugin.PreferredAllocationResponse(
            container_responses=[
                deviceplugin.ContainerPreferredAllocationResponse(
                    device_ids=choose_preferred(
                        snapshot.listed,
                        held_elsewhere=snapshot.held_elsewhere,
                        available=container.available_device_ids,
                        must_include=container.must_include_device_ids,
                        size=container.allocation_size,
                    )
                )
                for container in request.container_requests
            ]
        )

    def allocate(self, request: deviceplugin.AllocateRequest) -> deviceplugin.AllocateResponse:
        """One answer for each container asked, in order. Raises AllocationError if one of them must be refused."""
        started_at = self._clock()
        asked = [list(container.devices_ids) for container in request.container_requests]
        try:
            with self._feed.allocating([device_id for ids in asked for device_id in ids]) as snapshot:
                allocations = [build_allocation(snapshot.listed, ids) for ids in asked]
        except AllocationError as error:
            self._refused(error.reason)
            self._log(Reason.ALLOCATION_REFUSED, str(error), resource=snapshot.listed.resource, cause=error.reason)
            raise
        self._answered()
        if self._log_allocations:
            for ids, allocation in zip(asked, allocations, strict=True):
                self._log_served(snapshot.listed.resource, ids, allocation, self._clock() - started_at)
        return deviceplugin.AllocateResponse(
            container_responses=[build_container_response(allocation) for allocation in allocations]
        )

    def pre_start(
        self, request: deviceplugin.PreStartContainerRequest, starts: ContainerStarts, context: grpc.ServicerContext
    ) -> deviceplugin.PreStartContainerResponse:
        """Blocks until the container may start. Raises AllocationError if it must not."""
        try:
            starts.wait(self._feed.current.listed, list(request.devices_ids), context)
        except AllocationError as error:
            if error.reason != STOPPING:
                self._refused(error.reason)
            raise
        return _let_start(request)

    def _log_served(self, resource: str, ids: Sequence[str], allocation: ContainerAllocation, seconds: float) -> None:
        self._log(
            Reason.ALLOCATION_SERVED,
            f"{_name_some(ids)} → {_describe_given(allocation)}",
            resource=resource,
            devices=list(ids),
            seconds=seconds,
        )

    def _handler(
        self, call: Call[Q, A], answer: Callable[[Q], A], *, otherwise: Callable[[Q], A] | None = None
    ) -> grpc.RpcMethodHandler[Q, A]:
        """``answer`` as grpc wants it: observed, and with its exceptions turned into a code and one readable line.

        ``otherwise`` answers after a defect, for a call whose error would do more harm than an answer without content.
        """

        def handle(request: Q, context: grpc.ServicerContext) -> A:
            return self._answer(call, request, answer, context=context, otherwise=otherwise)

        return call.unary_handler(handle)

    def _pre_start_handler(self, starts: ContainerStarts) -> grpc.RpcMethodHandler[Any, Any]:
        """The same for the call that waits, on threads of its own. A defect of the check lets the container start."""

        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            answer = partial(self.pre_start, starts=starts, context=context)
            return self._answer(PRE_START_CONTAINER, request, answer, context=context, otherwise=_let_start)

        handle.experimental_thread_pool = starts.pool  # type: ignore[attr-defined] # as for streams, see there
        return PRE_START_CONTAINER.unary_handler(handle)

    def _answer(
        self,
        call: Call[Q, A],
        request: Q,
        answer: Callable[[Q], A],
        *,
        context: grpc.ServicerContext,
        otherwise: Callable[[Q], A] | None,
    ) -> A:
        started_at = self._clock()
        code, text = grpc.StatusCode.OK, ""
        try:
            return answer(request)
        except AllocationError as error:
            code, text = _CODES.get(error.reason, grpc.StatusCode.INVALID_ARGUMENT), str(error)
        except Exception as error:  # noqa: BLE001 - a defect costs one call, never the server
            code, text = grpc.StatusCode.INTERNAL, f"nvdp failed in {call.method}; its log says why"
            self._log_defect(call.method, error)
            if otherwise is not None:
                return otherwise(request)
        finally:
            self._observe(call.method, code.name, self._clock() - started_at)
        context.abort(code, text)
        raise AssertionError  # abort has raised

    def _log_defect(self, method: str, error: Exception) -> None:
        self._log(
            Reason.ALLOCATION_REFUSED,
            f"{method} failed, which is a defect of nvdp",
            level=Level.ERROR,
            resource=self._feed.current.listed.resource,
            **describe_exception(error),
        )


def _let_start(_request: deviceplugin.PreStartContainerRequest) -> deviceplugin.PreStartContainerResponse:
    """Nothing is against the start of the container."""
    return deviceplugin.PreStartContainerResponse()


def _prefer_nothing(request: deviceplugin.PreferredAllocationRequest) -> deviceplugin.PreferredAllocationResponse:
    """Leave the choice to the kubelet: an error would reject the pod for good (A.7 of the contract)."""
    nothing = deviceplugin.ContainerPreferredAllocationResponse()
    return deviceplugin.PreferredAllocationResponse(container_responses=[nothing for _ in request.container_requests])


def _describe_given(allocation: ContainerAllocation) -> str:
    """By what the container gets its devices, as far as it fits into a line."""
    names = allocation.cdi_devices or next(iter(allocation.annotations.values()), "").split(",")
    given = [f"cdi {_name_some(names)}"] if any(names) else []
    given += [f"{name}={value}" for name, value in allocation.envs.items()]
    return " ".join(given)


def _name_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{', '.join(names[:_MAX_NAMED])}{more}"
