"""NVML's return codes in our words: the table that every error text comes from.

``str(NVMLError)`` may call the library, which may hang or crash: it is never used.
"""

from __future__ import annotations

import enum


class NvmlErrorKind(enum.Enum):
    """The field's word for a failure, NVML's return code, and what it says to a person."""

    UNINITIALIZED = ("Uninitialized", 1, "NVML is not initialised")
    INVALID_ARGUMENT = ("InvalidArgument", 2, "NVML does not accept the argument")
    NOT_SUPPORTED = ("NotSupported", 3, "not supported by this GPU or driver")
    NO_PERMISSION = ("NoPermission", 4, "this process may not do that")
    ALREADY_INITIALIZED = ("AlreadyInitialized", 5, "NVML is initialised already")
    NOT_FOUND = ("NotFound", 6, "there is no such thing")
    INSUFFICIENT_SIZE = ("InsufficientSize", 7, "the answer does not fit")
    INSUFFICIENT_POWER = ("InsufficientPower", 8, "the GPU's external power cables are not attached properly")
    DRIVER_NOT_LOADED = ("DriverNotLoaded", 9, "the NVIDIA kernel module is not loaded")
    TIMEOUT = ("Timeout", 10, "the driver gave up waiting")
    IRQ_ISSUE = ("IrqIssue", 11, "the kernel module has an interrupt problem with a GPU")
    LIBRARY_NOT_FOUND = ("LibraryNotFound", 12, "libnvidia-ml.so.1 was not found")
    FUNCTION_NOT_FOUND = ("FunctionNotFound", 13, "this driver's library does not know the call")
    CORRUPTED_INFOROM = ("CorruptedInforom", 14, "the GPU's infoROM is corrupted")
    GPU_IS_LOST = ("GpuIsLost", 15, "the GPU has fallen off the bus or cannot be reached")
    RESET_REQUIRED = ("ResetRequired", 16, "the GPU must be reset before it can be used again")
    OPERATING_SYSTEM = ("OperatingSystem", 17, "the operating system, or its cgroup rules, blocked the call")
    LIB_RM_VERSION_MISMATCH = ("LibRmVersionMismatch", 18, "kernel module and library are of different versions")
    IN_USE = ("InUse", 19, "the GPU is in use")
    MEMORY = ("Memory", 20, "not enough memory")
    NO_DATA = ("NoData", 21, "no data")
    VGPU_ECC_NOT_SUPPORTED = ("VgpuEccNotSupported", 22, "not possible on a vGPU host with ECC")
    INSUFFICIENT_RESOURCES = ("InsufficientResources", 23, "the GPU has run out of a resource other than memory")
    FREQ_NOT_SUPPORTED = ("FreqNotSupported", 24, "the clock frequency is not supported")
    ARGUMENT_VERSION_MISMATCH = ("ArgumentVersionMismatch", 25, "the library knows another version of the structure")
    DEPRECATED = ("Deprecated", 26, "the call was taken out of the driver")
    NOT_READY = ("NotReady", 27, "the system is not ready for the call")
    GPU_NOT_FOUND = ("GpuNotFound", 28, "no GPU was found")
    INVALID_STATE = ("InvalidState", 29, "the GPU is in a state that forbids the call")
    RESET_TYPE_NOT_SUPPORTED = ("ResetTypeNotSupported", 30, "the kind of reset is not supported")
    UNKNOWN = ("Unknown", 999, "the driver reports an internal error")

    def __init__(self, word: str, code: int, text: str) -> None:
        self.word = word
        self.code = code
        self.text = text


_BY_CODE = {kind.code: kind for kind in NvmlErrorKind}
_BY_WORD = {kind.word: kind for kind in NvmlErrorKind}


def find_kind(*, code: int | None = None, word: str | None = None) -> NvmlErrorKind | None:
    """The kind of a return code or of a word; None if it is not in the table, which newer drivers may add to."""
    return _BY_CODE.get(code) if code is not None else _BY_WORD.get(word or "")


def describe_code(code: int) -> tuple[str, str]:
    """Word and sentence of a return code, for one that is not in the table too."""
    kind = _BY_CODE.get(code)
    return (kind.word, kind.text) if kind else (NvmlErrorKind.UNKNOWN.word, f"the driver reports error {code}")
