"""What a scrape reads off the daemon's state, and which series start at zero. Pure: state in, samples out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import product

from nvdp.metrics import catalog
from nvdp.metrics.catalog import Metric
from nvdp.model.status import EXCLUDED, DeviceStatus, DriverState, MpsDaemonStatus, ResourceStatus, Status

Sample = tuple[Metric, tuple[str, ...], float]
Series = tuple[Metric, tuple[str, ...]]

METHODS = ("GetDevicePluginOptions", "ListAndWatch", "GetPreferredAllocation", "Allocate", "PreStartContainer")
REFUSALS = ("too_many", "not_distinct", "unknown_device", "unhealthy")
LIST_CAUSES = ("health", "config", "inventory", "kubelet")
EDIT_RESULTS = ("applied", "refused", "unchanged")
REGISTRATION_RESULTS = ("success", "failure")
MEMORY_ERRORS = ("single", "double")
HEALTHS = ("healthy", "unhealthy")
SERVER_STATES = ("initializing", "active", "fault")

READ_OFF_STATE = frozenset({catalog.MPS_RESTARTS})
"""Counters that another process counts."""

_WORD = re.compile(r"[A-Z][A-Za-z]{0,40}")
_HASH_PREFIX = "sha256:"


def build_gauges(status: Status) -> Iterator[Sample]:
    """Every gauge that the state decides, and the counters of ``READ_OFF_STATE``."""
    driver, config = status.driver, status.config
    yield catalog.READY, (), float(status.ready)
    yield catalog.PAUSED, (), float(status.pause is not None)
    yield catalog.DRIVER_UP, (), float(driver.state is DriverState.READY)
    if driver.version:
        yield catalog.DRIVER_INFO, (driver.version, driver.cuda_version), 1.0
    yield catalog.CONFIG_VALID, (), float(config.valid)
    if config.hash:
        name = config.entry or config.source.rpartition("/")[2]
        yield catalog.CONFIG_INFO, (config.hash.removeprefix(_HASH_PREFIX), name), 1.0
    if config.applied_at is not None:
        yield catalog.CONFIG_APPLIED, (), config.applied_at
    yield catalog.CONFIG_UNMATCHED, (), float(len(status.unmatched))
    yield catalog.PODRESOURCES_UP, (), float(status.podresources_up)
    if status.scanned_at is not None:
        yield catalog.SCAN_TIMESTAMP, (), status.scanned_at
    yield catalog.NVML_ABANDONED, (), float(status.nvml_children_abandoned)
    yield catalog.QUEUE_LENGTH, (), float(status.queue_length)
    for resource in status.resources:
        yield from _resource(resource)
    for device in status.devices:
        yield from _device(device)
    for daemon in status.mps.daemons:
        yield from _mps_daemon(daemon)
    instances = Counter((one.parent_uuid, one.profile or "unknown") for one in status.devices if one.parent_uuid)
    for labels, count in instances.items():
        yield catalog.MIG_INSTANCES, labels, float(count)


def build_zeroes(status: Status) -> Iterator[Series]:
    """The series of counters and histograms that exist before anything happened: a rate needs its start."""
    yield catalog.KUBELET_RESTARTS, ()
    yield catalog.CONFIG_APPLY, ()
    yield catalog.SCAN_DURATION, ()
    yield from ((catalog.CONFIG_EDITS, (result,)) for result in EDIT_RESULTS)
    yield from ((catalog.LIST_LATENCY, (cause,)) for cause in LIST_CAUSES)
    for resource in status.resources:
        name = resource.name
        yield catalog.STREAM_ENDS, (name,)
        yield from ((catalog.REGISTRATIONS, (name, result)) for result in REGISTRATION_RESULTS)
        yield from ((catalog.RPC_REQUESTS, (name, method, "OK")) for method in METHODS)
        yield from ((catalog.RPC_DURATION, (name, method)) for method in METHODS)
        yield from ((catalog.ALLOCATIONS_REFUSED, (name, reason)) for reason in REFUSALS)
    watched = [device for device in status.devices if device.withheld != EXCLUDED]
    for device, health in product(watched, HEALTHS):
        yield catalog.DEVICE_CHANGES, (device.uuid, health)
    for device in (one for one in watched if not one.parent_uuid):
        yield catalog.NVML_TIMEOUTS, (device.uuid,)
        yield from ((catalog.ECC_ERRORS, (device.uuid, kind)) for kind in MEMORY_ERRORS)


def _resource(resource: ResourceStatus) -> Iterator[Sample]:
    name = resource.name
    yield catalog.RESOURCE_DEVICES, (name, "healthy"), float(resource.healthy)
    yield catalog.RESOURCE_DEVICES, (name, "unhealthy"), float(resource.unhealthy)
    yield catalog.RESOURCE_PLANNED, (name,), float(resource.planned)
    yield catalog.RESOURCE_REGISTERED, (name,), float(resource.registered)
    for replicas in resource.replicas:
        yield catalog.RESOURCE_SHARING, (name, resource.strategy.value, str(replicas)), 1.0
    yield catalog.STREAMS, (name,), float(resource.streams)


def _mps_daemon(daemon: MpsDaemonStatus) -> Iterator[Sample]:
    """Of one that ``nvdp mps`` does not tell of, nothing is known but that it is not up. One that waits is not down."""
    name = daemon.resource
    if not daemon.waits:
        yield catalog.MPS_UP, (name,), float(daemon.is_up)
    if daemon.phase is None:
        return
    yield catalog.MPS_RESTARTS, (name,), float(daemon.restarts)
    yield catalog.MPS_CLIENTS, (name,), float(daemon.clients)
    states = Counter(one.state if one.state in SERVER_STATES else "unknown" for one in daemon.servers)
    for state in (*SERVER_STATES, *(("unknown",) if states["unknown"] else ())):
        yield catalog.MPS_SERVERS, (name, state), float(states[state])


def _device(device: DeviceStatus) -> Iterator[Sample]:
    index = str(device.index)
    if not device.parent_uuid:
        yield catalog.GPU_INFO, (device.uuid, index, device.pci, device.product, device.mig), 1.0
    if device.withheld:
        yield catalog.DEVICE_WITHHELD, (device.uuid, _word(device.withheld)), 1.0
    if device.withheld == EXCLUDED:
        return  # none of ours: not watched
    yield catalog.DEVICE_HEALTHY, (device.uuid, index), float(device.healthy)
    if device.cause is not None:
        xid = "" if device.xid is None else str(device.xid)
        yield catalog.DEVICE_UNHEALTHY, (device.uuid, index, device.cause.value, xid, device.action), 1.0
    if device.changed_at:
        yield catalog.DEVICE_CHANGED, (device.uuid,), device.changed_at


def _word(text: str) -> str:
    """A label holds a word of the vocabulary, never a sentence."""
    return text if _WORD.fullmatch(text) else "Other"
