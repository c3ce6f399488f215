"""The simulated machine as a library for the NVML child: what ``driver.py`` is for the real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final

import msgspec

from nvdp.errors import HostError, NvmlError
from nvdp.model.inventory import Gpu, MigInstance
from nvdp.model.platforms import Platform
from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.library import build_explanation, install_library
from nvdp.nvml.simulated.calls import build_calls
from nvdp.nvml.simulated.machine import Machine
from nvdp.nvml.simulated.node import DriverState

# Drivers number the capability nodes so: a few for the driver itself, then each GPU's.
_FIRST_MINOR: Final = 3
_GPU_INSTANCES: Final = 15
_MINORS_EACH: Final = 9  # a GPU instance, and 8 compute instances in it


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

    def complete(self, gpu: Gpu) -> Gpu:
        """See ``Library``. This machine has no files: the NUMA node is the node file's, and minors are counted."""
        gpus = self._machine.node.gpus if self._machine else ()
        numa_node = next((one.numa for one in gpus if one.pci == gpu.pci), None)
        instances = gpu.instances and tuple(
            msgspec.structs.replace(one, nodes=_name_nodes(gpu, one)) for one in gpu.instances
        )
        return msgspec.structs.replace(gpu, numa_node=numa_node, instances=instances)


def _name_nodes(gpu: Gpu, instance: MigInstance) -> tuple[str, ...]:
    """The capability nodes, numbered as drivers do: for each GPU 15 GPU instances, each with itself and 8 inside."""
    if gpu.minor is None or instance.gpu_instance is None or instance.compute_instance is None:
        return ()
    minor = _FIRST_MINOR + (gpu.minor * _GPU_INSTANCES + instance.gpu_instance) * _MINORS_EACH
    return tuple(f"/dev/nvidia-caps/nvidia-cap{number}" for number in (minor, minor + 1 + instance.compute_instance))
