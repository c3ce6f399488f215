"""Faults that the driver reports: what they take away, when it comes back by itself, and that a restart is no cure."""

from __future__ import annotations

import grpc
import pytest

from tests.daemon.node import (
    GPU,
    at_length,
    both_libraries,
    build_config,
    connect,
    gpu_uuid,
    healthy,
    replicas,
    wait_healthy,
)
from tests.daemon.process import LIMIT_S, wait_until

ALL = frozenset().union(*(replicas(number, 4) for number in range(4)))
NUMBER = {"gpu": "1", "uuid": gpu_uuid(1)}
QUICK = {"recovery": {"holdOff": "500ms", "maxHoldOff": "2s"}}
WELL, RESET = {"recoveryAction": "None"}, {"recoveryAction": "GPUReset"}


class Events:
    """The events of a node file, which only ever grow; and what the driver says of card 1."""

    def __init__(self, machine) -> None:
        self._machine = machine
        self._events: list[dict[str, object]] = []

    def tell(self, *events: dict[str, object], **facts) -> float:
        self._events += events
        return self._machine.change(events=self._events, conditions=[{"gpu": 1, **facts}] if facts else [])


@pytest.fixture
def events(machine):
    return Events(machine)


def begin(start, *, environment=None, **health):
    config = build_config(share=4, devices={"rescanInterval": "1s"}, health={**QUICK, **health})
    return start(config, wait=True, environment=environment)


def watched(daemon):
    """Once a scan is complete, every GPU is watched."""
    daemon.wait_scans(1)
    return daemon


@pytest.mark.requirement(14)
@both_libraries
def test_a_fatal_xid_takes_all_replicas_of_its_gpu_in_one_list_and_no_other(kubelet, start, events):
    daemon = watched(begin(start))
    before = len(kubelet.messages(GPU))

    at = events.tell({"gpu": 1, "xid": 79}, **RESET)
    wait_healthy(kubelet, ALL - replicas(1, 4))

    assert kubelet.messages(GPU)[-1].at - at < 1  # 50 ms on an idle machine, see make bench
    assert len(kubelet.messages(GPU)) == before + 1
    line = daemon.log.wait_for("DeviceUnhealthy")
    assert line["xid"] == 79
    assert line["cause"] == "XID"
    assert "XID 79" in line["msg"]
    asked = daemon.log.wait_for("DeviceUnhealthy", text="the driver asks for a reset of the GPU")
    assert (asked["xid"], asked["action"]) == (79, "GPUReset")
    assert "4 devices of nvidia.com/gpu withdrawn" in asked["msg"]
    daemon.wait_metric(1, "nvdp_xid_events_total", uuid=gpu_uuid(1), xid="79", verdict="fatal")
    daemon.wait_metric(1, "nvdp_device_unhealthy_info", reason="XID", xid="79", action="GPUReset", **NUMBER)
    with connect(kubelet) as client, pytest.raises(grpc.RpcError) as refusal:
        client.allocate([f"{gpu_uuid(1)}::0"])
    assert "XID 79" in refusal.value.details()


def test_an_xid_of_the_application_and_an_error_that_was_corrected_take_nothing(kubelet, start, events):
    daemon = watched(begin(start))

    events.tell({"gpu": 1, "xid": 13}, {"gpu": 2, "ecc": "single"})

    daemon.wait_metric(1, "nvdp_xid_events_total", uuid=gpu_uuid(1), xid="13", verdict="ignored")
    daemon.wait_metric(1, "nvdp_ecc_errors_total", uuid=gpu_uuid(2), type="single")
    daemon.wait_scans(2)
    assert len(kubelet.messages(GPU)) == 1
    assert healthy(kubelet) == ALL


@pytest.mark.requirement(14)
def test_an_error_of_two_bits_takes_all_replicas_of_its_gpu_though_contained_errors_are_ignored(kubelet, start, events):
    daemon = watched(begin(start, profile="catalog"))

    events.tell({"gpu": 1, "xid": 94}, {"gpu": 1, "ecc": "double"}, **RESET)

    wait_healthy(kubelet, ALL - replicas(1, 4))
    assert daemon.log.wait_for("DeviceUnhealthy")["cause"] == "ECC"
    daemon.wait_metric(1, "nvdp_xid_events_total", uuid=gpu_uuid(1), xid="94", verdict="ignored")
    daemon.wait_metric(1, "nvdp_ecc_errors_total", uuid=gpu_uuid(1), type="double")
    daemon.wait_metric(1, "nvdp_device_unhealthy_info", reason="ECC", xid="", action="GPUReset", **NUMBER)


def test_what_the_file_says_of_xids_counts_from_the_edit_on(kubelet, start, events, config_map):
    daemon = watched(begin(start))
    config_map.publish(build_config(share=4, health={**QUICK, "ignoredXIDs": "all", "fatalXIDs": [31]}))
    daemon.log.wait_for("ConfigApplied", after=1)
    wait_until(lambda: daemon.metric("nvdp_config_edits_total", result="applied") == 2, what="the edit")

    events.tell({"gpu": 2, "xid": 79}, {"gpu": 1, "xid": 31}, **RESET)

    wait_healthy(kubelet, ALL - replicas(1, 4))
    daemon.wait_metric(1, "nvdp_xid_events_total", uuid=gpu_uuid(2), xid="79", verdict="ignored")


def test_reports_e5_and_e11_the_variables_choose_xids_and_what_in_them_is_none_is_told(kubelet, start, events):
    chosen = {"DP_DISABLE_HEALTHCHECKS": "all,abc", "DP_ENABLE_HEALTHCHECKS": "79"}
    daemon = watched(begin(start, environment=chosen, recovery={"holdOff": "0s"}))  # what is taken stays taken
    assert daemon.log.wait_for("Starting", text='DP_DISABLE_HEALTHCHECKS: "abc" is not an XID')["level"] == "warning"

    events.tell({"gpu": 2, "xid": 31}, {"gpu": 3, "xid": 48}, {"gpu": 0, "ecc": "double"}, {"gpu": 1, "xid": 79})

    wait_healthy(kubelet, ALL - replicas(1, 4))
    daemon.wait_metric(1, "nvdp_xid_events_total", uuid=gpu_uuid(2), xid="31", verdict="ignored")
    daemon.wait_metric(1, "nvdp_xid_events_total", uuid=gpu_uuid(1), xid="79", verdict="fatal")
    daemon.look_again()
    assert healthy(kubelet) == ALL - replicas(1, 4)
    assert daemon.stop().code == 0


def test_a_gpu_recovers_once_the_driver_asks_for_nothing_and_has_been_clean_for_the_hold_off(kubelet, start, events):
    daemon = watched(begin(start))
    events.tell({"gpu": 1, "xid": 79}, **RESET)
    wait_healthy(kubelet, ALL - replicas(1, 4))
    daemon.wait_scans(2)
    assert healthy(kubelet) == ALL - replicas(1, 4)  # as long as the driver asks for a reset

    events.tell(**WELL)

    wait_healthy(kubelet, ALL)
    line = daemon.log.wait_for("DeviceRecovered")
    assert "clean for" in line["msg"]
    assert "(XID 79)" in line["msg"]
    assert len(kubelet.registrations) == 1


@pytest.mark.invariant(9)
def test_a_restart_is_no_cure(kubelet, start, events):
    daemon = watched(begin(start))
    events.tell({"gpu": 1, "xid": 79}, **RESET)
    wait_healthy(kubelet, ALL - replicas(1, 4))
    wait_until(lambda: daemon.metric("nvdp_scan_duration_seconds_count"), what="what is known to be kept")

    assert daemon.stop().code == 0
    second = start()
    wait_healthy(kubelet, ALL - replicas(1, 4))
    second.wait_scans(2)
    assert healthy(kubelet) == ALL - replicas(1, 4)
    assert all(f"{gpu_uuid(1)}::0" not in message.healthy for message in kubelet.messages(GPU)[-1:])

    events.tell(**WELL)
    wait_healthy(kubelet, ALL)


@at_length
@pytest.mark.invariant(9)
def test_another_driver_after_a_restart_is_evidence_of_a_reset_and_the_same_one_is_not(kubelet, start, machine, events):
    daemon = watched(begin(start))
    events.tell({"gpu": 1, "xid": 79}, recoveryAction="Unsupported")
    wait_healthy(kubelet, ALL - replicas(1, 4))
    daemon.wait_scans(2)

    assert daemon.stop().code == 0
    second = start()
    second.wait_scans(2)
    assert "after a reset" in second.log.wait_for("DeviceUnhealthy")["msg"]
    assert healthy(kubelet) == ALL - replicas(1, 4)

    assert second.stop().code == 0
    machine.change(driver={"version": "999.1.1"})
    third = start()
    wait_healthy(kubelet, ALL)
    assert "(XID 79)" in third.log.wait_for("DeviceRecovered")["msg"]


def test_a_gpu_that_relapses_again_and_again_is_told_and_trusted_later_each_time(kubelet, start, events):
    daemon = watched(begin(start))
    events.tell(**WELL)
    for _ in range(4):
        events.tell({"gpu": 1, "xid": 48}, **WELL)
        wait_healthy(kubelet, ALL - replicas(1, 4))
        wait_healthy(kubelet, ALL)

    assert "third relapse" in daemon.log.wait_for("DeviceFlapping")["msg"]


def test_what_a_probe_reads_counts_without_any_event(kubelet, start, events):
    daemon = watched(begin(start))

    events.tell(**RESET)
    wait_healthy(kubelet, ALL - replicas(1, 4))
    assert daemon.log.wait_for("DeviceUnhealthy")["cause"] == "RecoveryAction"

    events.tell(**WELL)
    wait_healthy(kubelet, ALL, timeout_s=LIMIT_S)
