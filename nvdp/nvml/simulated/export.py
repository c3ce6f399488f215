"""A node file that describes the GPUs of a real node, for ``nvdp devices --export``."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import yaml

from nvdp.model.inventory import (
    ComputeMode,
    Fault,
    Gpu,
    Inventory,
    MigInstance,
    MigMode,
    UnreadableGpu,
    UnreadableInstance,
)
from nvdp.model.mig import MigAttributes
from nvdp.model.platforms import Platform
from nvdp.model.reasons import Cause
from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.simulated.entries import AttributesEntry
from nvdp.nvml.simulated.export_links import build_conditions, build_fabric_links, build_links

# A fact that a GPU does not have is a call that is not supported. Key of the file, call, attribute of Gpu.
_FACTS: Final = (
    ("pci", "nvmlDeviceGetPciInfo", "pci"),
    ("minor", "nvmlDeviceGetMinorNumber", "minor"),
    ("product", "nvmlDeviceGetName", "product"),
    ("memoryBytes", "nvmlDeviceGetMemoryInfo", "memory_bytes"),
    ("computeCapability", "nvmlDeviceGetCudaComputeCapability", "compute_capability"),
)
_ATTRIBUTES_CALL: Final = "nvmlDeviceGetAttributes"
_NAMELESS: Final = "1g.1gb"  # stands for a profile that cannot be read here, and cannot in the copy either
_HEADER: Final = (
    "# The GPUs of a node, as nvdp devices --export found them. To try it: nvdp devices --simulated-node FILE\n"
)


def build_node_file(inventory: Inventory) -> str:
    """The text of a node file whose simulated machine answers a scan with this very inventory."""
    platform = inventory.platform
    content: dict[str, Any] = {} if platform is Platform.NVML else {"platform": platform.value}
    if platform is Platform.NVML:
        content |= _build_cards(inventory)
    elif platform is Platform.WSL:
        content |= _build_wsl(inventory)
    text: str = yaml.safe_dump(content, sort_keys=False, default_flow_style=False, width=120, allow_unicode=True)
    return _HEADER + text


def _build_wsl(inventory: Inventory) -> dict[str, Any]:
    """A card for each product: how many there are of each is not known."""
    driver = {"version": inventory.driver.version, "cuda": inventory.driver.cuda_version}
    products = [product for gpu in inventory.gpus for product in (gpu.product or "unknown").split(", ")]
    faults = [
        _build_fault(index, gpu.fault)
        for gpu in inventory.gpus
        for index in range(len(products))
        if gpu.fault is not None
    ]
    return {
        "driver": {key: value for key, value in driver.items() if value},
        "gpus": [{"product": product} for product in products],
        "faults": faults,
    }


def _build_cards(inventory: Inventory) -> dict[str, Any]:
    found: dict[int, Gpu | UnreadableGpu] = {gpu.index: gpu for gpu in inventory.unreadable}
    found |= {gpu.index: gpu for gpu in inventory.gpus}
    gpus: list[dict[str, Any]] = []
    faults: list[dict[str, Any]] = []
    for index in range(max(found, default=-1) + 1):
        gpu = found.get(index)
        if isinstance(gpu, Gpu):
            gpus.append(_build_entry(gpu) | build_fabric_links(gpu, inventory.connections))
            faults += _build_faults(gpu)
        elif gpu is not None:
            gpus.append({"product": "unreadable", "uuid": "", **({"pci": gpu.pci} if gpu.pci else {})})
            faults += _build_unreadable_faults(gpu)
        else:
            gpus.append({"product": "DGX Display"})  # what a scan leaves out still has its place in the numbering
    driver: dict[str, Any] = {"version": inventory.driver.version, "cuda": inventory.driver.cuda_version}
    driver["migMonitor"] = any(gpu.mig is MigMode.ENABLED and gpu.memory_bytes is not None for gpu in inventory.gpus)
    return {
        "driver": {key: value for key, value in driver.items() if value},
        "gpus": gpus,
        **build_links(inventory),
        **build_conditions(inventory.gpus),
        "faults": faults,
    }


def _build_entry(gpu: Gpu) -> dict[str, Any]:
    entry: dict[str, Any] = {"uuid": gpu.uuid, "product": gpu.product or "unknown"}
    entry |= {key: value for key, _, name in _FACTS if (value := getattr(gpu, name)) is not None}
    if gpu.numa_node is not None:
        entry["numa"] = gpu.numa_node
    if gpu.mig is not None:
        entry["mig"] = gpu.mig.value
    if gpu.mig_pending is not None:
        entry["migPending"] = gpu.mig_pending.value
    if gpu.compute_mode not in {None, ComputeMode.DEFAULT}:
        entry["computeMode"] = gpu.compute_mode.value
    if instances := _build_instances(gpu):
        entry["instances"] = instances
    return entry


def _build_instances(gpu: Gpu) -> list[dict[str, Any] | None]:
    """A list in which every MIG device has the place of its index."""
    found: dict[int, MigInstance | UnreadableInstance] = {place.index: place for place in gpu.unreadable_instances}
    found |= {instance.index: instance for instance in gpu.instances or ()}
    return [_build_instance(found.get(index)) for index in range(max(found, default=-1) + 1)]


def _build_instance(instance: MigInstance | UnreadableInstance | None) -> dict[str, Any] | None:
    if not isinstance(instance, MigInstance):
        return None if instance is None else {"profile": _NAMELESS}
    facts = {
        "profile": instance.profile or _NAMELESS,
        "uuid": instance.uuid,
        "gpuInstance": instance.gpu_instance,
        "computeInstance": instance.compute_instance,
        "memoryBytes": instance.memory_bytes,
        "attributes": _build_attributes(instance.attributes) if instance.attributes is not None else None,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _build_attributes(found: MigAttributes) -> dict[str, int]:
    """All but the slices, which are in the profile."""
    facts = {name: getattr(found, name) for name in AttributesEntry.__struct_fields__}
    built: dict[str, int] = msgspec.to_builtins(AttributesEntry(**facts))
    return built


def _build_faults(gpu: Gpu) -> list[dict[str, Any]]:
    failed = [_build_fault(gpu.index, gpu.fault)] if gpu.fault is not None else []
    blamed = gpu.fault.call if gpu.fault is not None else ""
    absent = [call for _, call, name in _FACTS if getattr(gpu, name) is None and call != blamed]
    if gpu.mig is MigMode.ENABLED:  # it has memory, of which only privileges tell
        absent = [call for call in absent if call != "nvmlDeviceGetMemoryInfo"]
    if gpu.compute_mode is None and blamed != "nvmlDeviceGetComputeMode":
        absent.append("nvmlDeviceGetComputeMode")
    places: list[MigInstance | UnreadableInstance] = [*(gpu.instances or ()), *gpu.unreadable_instances]
    of_instances = [
        {**_build_fault(gpu.index, place.fault), "instance": place.index} for place in places if place.fault is not None
    ]
    of_instances += [
        {**_build_absence(gpu.index, _ATTRIBUTES_CALL), "instance": one.index}
        for one in gpu.instances or ()
        if one.attributes is None and (one.fault is None or one.fault.call != _ATTRIBUTES_CALL)
    ]
    return failed + [_build_absence(gpu.index, call) for call in absent] + of_instances


def _build_unreadable_faults(gpu: UnreadableGpu) -> list[dict[str, Any]]:
    faults = [_build_fault(gpu.index, gpu.fault)]
    if gpu.fault.call not in {"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"}:
        faults.append(_build_absence(gpu.index, "nvmlDeviceGetUUID"))
    if gpu.pci is None and gpu.fault.call == "nvmlDeviceGetUUID":
        faults.append(_build_absence(gpu.index, "nvmlDeviceGetPciInfo"))
    return faults


def _build_fault(index: int, fault: Fault) -> dict[str, Any]:
    if fault.kind == Cause.CALL_TIMEOUT.value:
        return {"call": fault.call, "gpu": index, "hang": True}
    if fault.kind == Cause.CALL_FAILED.value:
        return {"call": fault.call, "gpu": index, "crash": True}
    return {"call": fault.call, "gpu": index, "error": fault.kind}


def _build_absence(index: int, call: str) -> dict[str, Any]:
    return {"call": call, "gpu": index, "error": NvmlErrorKind.NOT_SUPPORTED.word}
