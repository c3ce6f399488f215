"""The simulated machine as a library for the NVML child: what ``driver.py`` is for the real one."""

from __future__ import annotations

from types import SimpleNamespace

from nvdp.errors import HostError, NvmlError
from nvdp.model.platforms import Platform
from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.library import build_explanation, install_library
from nvdp.nvml.simulated.calls import build_calls
from nvdp.nvml.simulated.machine import Machine
from nvdp.nvml.simulated.node import DriverState


class SimulatedLibrary:
    """The machine of a node file, or of a node that comes with nvdp."""

    def __init__(self, path_or_name: str) -> None:
        self._path_or_name = path_or_name
        self._machine: Machine | None = None

    def install(self) -> None:
        """See ``Library``. Raises NvmlError also for a node file that is not good, with the line that says why."""
        kind = NvmlErrorKind.LIBRARY_NOT_FOUND
        try:
            machine = self._machine = Machine(self._path_or_name)
        except HostError as error:
            raise NvmlError(str(error), kind=kind.word, call="dlopen") from error
        if machine.node.driver.state is DriverState.MISSING:
            text = f"libnvidia-ml.so.1 not found: {self._path_or_name} says driver.state: missing"
            raise NvmlError(f"{text}; {self.explain(kind)}", kind=kind.word, call="dlopen")
        if machine.node.platform is Platform.TEGRA:
            text = f"libnvidia-ml.so.1 not found: {self._path_or_name} says platform: tegra"
            raise NvmlError(text, kind=kind.word, call="dlopen")
        install_library(SimpleNamespace(**build_calls(machine)))

    def has_dxcore(self) -> bool:
        """See ``Library``. As the node file says, once it was read."""
        return self._machine is not None and self._machine.node.platform is Platform.WSL

    def has_tegra_files(self) -> bool:
        """See ``Library``. As the node file says, once it was read."""
        return self._machine is not None and self._machine.node.platform is Platform.TEGRA

    def explain(self, kind: NvmlErrorKind) -> str:
        """See ``Library``."""
        driver = self._machine.node.driver if self._machine else None
        loaded = driver is not None and driver.state is DriverState.READY
        return build_explanation(
            kind,
            library_version=driver.version if driver else None,
            kernel_version=(driver.kernel or driver.version) if driver and loaded else None,
            control_node_exists=loaded,
        )

    def find_numa_node(self, pci: str) -> int | None:
        """As the node file says: this machine has no sysfs."""
        gpus = self._machine.node.gpus if self._machine else ()
        return next((gpu.numa for gpu in gpus if gpu.pci == pci), None)
