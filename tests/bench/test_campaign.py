"""The daemon under what comes only with time: `make campaign` does it in full, the suite a little of it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.calls import Caller, reconnect
from tests.bench.installation import Installation
from tests.bench.node import GPU, GPUS, Node
from tests.bench.processes import count_files, count_threads, load_memory

FULL = os.environ.get("NVDP_CAMPAIGN") == "full"
RECONNECTS = 10_000
ROUNDS = 1000 if FULL else 12
SHARE = 4
_MORE = 6
_WINDOW_S = 1.1


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("nvdp"))


@pytest.fixture
def node(installation: Installation) -> Iterator[Node]:
    with Node(installation, share=SHARE) as node:
        node.wait_list()
        node.wait_ready()
        # A stream so soon after Register may be the kubelet's: its end would be followed by a Register.
        foreign_at = (node.wait_registered().answered_at or 0) + _WINDOW_S
        node.wait_for(lambda: time.monotonic() > foreign_at, what="streams are taken for those of others")
        yield node


def load_rss(node: Node) -> float:
    return load_memory([node.daemon.pid])[0].rss


def allocate_one(socket: Path, device: str) -> bytes:
    caller = Caller(socket)
    try:
        return caller.allocate([device])()
    finally:
        caller.close()


@pytest.mark.skipif(not FULL, reason="tests/daemon does a little of it; `make campaign` does it in full")
@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.requirement(17)
def test_streams_that_come_and_go_leave_threads_files_and_memory_as_they_were(node: Node):
    first = reconnect(node.socket)
    for _ in range(100):  # pools grow to their size first
        reconnect(node.socket)
    threads, files, rss = count_threads(node.daemon.pid), count_files(node.daemon.pid), load_rss(node)
    for _ in range(RECONNECTS):
        assert reconnect(node.socket) == first
    node.wait_for(lambda: count_files(node.daemon.pid) <= files + 3, what=f"{files} open files")
    node.wait_for(lambda: count_threads(node.daemon.pid) <= threads + 3, what=f"{threads} threads")
    grown = load_rss(node) - rss
    sys.stdout.write(
        f"{RECONNECTS} reconnects: resident {rss:.1f} MiB before, {grown:+.2f} MiB after; {threads} threads\n"
    )
    assert grown < 2
    assert node.kubelet.open_streams(GPU) == 1
    assert len(node.kubelet.registrations) == 1
    assert allocate_one(node.socket, node.newest.healthy[0])


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_edits_signals_calls_and_scrapes_without_end_leave_memory_as_it_was(node: Node):
    samples = []
    for number in range(ROUNDS):
        before = len(node.kubelet.messages(GPU))
        node.swap(_MORE if number % 2 == 0 else SHARE)
        os.kill(node.daemon.pid, signal.SIGHUP)
        listed = node.wait_list(after=before)
        assert allocate_one(node.socket, listed.healthy[number % (GPUS * SHARE)])
        reconnect(node.socket)
        if number % 10 == 0:
            assert node.daemon.find_metric("nvdp_config_valid") == 1
        samples.append(load_rss(node))
    settled = samples[ROUNDS // 4]
    sys.stdout.write(
        f"{ROUNDS} edits: resident {samples[0]:.1f}, {settled:.1f} at a quarter, {samples[-1]:.1f} MiB at the end\n"
    )
    assert samples[-1] - settled < 2
    assert len(node.kubelet.registrations) == 1
    node.wait_pids()
