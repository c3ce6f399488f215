"""The functions of the simulated library: each row of ``CALLS`` is a C signature and what the function does."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import pynvml

from nvdp.model.topology import Ancestor
from nvdp.nvml.kinds import NvmlErrorKind, describe_code
from nvdp.nvml.modes import MODES, NUMBERS
from nvdp.nvml.simulated.health_calls import HEALTH_CALLS, offer
from nvdp.nvml.simulated.machine import Device, Machine, MigDevice, NvmlReturn
from nvdp.nvml.simulated.mig_calls import MIG_CALLS, check_aggregate, list_processes
from nvdp.nvml.simulated.node import MigState, Process, SimulatedGpu
from nvdp.nvml.simulated.signatures import (
    GpuHandle,
    GpuIndex,
    GpuPci,
    GpuUuid,
    Implementation,
    Number,
    Out,
    OutArray,
    Parameter,
    SimulatedCall,
    write_handle,
)

_HANDLE: Final = GpuHandle()
_ANY_HANDLE: Final = GpuHandle(mig=True)
_NUMBER: Final = Number()
_UINT: Final = Out(ctypes.c_uint)
_INT: Final = Out(ctypes.c_int)
_OUT_HANDLE: Final = Out(pynvml.c_nvmlDevice_t)
_BUFFER: Final = OutArray(ctypes.c_char)
_LEVELS: Final = {
    Ancestor.INTERNAL: pynvml.NVML_TOPOLOGY_INTERNAL,
    Ancestor.SINGLE: pynvml.NVML_TOPOLOGY_SINGLE,
    Ancestor.MULTIPLE: pynvml.NVML_TOPOLOGY_MULTIPLE,
    Ancestor.HOSTBRIDGE: pynvml.NVML_TOPOLOGY_HOSTBRIDGE,
    Ancestor.NODE: pynvml.NVML_TOPOLOGY_NODE,
    Ancestor.SYSTEM: pynvml.NVML_TOPOLOGY_SYSTEM,
}
_PCI_INFO: Final = Out(pynvml.nvmlPciInfo_t)


def build_calls(machine: Machine) -> dict[str, SimulatedCall]:
    """All functions by their C names, acting on ``machine``."""
    return {name: SimulatedCall(name, machine, parameters, body) for name, (parameters, body) in CALLS.items()}


def _init(machine: Machine, _flags: int) -> None:
    kernel = machine.node.driver.kernel
    if kernel is not None and kernel != machine.node.driver.version:
        raise NvmlReturn(NvmlErrorKind.LIB_RM_VERSION_MISMATCH.code)
    machine.sessions += 1


def _shutdown(machine: Machine) -> None:
    machine.sessions -= 1


def _error_string(_machine: Machine, code: int) -> bytes:
    return describe_code(code)[1].encode()


def _driver_version(machine: Machine, buffer: Any, length: int) -> None:
    _write_text(buffer, machine.node.driver.version, length)


def _cuda_version(machine: Machine, version: Any) -> None:
    major, _, minor = machine.node.driver.cuda.partition(".")
    version.value = int(major) * 1000 + int(minor or 0) * 10


def _count(machine: Machine, count: Any) -> None:
    count.value = len(machine.node.present)


def _handle(machine: Machine, device: Device, handle: Any) -> None:
    write_handle(handle, machine.get_handle(device))


def _index(machine: Machine, gpu: SimulatedGpu, index: Any) -> None:
    index.value = machine.node.present.index(gpu)


def _name(_machine: Machine, device: Device, buffer: Any, length: int) -> None:
    if isinstance(device, MigDevice):
        _write_text(buffer, f"{device.parent.product} MIG {device.instance.profile}", length)
    else:
        _write_text(buffer, device.product, length)


def _uuid(_machine: Machine, device: Device, buffer: Any, length: int) -> None:
    _write_text(buffer, device.instance.uuid if isinstance(device, MigDevice) else device.uuid, length)


def _minor(_machine: Machine, gpu: SimulatedGpu, minor: Any) -> None:
    minor.value = gpu.minor


def _pci_info(_machine: Machine, gpu: SimulatedGpu, info: Any) -> None:
    _write_pci(info, gpu.pci)


def _memory(machine: Machine, device: Device, memory: Any) -> None:
    check_aggregate(machine, device)
    whole = device.instance if isinstance(device, MigDevice) else device
    memory.total = whole.memory_bytes
    memory.used = sum(process.memory_bytes for process in list_processes(device))
    memory.free = memory.total - memory.used


def _capability(_machine: Machine, gpu: SimulatedGpu, major: Any, minor: Any) -> None:
    major.value, minor.value = (int(part) for part in gpu.compute_capability.split("."))


def _compute_mode(machine: Machine, gpu: SimulatedGpu, mode: Any) -> None:
    mode.value = NUMBERS[machine.find_compute_mode(gpu)]


def _set_compute_mode(machine: Machine, gpu: SimulatedGpu, number: int) -> None:
    if number not in MODES:
        raise NvmlReturn(NvmlErrorKind.INVALID_ARGUMENT.code)
    if gpu.mig is MigState.ENABLED:
        raise NvmlReturn(NvmlErrorKind.NOT_SUPPORTED.code)
    machine.set_compute_mode(gpu, MODES[number])


def _common_ancestor(machine: Machine, first: SimulatedGpu, second: SimulatedGpu, level: Any) -> None:
    if first == second:
        raise NvmlReturn(NvmlErrorKind.INVALID_ARGUMENT.code)
    pair = frozenset({first.position, second.position})
    if pair in machine.node.ancestors:
        level.value = _LEVELS[offer(machine.node.ancestors[pair])]
    elif any(pair <= switch for switch in machine.node.pcie_switches):
        level.value = pynvml.NVML_TOPOLOGY_SINGLE
    elif first.numa == second.numa:
        level.value = pynvml.NVML_TOPOLOGY_NODE
    else:
        level.value = pynvml.NVML_TOPOLOGY_SYSTEM


def _link_state(machine: Machine, gpu: SimulatedGpu, link: int, active: Any) -> None:
    _find_peer(machine, gpu, link)
    active.value = int(link not in gpu.condition.links_down)


def _link_remote_type(machine: Machine, gpu: SimulatedGpu, link: int, kind: Any) -> None:
    to_switch = _find_peer(machine, gpu, link) is None
    kind.value = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if to_switch else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU


def _link_remote_pci(machine: Machine, gpu: SimulatedGpu, link: int, info: Any) -> None:
    peer = _find_peer(machine, gpu, link)
    _write_pci(info, peer.pci if peer is not None else "0000:ff:00.0")


def _computing(machine: Machine, device: Device, count: Any, array: Any) -> None:
    check_aggregate(machine, device)
    _write_processes([process for process in list_processes(device) if not process.graphics], count, array)


def _drawing(machine: Machine, device: Device, count: Any, array: Any) -> None:
    if isinstance(device, MigDevice):
        raise NvmlReturn(NvmlErrorKind.NOT_SUPPORTED.code)
    check_aggregate(machine, device)
    _write_processes([process for process in list_processes(device) if process.graphics], count, array)


def _write_processes(processes: Sequence[Process], count: Any, array: Any) -> None:
    room, count.value = count.value, len(processes)
    if room < len(processes) or (array is None and processes):
        raise NvmlReturn(NvmlErrorKind.INSUFFICIENT_SIZE.code)
    for place, process in enumerate(processes):
        array[place].pid = process.pid
        array[place].usedGpuMemory = process.memory_bytes
        array[place].gpuInstanceId = array[place].computeInstanceId = 0xFFFFFFFF


CALLS: Final[dict[str, tuple[tuple[Parameter, ...], Implementation]]] = {
    "nvmlInitWithFlags": ((_NUMBER,), _init),
    "nvmlShutdown": ((), _shutdown),
    "nvmlErrorString": ((_NUMBER,), _error_string),
    "nvmlSystemGetDriverVersion": ((_BUFFER, _NUMBER), _driver_version),
    "nvmlSystemGetNVMLVersion": ((_BUFFER, _NUMBER), _driver_version),
    "nvmlSystemGetCudaDriverVersion": ((_INT,), _cuda_version),
    "nvmlSystemGetCudaDriverVersion_v2": ((_INT,), _cuda_version),
    "nvmlDeviceGetCount_v2": ((_UINT,), _count),
    "nvmlDeviceGetHandleByIndex_v2": ((GpuIndex(), _OUT_HANDLE), _handle),
    "nvmlDeviceGetHandleByUUID": ((GpuUuid(), _OUT_HANDLE), _handle),
    "nvmlDeviceGetHandleByPciBusId_v2": ((GpuPci(), _OUT_HANDLE), _handle),
    "nvmlDeviceGetIndex": ((_HANDLE, _UINT), _index),
    "nvmlDeviceGetName": ((_ANY_HANDLE, _BUFFER, _NUMBER), _name),
    "nvmlDeviceGetUUID": ((_ANY_HANDLE, _BUFFER, _NUMBER), _uuid),
    "nvmlDeviceGetMinorNumber": ((_HANDLE, _UINT), _minor),
    "nvmlDeviceGetPciInfo_v3": ((_HANDLE, _PCI_INFO), _pci_info),
    "nvmlDeviceGetMemoryInfo": ((_ANY_HANDLE, Out(pynvml.c_nvmlMemory_t)), _memory),
    "nvmlDeviceGetCudaComputeCapability": ((_HANDLE, _INT, _INT), _capability),
    "nvmlDeviceGetComputeMode": ((_HANDLE, _UINT), _compute_mode),
    "nvmlDeviceSetComputeMode": ((_HANDLE, _NUMBER), _set_compute_mode),
    "nvmlDeviceGetTopologyCommonAncestor": ((_HANDLE, _HANDLE, _UINT), _common_ancestor),
    "nvmlDeviceGetNvLinkState": ((_HANDLE, _NUMBER, _UINT), _link_state),
    "nvmlDeviceGetNvLinkRemoteDeviceType": ((_HANDLE, _NUMBER, _UINT), _link_remote_type),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": ((_HANDLE, _NUMBER, _PCI_INFO), _link_remote_pci),
    "nvmlDeviceGetComputeRunningProcesses_v3": (
        (_ANY_HANDLE, _UINT, OutArray(pynvml.c_nvmlProcessInfo_v3_t)),
        _computing,
    ),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": (
        (_ANY_HANDLE, _UINT, OutArray(pynvml.c_nvmlProcessInfo_v3_t)),
        _drawing,
    ),
    **HEALTH_CALLS,
    **MIG_CALLS,
}


def _find_peer(machine: Machine, gpu: SimulatedGpu, link: int) -> SimulatedGpu | None:
    """The card at the other end of a link, None for a switch: direct links have the lowest numbers."""
    number = 0
    for edge in machine.node.nvlinks:
        if gpu.position in edge.gpus:
            number += edge.links
            if link < number:
                first, second = edge.gpus
                return machine.node.gpus[second if gpu.position == first else first]
    if link < number + gpu.nvswitch_links:
        return None
    raise NvmlReturn(NvmlErrorKind.INVALID_ARGUMENT.code)


def _write_text(buffer: Any, text: str, length: int) -> None:
    data = text.encode() + b"\0"
    if len(data) > length:
        raise NvmlReturn(NvmlErrorKind.INSUFFICIENT_SIZE.code)
    ctypes.memmove(buffer, data, len(data))


def _write_pci(info: Any, pci: str) -> None:
    """As NVML writes addresses: a domain of eight digits, upper case."""
    domain, bus, rest = pci.split(":")
    info.domain, info.bus, info.device = int(domain, 16), int(bus, 16), int(rest.split(".")[0], 16)
    info.busId = f"{info.domain:08X}:{info.bus:02X}:{rest.upper()}".encode()
    info.busIdLegacy = f"{info.domain:04X}:{info.bus:02X}:{rest.upper()}".encode()
