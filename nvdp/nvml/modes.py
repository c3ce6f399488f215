"""The compute mode of a GPU, read and set through pynvml. Runs in the child."""

from __future__ import annotations

from typing import Final

import pynvml

from nvdp.errors import NvmlError
from nvdp.model.inventory import ComputeMode
from nvdp.nvml.asking import GpuFacts
from nvdp.nvml.kinds import NvmlErrorKind

NUMBERS: Final = {
    ComputeMode.DEFAULT: pynvml.NVML_COMPUTEMODE_DEFAULT,
    ComputeMode.EXCLUSIVE_THREAD: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD,
    ComputeMode.PROHIBITED: pynvml.NVML_COMPUTEMODE_PROHIBITED,
    ComputeMode.EXCLUSIVE_PROCESS: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
}
MODES: Final = {number: mode for mode, number in NUMBERS.items()}


def find_compute_mode(handle: object, facts: GpuFacts) -> ComputeMode | None:
    """The mode; None where it is not told, or is none that we know.

    No GPU is taken off offer because this one call fails, unless it says that the GPU is lost: then that is its fault.
    """
    try:
        number = facts.ask("nvmlDeviceGetComputeMode", pynvml.nvmlDeviceGetComputeMode, handle)
    except NvmlError as error:
        if error.kind == NvmlErrorKind.GPU_IS_LOST.word:
            facts.note(error)
        return None
    return MODES.get(number)


def set_compute_mode(handle: object, facts: GpuFacts, mode: ComputeMode) -> None:
    """Set the mode, unless the GPU has it already, which needs no privileges. Raises NvmlError."""
    if find_compute_mode(handle, facts) is not mode:
        facts.ask("nvmlDeviceSetComputeMode", pynvml.nvmlDeviceSetComputeMode, handle, NUMBERS[mode])
