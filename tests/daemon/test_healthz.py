"""``/healthz`` of a running daemon: what it waits out, and what a new container cures. tests/http has the table."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from tests.daemon.node import build_config, wait_healthy
from tests.daemon.process import LIMIT_S

FULL = os.environ.get("NVDP_CAMPAIGN") == "full"  # there is time for the minute that a container is given
PATIENCE_S = 60.0
# The daemon of these flags, to which a minute of that patience is a tenth of a second.
HASTY = """
import os, sys, time
from nvdp.app.daemon import Daemon
from nvdp.app.frame import run_process
from nvdp.config.options import parse_options
names, values = sys.argv[5::2], sys.argv[6::2]
flags = {name.removeprefix("--"): value for name, value in zip(names, values, strict=True)}
parsed = parse_options(flags, os.environ)
run_process(parsed[0], lambda log: Daemon(*parsed, log, probe_clock=lambda: 600 * time.monotonic()).run())
"""


def test_troubles_that_the_daemon_waits_out_do_not_fail_healthz_all_at_once_either(
    kubelet, start, machine, config_map, root
):
    (root / "file").touch()
    elsewhere = ("--state-dir", root / "file" / "state", "--run-dir", root / "file" / "run")
    daemon = start(build_config(), *elsewhere, wait=True)
    daemon.log.wait_for("StateDamaged")
    daemon.log.wait_for("PortTaken")

    config_map.publish("sharing: [")
    machine.change(lost=["0", "1", "2", "3"])
    daemon.look()
    daemon.log.wait_for("ConfigRefused")
    wait_healthy(kubelet, ())
    kubelet.stop()
    machine.change(driver={"state": "not-loaded"})
    daemon.look()
    daemon.wait_probe("/readyz", lambda probe: probe.body["reason"] == "DriverLost")

    answer = daemon.probe("/healthz")
    assert (answer.status, answer.body["problems"]) == (200, [])


def test_a_socket_that_is_gone_and_cannot_be_made_again_fails_healthz_until_it_can(kubelet, daemon):
    kubelet.stop()
    shutil.rmtree(kubelet.directory)
    answer = daemon.wait_probe("/healthz", lambda probe: probe.status == 503)
    assert answer.body["problems"] == ["nvidia.com/gpu: its own socket does not answer"]

    kubelet.start()
    daemon.wait_probe("/healthz", lambda probe: probe.status == 200, LIMIT_S)
    daemon.wait_ready()


def test_a_container_that_is_worn_out_fails_healthz_once_the_patience_with_it_is_over(kubelet, start, machine):
    machine.change(driver={"kernel": "535.54.03"})
    daemon = start(build_config(), launcher=[sys.executable, "-c", HASTY])
    told = daemon.wait_probe("/healthz", lambda probe: probe.status == 503)
    assert told.body["problems"] == ["the driver library in this container and the kernel module differ"]


@pytest.mark.campaign
def test_another_driver_calls_for_a_new_container_where_the_root_of_the_driver_is_not_mounted(
    kubelet, start, machine, root
):
    machine.change(driver={"kernel": "535.54.03"})
    given, following = start(build_config()), start(None, "--container-driver-root", root)
    for daemon in (given, following):
        daemon.wait_probe("/readyz", lambda probe: probe.body["reason"] == "DriverMismatch")
        assert daemon.probe("/healthz").status == 200

    if FULL:
        told = given.wait_probe("/healthz", lambda probe: probe.status == 503, PATIENCE_S + LIMIT_S)
        assert told.body["problems"] == ["the driver library in this container and the kernel module differ"]
        assert following.probe("/healthz").status == 200
