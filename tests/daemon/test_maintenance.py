"""GPUs that are out of service while pods run on them: what a kubelet that restarts meanwhile makes of these pods."""

from __future__ import annotations

import pytest

from nvdp.http.control import send_order
from nvdp.http.routes import PAUSE_PATH, RESUME_PATH
from tests.daemon.node import GPU, build_config, gpu_uuid, wait_healthy
from tests.daemon.process import LIMIT_S

ALL = {gpu_uuid(number) for number in range(4)}
ONE = {"main": {GPU: 1}}
QUICK = {"recovery": {"holdOff": "200ms"}}
RESTRICTED, NONE = ({"kubelet": {"topology_policy": policy}} for policy in ("restricted", "none"))


def restart_and_admit_again(kubelet):
    """The first list after the restart: the one by which the kubelet judges its pods."""
    streams = kubelet.messages(GPU)[-1].stream
    kubelet.restart()
    kubelet.wait_until(lambda: not kubelet.readmissions_pending and kubelet.devices(GPU), LIMIT_S)
    return next(message for message in kubelet.messages(GPU) if message.stream > streams)


@pytest.mark.parametrize(
    ("version", "settings", "restarted"),
    [("1.33", RESTRICTED, "Failed"), ("1.36", RESTRICTED, "Running"), ("1.37", NONE, "Running")],
    ids=["1.33", "1.36", "1.37"],
)
@pytest.mark.requirement(49)
@pytest.mark.invariant(3)
def test_running_pods_on_gpus_out_of_service_are_kept_as_far_as_the_kubelet_does(
    kubelet, start, machine, config_map, restarted
):
    daemon = start(build_config(health=QUICK), wait=True)
    plain, again, with_init = (
        kubelet.admit("team/plain", ONE),
        kubelet.admit("team/again", ONE),
        kubelet.admit("team/with-init", ONE, init_containers={"prepare": {GPU: 1}}),
    )
    kubelet.restart_container(again, "main")
    held = {pod.name: next(iter(pod.ids(GPU))) for pod in (plain, again, with_init)}

    config_map.publish(build_config(health=QUICK, devices={"cordon": [held["again"], held["with-init"]]}))
    index = sorted(ALL).index(held["plain"])
    machine.change(events=[{"gpu": index, "xid": 79}], conditions=[{"gpu": index, "recoveryAction": "GPUReset"}])
    wait_healthy(kubelet, ALL - set(held.values()))
    first = restart_and_admit_again(kubelet)

    assert set(first.ids) == ALL
    assert set(first.healthy) == ALL - set(held.values())
    assert [pod.phase for pod in (plain, again, with_init)] == ["Running", restarted, "Failed"]
    assert "previously allocated devices are no longer healthy" in str(with_init.error)

    config_map.publish(build_config(health=QUICK))
    machine.change(conditions=[{"gpu": index, "recoveryAction": "None"}])
    daemon.look()
    wait_healthy(kubelet, ALL)
    restart_and_admit_again(kubelet)
    assert plain.phase == "Running"
    assert plain.ids(GPU) == {held["plain"]}
    assert kubelet.admit("team/next", ONE).phase == "Running"


@pytest.mark.parametrize(("version", "settings"), [("1.36", RESTRICTED), ("1.37", NONE)], ids=["1.36", "1.37"])
@pytest.mark.requirement(49)
@pytest.mark.invariant(3)
def test_running_pods_are_kept_while_the_driver_is_let_go_of_over_restarts_of_kubelet_and_daemon(
    kubelet, start, machine, root
):
    daemon = start(build_config(), wait=True)
    pod = kubelet.admit("team/a", ONE)
    held = pod.ids(GPU)

    assert send_order(root / "run", PAUSE_PATH, {}, timeout_s=LIMIT_S).done
    assert not daemon.children
    wait_healthy(kubelet, ())
    first = restart_and_admit_again(kubelet)
    assert (set(first.ids), first.healthy) == (ALL, ())

    machine.change(driver={"kernel": "535.54.03"})  # another driver
    assert daemon.probe("/healthz").status == 200
    assert daemon.stop().code == 0
    daemon = start()
    assert daemon.wait_probe("/readyz", lambda probe: probe.body["reason"] == "DriverPaused").status == 503
    first = restart_and_admit_again(kubelet)
    assert first.healthy == ()
    assert set(first.ids) >= held
    assert (pod.phase, pod.ids(GPU)) == ("Running", held)
    assert not daemon.children
    assert daemon.probe("/healthz").status == 200

    carried = send_order(root / "run", RESUME_PATH, {}, timeout_s=LIMIT_S)
    assert not carried.done
    assert "kernel module 535.54.03" in carried.text
    assert daemon.probe("/healthz").status == 200  # for a minute
    machine.heal()
    daemon.look()
    wait_healthy(kubelet, ALL)
    daemon.wait_ready()
