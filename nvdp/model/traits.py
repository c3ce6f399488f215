"""What labels tell of a node beyond its GPUs as NVML has them: the machine, and what PCI knows. Values only."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Vgpu(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the node is a guest with a vGPU, and what that tells of the driver of its host: ``460.16``, ``r460_00``.

    The texts are as the device has them, and empty where it tells none.
    """

    present: bool
    host_driver_version: str = ""
    host_driver_branch: str = ""


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What cannot be read is not known. ``machine`` is the name of the machine's type, empty where nobody tells it.

    ``pci_classes`` are those of NVIDIA's functions by address (as ``Gpu.pci``), as the kernel has them: ``0x030200``.
    ``vgpu`` is None where it cannot be told.
    """

    machine: str = ""
    pci_classes: Mapping[str, int] = {}
    vgpu: Vgpu | None = None
