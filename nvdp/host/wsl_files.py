"""What a container needs on WSL2: the driver's Linux libraries, which Windows keeps in its driver store."""

from __future__ import annotations

from pathlib import Path
from posixpath import join
from typing import Final

from nvdp.errors import HostError
from nvdp.host.driver_root import DriverRoot
from nvdp.model.driver_files import DriverFile, DriverFiles, Link

# Windows shows its whole driver store here: one directory for each version of each driver that was ever installed.
_STORE: Final = "/usr/lib/wsl/drivers"
_OURS: Final = "nv"
_MAX_PACKAGES: Final = 1024
_CUDA: Final = "libcuda.so.1.1"
_LIBRARIES: Final = (
    _CUDA,
    "libcuda_loader.so",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ml_loader.so",
    "libnvdxgdmal.so.1",
)
_CODE: Final = "nvcubins.bin"
_PROGRAM: Final = "nvidia-smi"
_PROGRAM_LINK: Final = "/usr/bin/nvidia-smi"
_DXCORE: Final = "libdxcore.so"
_DXCORE_DIRS: Final = ("/usr/lib/wsl/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")


def load_wsl_files(root: Path, *, version: str) -> DriverFiles:
    """The driver's files below ``root``, this process's view of the distribution's root; ``version`` is NVML's.

    Of several packages in the store the one counts that was installed last. Raises HostError, one line, if there is
    none. Blocks as long as the disk does, which is that of Windows.
    """
    tree = DriverRoot(root)
    package = _find_package(tree, root)
    if package is None:
        remedy = "mount the distribution's root there, and set flags.plugin.containerDriverRoot to that place"
        raise HostError(f"{root}: no driver with {_CUDA} in {_STORE}; {remedy}")
    missing: list[str] = []

    def find(name: str, *directories: str) -> tuple[DriverFile, ...]:
        for directory in directories:
            path = join(directory, name)
            found = tree.find(path)
            if found is not None and found.is_file:
                return (DriverFile(path, found.source),)
        missing.append(f"{name}: not in {', '.join(directories)}")
        return ()

    dxcore = find(_DXCORE, *_DXCORE_DIRS)
    program = find(_PROGRAM, package)
    return DriverFiles(
        version=version,
        library_dirs=tuple(sorted({package, *(file.path.rpartition("/")[0] for file in dxcore)})),
        cuda_dirs=(package,),
        libraries=tuple(sorted((*dxcore, *(file for name in _LIBRARIES for file in find(name, package))))),
        binaries=program,
        configs=find(_CODE, package),
        links=tuple(Link(file.path, _PROGRAM_LINK) for file in program),
        missing=(*missing, *tree.problems),
    )


def _find_package(tree: DriverRoot, root: Path) -> str | None:
    """The directory of the driver that was installed last, by the time of its library."""
    names = [name for name in tree.list_names(_STORE) if name.startswith(_OURS)]
    ages: dict[str, float] = {}
    for name in names[:_MAX_PACKAGES]:
        package = join(_STORE, name)
        found = tree.find(join(package, _CUDA))
        if found is not None and found.is_file:
            try:
                ages[package] = (root / found.source.lstrip("/")).stat().st_mtime
            except OSError:
                continue  # gone between two looks
    return max(ages, key=lambda package: (ages[package], package), default=None)
