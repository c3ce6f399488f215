"""The functions of libnvidia-ml that the simulated library has, by the names that node files use in ``faults``."""

from __future__ import annotations

import difflib
import fnmatch
import re
from typing import Final

# A newer entry point of the same call is the same call to people: nvmlDeviceGetCount_v2, nvmlInitWithFlags,
# nvmlDeviceGetGpuFabricInfoV.
_VARIANT: Final = re.compile(r"(?:_v\d+|WithFlags|(?<=Info)V)$")

CALL_NAMES: Final = (
    "nvmlDeviceGetAttributes",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetGpuInstanceProfileInfo",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByPciBusId",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMemoryErrorCounter",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetName",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetUUID",
    "nvmlDeviceIsMigDeviceHandle",
    "nvmlDeviceRegisterEvents",
    "nvmlDeviceSetComputeMode",
    "nvmlErrorString",
    "nvmlEventSetCreate",
    "nvmlEventSetWait",
    "nvmlGpuInstanceGetInfo",
    "nvmlInit",
    "nvmlShutdown",
    "nvmlSystemGetCudaDriverVersion",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
)


def normalise_call(name: str) -> str:
    """The name that people use: without the version of the entry point."""
    return _VARIANT.sub("", name)


def matches_call(pattern: str, name: str) -> bool:
    """Whether a fault's ``call`` (a name, or a pattern with ``*``) means the function ``name``."""
    return fnmatch.fnmatchcase(normalise_call(name), normalise_call(pattern))


def find_call_problem(pattern: str) -> str | None:
    """Why ``pattern`` can never match, in words; None if it can."""
    if any(matches_call(pattern, name) for name in CALL_NAMES):
        return None
    near = difflib.get_close_matches(pattern, CALL_NAMES, n=1)
    return f"there is no call {pattern}{f'; did you mean {near[0]}?' if near else ''}"
