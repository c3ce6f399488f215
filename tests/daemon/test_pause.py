"""Letting go of the driver: by command, by the file and by itself; what others see meanwhile, and the way back."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import grpc
import pytest

from nvdp.http.control import load_status, send_order
from nvdp.http.routes import CLEAR_PATH, PAUSE_PATH, RESUME_PATH
from tests.daemon.node import GPU, build_config, connect, gpu_uuid, healthy, replicas, wait_healthy
from tests.daemon.process import wait_until
from tests.daemon.test_faults import QUICK, RESET, WELL, Events

ALL = frozenset().union(*(replicas(number, 4) for number in range(4)))
LIMIT_S = 15.0


@pytest.fixture
def events(machine):
    return Events(machine)


@pytest.fixture
def order(root):
    def give(path, **query):
        return send_order(root / "run", path, query, timeout_s=LIMIT_S)

    return give


def begin(start, **devices):
    return start(build_config(share=4, devices=devices, health=QUICK), wait=True)


def reach_socket(root):
    wait_until((root / "run" / "control.sock").exists, what="the control socket")


def test_a_pause_by_command_lets_go_of_the_driver_until_a_resume_and_over_a_restart(
    kubelet, start, machine, root, order
):
    daemon = begin(start)
    reach_socket(root)
    assert daemon.child.is_running()

    paused = order(PAUSE_PATH, note="new driver")

    assert paused.done, paused.text
    assert not daemon.children
    wait_healthy(kubelet, ())
    assert set(kubelet.devices(GPU)) == ALL
    line = daemon.log.wait_for("DriverPaused")
    assert "nvdp pause (new driver)" in line["msg"]
    assert not daemon.log.of("DeviceUnhealthy")
    daemon.wait_metric(1, "nvdp_paused")
    daemon.wait_metric(0, "nvdp_driver_up")
    assert daemon.wait_probe("/readyz", lambda probe: probe.status == 503).body["reason"] == "DriverPaused"
    assert daemon.probe("/healthz").status == 200
    with connect(kubelet) as client, pytest.raises(grpc.RpcError) as refusal:
        client.allocate([f"{gpu_uuid(1)}::0"])
    assert "DriverPaused" in refusal.value.details()

    looked = subprocess.run(
        [sys.executable, "-m", "nvdp", "devices", *machine.flags],
        env={**os.environ, "NVDP_RUN_DIR": str(root / "run")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert looked.returncode == 1
    assert "paused by nvdp pause (new driver)" in looked.stderr

    assert daemon.stop().code == 0
    again = start()
    again.log.wait_for("DriverPaused")
    kubelet.wait_until(lambda: set(kubelet.devices(GPU)) == ALL and not healthy(kubelet), LIMIT_S, what="all Unhealthy")
    assert again.log.wait_for("ResourceRegistered")
    assert not again.children

    reach_socket(root)
    resumed = order(RESUME_PATH)

    assert resumed.done, resumed.text
    wait_healthy(kubelet, ALL)
    assert not [line for one in (daemon, again) for line in one.log.of("DeviceUnhealthy")]
    assert not [line for one in (daemon, again) for line in one.log.of("DeviceRecovered")]
    assert "nvdp pause" in again.log.wait_for("DriverResumed")["msg"]
    again.wait_metric(0, "nvdp_paused")


def test_the_file_pauses_from_the_first_moment_on_and_the_command_does_not_speak_against_it(
    kubelet, start, config_map, root, order
):
    daemon = start(build_config(share=4, devices={"paused": True}, health=QUICK))
    assert "devices.paused" in daemon.log.wait_for("DriverPaused")["msg"]
    reach_socket(root)
    status = load_status(root / "run", timeout_s=LIMIT_S)
    assert status.pause is not None
    assert status.scanned_at is None
    assert not daemon.children
    assert not daemon.log.of("DriverReady")

    refused = order(RESUME_PATH)
    assert not refused.done
    assert "devices.paused" in refused.text

    config_map.publish(build_config(share=4, health=QUICK))
    wait_healthy(kubelet, ALL)
    assert daemon.log.of("DriverResumed")

    config_map.publish(build_config(share=4, devices={"paused": True}, health=QUICK))
    wait_healthy(kubelet, ())
    wait_until(lambda: not daemon.children, 5, what="no child")


def test_an_order_to_resume_does_not_open_the_driver_of_a_node_whose_first_file_may_say_paused(
    kubelet, start, config_map, root, order
):
    daemon = start("devices: {paused: true\n")
    daemon.log.wait_for("ConfigRefused")
    reach_socket(root)
    assert order(PAUSE_PATH, note="").done

    refused = order(RESUME_PATH)

    assert not refused.done
    assert "still paused by devices.paused (no configuration is known yet" in refused.text
    assert not daemon.children
    config_map.publish(build_config(share=4, health=QUICK))
    wait_healthy(kubelet, ALL)


@pytest.mark.invariant(9)
def test_a_pause_by_the_file_outlives_a_reboot_a_broken_edit_and_a_restart(kubelet, start, config_map, root):
    daemon = begin(start)
    daemon.wait_scans(1)
    assert daemon.stop().code == 0
    state = root / "state" / "state.json"
    state.write_text(re.sub(r'"boot_id":"[^"]+"', '"boot_id":"of-an-earlier-boot"', state.read_text()))
    rebooted = start(build_config(share=4, devices={"paused": True}, health=QUICK))
    rebooted.log.wait_for("DriverPaused")
    config_map.publish("devices: [")
    kept = rebooted.log.wait_for("ConfigRefused")["msg"]
    assert rebooted.stop().code == 0

    again = start()

    assert again.log.wait_for("ConfigRefused")["msg"] == kept
    again.log.wait_for("DriverPaused")
    assert again.wait_probe("/readyz", lambda probe: probe.status == 503).body["reason"] == "DriverPaused"
    assert not again.children
    assert not again.log.of("DriverReady")
    config_map.publish(build_config(share=4, health=QUICK))
    wait_healthy(kubelet, ALL)


def test_a_pause_does_not_wait_for_calls_that_hang(kubelet, start, machine, root, order):
    daemon = start(build_config(share=4, health={**QUICK, "callTimeout": "30s"}), wait=True)
    reach_socket(root)
    machine.fault("nvmlDeviceGetName", gpu=2, hang=True)
    daemon.look()
    wait_until(lambda: len(daemon.children) > 1, what="a look in a new session")

    paused = order(PAUSE_PATH, note="")

    assert paused.done, paused.text
    assert not daemon.children
    machine.heal()
    assert order(RESUME_PATH).done
    wait_healthy(kubelet, ALL)


def test_the_operators_word_ends_a_fault_that_would_wait_for_a_reset(kubelet, start, events, root, order):
    config = build_config(share=4, health={"recovery": {"holdOff": "0s"}})
    daemon = start(config, wait=True)
    daemon.wait_scans(1)
    events.tell({"gpu": 1, "xid": 79})
    wait_healthy(kubelet, ALL - replicas(1, 4))
    reach_socket(root)

    assert not order(CLEAR_PATH, device="17").done
    cleared = order(CLEAR_PATH, device=gpu_uuid(1))

    assert cleared.done, cleared.text
    wait_healthy(kubelet, ALL)
    assert "nvdp health clear" in daemon.log.wait_for("DeviceRecovered")["msg"]

    events.tell(**RESET)
    wait_healthy(kubelet, ALL - replicas(1, 4))
    kept = order(CLEAR_PATH, device="1")
    assert not kept.done
    assert "RecoveryAction" in kept.text
    events.tell(**WELL)


def test_what_is_told_of_a_device_stands_through_a_pause(kubelet, start, events, root, order):
    daemon = start(build_config(share=4, health={"recovery": {"holdOff": "0s"}}), wait=True)
    daemon.wait_scans(1)
    events.tell({"gpu": 1, "xid": 79})
    daemon.log.wait_for("DeviceUnhealthy")
    reach_socket(root)
    assert order(PAUSE_PATH, note="").done
    assert order(RESUME_PATH).done
    daemon.wait_scans(1)
    assert len(daemon.log.of("DeviceUnhealthy")) == 1
    assert not daemon.log.of("DeviceRecovered")

    assert order(PAUSE_PATH, note="").done
    order(CLEAR_PATH, device="1")
    assert order(RESUME_PATH).done

    wait_healthy(kubelet, ALL)
    assert "(XID 79)" in daemon.log.wait_for("DeviceRecovered")["msg"]


def test_a_driver_that_does_not_answer_after_a_pause_is_no_pause_any_more(kubelet, start, machine, root, order):
    daemon = begin(start)
    reach_socket(root)
    assert order(PAUSE_PATH, note="swap").done
    machine.fault("nvmlInitWithFlags", hang=True)

    resumed = order(RESUME_PATH)

    assert not resumed.done
    assert "does not answer yet" in resumed.text
    assert "paused" not in resumed.text
    assert daemon.wait_probe("/readyz", lambda probe: probe.status == 503).body["reason"] == "Starting"
    assert set(kubelet.devices(GPU)) == ALL
    assert not healthy(kubelet)
    machine.heal()


def test_a_restart_while_the_driver_is_missing_goes_on_to_list_what_was_there(kubelet, start, machine):
    daemon = begin(start)
    daemon.wait_scans(1)
    assert daemon.stop().code == 0
    machine.change(driver={"state": "missing"})

    again = start()
    again.log.wait_for("DriverMissing")
    again.log.wait_for("ResourceRegistered")
    kubelet.wait_until(lambda: set(kubelet.devices(GPU)) == ALL and not healthy(kubelet), LIMIT_S, what="all Unhealthy")

    machine.heal()
    wait_healthy(kubelet, ALL)


def test_where_the_file_allows_it_a_gpu_that_asks_for_a_reset_is_let_go_of_once_all_are_idle(
    kubelet, start, events, root, order
):
    daemon = start(build_config(share=4, health={**QUICK, "releaseForReset": True}), wait=True)
    reach_socket(root)
    pod = kubelet.admit("team/busy", {"main": {GPU: 1}})
    daemon.wait_scans(1)
    events.tell({"gpu": 1, "xid": 79}, **RESET)
    daemon.log.wait_for("DeviceUnhealthy")
    daemon.wait_scans(2)
    assert not daemon.log.of("DriverPaused")

    kubelet.delete(pod)

    said = daemon.log.wait_for("DriverPaused")["msg"]
    assert "paused by health.releaseForReset (GPU 1 (0000:" in said
    assert ") asks for a reset and all are idle, for 60s)" in said
    wait_until(lambda: not daemon.children, 5, what="no child")
    wait_healthy(kubelet, ())
    resumed = order(RESUME_PATH)
    assert resumed.done, resumed.text
    wait_healthy(kubelet, ALL - replicas(1, 4))
    daemon.wait_scans(2)
    assert len(daemon.log.of("DriverPaused")) == 1  # it asks still, and the operator's word counts
    events.tell(**WELL)
    wait_healthy(kubelet, ALL)
