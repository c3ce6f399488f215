"""Asking the driver, through an NVML child of its own, who uses a GPU, without waiting twice for one hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from nvdp.errors import HostError
from nvdp.model.inventory import GpuRef
from nvdp.nvml.children import NvmlChildren
from nvdp.nvml.client import NvmlClient
from nvdp.nvml.frames import ComputeProcess, Processes, ProcessesRead, Refused
from nvdp.nvml.outcomes import Died, Hung, Outcome, is_gpus_fault
from nvdp.services.nvml_counts import GpuObserver, count_outcome

# Of a kubelet that gives up after 30 s. The daemon's own session keeps the GPUs awake, so that a new one opens at once.
_INIT_LIMIT_S: Final = 10.0
_CALL_LIMIT_S: Final = 5.0
# So long a call that did not return is not made again. By then the lists say what is wrong with the GPU.
_HANG_KEPT_S: Final = 30.0
_TRIES: Final = 3


class Unanswered(msgspec.Struct, frozen=True):
    """The driver does not say; ``text`` is why."""

    text: str


Reading: TypeAlias = tuple[ComputeProcess, ...] | Unanswered


class _Hang(msgspec.Struct, frozen=True):
    gpu: GpuRef | None
    text: str
    until: float


class ProcessReader:
    """Used by one thread, whose end would be the child's. There is a child between the first ``read`` and ``close``."""

    def __init__(self, children: NvmlChildren, *, observer: GpuObserver, clock: Callable[[], float]) -> None:
        self._children = children
        self._observer = observer
        self._clock = clock
        self._child: NvmlClient | None = None
        self._hangs: list[_Hang] = []

    def read(self, uuid: str, *, limit_s: float) -> Reading:
        """The processes of one GPU; blocks for as long as the driver takes, ``limit_s`` and 5 s per call at most.

        A GPU in the way of others is left out once its call did not return. It, or a driver that does not start at
        all, is not asked again for half a minute.
        """
        problem = ""
        for _ in range(_TRIES):
            self._hangs = [hang for hang in self._hangs if hang.until > self._clock()]
            known = next((hang for hang in self._hangs if hang.gpu is None or hang.gpu.uuid == uuid), None)
            if known is not None:
                return Unanswered(known.text)
            match self._ask(uuid, limit_s=min(limit_s, _CALL_LIMIT_S)):
                case ProcessesRead(processes=tuple() as found):
                    return found
                case ProcessesRead(fault=fault):
                    return Unanswered(fault.text if fault is not None else problem or "it is not counted any more")
                case Refused(text=text):
                    return Unanswered(text)
                case Hung() | Died() as failure:
                    problem = failure.text
                    if isinstance(failure, Hung) or is_gpus_fault(failure):
                        self._hangs.append(_Hang(failure.gpu, problem, self._clock() + _HANG_KEPT_S))
                case _:
                    return Unanswered("the driver is being let go of")
        return Unanswered(problem)

    def close(self) -> None:
        """End the child, if there is one; blocks for two seconds at most."""
        child, self._child = self._child, None
        if child is not None:
            self._children.end(child)

    def _ask(self, uuid: str, *, limit_s: float) -> Outcome:
        if self._child is None:
            try:
                self._child = self._children.spawn()
            except HostError as error:
                return Refused(call="spawn", kind="", text=str(error))
        skip = tuple(hang.gpu for hang in self._hangs if hang.gpu is not None)
        # The UUID says all: no place among other GPUs is meant.
        command = Processes(gpu=GpuRef(index=0, count=0, uuid=uuid), skip=skip)
        outcome = self._child.call(command, limit_s=limit_s, init_limit_s=_INIT_LIMIT_S)
        if not isinstance(outcome, ProcessesRead):
            self.close()
            count_outcome(outcome, self._observer)
        return outcome
