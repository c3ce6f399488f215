"""Every metric there is: name, type, labels and meaning. docs/observability.md shows the same table, held by a test.

Base units, ``_total`` for counters, ``_info`` is constant 1. No label holds free text, a path or an error message.
"""

from __future__ import annotations

import enum

import msgspec


class Kind(enum.Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the catalogue. ``buckets`` are upper bounds of a histogram, without the last, infinite one."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


_RPC_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0)
_CONVERGENCE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SCAN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_rows: list[Metric] = []


def _row(name: str, kind: Kind, labels: str, text: str, buckets: tuple[float, ...] = ()) -> Metric:
    row = Metric(name=name, kind=kind, labels=tuple(labels.split()), help=text, buckets=buckets)
    _rows.append(row)
    return row


def _gauge(name: str, labels: str, text: str) -> Metric:
    return _row(name, Kind.GAUGE, labels, text)


def _counter(name: str, labels: str, text: str) -> Metric:
    return _row(name, Kind.COUNTER, labels, text)


def _histogram(name: str, labels: str, text: str, buckets: tuple[float, ...]) -> Metric:
    return _row(name, Kind.HISTOGRAM, labels, text, buckets)


BUILD_INFO = _gauge("nvdp_build_info", "version revision python_version", "What is running")
READY = _gauge("nvdp_ready", "", "1 while /readyz answers 200")
PAUSED = _gauge("nvdp_paused", "", "1 while the driver is let go of by order")
DRIVER_UP = _gauge("nvdp_driver_up", "", "1 while NVML is usable")
DRIVER_INFO = _gauge("nvdp_driver_info", "driver_version cuda_version", "Versions of the driver")
GPU_INFO = _gauge("nvdp_gpu_info", "uuid gpu pci_bus_id product mig", "A GPU that was seen")
MIG_INSTANCES = _gauge("nvdp_mig_instances", "uuid profile", "MIG devices of a GPU")
RESOURCE_DEVICES = _gauge("nvdp_resource_devices", "resource health", "IDs in the list last sent")
RESOURCE_PLANNED = _gauge(
    "nvdp_resource_planned_devices", "resource", "Devices that configuration and inventory call for"
)
RESOURCE_REGISTERED = _gauge("nvdp_resource_registered", "resource", "1 while registered and streaming")
RESOURCE_SHARING = _gauge("nvdp_resource_sharing_info", "resource strategy replicas", "How the GPUs are shared")
DEVICE_HEALTHY = _gauge("nvdp_device_healthy", "uuid gpu", "1 while the GPU is fit for new pods")
DEVICE_UNHEALTHY = _gauge("nvdp_device_unhealthy_info", "uuid gpu reason xid action", "Why a GPU is not fit")
DEVICE_CHANGED = _gauge(
    "nvdp_device_health_change_timestamp_seconds", "uuid", "When the GPU's health changed last; absent if it never did"
)
DEVICE_CHANGES = _counter("nvdp_device_health_changes_total", "uuid to", "Changes of a GPU's health")
XID_EVENTS = _counter("nvdp_xid_events_total", "uuid xid verdict", "XIDs that the driver reported")
ECC_ERRORS = _counter("nvdp_ecc_errors_total", "uuid type", "ECC errors that the driver reported")
DEVICE_WITHHELD = _gauge("nvdp_device_withheld", "uuid reason", "A GPU that is ours and not on offer")
CONFIG_VALID = _gauge("nvdp_config_valid", "", "0 while the newest configuration is refused or missing")
CONFIG_INFO = _gauge("nvdp_config_info", "hash name", "The configuration in force")
CONFIG_APPLIED = _gauge("nvdp_config_applied_timestamp_seconds", "", "When it came into force")
CONFIG_EDITS = _counter("nvdp_config_edits_total", "result", "Configurations read")
CONFIG_APPLY = _histogram(
    "nvdp_config_apply_duration_seconds", "", "From a change seen to the last list handed over", _CONVERGENCE_S
)
CONFIG_UNMATCHED = _gauge("nvdp_config_unmatched_references", "", "References that name no device of this node")
REGISTRATIONS = _counter("nvdp_kubelet_registrations_total", "resource result", "Tries to register")
KUBELET_RESTARTS = _counter("nvdp_kubelet_restarts_total", "", "New kubelet sockets after the first")
STREAM_ENDS = _counter("nvdp_kubelet_stream_ends_total", "resource", "Streams that ended unasked")
STREAMS = _gauge("nvdp_kubelet_streams", "resource", "Open ListAndWatch streams")
RPC_REQUESTS = _counter("nvdp_rpc_requests_total", "resource method code", "Calls answered, by gRPC code")
RPC_DURATION = _histogram(
    "nvdp_rpc_duration_seconds", "resource method", "Time to answer; of ListAndWatch, to the first list", _RPC_S
)
ALLOCATIONS_REFUSED = _counter("nvdp_allocations_refused_total", "resource reason", "Allocate calls refused")
LIST_LATENCY = _histogram("nvdp_list_latency_seconds", "cause", "From an event to the list sent", _CONVERGENCE_S)
SCAN_DURATION = _histogram("nvdp_scan_duration_seconds", "", "Time that a scan of all GPUs took", _SCAN_S)
SCAN_TIMESTAMP = _gauge("nvdp_scan_timestamp_seconds", "", "End of the last complete scan")
NVML_ERRORS = _counter("nvdp_nvml_errors_total", "call error", "NVML calls that failed")
NVML_TIMEOUTS = _counter("nvdp_nvml_timeouts_total", "uuid", "NVML calls given up")
NVML_ABANDONED = _gauge("nvdp_nvml_children_abandoned", "", "Child processes that were killed and did not go")
SERVICE_RESTARTS = _counter("nvdp_service_restarts_total", "service", "Threads that died and were started again")
QUEUE_LENGTH = _gauge("nvdp_event_queue_length", "", "Events waiting for the supervisor")
MPS_UP = _gauge("nvdp_mps_daemon_up", "resource", "1 while the MPS daemon answers; absent while it waits for its GPUs")
MPS_RESTARTS = _counter("nvdp_mps_daemon_restarts_total", "resource", "Starts of the MPS daemon after the first")
MPS_CLIENTS = _gauge("nvdp_mps_clients", "resource", "CUDA clients of the MPS daemon")
MPS_SERVERS = _gauge("nvdp_mps_servers", "resource state", "Servers of the MPS daemon")
PODRESOURCES_UP = _gauge("nvdp_podresources_up", "", "1 while the pod-resources socket answers")
API_REQUESTS = _counter(
    "nvdp_api_requests_total",
    "verb resource code",
    "Requests to the API server; code is the HTTP status or unreachable",
)
LABELS_WRITES = _counter("nvdp_node_labels_writes_total", "result", "Writes of the node's labels")

METRICS: tuple[Metric, ...] = tuple(_rows)
