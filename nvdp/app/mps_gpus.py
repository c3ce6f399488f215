"""Composes what looks at the GPUs for ``nvdp mps``: which there are and in which mode, and nothing of their health."""

from __future__ import annotations

from typing import Final

from nvdp.config.process import ProcessOptions
from nvdp.host.devnodes import NodeView, choose_dev_view
from nvdp.host.sysfs import Sysfs
from nvdp.log import Log
from nvdp.model.reasons import Level, Reason
from nvdp.nvml.children import NvmlChildren
from nvdp.services.gpus import GpuService
from nvdp.services.mps_events import MpsPost
from nvdp.services.past import Past

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
