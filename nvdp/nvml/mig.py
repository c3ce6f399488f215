"""Reading the MIG devices of a GPU: what goes wrong with one concerns that one alone. Runs in the child.

A process without the driver's ``mig/monitor`` capability, as in a container that is not privileged, sees all MIG
devices and what they have, but neither the memory of the whole GPU nor what is inside it: the GPU instances.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
import pynvml

from nvdp.errors import NvmlError
from nvdp.model.inventory import Fault, MigInstance, UnreadableInstance
from nvdp.model.mig import MigAttributes, parse_legacy_uuid
from nvdp.nvml.asking import NO_SUCH_FACT, NOT_FOR_US, GpuFacts, build_fault, read_uuid
from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.mig_names import Called, DeviceNamer, SeenDevice
from nvdp.nvml.mig_rules import Shape, build_shape

_NO_DEVICE: Final = frozenset({NvmlErrorKind.NOT_FOUND.word, NvmlErrorKind.INVALID_ARGUMENT.word})
_MIB: Final = 1 << 20

_Key: TypeAlias = tuple[str, Shape | None]  # a device by its UUID, as long as it has what it has


class Found(msgspec.Struct, frozen=True):
    """The MIG devices of a GPU in the order of their index; ``instances`` is None if they could not be listed."""

    instances: tuple[MigInstance, ...] | None = None
    unreadable: tuple[UnreadableInstance, ...] = ()


NO_INSTANCES: Final = Found()


class MigReader:
    """Reads the MIG devices of all GPUs of one session of NVML.

    Remembers what does not change while they exist: how they are called.
    """

    def __init__(self) -> None:
        self._namer = DeviceNamer()
        self._names: dict[str, dict[_Key, Called]] = {}

    def read(self, handle: object, facts: GpuFacts, total_bytes: int | None) -> Found:
        """The MIG devices of a GPU in MIG mode whose UUID is known.

        ``total_bytes`` is its memory, where that may be read. A GPU that is found lost on the way, or whose devices
        cannot be counted, has that as its fault.
        """
        instances: dict[str, MigInstance] = {}
        unreadable: list[UnreadableInstance] = []
        names: dict[_Key, Called] = {}
        try:
            for index in range(_count(handle, facts)):
                try:
                    one = self._read_one(handle, facts, index, total_bytes, names)
                except NvmlError as error:
                    if error.kind == NvmlErrorKind.GPU_IS_LOST.word:
                        raise
                    unreadable.append(UnreadableInstance(index=index, fault=build_fault(error)))
                    continue
                if one is not None and one.uuid in instances:
                    unreadable.append(_build_twin(one, instances[one.uuid]))
                elif one is not None:
                    instances[one.uuid] = one
        except NvmlError as error:
            facts.note(error)
            return NO_INSTANCES
        self._names[facts.ref.uuid or ""] = names
        return Found(tuple(instances.values()), tuple(unreadable))

    def _read_one(
        self, handle: object, facts: GpuFacts, index: int, total_bytes: int | None, names: dict[_Key, Called]
    ) -> MigInstance | None:
        """The device with this index; None if there is none. Raises NvmlError if it has no UUID, or the GPU is lost."""
        device = _find_handle(handle, index, facts)
        if device is None:
            return None
        uuid = facts.ask("nvmlDeviceGetUUID", read_uuid, device)
        part = facts.part()
        gpu_instance, compute_instance = _read_ids(device, part, uuid)
        attributes = part.read("nvmlDeviceGetAttributes", lambda: _read_attributes(device), no_such_fact=NOT_FOR_US)
        shape = build_shape(attributes) if attributes is not None else None
        memory_bytes = part.read("nvmlDeviceGetMemoryInfo", lambda: _read_memory_bytes(device), no_such_fact=NOT_FOR_US)
        called: Called | None = None
        if part.fault is None:
            seen = SeenDevice(
                handle=device, gpu=handle, gpu_instance=gpu_instance, shape=shape, total_bytes=total_bytes
            )
            known = self._names.get(facts.ref.uuid or "", {}).get((uuid, shape))
            called = self._namer.find_name(seen, known, part)
            if called is not None:
                names[uuid, shape] = called
        if part.fault is not None and part.fault.kind == NvmlErrorKind.GPU_IS_LOST.word:
            raise NvmlError(part.fault.text, kind=part.fault.kind, call=part.fault.call, gpu=str(facts.ref))
        return MigInstance(
            uuid=uuid,
            index=index,
            gpu_instance=gpu_instance,
            compute_instance=compute_instance,
            profile=called.profile if called is not None else None,
            memory_bytes=memory_bytes or (shape.memory_mib * _MIB if shape is not None else None),
            attributes=attributes,
            fault=_name_fault(part.fault, uuid),
        )


def list_mig_handles(handle: object, facts: GpuFacts) -> list[object]:
    """The MIG devices of a GPU. Raises NvmlError if one of them cannot be got."""
    found = (_find_handle(handle, index, facts) for index in range(_count(handle, facts)))
    return [device for device in found if device is not None]


def _count(handle: object, facts: GpuFacts) -> int:
    """How many MIG devices there may be. Raises NvmlError."""
    try:
        return int(facts.ask("nvmlDeviceGetMaxMigDeviceCount", pynvml.nvmlDeviceGetMaxMigDeviceCount, handle))
    except NvmlError as error:
        if error.kind in NO_SUCH_FACT:
            return 0
        raise


def _find_handle(handle: object, index: int, facts: GpuFacts) -> object | None:
    """The device with this index; None if there is none. Raises NvmlError."""
    call, function = "nvmlDeviceGetMigDeviceHandleByIndex", pynvml.nvmlDeviceGetMigDeviceHandleByIndex
    try:
        device: object = facts.ask(call, function, handle, index)
    except NvmlError as error:
        if error.kind in _NO_DEVICE:
            return None
        raise
    return device


def _read_ids(device: object, part: GpuFacts, uuid: str) -> tuple[int | None, int | None]:
    """GPU and compute instance: as NVML says, else as an old UUID says itself. With neither it is a fault."""
    told = parse_legacy_uuid(uuid) or (None, None)
    calls = (
        ("nvmlDeviceGetGpuInstanceId", pynvml.nvmlDeviceGetGpuInstanceId),
        ("nvmlDeviceGetComputeInstanceId", pynvml.nvmlDeviceGetComputeInstanceId),
    )
    found: list[int | None] = []
    for (call, function), otherwise in zip(calls, told, strict=True):
        try:
            found.append(int(part.ask(call, function, device)))
        except NvmlError as error:
            if otherwise is None or error.kind == NvmlErrorKind.GPU_IS_LOST.word:
                part.note(error)
            found.append(otherwise)
    return found[0], found[1]


def _read_attributes(device: object) -> MigAttributes:
    found = pynvml.nvmlDeviceGetAttributes_v2(device)
    if not found.gpuInstanceSliceCount or not found.computeInstanceSliceCount:
        raise ValueError("a MIG device without slices")
    return MigAttributes(
        memory_mib=found.memorySizeMB,
        multiprocessors=found.multiprocessorCount,
        slices=found.gpuInstanceSliceCount,
        compute_slices=found.computeInstanceSliceCount,
        copy_engines=found.sharedCopyEngineCount,
        decoders=found.sharedDecoderCount,
        encoders=found.sharedEncoderCount,
        jpeg_engines=found.sharedJpegCount,
        ofa_engines=found.sharedOfaCount,
    )


def _read_memory_bytes(device: object) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(device).total)


def _name_fault(fault: Fault | None, uuid: str) -> Fault | None:
    """The fault of a device, which its text names: the GPU has several."""
    return msgspec.structs.replace(fault, text=f"{uuid}: {fault.text}") if fault is not None else None


def _build_twin(one: MigInstance, other: MigInstance) -> UnreadableInstance:
    text = f"nvmlDeviceGetUUID: the same UUID as instance {other.index}: {one.uuid}"
    fault = Fault(call="nvmlDeviceGetUUID", kind=NvmlErrorKind.UNKNOWN.word, text=text)
    return UnreadableInstance(index=one.index, fault=fault)
