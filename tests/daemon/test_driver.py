"""The driver as it comes and goes, and the process that asks it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.daemon.node import GPU, both_libraries, build_config, connect, gpu_uuid, healthy, wait_healthy
from tests.daemon.process import LIMIT_S, wait_until

ALL = [gpu_uuid(number) for number in range(4)]
QUICK = {"health": {"callTimeout": "1s"}}


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        ({"state": "missing"}, "DriverMissing"),
        ({"state": "not-loaded"}, "DriverMissing"),
        ({"kernel": "535.54.03"}, "DriverMismatch"),
    ],
)
def test_a_driver_that_is_not_there_yet_is_waited_for(kubelet, machine, start, driver, reason):
    machine.change(driver=driver)
    daemon = start(build_config())
    answer = daemon.wait_probe("/readyz", lambda probe: probe.body["reason"] == reason)

    assert answer.status == 503
    assert daemon.probe("/healthz").status == 200
    daemon.wait_metric(0, "nvdp_driver_up")
    assert kubelet.registrations == ()

    machine.heal()
    wait_healthy(kubelet, ALL)
    daemon.wait_ready()
    assert "was away" in daemon.log.wait_for("DriverReady")["msg"]
    assert len(daemon.log.of(reason)) == 1


def test_where_a_driver_is_not_asked_for_its_absence_is_ready(kubelet, machine, start):
    machine.change(driver={"state": "missing"})
    daemon = start(build_config(flags={"failOnInitError": False}))

    daemon.log.wait_for("DriverMissing")
    assert daemon.wait_ready().body["resources"] == []

    machine.heal()
    wait_healthy(kubelet, ALL)


@both_libraries
def test_a_driver_that_goes_away_leaves_all_devices_listed_and_unhealthy(kubelet, daemon, machine):
    machine.change(driver={"state": "not-loaded"})

    kubelet.wait_until(lambda: not healthy(kubelet), LIMIT_S)
    assert len(kubelet.devices(GPU)) == 16
    daemon.log.wait_for("DriverLost")
    assert daemon.wait_probe("/readyz", lambda probe: probe.status == 503).body["reason"] == "DriverLost"

    machine.heal()
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)
    daemon.wait_ready()
    assert len(kubelet.registrations) == 1


def test_sighup_looks_at_once(kubelet, machine, start):
    daemon = start(build_config(devices={"rescanInterval": "1m"}), wait=True)
    daemon.wait_ready()
    machine.change(removed=["3"])
    daemon.look()

    wait_healthy(kubelet, ALL[:3])
    machine.heal()
    at = time.monotonic()
    daemon.look()
    wait_healthy(kubelet, ALL)
    assert time.monotonic() - at < 2


@pytest.mark.invariant(1)
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL, signal.SIGSEGV])
def test_an_nvml_child_that_ends_is_replaced_and_nobody_notices(kubelet, machine, start, number):
    daemon = start(build_config(**QUICK), wait=True)
    child = daemon.child
    os.kill(child.pid, number)

    wait_until(lambda: not child.is_running() and daemon.children, what="another child")
    daemon.wait_scans(1)

    assert len(kubelet.messages(GPU)) == 1
    assert daemon.child.pid != child.pid
    assert daemon.log.of("DriverLost") == []
    ended = daemon.stop()
    assert ended.code == 0


@pytest.mark.parametrize(
    ("effect", "call"), [("hang", "nvmlDeviceGetHandleByIndex_v2"), ("crash", "nvmlDeviceGetName")]
)
@pytest.mark.invariant(5)
def test_a_gpu_whose_call_does_not_return_is_its_own_problem(kubelet, machine, start, call, effect):
    daemon = start(build_config(**QUICK), wait=True)

    machine.fault(call, gpu=1, **{effect: True})
    wait_healthy(kubelet, [ALL[0], *ALL[2:]])
    cause = "CallTimeout" if effect == "hang" else "CallFailed"
    assert daemon.log.wait_for("DeviceUnhealthy")["cause"] == cause
    daemon.wait_scans(1)  # the scans go on without it

    machine.heal()
    wait_healthy(kubelet, ALL)
    assert len(kubelet.registrations) == 1


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetName"])
def test_a_library_that_hangs_from_the_start_delays_neither_kubelet_nor_stop(kubelet, machine, start, call):
    machine.fault(call, hang=True)
    daemon = start(build_config(**QUICK))
    wait_until(lambda: daemon.children, what="the child")
    daemon.wait_probe("/healthz", lambda probe: probe.status == 200)

    ended = daemon.stop()

    assert ended.code == 0
    assert ended.seconds < 5
    assert not daemon.children


def test_a_hang_in_every_call_costs_health_and_nothing_else(kubelet, machine, start):
    daemon = start(build_config(**QUICK), wait=True)
    machine.fault("nvmlDevice*", hang=True)

    kubelet.wait_until(lambda: not healthy(kubelet), LIMIT_S)
    assert len(kubelet.devices(GPU)) == 4
    with connect(kubelet) as client:
        assert client.options()
    assert daemon.probe("/healthz").status == 200
    daemon.wait_metric(0, "nvdp_driver_up")

    machine.heal()
    wait_healthy(kubelet, ALL)


def test_the_daemon_itself_never_opens_the_driver(kubelet, daemon):
    names = Path(f"/proc/{daemon.pid}/maps").read_text()

    assert "nvidia-ml" not in names
    assert "grpc" in names
    assert "grpc" not in Path(f"/proc/{daemon.child.pid}/maps").read_text()
