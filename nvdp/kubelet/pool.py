"""Threads that answer calls, also where no new thread can be started: a node may be out of process numbers.

grpc hands each call to a pool and dies of a pool that refuses one: its server is deaf from then on, and a kubelet that
has just called Allocate waits for ever. So a call that finds no thread of its own waits for one of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from nvdp.errors import HostError

P = ParamSpec("P")
T = TypeVar("T")


class CallPool(ThreadPoolExecutor):
    """Has one thread from the start, and takes every call until it is shut down. HostError if it cannot have that."""

    def __init__(self, most_threads: int, *, name: str) -> None:
        super().__init__(most_threads, thread_name_prefix=name)
        try:
            super().submit(_do_nothing)
        except RuntimeError as error:
            raise HostError(
                f"no thread can be started ({error}); see the pod's and the node's limits of pids"
            ) from error

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As an executor does; where no thread can be started, the future never tells of the call's end."""
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:  # the call is in the queue by now, or the pool is shut down and so is its server
            return Future[Any]()


def _do_nothing() -> None:
    """The work for which the first thread is started."""
