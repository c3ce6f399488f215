"""Where NVML's functions come from: the driver's own library, or a simulated machine. Used in the child only."""

from __future__ import annotations

from typing import Protocol

import pynvml

from nvdp.model.inventory import Gpu
from nvdp.nvml.kinds import NvmlErrorKind


class Library(Protocol):
    """Something that pynvml can be made to call."""

    def install(self) -> None:
        """Make every pynvml call go to this library from now on.

        Blocks while the loader works, which may be for ever on a broken file system. Raises NvmlError of the kind
        ``LibraryNotFound`` that tells what was searched and what to set.
        """
        ...

    def has_dxcore(self) -> bool:
        """Whether the library is there through which WSL2 reaches the GPUs of Windows."""
        ...

    def has_tegra_files(self) -> bool:
        """Whether this is a Tegra system, by its files."""
        ...

    def explain(self, kind: NvmlErrorKind) -> str:
        """What else a person should know and do when NVML failed as a whole with ``kind``; may be empty."""
        ...

    def complete(self, gpu: Gpu) -> Gpu:
        """The GPU with what the host's own files tell elsewhere: its NUMA node, and the nodes of its MIG devices."""
        ...


def install_library(functions: object) -> None:
    """Make pynvml call the attributes of ``functions``, and forget the functions of an earlier library."""
    pynvml.nvmlLib = functions
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - pynvml has no other way to change its library


def build_explanation(
    kind: NvmlErrorKind, *, library_version: str | None, kernel_version: str | None, control_node_exists: bool
) -> str:
    """The remedy for a failure of NVML as a whole, with the facts of this node in it."""
    node = "/dev/nvidiactl exists" if control_node_exists else "/dev/nvidiactl is missing"
    if kind is NvmlErrorKind.LIB_RM_VERSION_MISMATCH:
        versions = f"kernel module {kernel_version or 'unknown'}, library {library_version or 'unknown'}"
        return f"{versions}; reload the module or reboot the node"
    if kind is NvmlErrorKind.LIBRARY_NOT_FOUND:
        return f"{node}; set NVIDIA_DRIVER_ROOT or runtimeClassName: nvidia"
    if kind is NvmlErrorKind.DRIVER_NOT_LOADED:
        remedy = "set runtimeClassName: nvidia or run privileged" if kernel_version else "load it on the node"
        return f"{node}; {f'kernel module {kernel_version} is loaded; ' if kernel_version else ''}{remedy}"
    if kind in {NvmlErrorKind.NO_PERMISSION, NvmlErrorKind.OPERATING_SYSTEM}:
        return f"{node}; it may not be opened from this container: restart the pod, or run privileged"
    return ""
