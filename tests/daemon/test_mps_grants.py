"""Plugin and ``nvdp mps`` when one of them is slow, gone or has forgotten: no GPU is promised by what one remembers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from typing import Any

import pytest

from nvdp.host.mps_grants import load_grants
from nvdp.host.mps_report import load_report
from nvdp.simulate.mps.clients import MpsClient
from tests.daemon.mps import build_mps
from tests.daemon.node import GPU, at_length, build_config, gpu_uuid, healthy, replicas, wait_healthy
from tests.daemon.process import LIMIT_S, wait_until

ALL = set().union(*(replicas(number, 4) for number in range(4)))
OURS = "team.org/a"  # nothing but memory tells whose that is


def share(block: str) -> dict[str, Any]:
    """All cards shared by four under their own name."""
    return build_config(sharing={block: {"resources": [{"name": GPU, "replicas": 4}]}})


def find_modes(machine) -> list[str]:
    """The compute modes that the driver of this node was given."""
    kept = machine.path.with_name(f"{machine.path.name}.modes.json")
    return [each["mode"] for each in json.loads(kept.read_text()).values()] if kept.exists() else []


def is_granted(root) -> bool:
    grants = load_grants(root / "state")
    return grants is not None and GPU in grants.resources and len(grants.resources[GPU].free) == 4


@at_length  # by virtual time in tests/test_mps.py
@pytest.mark.invariant(4)
def test_a_keeper_that_was_frozen_takes_nothing_that_was_given_to_others_meanwhile(  # noqa: PLR0917 - fixtures
    root, machine, kubelet, start, mps, config_map
):
    start(share("timeSlicing"))
    keeper = mps.start()
    wait_healthy(kubelet, ALL)
    wait_until(lambda: (report := load_report(mps.directory)) and report.heard, what="a keeper that has heard us")
    keeper.send(signal.SIGSTOP)
    config_map.publish(share("mps"))
    wait_until(lambda: is_granted(root), what="GPUs that are free for MPS")
    config_map.publish(share("timeSlicing"))
    wait_healthy(kubelet, ALL)
    kubelet.admit("team/sliced", {"main": {GPU: 1}})
    woken_at = time.time()
    keeper.send(signal.SIGCONT)
    found: list[str] = []

    def has_heard() -> bool:
        found.extend(find_modes(machine))
        grants, report = load_grants(root / "state"), load_report(mps.directory)
        path = mps.directory / "nvdp.json"
        return bool(grants and report and report.heard == grants.digest and path.stat().st_mtime > woken_at)

    wait_until(has_heard, what="a keeper that goes by the newest word")
    assert found == []


@at_length  # by its rules in tests/planning/test_mps_plan.py
def test_gpus_of_a_keeper_that_is_gone_are_free_once_their_compute_mode_was_put_back_by_hand(
    machine, kubelet, start, mps, config_map
):
    daemon = start(share("mps"))
    keeper = mps.start()
    wait_healthy(kubelet, ALL)
    pid = mps.find_pid(GPU)
    keeper.send(signal.SIGKILL)
    keeper.wait()
    os.kill(pid, signal.SIGKILL)
    config_map.publish(share("timeSlicing"))
    wait_healthy(kubelet, ())
    daemon.wait_metric(1, "nvdp_device_withheld", uuid=gpu_uuid(0), reason="Held")
    daemon.wait_scans(3)
    assert healthy(kubelet) == set()
    machine.path.with_name(f"{machine.path.name}.modes.json").unlink()  # nvidia-smi -c DEFAULT
    wait_healthy(kubelet, ALL)


@at_length  # by virtual time in tests/test_mps.py
def test_a_daemon_of_a_name_of_anybodys_goes_on_under_its_pods_when_state_and_file_say_nothing_of_it(
    root, kubelet, start, mps, config_map
):
    daemon = start(build_mps({"devices": [0], "rename": OURS}))
    mps.start()
    wait_healthy(kubelet, replicas(0, 4), resource=OURS)
    pod = kubelet.admit("team/one", {"main": {OURS: 1}})
    with MpsClient(mps.pipe(OURS)) as client:
        assert client.wait_served(LIMIT_S)
        assert daemon.stop().code == 0
        for path in (root / "state").iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        config_map.publish(build_config())
        daemon = start()
        daemon.wait_scans(3)
        grants = wait_until(lambda: load_grants(root / "state"), what="grants")
        assert grants.resources[OURS].held
        wait_until(
            lambda: (report := load_report(mps.directory)) and report.heard == load_grants(root / "state").digest,
            what="a keeper that has heard them",
        )
        assert not client.is_cut
        kubelet.delete(pod)
        wait_until(lambda: client.is_cut, what="the end of a daemon that nobody needs")
