"""The functions of the simulated library that tell how cards fare: events, and what can be asked."""

from __future__ import annotations

import ctypes
import time
from typing import Any, Final

import pynvml

from nvdp.nvml.conditions import RECOVERY_ACTION_FIELD
from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.simulated.events import EventSet
from nvdp.nvml.simulated.machine import Machine, NvmlReturn
from nvdp.nvml.simulated.node import Fabric, SimulatedGpu
from nvdp.nvml.simulated.signatures import (
    EventSetHandle,
    GpuHandle,
    Implementation,
    Number,
    Out,
    OutFields,
    OutVersioned,
    Parameter,
    write_handle,
)

_HANDLE: Final = GpuHandle()
_NUMBER: Final = Number()
_UINT: Final = Out(ctypes.c_uint)
_ULONGLONG: Final = Out(ctypes.c_ulonglong)
_SUPPORTED: Final = (
    pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError | pynvml.nvmlEventTypeSingleBitEccError
)
_NO_INSTANCE: Final = 0xFFFFFFFF


def _create_set(machine: Machine, event_set: Any) -> None:
    write_handle(event_set, machine.event_sets.create())


def _supported_types(_machine: Machine, _gpu: SimulatedGpu, types: Any) -> None:
    types.value = _SUPPORTED


def _register(machine: Machine, gpu: SimulatedGpu, types: int, event_set: EventSet) -> None:
    if types & ~_SUPPORTED:
        raise NvmlReturn(NvmlErrorKind.INVALID_ARGUMENT.code)
    event_set.registered[machine.get_handle(gpu)] = types


def _wait(machine: Machine, event_set: EventSet, data: Any, timeout_ms: int) -> None:
    """Faults strike it also while it waits, by any card of the set."""
    until = time.monotonic() + timeout_ms / 1000
    while not event_set.waiting:
        remaining = until - time.monotonic()
        if remaining <= 0:
            raise NvmlReturn(NvmlErrorKind.TIMEOUT.code)
        machine.wait_edit(remaining)
        machine.begin("nvmlEventSetWait", machine.find_positions(event_set.registered))
    happening = event_set.waiting.popleft()
    write_handle(data.device, happening.handle)
    data.eventType, data.eventData = happening.type, happening.data
    instance = happening.instance
    data.gpuInstanceId = instance.gpu_instance if instance is not None else _NO_INSTANCE
    data.computeInstanceId = instance.compute_instance if instance is not None else _NO_INSTANCE


def _field_values(_machine: Machine, gpu: SimulatedGpu, count: int, fields: Any) -> None:
    for place in range(count):
        field, action = fields[place], gpu.condition.recovery_action
        is_told = field.fieldId == RECOVERY_ACTION_FIELD and action is not None
        field.nvmlReturn = 0 if is_told else NvmlErrorKind.NOT_SUPPORTED.code
        field.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        field.value.uiVal = action or 0


def _remapped_rows(
    _machine: Machine, gpu: SimulatedGpu, corrected: Any, uncorrected: Any, pending: Any, failed: Any
) -> None:
    corrected.value = uncorrected.value = pending.value = 0
    failed.value = int(offer(gpu.condition.remap_failure))


def _retired_pages(_machine: Machine, gpu: SimulatedGpu, pending: Any) -> None:
    pending.value = int(offer(gpu.condition.retired_pages_pending))


def _memory_errors(_machine: Machine, gpu: SimulatedGpu, kind: int, counter: int, location: int, count: Any) -> None:
    errors = {
        pynvml.NVML_MEMORY_LOCATION_DRAM: gpu.condition.memory_errors,
        pynvml.NVML_MEMORY_LOCATION_SRAM: gpu.condition.sram_errors,
    }
    count.value = offer(errors.get(location)) if _is_uncorrected(kind, counter) else 0


def _all_errors(_machine: Machine, gpu: SimulatedGpu, kind: int, counter: int, count: Any) -> None:
    total = gpu.condition.memory_errors + (gpu.condition.sram_errors or 0)
    count.value = total if _is_uncorrected(kind, counter) else 0


def _fabric_health(machine: Machine, gpu: SimulatedGpu, info: Any) -> None:
    _fabric(machine, gpu, info)
    info.healthMask = gpu.condition.fabric.health_mask if gpu.condition.fabric is not None else 0


def _fabric(_machine: Machine, gpu: SimulatedGpu, info: Any) -> None:
    fabric: Fabric = offer(gpu.condition.fabric)
    info.state, info.status, info.cliqueId = fabric.state, fabric.status, fabric.clique
    if fabric.cluster:
        info.clusterUuid[:] = fabric.cluster


def _is_uncorrected(kind: int, counter: int) -> bool:
    """The node file tells no other errors."""
    return kind == pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED and counter in {
        pynvml.NVML_VOLATILE_ECC,
        pynvml.NVML_AGGREGATE_ECC,
    }


def offer(value: Any) -> Any:
    """A value that the card has. Raises NvmlReturn if it has no such thing."""
    if value is None:
        raise NvmlReturn(NvmlErrorKind.NOT_SUPPORTED.code)
    return value


HEALTH_CALLS: Final[dict[str, tuple[tuple[Parameter, ...], Implementation]]] = {
    "nvmlEventSetCreate": ((Out(pynvml.c_nvmlEventSet_t),), _create_set),
    "nvmlDeviceGetSupportedEventTypes": ((_HANDLE, _ULONGLONG), _supported_types),
    "nvmlDeviceRegisterEvents": ((_HANDLE, Number(ctypes.c_ulonglong), EventSetHandle()), _register),
    "nvmlEventSetWait_v2": ((EventSetHandle(), Out(pynvml.c_nvmlEventData_t), _NUMBER), _wait),
    "nvmlDeviceGetFieldValues": ((_HANDLE, Number(ctypes.c_int), OutFields()), _field_values),
    "nvmlDeviceGetRemappedRows": ((_HANDLE, _UINT, _UINT, _UINT, _UINT), _remapped_rows),
    "nvmlDeviceGetRetiredPagesPendingStatus": ((_HANDLE, _UINT), _retired_pages),
    "nvmlDeviceGetMemoryErrorCounter": ((_HANDLE, _NUMBER, _NUMBER, _NUMBER, _ULONGLONG), _memory_errors),
    "nvmlDeviceGetTotalEccErrors": ((_HANDLE, _NUMBER, _NUMBER, _ULONGLONG), _all_errors),
    "nvmlDeviceGetGpuFabricInfo": ((_HANDLE, Out(pynvml.c_nvmlGpuFabricInfo_t)), _fabric),
    "nvmlDeviceGetGpuFabricInfoV": (
        (_HANDLE, OutVersioned({pynvml.nvmlGpuFabricInfo_v2: pynvml.c_nvmlGpuFabricInfo_v2_t})),
        _fabric_health,
    ),
}
