"""The files and nodes that containers need for the GPUs, by the kind of system that this is."""

from __future__ import annotations

from pathlib import Path

from nvdp.host.driver_files import load_driver_files
from nvdp.host.tegra_csv import load_tegra_files
from nvdp.host.wsl_files import load_wsl_files
from nvdp.model.driver_files import DriverFiles
from nvdp.model.platforms import Platform


def load_platform_files(
    platform: Platform, root: Path, *, version_hint: str, driver_root: str, dev: Path, sys: Path
) -> tuple[DriverFiles, tuple[str, ...]]:
    """The driver's files below ``root``, and the device nodes that come with every device.

    ``root``, ``dev`` and ``sys`` are this process's views of the host's ``driver_root``, ``/dev`` and ``/sys``. Raises
    HostError, one line, where the driver's files are not there. Blocks as long as the disk does.
    """
    if platform is Platform.WSL:
        return load_wsl_files(root, version=version_hint), ()
    if platform is Platform.TEGRA:
        found = load_tegra_files(root, dev=dev)
        return found.driver, found.nodes
    return load_driver_files(root, version_hint=version_hint, driver_root=driver_root, sys=sys), ()
