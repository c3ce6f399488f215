"""The driver's own libnvidia-ml: found under the driver root or by the loader, opened, and given to pynvml."""

# ruff: noqa: PTH110, PTH115, PTH123 - pathlib would cost the child a tenth of its start

from __future__ import annotations

import ctypes
import os
import re
from typing import Any, Final

from nvdp.errors import NvmlError
from nvdp.model.inventory import Gpu
from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.library import build_explanation, install_library
from nvdp.nvml.platforms import has_tegra_files

LIBRARY_NAME: Final = "libnvidia-ml.so.1"
_DXCORE: Final = "libdxcore.so"
# Where NVIDIA's plugin looks under the driver root, in its order, and then where WSL2 has its libraries.
LIBRARY_DIRECTORIES: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/wsl/lib",
)
# pynvml calls the newest entry point of each; a library without it may have an older one that takes the same
# arguments or, as nvmlInit_v2, ignores one too many.
_OLDER_NAMES: Final = {
    "nvmlInitWithFlags": ("nvmlInit_v2", "nvmlInit"),
    "nvmlDeviceGetCount_v2": ("nvmlDeviceGetCount",),
    "nvmlDeviceGetHandleByIndex_v2": ("nvmlDeviceGetHandleByIndex",),
    "nvmlDeviceGetPciInfo_v3": ("nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"),
    "nvmlSystemGetCudaDriverVersion_v2": ("nvmlSystemGetCudaDriverVersion",),
    "nvmlDeviceGetComputeRunningProcesses_v3": ("nvmlDeviceGetComputeRunningProcesses_v2",),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": ("nvmlDeviceGetGraphicsRunningProcesses_v2",),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": ("nvmlDeviceGetNvLinkRemotePciInfo",),
}
_MAX_LINKS: Final = 40  # as the kernel's own limit for one path
_VERSION: Final = re.compile(r"\b\d{3,4}\.\d+(?:\.\d+)?\b")
_MAPPED: Final = re.compile(rf"/libnvidia-ml\.so\.({_VERSION.pattern})")


class NvmlLibrary(ctypes.CDLL):
    """A loaded libnvidia-ml; names that it lacks are looked up under their older spellings."""

    def __getattr__(self, name: str) -> Any:
        for candidate in (name, *_OLDER_NAMES.get(name, ())):
            try:
                return super().__getattr__(candidate)
            except AttributeError:
                continue
        raise AttributeError(name)


class DriverLibrary:
    """Loads libnvidia-ml. ``driver_root`` is the driver's files as this process sees them (containerDriverRoot).

    ``dev`` and ``proc`` are this container's; they are read only to explain a failure.
    """

    def __init__(self, driver_root: str, *, dev: str = "/dev", proc: str = "/proc") -> None:
        self._driver_root = driver_root
        self._dev = dev
        self._proc = proc

    def install(self) -> None:
        """See ``Library``. Candidates are tried by opening them: one that exists but does not load is not the end."""
        failures = []
        for path in self._find_candidates(LIBRARY_NAME):
            library, failure = _open(path)
            if library is not None:
                install_library(library)
                return
            if failure:
                failures.append(failure)
        searched = f"{self._driver_root} (searched {len(LIBRARY_DIRECTORIES)} directories)"
        text = f"{LIBRARY_NAME} not found under {searched} nor by the loader"
        if failures:
            text = f"{LIBRARY_NAME} cannot be used ({'; '.join(failures)}), not found elsewhere under {searched}"
        kind = NvmlErrorKind.LIBRARY_NOT_FOUND
        raise NvmlError(f"{text}; {self.explain(kind)}", kind=kind.word, call="dlopen")

    def has_dxcore(self) -> bool:
        """See ``Library``. What does not load is not there, whatever the file is."""
        return any(_loads(path) for path in self._find_candidates(_DXCORE))

    def has_tegra_files(self) -> bool:
        """See ``Library``."""
        return has_tegra_files(self._driver_root) or has_tegra_files("/")

    def explain(self, kind: NvmlErrorKind) -> str:
        """See ``Library``. Reads the versions of kernel module and library where they can be read."""
        return build_explanation(
            kind,
            library_version=self._find_library_version(),
            kernel_version=self._find_kernel_version(),
            control_node_exists=os.path.exists(f"{self._dev}/nvidiactl"),
        )

    def complete(self, gpu: Gpu) -> Gpu:
        """The host's files tell, and the daemon reads them."""
        return gpu

    def _find_candidates(self, library: str) -> list[str]:
        under_root = (resolve_under(self._driver_root, f"{name}/{library}") for name in LIBRARY_DIRECTORIES)
        return [*dict.fromkeys(path for path in under_root if path is not None), library]

    def _find_library_version(self) -> str | None:
        """From the name of the file that the loader really mapped, which is never the link it was asked for."""
        match = _MAPPED.search(_read_text(f"{self._proc}/self/maps"))
        return match[1] if match else None

    def _find_kernel_version(self) -> str | None:
        match = _VERSION.search(_read_text(f"{self._proc}/driver/nvidia/version"))
        return match[0] if match else None


def resolve_under(root: str, name: str) -> str | None:
    """The file that ``name`` is for a process whose root directory is ``root``; None if there is none.

    Distributions make the library an *absolute* symbolic link (Debian: through /etc/alternatives): followed from
    here it would leave the driver root.
    """
    rest = name.split("/")[::-1]
    at: list[str] = []
    links = 0
    while rest:
        part = rest.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            at = at[:-1]
            continue
        try:
            target = os.readlink("/".join((root, *at, part)))
        except OSError:
            at.append(part)  # no link, or not there: the check at the end tells
            continue
        links += 1
        if links > _MAX_LINKS:
            return None
        if target.startswith("/"):
            at = []
        rest += target.split("/")[::-1]
    found = "/".join((root.rstrip("/"), *at))
    return found if os.path.lexists(found) else None


def _open(path: str) -> tuple[NvmlLibrary | None, str]:
    """The library, or why this candidate is none (empty where the loader simply knows none)."""
    try:
        library = NvmlLibrary(path)
    except OSError as error:
        is_absent = path == LIBRARY_NAME in str(error) and "No such file" in str(error)
        return None, "" if is_absent else str(error)
    if not hasattr(library, "nvmlInitWithFlags"):
        return None, f"{path}: not an NVML library, it has no nvmlInit"
    return library, ""


def _loads(path: str) -> bool:
    try:
        ctypes.CDLL(path)
    except OSError:
        return False
    return True


def _read_text(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
