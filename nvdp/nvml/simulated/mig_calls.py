"""The functions of the simulated library that are about MIG: modes, devices, profiles, and who may ask."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import pynvml

from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.simulated.machine import Device, Machine, MigDevice, NvmlReturn, list_instances
from nvdp.nvml.simulated.node import InstanceKind, MigState, Process, SimulatedGpu
from nvdp.nvml.simulated.signatures import (
    GpuHandle,
    GpuInstanceHandle,
    Implementation,
    Number,
    Out,
    OutVersioned,
    Parameter,
    write_handle,
)

_HANDLE: Final = GpuHandle()
_ANY_HANDLE: Final = GpuHandle(mig=True)
_NUMBER: Final = Number()
_UINT: Final = Out(ctypes.c_uint)
_OUT_HANDLE: Final = Out(pynvml.c_nvmlDevice_t)
_MOST_DEVICES: Final = 7
_PROFILE_NUMBERS: Final = 32  # a newer library knows more than pynvml


def check_aggregate(machine: Machine, device: Device) -> None:
    """Raises NvmlReturn where a card in MIG mode may not be asked as a whole."""
    if isinstance(device, SimulatedGpu) and device.mig is MigState.ENABLED and not machine.node.driver.mig_monitor:
        raise NvmlReturn(NvmlErrorKind.NO_PERMISSION.code)


def list_processes(device: Device) -> list[Process]:
    """What runs on a card, or on one MIG device of it."""
    if isinstance(device, MigDevice):
        return [process for process in device.parent.processes if process.instance == device.instance.index]
    return list(device.processes)


def _mode(_machine: Machine, gpu: SimulatedGpu, current: Any, pending: Any) -> None:
    if gpu.mig is MigState.UNSUPPORTED:
        raise NvmlReturn(NvmlErrorKind.NOT_SUPPORTED.code)
    current.value = int(gpu.mig is MigState.ENABLED)
    pending.value = int((gpu.mig_pending or gpu.mig) is MigState.ENABLED)


def _most_devices(_machine: Machine, gpu: SimulatedGpu, count: Any) -> None:
    places = (instance.index + 1 for instance in gpu.instances)
    count.value = max(_MOST_DEVICES, *places, 0) if gpu.mig is MigState.ENABLED else 0


def _device_handle(machine: Machine, gpu: SimulatedGpu, index: int, handle: Any) -> None:
    instance = next((one for one in list_instances(gpu) if one.index == index), None)
    if instance is None:
        raise NvmlReturn(NvmlErrorKind.NOT_FOUND.code)
    machine.begin("nvmlDeviceGetMigDeviceHandleByIndex", {gpu.position}, instance)
    write_handle(handle, machine.get_handle(MigDevice(gpu, instance)))


def _is_mig(_machine: Machine, device: Device, answer: Any) -> None:
    answer.value = int(isinstance(device, MigDevice))


def _gpu_instance_id(_machine: Machine, device: Device, number: Any) -> None:
    number.value = _mig_of(device).instance.gpu_instance


def _compute_instance_id(_machine: Machine, device: Device, number: Any) -> None:
    number.value = _mig_of(device).instance.compute_instance


def _parent_handle(machine: Machine, device: Device, handle: Any) -> None:
    write_handle(handle, machine.get_handle(_mig_of(device).parent))


def _attributes(_machine: Machine, device: Device, attributes: Any) -> None:
    found = _mig_of(device).instance.attributes
    attributes.multiprocessorCount = found.multiprocessors
    attributes.gpuInstanceSliceCount = found.slices
    attributes.computeInstanceSliceCount = found.compute_slices
    attributes.memorySizeMB = found.memory_mib
    attributes.sharedCopyEngineCount = found.copy_engines
    attributes.sharedDecoderCount = found.decoders
    attributes.sharedEncoderCount = found.encoders
    attributes.sharedJpegCount = found.jpeg_engines
    attributes.sharedOfaCount = found.ofa_engines


def _profile_info(_machine: Machine, gpu: SimulatedGpu, number: int, info: Any) -> None:
    _write_kind(info, _find_kind(gpu, number))


def _named_profile_info(_machine: Machine, gpu: SimulatedGpu, number: int, info: Any) -> None:
    kind = _find_kind(gpu, number)
    _write_kind(info, kind)
    info.name = f"MIG {kind.profile}".encode()


def _inside_handle(machine: Machine, gpu: SimulatedGpu, number: int, handle: Any) -> None:
    check_aggregate(machine, gpu)
    instance = next((one for one in list_instances(gpu) if one.gpu_instance == number), None)
    if instance is None:
        raise NvmlReturn(NvmlErrorKind.NOT_FOUND.code)
    machine.begin("nvmlDeviceGetGpuInstanceById", {gpu.position}, instance)
    write_handle(handle, machine.get_handle(MigDevice(gpu, instance)))


def _inside_info(machine: Machine, device: MigDevice, info: Any) -> None:
    check_aggregate(machine, device.parent)
    info.id, info.profileId = device.instance.gpu_instance, device.instance.kind.id


MIG_CALLS: Final[dict[str, tuple[tuple[Parameter, ...], Implementation]]] = {
    "nvmlDeviceGetMigMode": ((_HANDLE, _UINT, _UINT), _mode),
    "nvmlDeviceGetMaxMigDeviceCount": ((_HANDLE, _UINT), _most_devices),
    "nvmlDeviceGetMigDeviceHandleByIndex": ((_HANDLE, _NUMBER, _OUT_HANDLE), _device_handle),
    "nvmlDeviceIsMigDeviceHandle": ((_ANY_HANDLE, _UINT), _is_mig),
    "nvmlDeviceGetGpuInstanceId": ((_ANY_HANDLE, _UINT), _gpu_instance_id),
    "nvmlDeviceGetComputeInstanceId": ((_ANY_HANDLE, _UINT), _compute_instance_id),
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": ((_ANY_HANDLE, _OUT_HANDLE), _parent_handle),
    "nvmlDeviceGetAttributes_v2": ((_ANY_HANDLE, Out(pynvml.c_nvmlDeviceAttributes)), _attributes),
    "nvmlDeviceGetGpuInstanceProfileInfo": (
        (_HANDLE, _NUMBER, Out(pynvml.c_nvmlGpuInstanceProfileInfo_t)),
        _profile_info,
    ),
    "nvmlDeviceGetGpuInstanceProfileInfoV": (
        (
            _HANDLE,
            _NUMBER,
            OutVersioned({pynvml.nvmlGpuInstanceProfileInfo_v2: pynvml.c_nvmlGpuInstanceProfileInfo_v2_t}),
        ),
        _named_profile_info,
    ),
    "nvmlDeviceGetGpuInstanceById": ((_HANDLE, _NUMBER, Out(pynvml.c_nvmlGpuInstance_t)), _inside_handle),
    "nvmlGpuInstanceGetInfo": ((GpuInstanceHandle(), Out(pynvml.c_nvmlGpuInstanceInfo_t)), _inside_info),
}


def _mig_of(device: Device) -> MigDevice:
    if not isinstance(device, MigDevice):
        raise NvmlReturn(NvmlErrorKind.NOT_SUPPORTED.code)
    return device


def _find_kind(gpu: SimulatedGpu, number: int) -> InstanceKind:
    if gpu.mig is MigState.UNSUPPORTED:
        raise NvmlReturn(NvmlErrorKind.NOT_SUPPORTED.code)
    if number >= _PROFILE_NUMBERS:
        raise NvmlReturn(NvmlErrorKind.INVALID_ARGUMENT.code)
    kind = next((kind for kind in gpu.kinds if kind.number == number), None)
    if kind is None:
        raise NvmlReturn(NvmlErrorKind.NOT_SUPPORTED.code)
    return kind


def _write_kind(info: Any, kind: InstanceKind) -> None:
    info.id, info.sliceCount, info.memorySizeMB = kind.id, kind.profile.slices, kind.memory_mib
    (
        info.copyEngineCount,
        info.decoderCount,
        info.encoderCount,
        info.jpegCount,
        info.ofaCount,
    ) = kind.engines
