"""A node file that describes the GPUs of a real node, for ``nvdp devices --export``."""

from __future__ import annotations

from typing import Any, Final

import yaml

from nvdp.model.inventory import Fault, Gpu, Inventory, UnreadableGpu
from nvdp.model.reasons import Cause
from nvdp.nvml.kinds import NvmlErrorKind

# A fact that a GPU does not have is a call that is not supported. Key of the file, call, attribute of Gpu.
_FACTS: Final = (
    ("pci", "nvmlDeviceGetPciInfo", "pci"),
    ("minor", "nvmlDeviceGetMinorNumber", "minor"),
    ("product", "nvmlDeviceGetName", "product"),
    ("memoryBytes", "nvmlDeviceGetMemoryInfo", "memory_bytes"),
    ("computeCapability", "nvmlDeviceGetCudaComputeCapability", "compute_capability"),
)
_HEADER: Final = (
    "# The GPUs of a node, as nvdp devices --export found them. To try it: nvdp devices --simulated-node FILE\n"
)


def build_node_file(inventory: Inventory) -> str:
    """The text of a node file whose simulated machine answers a scan with this very inventory."""
    found: dict[int, Gpu | UnreadableGpu] = {gpu.index: gpu for gpu in inventory.unreadable}
    found |= {gpu.index: gpu for gpu in inventory.gpus}
    gpus: list[dict[str, Any]] = []
    faults: list[dict[str, Any]] = []
    for index in range(max(found, default=-1) + 1):
        gpu = found.get(index)
        if isinstance(gpu, Gpu):
            gpus.append(_build_entry(gpu))
            faults += _build_faults(gpu)
        elif gpu is not None:
            gpus.append({"product": "unreadable", "uuid": "", **({"pci": gpu.pci} if gpu.pci else {})})
            faults += _build_unreadable_faults(gpu)
        else:
            gpus.append({"product": "DGX Display"})  # what a scan leaves out still has its place in the numbering
    driver = {"version": inventory.driver.version, "cuda": inventory.driver.cuda_version}
    content = {"driver": {key: value for key, value in driver.items() if value}, "gpus": gpus, "faults": faults}
    text: str = yaml.safe_dump(content, sort_keys=False, default_flow_style=False, width=120, allow_unicode=True)
    return _HEADER + text


def _build_entry(gpu: Gpu) -> dict[str, Any]:
    entry: dict[str, Any] = {"uuid": gpu.uuid, "product": gpu.product or "unknown"}
    entry |= {key: value for key, _, name in _FACTS if (value := getattr(gpu, name)) is not None}
    if gpu.numa_node is not None:
        entry["numa"] = gpu.numa_node
    if gpu.mig is not None:
        entry["mig"] = gpu.mig.value
    return entry


def _build_faults(gpu: Gpu) -> list[dict[str, Any]]:
    failed = [_build_fault(gpu.index, gpu.fault)] if gpu.fault is not None else []
    blamed = gpu.fault.call if gpu.fault is not None else ""
    absent = [call for _, call, name in _FACTS if getattr(gpu, name) is None and call != blamed]
    return failed + [_build_absence(gpu.index, call) for call in absent]


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
