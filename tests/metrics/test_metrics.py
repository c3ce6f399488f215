"""Metrics as Prometheus sees them: a scrape is parsed, and its series are looked at."""

from __future__ import annotations

import subprocess
import sys
import threading

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from nvdp.metrics.catalog import METRICS, Kind
from nvdp.metrics.exposition import DaemonCollector, Exposition
from nvdp.metrics.gauges import READ_OFF_STATE
from nvdp.metrics.recording import Metrics
from nvdp.model.listing import Strategy
from nvdp.model.mps import Phase
from nvdp.model.reasons import Cause
from nvdp.model.status import (
    ConfigStatus,
    DeviceStatus,
    DriverState,
    DriverStatus,
    MpsDaemonStatus,
    MpsServerStatus,
    MpsStatus,
    ResourceStatus,
    Status,
)

GPU = "GPU-9a1b77c0-d33e-4f0b-8f7e-2b1d6a0c9e55"


def device(**changes: object) -> DeviceStatus:
    facts: dict = {
        "uuid": GPU,
        "index": 3,
        "pci": "0000:47:00.0",
        "product": "NVIDIA H100 80GB HBM3",
        "mig": "disabled",
        "memory_bytes": 80 << 30,
        "healthy": True,
        "cause": None,
        "text": "",
        "changed_at": 0.0,
    }
    return DeviceStatus(**{**facts, **changes})


def resource(name: str = "nvidia.com/gpu", **changes: object) -> ResourceStatus:
    facts: dict = {
        "planned": 32,
        "healthy": 28,
        "unhealthy": 4,
        "registered": True,
        "streams": 1,
        "strategy": Strategy.TIME_SLICING,
        "replicas": (4,),
    }
    return ResourceStatus(name=name, **{**facts, **changes})


def busy_status() -> Status:
    return Status(
        ready=True,
        reason="",
        config=ConfigStatus(valid=True, hash="sha256:1f0c9a2e77b0", source="/config/mixed", applied_at=1000.0),
        driver=DriverStatus(state=DriverState.READY, version="580.65.06", cuda_version="13.0"),
        resources=(resource(),),
        devices=(
            device(),
            device(uuid=GPU.replace("9a", "00"), index=4, healthy=False, cause=Cause.LOST, text="gone", changed_at=5.5),
            device(uuid=GPU.replace("9a", "11"), index=5, withheld="ListTooLarge"),
            device(uuid=GPU.replace("9a", "22"), index=6, withheld="a sentence that is no word"),
        ),
        podresources_up=True,
        scanned_at=2000.0,
        queue_length=2,
    )


def scrape(metrics: Metrics, status: Status, **build: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Series by sample name and sorted labels."""
    collector = DaemonCollector(metrics, lambda: status, **{"version": "0.1.0", "revision": "a1b2c3d", **build})
    found: dict[str, dict] = {}
    for family in text_string_to_metric_families(Exposition(collector).render().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def labels(**named: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(named.items()))


def test_the_state_of_the_daemon_is_read_at_the_moment_of_the_scrape():
    found = scrape(Metrics(), busy_status())
    shared = {"resource": "nvidia.com/gpu"}
    assert found["nvdp_ready"] == {(): 1.0}
    assert found["nvdp_driver_up"] == {(): 1.0}
    assert found["nvdp_driver_info"] == {labels(driver_version="580.65.06", cuda_version="13.0"): 1.0}
    assert found["nvdp_resource_devices"] == {
        labels(**shared, health="healthy"): 28.0,
        labels(**shared, health="unhealthy"): 4.0,
    }
    assert found["nvdp_resource_planned_devices"] == {labels(**shared): 32.0}
    assert found["nvdp_resource_sharing_info"] == {labels(**shared, strategy="time-slicing", replicas="4"): 1.0}
    assert found["nvdp_kubelet_streams"] == {labels(**shared): 1.0}
    assert found["nvdp_config_info"] == {labels(hash="1f0c9a2e77b0", name="mixed"): 1.0}
    assert found["nvdp_config_applied_timestamp_seconds"] == {(): 1000.0}
    assert found["nvdp_scan_timestamp_seconds"] == {(): 2000.0}
    assert found["nvdp_event_queue_length"] == {(): 2.0}


def test_a_configuration_that_was_chosen_among_several_is_known_by_its_own_name():
    chosen = ConfigStatus(hash="sha256:1f0c9a2e77b0", source="configmap nvdp/configs:mixed", entry="mixed")
    found = scrape(Metrics(), msgspec.structs.replace(busy_status(), config=chosen))
    assert found["nvdp_config_info"] == {labels(hash="1f0c9a2e77b0", name="mixed"): 1.0}
    assert found["nvdp_config_valid"] == {(): 0.0}


def test_a_gpu_is_shown_with_its_health_and_the_cause_of_it():
    found = scrape(Metrics(), busy_status())
    lost = GPU.replace("9a", "00")
    assert (
        found["nvdp_gpu_info"][
            labels(uuid=GPU, gpu="3", pci_bus_id="0000:47:00.0", product="NVIDIA H100 80GB HBM3", mig="disabled")
        ]
        == 1.0
    )
    assert found["nvdp_device_healthy"][labels(uuid=GPU, gpu="3")] == 1.0
    assert found["nvdp_device_healthy"][labels(uuid=lost, gpu="4")] == 0.0
    assert found["nvdp_device_unhealthy_info"] == {labels(uuid=lost, gpu="4", reason="Lost", xid="", action=""): 1.0}
    assert found["nvdp_device_health_change_timestamp_seconds"] == {labels(uuid=lost): 5.5}


MPS = "nvidia.com/gpu.mps"
SERVERS = tuple(
    MpsServerStatus(pid=pid, state=state)
    for pid, state in enumerate(["active", "active", "fault", "shutting down"], start=11)
)
# How the daemon is told of; then the samples that there are of it.
DAEMONS = {
    "it answers": (
        {"phase": Phase.READY, "restarts": 2, "clients": 3, "servers": SERVERS[:1]},
        {"daemon_up": 1.0, "daemon_restarts_total": 2.0, "clients": 3.0},
    ),
    "it died": ({"phase": Phase.FAILED}, {"daemon_up": 0.0, "daemon_restarts_total": 0.0, "clients": 0.0}),
    "it waits for its GPUs": ({"phase": Phase.WAITING, "waits": True}, {"daemon_restarts_total": 0.0, "clients": 0.0}),
    "it waits for a driver": (
        {"phase": Phase.WAITING},
        {"daemon_up": 0.0, "daemon_restarts_total": 0.0, "clients": 0.0},
    ),
    "nobody tells of it": ({}, {"daemon_up": 0.0}),
}


@pytest.mark.parametrize(("facts", "expected"), DAEMONS.values(), ids=DAEMONS)
def test_a_daemon_of_mps_is_shown_as_far_as_it_is_known(facts, expected):
    found = scrape(Metrics(), Status(mps=MpsStatus(daemons=(MpsDaemonStatus(resource=MPS, **facts),))))
    samples = {
        name.removeprefix("nvdp_mps_"): series[labels(resource=MPS)]
        for name, series in found.items()
        if name.startswith("nvdp_mps_") and labels(resource=MPS) in series
    }
    assert samples == expected


def test_the_servers_of_mps_are_counted_by_their_states_and_a_state_is_a_word():
    daemon = MpsDaemonStatus(resource=MPS, phase=Phase.READY, servers=SERVERS)
    found = scrape(Metrics(), Status(mps=MpsStatus(daemons=(daemon,))))["nvdp_mps_servers"]
    assert {dict(series)["state"]: count for series, count in found.items()} == {
        "initializing": 0.0,
        "active": 2.0,
        "fault": 1.0,
        "unknown": 1.0,
    }


def test_a_label_holds_a_word_and_never_a_sentence():
    reasons = {dict(series)["reason"] for series in scrape(Metrics(), busy_status())["nvdp_device_withheld"]}
    assert reasons == {"ListTooLarge", "Other"}


def test_everything_about_a_planned_resource_starts_at_zero():
    found = scrape(Metrics(), busy_status())
    name = {"resource": "nvidia.com/gpu"}
    assert found["nvdp_kubelet_registrations_total"] == {
        labels(**name, result="success"): 0.0,
        labels(**name, result="failure"): 0.0,
    }
    assert found["nvdp_kubelet_stream_ends_total"] == {labels(**name): 0.0}
    assert found["nvdp_rpc_requests_total"][labels(**name, method="Allocate", code="OK")] == 0.0
    assert found["nvdp_rpc_duration_seconds_count"][labels(**name, method="Allocate")] == 0.0
    assert found["nvdp_allocations_refused_total"][labels(**name, reason="too_many")] == 0.0
    assert found["nvdp_device_health_changes_total"][labels(uuid=GPU, to="unhealthy")] == 0.0
    assert found["nvdp_config_edits_total"][labels(result="refused")] == 0.0
    assert found["nvdp_kubelet_restarts_total"] == {(): 0.0}


def test_before_anything_is_known_a_scrape_says_so():
    found = scrape(Metrics(), Status())
    assert found["nvdp_ready"] == {(): 0.0}
    assert found["nvdp_config_valid"] == {(): 0.0}
    for absent in ("nvdp_driver_info", "nvdp_config_info", "nvdp_scan_timestamp_seconds", "nvdp_resource_devices"):
        assert absent not in found


# What is called, and the sample that counts it.
RECORDED = {
    "registration": (("r", "failure"), "nvdp_kubelet_registrations_total", labels(resource="r", result="failure")),
    "stream_lost": (("r",), "nvdp_kubelet_stream_ends_total", labels(resource="r")),
    "allocation_refused": (
        ("r", "unhealthy"),
        "nvdp_allocations_refused_total",
        labels(resource="r", reason="unhealthy"),
    ),
    "kubelet_restarted": ((), "nvdp_kubelet_restarts_total", ()),
    "config_edit": (("refused",), "nvdp_config_edits_total", labels(result="refused")),
    "device_health_changed": (
        (GPU, "unhealthy"),
        "nvdp_device_health_changes_total",
        labels(uuid=GPU, to="unhealthy"),
    ),
    "xid_seen": ((GPU, 79, "fatal"), "nvdp_xid_events_total", labels(uuid=GPU, xid="79", verdict="fatal")),
    "memory_error_seen": ((GPU, "single"), "nvdp_ecc_errors_total", labels(uuid=GPU, type="single")),
    "service_restarted": (("gpus",), "nvdp_service_restarts_total", labels(service="gpus")),
    "nvml_failed": (("nvmlInit", "Lost"), "nvdp_nvml_errors_total", labels(call="nvmlInit", error="Lost")),
    "api_request": (
        ("watch", "nodes", "200"),
        "nvdp_api_requests_total",
        labels(verb="watch", resource="nodes", code="200"),
    ),
    "labels_written": (("written",), "nvdp_node_labels_writes_total", labels(result="written")),
    "nvml_timed_out": ((GPU,), "nvdp_nvml_timeouts_total", labels(uuid=GPU)),
    "rpc": (
        ("r", "Allocate", "OK", 0.1),
        "nvdp_rpc_requests_total",
        labels(resource="r", method="Allocate", code="OK"),
    ),
    "list_latency": (("config", 0.01), "nvdp_list_latency_seconds_count", labels(cause="config")),
    "config_applied": ((0.01,), "nvdp_config_apply_duration_seconds_count", ()),
    "scan_took": ((0.1,), "nvdp_scan_duration_seconds_count", ()),
}


@pytest.mark.parametrize("method", RECORDED)
def test_what_services_count_is_in_the_next_scrape(method: str):
    arguments, sample, series = RECORDED[method]
    metrics = Metrics()
    before = scrape(metrics, Status()).get(sample, {}).get(series, 0.0)
    getattr(metrics, method)(*arguments)
    getattr(metrics, method)(*arguments)
    assert (before, scrape(metrics, Status())[sample][series]) == (0.0, 2.0)


def test_the_65th_xid_and_those_after_it_are_counted_together():
    metrics = Metrics()
    for xid in range(1, 70):
        metrics.xid_seen(GPU, xid, "ignored")
    found = scrape(metrics, Status())["nvdp_xid_events_total"]
    assert len(found) == 65
    assert found[labels(uuid=GPU, xid="other", verdict="ignored")] == 5.0


def test_every_counter_and_histogram_of_the_catalogue_can_be_recorded():
    recorded = {sample.removesuffix("_count") for _, sample, _ in RECORDED.values()} | {"nvdp_rpc_duration_seconds"}
    assert recorded == {metric.name for metric in METRICS if metric.kind is not Kind.GAUGE} - {
        metric.name for metric in READ_OFF_STATE
    }


def test_a_duration_counts_in_every_bucket_that_holds_it():
    metrics = Metrics()
    for seconds in (0.0005, 0.004, 0.004, 99.0):
        metrics.rpc("r", "Allocate", "OK", seconds)
    found = scrape(metrics, Status())
    buckets = {dict(series)["le"]: value for series, value in found["nvdp_rpc_duration_seconds_bucket"].items()}
    assert buckets == {
        "0.0005": 1.0,
        "0.001": 1.0,
        "0.0025": 1.0,
        "0.005": 3.0,
        "0.01": 3.0,
        "0.025": 3.0,
        "0.05": 3.0,
        "0.1": 3.0,
        "0.25": 3.0,
        "1.0": 3.0,
        "10.0": 3.0,
        "+Inf": 4.0,
    }
    assert found["nvdp_rpc_duration_seconds_sum"] == {labels(resource="r", method="Allocate"): 99.0085}


def test_the_number_of_series_is_bounded_whatever_names_turn_up():
    metrics = Metrics()
    for number in range(3000):
        metrics.registration(f"nvidia.com/gpu-{number}", "success")
    found = scrape(metrics, Status())["nvdp_kubelet_registrations_total"]
    assert len(found) == 501
    assert sum(found.values()) == 3000
    assert found[labels(resource="other", result="other")] == 2500.0


def test_nothing_is_lost_when_many_threads_count():
    metrics = Metrics()
    threads = [
        threading.Thread(target=lambda: [metrics.rpc("r", "Allocate", "OK", 0.001) for _ in range(2000)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = scrape(metrics, Status())
    assert found["nvdp_rpc_requests_total"][labels(resource="r", method="Allocate", code="OK")] == 16000.0
    assert found["nvdp_rpc_duration_seconds_count"][labels(resource="r", method="Allocate")] == 16000.0


def test_the_client_library_adds_process_and_garbage_collector_only():
    found = scrape(Metrics(), Status())
    assert {name.partition("_")[0] for name in found} == {"nvdp", "process", "python"}
    assert {name for name in found if name.startswith("python")} == {
        "python_gc_objects_collected_total",
        "python_gc_objects_uncollectable_total",
        "python_gc_collections_total",
    }


def test_counting_does_not_load_the_client_library():
    program = "import sys, nvdp.metrics.recording; sys.exit(any(name.startswith('prometheus') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
