"""Setting the compute modes of GPUs, through an NVML child of its own: a mode outlives the process that sets it.

It is lost with the driver's state of the GPU: at a reboot, at a reset, and, without persistence mode, once no process
has the GPU open any more (driver documentation, driver persistence).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

from nvdp.errors import HostError, NvmlError
from nvdp.model.inventory import ComputeMode, Fault, GpuRef
from nvdp.model.reasons import Cause
from nvdp.nvml.children import NvmlChildren
from nvdp.nvml.client import NvmlClient
from nvdp.nvml.frames import ComputeModeSet, Refused, SetComputeMode
from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.outcomes import Died, Hung, Outcome, is_gpus_fault

_CALL: Final = "nvmlDeviceSetComputeMode"
_TRIES: Final = 3
_REMEDIES: Final = {
    NvmlErrorKind.NO_PERMISSION.word: (
        "only root with CAP_SYS_ADMIN may: set securityContext.privileged: true, "
        "or runAsUser: 0 and capabilities.add: [SYS_ADMIN]"
    ),
    NvmlErrorKind.NOT_SUPPORTED.word: "it cannot be set while the GPU is in MIG mode",
}


def set_compute_mode(children: NvmlChildren, uuid: str, mode: ComputeMode, *, limit_s: float) -> None:
    """Set the mode of one GPU. See ``set_compute_modes``, whose error for this GPU it raises."""
    for error in set_compute_modes(children, {uuid: mode}, limit_s=limit_s).values():
        raise error


def set_compute_modes(
    children: NvmlChildren, modes: Mapping[str, ComputeMode], *, limit_s: float
) -> dict[str, NvmlError]:
    """Set the modes of several GPUs, by UUID, one after the other; returns why for those where it failed.

    Any thread; blocks for as long as the driver takes, for ``limit_s`` at most in each NVML call, and for a minute
    where it starts. A GPU that has its mode already is left as it is. One whose call does not return, or crashes the
    child, keeps none of the others from being set; a driver that cannot be asked at all fails all that are left. Each
    error is a line with what to do; its ``kind`` is a word of ``NvmlErrorKind``, else ``CallTimeout`` or
    ``CallFailed``.
    """
    setting = _Setting(children, limit_s=limit_s)
    failed: dict[str, NvmlError] = {}
    try:
        for uuid, mode in modes.items():
            try:
                setting.set(uuid, mode)
            except NvmlError as error:
                failed[uuid] = error
    finally:
        setting.close()
    return failed


class _Setting:
    """One round. There is a child between the first ``set`` and ``close``."""

    def __init__(self, children: NvmlChildren, *, limit_s: float) -> None:
        self._children = children
        self._limit_s = limit_s
        self._child: NvmlClient | None = None
        self._skip: list[GpuRef] = []
        self._refusal: Fault | None = None

    def set(self, uuid: str, mode: ComputeMode) -> None:
        """Raises NvmlError."""
        problem = self._refusal or Fault(
            call=_CALL, kind=NvmlErrorKind.NOT_FOUND.word, text="the driver counts no such GPU"
        )
        for _ in range(_TRIES if self._refusal is None else 0):
            match self._ask(uuid, mode):
                case ComputeModeSet(mode=ComputeMode()):
                    return
                case ComputeModeSet(fault=fault):
                    _fail(uuid, mode, fault or problem)
                case Hung() | Died() as failure:
                    problem = _describe(failure)
                    if is_gpus_fault(failure) and failure.gpu is not None:
                        self._skip.append(failure.gpu)
                    elif isinstance(failure, Hung):
                        self._refusal = problem
                case Refused(call=call, kind=kind, text=text):
                    self._refusal = problem = Fault(call=call, kind=kind, text=text)
                case _:
                    text = "the driver is being let go of"
                    self._refusal = problem = Fault(call=_CALL, kind=Cause.CALL_FAILED.value, text=text)
            if self._refusal is not None or any(gpu.uuid == uuid for gpu in self._skip):
                break
        _fail(uuid, mode, problem)

    def close(self) -> None:
        """End the child, if there is one; blocks for two seconds at most."""
        child, self._child = self._child, None
        if child is not None:
            self._children.end(child)

    def _ask(self, uuid: str, mode: ComputeMode) -> Outcome:
        if self._child is None:
            try:
                self._child = self._children.spawn()
            except HostError as error:
                return Refused(call=_CALL, kind=Cause.CALL_FAILED.value, text=str(error))
        # The UUID says all: no place among other GPUs is meant.
        command = SetComputeMode(gpu=GpuRef(index=0, count=0, uuid=uuid), mode=mode, skip=tuple(self._skip))
        outcome = self._child.call(command, limit_s=self._limit_s)
        if not isinstance(outcome, ComputeModeSet):
            self.close()
        return outcome


def _describe(failure: Hung | Died) -> Fault:
    kind = Cause.CALL_TIMEOUT if isinstance(failure, Hung) else Cause.CALL_FAILED
    return Fault(call=failure.call or _CALL, kind=kind.value, text=failure.text)


def _fail(uuid: str, mode: ComputeMode, fault: Fault) -> NoReturn:
    remedy = _REMEDIES.get(fault.kind) if fault.call == _CALL else None
    text = f"the compute mode of {uuid} cannot be set to {mode.value}: {fault.text}"
    raise NvmlError(f"{text}; {remedy}" if remedy else text, kind=fault.kind, call=fault.call, gpu=uuid)
