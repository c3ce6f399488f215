"""The same things over and over: nothing may grow, and the kubelet must live. In full with ``make campaign``."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import threading

import grpc
import psutil
import pytest

from nvdp.simulate.kubelet import AdmissionError
from tests.daemon.node import GPU, SHARED, build_config, connect, healthy, on_node
from tests.daemon.process import LIMIT_S, wait_until

FULL = os.environ.get("NVDP_CAMPAIGN") == "full"


@pytest.mark.campaign
@pytest.mark.requirement(17)
def test_reconnects_leave_threads_files_and_memory_as_they_were(kubelet, daemon):
    process = psutil.Process(daemon.pid)

    def reconnect(times: int) -> None:
        for _ in range(times):
            with connect(kubelet) as client:
                stream = client.watch()
                assert len(next(iter(stream)).devices) == 16
                stream.cancel()

    reconnect(200)
    wait_until(lambda: daemon.metric("nvdp_kubelet_streams", resource=GPU) == 1, what="the end of all streams")
    threads, files, memory = process.num_threads(), process.num_fds(), process.memory_info().rss
    reconnect(10_000 if FULL else 300)

    wait_until(lambda: daemon.metric("nvdp_kubelet_streams", resource=GPU) == 1, what="the end of all streams")
    wait_until(lambda: process.num_threads() <= threads + 2, what=f"{threads} threads again")
    wait_until(lambda: process.num_fds() <= files + 2, what=f"{files} files again")
    assert process.memory_info().rss - memory < 5 * 2**20
    with connect(kubelet) as client:
        assert client.allocate([next(iter(healthy(kubelet)))])
    assert len(kubelet.registrations) == 1


@on_node(kubelet={"topology_policy": "best-effort"})
@pytest.mark.campaign
@pytest.mark.timeout(3600 if FULL else 60)
@pytest.mark.requirement(48)
@pytest.mark.requirement(49)
@pytest.mark.parametrize("seed", range(2 if FULL else 1))
@pytest.mark.parametrize("version", ["1.33", "1.36", "1.37"] if FULL else ["1.36"])
def test_shrinks_and_growths_while_pods_come_and_go_leave_the_kubelet_alive(kubelet, daemon, config_map, seed):
    dice = random.Random(seed)
    pods = []
    refused = 0
    for round_number in range(200 if FULL else 25):
        blocks = {"timeSlicing": {"renameByDefault": True}} if dice.random() < 0.2 else {}
        config_map.publish(build_config(share=dice.choice([1, 2, 3, 4, 8]), **blocks))
        for _ in range(dice.randrange(4)):
            resource = GPU if healthy(kubelet) else SHARED
            try:
                pods.append(kubelet.admit(f"team/{len(pods)}", {"main": {resource: dice.choice([1, 1, 2])}}))
            except AdmissionError:
                refused += 1
        for pod in dice.sample(pods, len(pods) // 3):
            kubelet.delete(pod)
            pods.remove(pod)
        if round_number % 8 == 7:
            kubelet.restart()
            kubelet.wait_until(lambda: not kubelet.readmissions_pending, LIMIT_S)
        # Long enough, now and then, for what is Unhealthy to leave.
        pause = threading.Event()
        pause.wait(dice.choice([0.0, 0.0, 0.1, 0.3, 6.0 if FULL and dice.random() < 0.2 else 0.3]))
        kubelet.assert_alive()

    held = [device for pod in pods for resource in (GPU, SHARED) for device in pod.ids(resource)]
    assert len(held) == len(set(held))
    listed = kubelet.devices(GPU).keys() | kubelet.devices(SHARED).keys()
    assert set(held) <= listed
    assert refused < 200
    assert daemon.running


@pytest.mark.campaign
def test_allocations_leave_memory_as_it_was(kubelet, daemon):
    process = psutil.Process(daemon.pid)
    ids = sorted(healthy(kubelet))

    def allocate(times: int) -> None:
        with connect(kubelet) as client:
            for number in range(times):
                client.allocate([ids[number % len(ids)]])
                client.prefer(available=ids, size=4)
                with contextlib.suppress(grpc.RpcError):
                    client.allocate([f"unknown {number}"])

    allocate(300)
    gc.collect()
    memory = process.memory_info().rss
    allocate(20_000 if FULL else 600)

    assert process.memory_info().rss - memory < 5 * 2**20
