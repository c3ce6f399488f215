"""Composes the service that knows the GPUs, for the daemon and for commands that look at them once."""

from __future__ import annotations

from typing import Final

from nvdp.config.overrides import Overrides
from nvdp.config.process import ProcessOptions
from nvdp.config.schema import Config
from nvdp.host.devnodes import choose_dev_view, find_control_nodes
from nvdp.host.sysfs import Sysfs
from nvdp.log import Log
from nvdp.nvml.children import NvmlChildren
from nvdp.services.events import Post
from nvdp.services.gpus import GpuService
from nvdp.services.nvml_counts import GpuObserver

_DRIVER_ROOT_KEY: Final = "flags.plugin.containerDriverRoot"


def build_gpu_service(
    options: ProcessOptions, overrides: Overrides, *, post: Post, log: Log, observer: GpuObserver
) -> GpuService:
    """The service, not yet started, on this node's driver or on the simulated node of the options."""
    simulated = options.simulated_node
    dev = choose_dev_view()
    return GpuService(
        NvmlChildren(driver_root=find_driver_root(overrides), simulated=str(simulated or "")),
        post=post,
        log=log,
        observer=observer,
        sysfs=Sysfs() if simulated is None else None,
        find_control_nodes=lambda: find_control_nodes(dev),
    )


def find_driver_root(overrides: Overrides) -> str:
    """Where this process sees the driver if one is mounted, as far as flags and environment say; a file may differ."""
    return str(overrides.values.get(_DRIVER_ROOT_KEY, Config().flags.plugin.container_driver_root))
