"""Composes what looks at the GPUs for ``nvdp mps``: which there are, in which mode, used by whom; not their health."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from nvdp.config.process import ProcessOptions
from nvdp.host.devnodes import NodeView, choose_dev_view
from nvdp.host.sysfs import Sysfs
from nvdp.log import Log
from nvdp.model.reasons import Level, Reason
from nvdp.nvml.children import NvmlChildren
from nvdp.services.gpus import GpuService
from nvdp.services.mps_events import MpsPost
from nvdp.services.mps_occupancy import OccupancyService
from nvdp.services.past import Past
from nvdp.services.process_reading import ProcessReader

# What else there is to tell of GPUs, the plugin tells.
_TOLD: Final = frozenset(
    {Reason.DRIVER_READY, Reason.DRIVER_MISSING, Reason.DRIVER_MISMATCH, Reason.DRIVER_LOST, Reason.SERVICE_RESTARTED}
)


def build_gpu_service(children: NvmlChildren, options: ProcessOptions, *, post: MpsPost, log: Log) -> GpuService:
    """It does not touch the driver before it is told to, with ``resume``."""
    is_simulated = options.simulated_node is not None
    dev = choose_dev_view(options.host_dev)
    return GpuService(
        children,
        post=post,
        log=_DriverLog(log),
        observer=_Uncounted(),
        sysfs=None if is_simulated else Sysfs(),
        nodes=NodeView(dev, is_host=dev == options.host_dev and not is_simulated),
        past=Past(is_held=True),
    )


def build_occupancy_service(
    children: NvmlChildren, *, find_own_pids: Callable[[], Collection[int]], post: MpsPost
) -> OccupancyService:
    """It asks the driver only while it is told to look at something."""
    return OccupancyService(
        lambda: ProcessReader(children, observer=_Uncounted(), clock=time.monotonic),
        find_own_pids=find_own_pids,
        post=post,
    )


class _DriverLog:
    """The log of who looks at GPUs, without their health, which nobody asks for here."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __call__(self, reason: Reason, msg: str, /, *, level: Level | None = None, **fields: object) -> None:
        if reason in _TOLD:
            self._log(reason, msg, level=level, **fields)


class _Uncounted:
    """Nobody counts here what the plugin counts."""

    def scan_took(self, seconds: float) -> None: ...

    def nvml_failed(self, call: str, kind: str) -> None: ...

    def nvml_timed_out(self, uuid: str) -> None: ...

    def xid_seen(self, uuid: str, xid: int, verdict: str) -> None: ...

    def memory_error_seen(self, uuid: str, kind: str) -> None: ...
