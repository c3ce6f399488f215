"""Composes what asks the driver: the service that knows the GPUs, also for commands, and the check before a start."""

from __future__ import annotations

import queue
from typing import Any, Final

from nvdp.config.overrides import Overrides
from nvdp.config.process import HOST_DEV, ProcessOptions
from nvdp.config.schema import Config
from nvdp.errors import NvmlError
from nvdp.host.boot import load_boot_id
from nvdp.host.devnodes import NodeView, choose_dev_view
from nvdp.host.pause_file import PauseFile
from nvdp.host.processes import NodeProcesses
from nvdp.host.sysfs import Sysfs
from nvdp.log import Log
from nvdp.model.reasons import Reason
from nvdp.model.status import DriverState
from nvdp.nvml.children import NvmlChildren, Source
from nvdp.nvml.client import INIT_LIMIT_S
from nvdp.services.events import Event, GpusScanned, Post
from nvdp.services.gpus import GpuService
from nvdp.services.idle import IdleCheck
from nvdp.services.nvml_counts import GpuObserver
from nvdp.services.past import Past

_DRIVER_ROOT_KEY: Final = "flags.plugin.containerDriverRoot"
_DISCOVERY_KEY: Final = "flags.deviceDiscoveryStrategy"
# A driver may take its minute to start, and then some GPUs their five seconds not to answer.
_SCAN_LIMIT_S: Final = INIT_LIMIT_S + 60


def build_driver_services(
    options: ProcessOptions, overrides: Overrides, *, past: Past, post: Post, log: Log, observer: GpuObserver
) -> tuple[GpuService, IdleCheck]:
    """All of the process that asks this node's driver, or the simulated one of the options; not yet started.

    They share their children, so that the driver is let go of as a whole.
    """
    source = find_source(overrides)
    children = _build_children(options, source)
    gpus = _build_gpu_service(children, options, source, past=past, post=post, log=log, observer=observer)
    processes = NodeProcesses()
    # A simulated driver knows nothing of namespaces and tells of all processes.
    sees_all = options.simulated_node is not None or processes.are_all_seen
    return gpus, IdleCheck(children, log=log, observer=observer, processes=processes, sees_all=sees_all)


def scan_once(options: ProcessOptions, source: Source) -> GpusScanned:
    """What the daemon's first complete scan would find, with an inventory. Blocks, at worst for two minutes.

    Raises NvmlError, in one line with the remedy, if the driver cannot be asked.
    """
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    unheard = _Unheard()
    children = _build_children(options, source)
    service = _build_gpu_service(
        children, options, source, past=Past(), post=posted.put, log=unheard.log, observer=unheard
    )
    service.start()
    try:
        event = posted.get(timeout=_SCAN_LIMIT_S)
    except queue.Empty:
        text = f"the driver did not answer within {_SCAN_LIMIT_S:.0f}s; see dmesg for messages of NVRM"
        raise NvmlError(text, kind="CallTimeout", call="") from None
    finally:
        service.stop()
    assert isinstance(event, GpusScanned)
    if event.driver.state is not DriverState.READY:
        raise NvmlError(event.driver.text, kind=event.driver.state.value, call="")
    return event


def scan_this_node(options: ProcessOptions, source: Source) -> GpusScanned:
    """The same of the node on which this runs: not while ``nvdp pause`` has its driver let go of (NvmlError)."""
    pause = PauseFile(options.run_dir, boot_id=load_boot_id()).load()
    if pause is not None:
        text = f"{pause}: the driver is not to be opened; nvdp status asks the daemon alone, nvdp resume ends the pause"
        raise NvmlError(text, kind=DriverState.PAUSED.value, call="")
    return scan_once(options, source)


def find_driver_root(overrides: Overrides) -> str:
    """Where this process sees the driver if one is mounted, as far as flags and environment say; a file may differ."""
    return str(overrides.values.get(_DRIVER_ROOT_KEY, Config().flags.plugin.container_driver_root)) or "/"


def find_source(overrides: Overrides) -> Source:
    """Where and how GPUs are looked for before a file was read, as far as flags and environment say."""
    discovery = overrides.values.get(_DISCOVERY_KEY, Config().flags.device_discovery_strategy)
    return Source(driver_root=find_driver_root(overrides), discovery=discovery)


class _Unheard:
    """Nobody counts or logs what one look at the GPUs meets: what matters is in the answer."""

    def log(self, reason: Reason, msg: str, /, **fields: Any) -> None: ...

    def scan_took(self, seconds: float) -> None: ...

    def nvml_failed(self, call: str, kind: str) -> None: ...

    def nvml_timed_out(self, uuid: str) -> None: ...

    def xid_seen(self, uuid: str, xid: int, verdict: str) -> None: ...

    def memory_error_seen(self, uuid: str, kind: str) -> None: ...


def _build_children(options: ProcessOptions, source: Source) -> NvmlChildren:
    simulated = str(options.simulated_node or "")
    return NvmlChildren(driver_root=source.driver_root, discovery=source.discovery, simulated=simulated)


def _build_gpu_service(
    children: NvmlChildren,
    options: ProcessOptions,
    source: Source,
    *,
    past: Past,
    post: Post,
    log: Log,
    observer: GpuObserver,
) -> GpuService:
    return GpuService(
        children,
        post=post,
        log=log,
        observer=observer,
        past=past,
        sysfs=Sysfs() if options.simulated_node is None else None,
        nodes=_build_node_view(options, source),
    )


def _build_node_view(options: ProcessOptions, source: Source) -> NodeView:
    """The node's own ``/dev`` has nothing of a simulated driver: only one that is made for it can be judged."""
    dev = choose_dev_view(options.host_dev)
    is_made_for_it = options.simulated_node is None or options.host_dev != HOST_DEV
    is_host = dev == options.host_dev and is_made_for_it
    return NodeView(dev, is_host=is_host, driver_root=source.driver_root)
