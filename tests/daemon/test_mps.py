"""Plugin and ``nvdp mps`` between both twins: what MPS shares is on offer exactly while its control daemon answers."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from nvdp.simulate.kubelet import AdmissionError
from nvdp.simulate.mps.clients import MpsClient
from tests.daemon.mps import MPS, build_mps
from tests.daemon.node import GPU, SHARED, at_length, build_config, gpu_uuid, healthy, replicas, wait_healthy
from tests.daemon.process import LIMIT_S, wait_until

SOON_S = 5.0
MIXED = build_mps(
    {"devices": [0, 1]},
    sharing={"timeSlicing": {"resources": [{"name": GPU, "rename": SHARED, "devices": [2], "replicas": 2}]}},
)
SHARES = replicas(0, 4) | replicas(1, 4)


def count_lists(kubelet) -> int:
    return len(kubelet.messages(MPS))


def was_unhealthy(kubelet, after: int) -> bool:
    """Whether a list since the ``after``-th had all shares Unhealthy."""
    return any(
        {device.health for device in message.devices} == {"Unhealthy"} for message in kubelet.messages(MPS)[after:]
    )


def test_what_mps_shares_comes_with_its_daemon_goes_with_its_death_and_is_back_with_the_next(kubelet, start, mps):
    daemon = start(MIXED)
    wait_healthy(kubelet, replicas(2, 2), resource=SHARED)
    wait_healthy(kubelet, [gpu_uuid(3)])
    away = daemon.wait_probe("/readyz", lambda probe: probe.body["reason"] == "NotRegistered")
    (missing,) = [one for one in away.body["resources"] if one["name"] == MPS]
    assert (missing["planned"], missing["healthy"], missing["registered"]) == (8, 0, False)
    assert missing["missing"].startswith(
        f"MPS control daemon does not answer on /mps/{MPS}/pipe: nvdp mps does not run"
    )
    assert "nvdp mps does not run" in daemon.log.wait_for("MPSDaemonFailed")["msg"]
    assert {found.resource for found in kubelet.registrations} == {GPU, SHARED}
    daemon.wait_metric(0, "nvdp_mps_daemon_up", resource=MPS)

    mps.start()
    pid = mps.find_pid()
    ready_at = time.monotonic()
    wait_healthy(kubelet, SHARES, resource=MPS)
    assert time.monotonic() - ready_at < SOON_S
    daemon.wait_ready()
    daemon.wait_metric(1, "nvdp_mps_daemon_up", resource=MPS)
    assert daemon.log.wait_for("MPSDaemonReady")["devices"] == [gpu_uuid(0), gpu_uuid(1)]

    pod = kubelet.admit("team/one", {"main": {MPS: 1}})
    answer = pod.response(MPS)
    assert answer.envs["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{MPS}/pipe"
    assert [(mount.host_path, mount.container_path, mount.read_only) for mount in answer.mounts] == [
        (f"/run/nvidia/mps/{MPS}/pipe", f"/mps/{MPS}/pipe", False),
        ("/run/nvidia/mps/shm", "/dev/shm", False),
    ]
    with pytest.raises(AdmissionError, match=r"2 asked, 1 allowed \(sharing\.mps\.failRequestsGreaterThanOne\)"):
        kubelet.admit("team/greedy", {"main": {MPS: 2}})
    assert kubelet.admit("team/sliced", {"main": {SHARED: 1}}).response(SHARED).mounts == []

    lists, lines = count_lists(kubelet), len(daemon.log)
    mps.orders.slow_down(0.25)  # the next daemon takes longer to come than it takes to be missed
    died_at = time.monotonic()
    mps.orders.die(pid, code=3, text="the GPU has fallen off the bus")
    told = daemon.log.wait_for("MPSDaemonFailed", after=lines)
    assert (told["exitCode"], told["resource"]) == (3, MPS)
    assert f"{MPS}: MPS control daemon is down: " in told["msg"]
    assert "the GPU has fallen off the bus" in told["msg"]
    kubelet.wait_until(lambda: was_unhealthy(kubelet, lists), LIMIT_S, what="all shares Unhealthy")
    assert time.monotonic() - died_at < SOON_S
    mps.orders.slow_down(0)
    wait_healthy(kubelet, SHARES, resource=MPS)
    daemon.wait_metric(1, "nvdp_mps_daemon_restarts_total", resource=MPS)
    assert healthy(kubelet) == {gpu_uuid(3)}
    assert pod.phase == "Running"


@at_length
def test_a_daemon_that_hangs_and_a_keeper_that_is_killed_take_the_shares_away_until_they_answer(kubelet, start, mps):
    daemon = start(MIXED)
    keeper = mps.start()
    pid = mps.find_pid()
    wait_healthy(kubelet, SHARES, resource=MPS)
    with MpsClient(mps.pipe()) as client:
        assert client.wait_served(LIMIT_S)
        keeper.send(signal.SIGKILL)
        killed_at = time.monotonic()
        wait_healthy(kubelet, (), resource=MPS)
        assert time.monotonic() - killed_at < SOON_S
        assert "nvdp mps does not answer" in daemon.log.wait_for("MPSDaemonFailed", text="older than")["msg"]
        keeper.wait()
        mps.start()
        wait_healthy(kubelet, SHARES, resource=MPS)
        assert mps.find_pid() == pid  # its clients go on
        assert not client.is_cut

    hung_at = time.monotonic()
    mps.orders.hang(mps.pipe())
    wait_healthy(kubelet, (), resource=MPS)
    assert time.monotonic() - hung_at < SOON_S
    mps.orders.hang(mps.pipe(), hangs=False)
    wait_healthy(kubelet, SHARES, resource=MPS)


def share(block: str) -> dict[str, Any]:
    """All cards shared by four under their own name."""
    return build_config(sharing={block: {"resources": [{"name": GPU, "replicas": 4}]}})


ALL = set().union(*(replicas(number, 4) for number in range(4)))


@at_length  # by virtual time in tests/test_mps.py
@pytest.mark.invariant(4)
def test_mps_and_time_slicing_of_one_name_wait_for_each_others_pods_through_a_restart(kubelet, start, mps, config_map):
    daemon = start(share("mps"))
    mps.start()
    wait_healthy(kubelet, ALL)
    by_mps = kubelet.admit("team/by-mps", {"main": {GPU: 1}})
    daemon.wait_scans(3)
    config_map.publish(share("timeSlicing"))
    wait_healthy(kubelet, ())
    assert daemon.log.wait_for("ModeChangeWaiting", text="(shared) waits for")["pod"] == "team/by-mps"
    assert daemon.stop().code == 0
    daemon = start()
    daemon.wait_ready()
    assert healthy(kubelet) == set()
    pid = mps.find_pid(GPU)

    mps.orders.die(pid, code=1, text="gone")  # one that only stays for its pods comes back for them
    wait_until(lambda: mps.find_pid(GPU) not in {None, pid}, LIMIT_S, what="another daemon for the pod")
    kubelet.delete(by_mps)
    wait_healthy(kubelet, ALL)
    sliced = kubelet.admit("team/sliced", {"main": {GPU: 1}})
    assert "CUDA_MPS_PIPE_DIRECTORY" not in sliced.response(GPU).envs
    daemon.wait_scans(3)
    config_map.publish(share("mps"))
    (held,) = sliced.ids(GPU)
    wait_until(
        lambda: healthy(kubelet).isdisjoint(replicas(int(held[4:12]), 4)), what="no share of a card that is held"
    )
    kubelet.delete(sliced)
    wait_healthy(kubelet, ALL)
    assert "CUDA_MPS_PIPE_DIRECTORY" in kubelet.admit("team/again", {"main": {GPU: 1}}).response(GPU).envs
