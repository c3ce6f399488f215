"""Bad edits never take away what works, over restarts too."""

from __future__ import annotations

import errno
import os
import re
import time
from pathlib import Path

import pytest

from tests.daemon.kernel import refuse
from tests.daemon.node import GPU, build_config, gpu_uuid, healthy, wait_healthy
from tests.daemon.process import LIMIT_S, wait_until

BROKEN = {
    "syntax": ("sharing: [", 'syntax: "["'),
    "unknown key": ("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replica: 20}]}}", "did you mean repl"),
    "wrong type": ("devices: {exclude: 3}", "a list is needed"),
    "half a file": ("version: v1\nsharing:\n  timeSlicing:\n", "resources is missing"),
    "another version": ("version: v2\n", "is not known"),
    "a ConfigMap": ("apiVersion: v1\nkind: ConfigMap\ndata: {}\n", "this is a ConfigMap"),
    "no text": ("\0\1\2", "syntax"),
    "too large": ("# " + "x" * 2**20, "larger than 1 MiB"),
    "too many": ("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 70000}]}}", "4 × 70000 devices"),
}


@pytest.mark.invariant(9)
def test_broken_edits_change_nothing_and_their_mending_is_picked_up(kubelet, daemon, config_map):
    before = daemon.wait_ready().body["config"]["hash"]
    for kind, (text, message) in BROKEN.items():
        lines = len(daemon.log)
        config_map.publish(text)
        refused = daemon.log.wait_for("ConfigRefused", after=lines)["msg"]

        assert re.match(rf"{re.escape(str(config_map.file))}:\d+:\d+: ", refused), kind
        assert message in refused, kind
        assert f"keeping {before}" in refused, kind
        answer = daemon.wait_probe(
            "/readyz", lambda probe, line=refused: (probe.body["config"]["refused"] or "?") in line
        )
        assert (answer.status, answer.body["config"]["valid"], answer.body["config"]["hash"]) == (200, False, before)
        daemon.wait_metric(0, "nvdp_config_valid")
    assert len(kubelet.messages(GPU)) == 1

    config_map.publish(build_config(share=5))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 20, LIMIT_S)
    daemon.wait_probe("/readyz", lambda probe: probe.body["config"]["valid"])
    daemon.wait_metric(1, "nvdp_config_valid")
    assert len(kubelet.registrations) == 1


@pytest.mark.invariant(9)
def test_what_is_no_file_is_refused_and_blocks_nothing(kubelet, root, start):
    path = root / "nvdp.yaml"
    path.write_text("version: v1\n")
    daemon = start(config_file=path)
    wait_healthy(kubelet, [gpu_uuid(number) for number in range(4)])

    for make, kind in ((Path.mkdir, "a directory"), (os.mkfifo, "a named pipe")):
        path.unlink()
        make(path)
        daemon.log.wait_for("ConfigRefused", text=f"is {kind}; a file is needed")
        if path.is_dir():
            path.rmdir()
            path.touch()
    daemon.wait_ready()

    path.unlink()
    path.write_text("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}\n")
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 12, LIMIT_S)


@pytest.mark.invariant(9)
def test_a_restart_with_a_broken_file_goes_on_with_what_was_good(kubelet, daemon, config_map, start):
    good = daemon.wait_ready().body["config"]["hash"]
    config_map.publish("sharing: [")
    daemon.log.wait_for("ConfigRefused")
    assert daemon.stop().code == 0

    second = start()
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)

    config = second.wait_ready().body["config"]
    assert (config["valid"], config["hash"]) == (False, good)
    assert second.log.wait_for("ConfigRefused")
    assert {message.raw for message in kubelet.messages(GPU)} == {kubelet.messages(GPU)[0].raw}
    config_map.publish(build_config(share=2))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 8, LIMIT_S)


@pytest.mark.invariant(9)
def test_a_missing_file_at_a_restart_counts_as_a_broken_one(kubelet, daemon, config_map, start, root):
    daemon.wait_ready()
    wait_until((root / "state" / "state.json").exists, what="what is remembered")
    daemon.kill()  # not even a stop is needed
    config_map.file.unlink()

    second = start()

    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)
    second.log.wait_for("ConfigMissing")


@pytest.mark.invariant(9)
def test_a_good_file_that_waited_for_a_driver_is_used_when_that_comes_though_it_was_broken_over_a_restart(
    kubelet, start, machine, config_map
):
    machine.change(driver={"state": "missing"})
    daemon = start(build_config(share=4))
    daemon.log.wait_for("DriverMissing")
    wait_until(lambda: daemon.probe("/readyz").body["config"]["hash"], what="the file")
    config_map.publish("sharing: [")
    kept = daemon.log.wait_for("ConfigRefused", text="keeping sha256:")["msg"]
    assert daemon.stop().code == 0

    second = start()
    assert second.log.wait_for("ConfigRefused")["msg"] == kept
    machine.heal()

    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)


@pytest.mark.invariant(9)
@pytest.mark.parametrize("text", ["sharing: [", None])
def test_where_nothing_was_ever_good_the_daemon_waits_up_and_not_ready(kubelet, start, config_map, text):
    daemon = start(text)
    daemon.log.wait_for("ConfigRefused" if text else "ConfigMissing")
    answer = daemon.wait_probe("/readyz", lambda probe: probe.body["driver"]["state"] == "Ready")

    assert answer.status == 503
    assert answer.body["reason"] == ("ConfigRefused" if text else "ConfigMissing")
    assert daemon.probe("/healthz").status == 200
    assert kubelet.registrations == ()
    daemon.wait_metric(0, "nvdp_ready")

    at = config_map.publish(build_config(share=4))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)
    assert time.monotonic() - at < 1
    daemon.wait_ready()


@pytest.mark.invariant(9)
def test_all_mistakes_of_a_file_are_told_at_once(kubelet, daemon, config_map):
    config_map.publish("version: v2\nflags: {renameByDefault: true}\nhealth: {profile: strict}\n")
    lines = [daemon.log.wait_for("ConfigRefused", text=f"config.yaml:{number}:") for number in (1, 2, 3)]

    assert "(3 errors; keeping" in lines[0]["msg"]
    assert "it belongs to sharing.timeSlicing.renameByDefault" in lines[1]["msg"]


@pytest.mark.invariant(9)
def test_a_state_file_that_is_damaged_costs_a_warning(kubelet, daemon, root, start):
    assert daemon.stop().code == 0
    state = root / "state" / "state.json"
    state.write_bytes(state.read_bytes()[:-10])

    second = start()

    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)
    assert str(state) in second.log.wait_for("StateDamaged")["msg"]


@pytest.mark.invariant(9)
def test_a_state_directory_that_is_full_costs_a_warning(kubelet, start):
    daemon = start(build_config(share=4), wait=True, launcher=refuse("fsync", errno.ENOSPC))

    assert os.strerror(errno.ENOSPC) in daemon.log.wait_for("StateDamaged")["msg"]
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)
    daemon.wait_ready()


@pytest.mark.invariant(10)
def test_references_by_index_stay_with_their_cards(kubelet, start, machine):
    exclude = {"exclude": [1], "removeAfter": "1s"}
    daemon = start(build_config(devices=exclude))
    wait_healthy(kubelet, [gpu_uuid(number) for number in (0, 2, 3)])

    machine.change(removed=["0"])  # what had index 2 has index 1 now
    wait_healthy(kubelet, [gpu_uuid(2), gpu_uuid(3)])
    daemon.stop()
    start()

    kubelet.wait_until(lambda: len(kubelet.registrations) == 2, LIMIT_S)
    wait_healthy(kubelet, [gpu_uuid(2), gpu_uuid(3)])
