"""A node with everything that there is of the cluster: what it costs the API server, and what its absence changes."""

from __future__ import annotations

import time
from collections import Counter

import psutil
import pytest
import yaml

from nvdp.http.control import load_status
from tests.cluster.server import ApiServer, answer
from tests.daemon.cluster import LABELS, NODE, TAINT, Cluster
from tests.daemon.node import GPU, at_length, build_config, healthy
from tests.daemon.process import LIMIT_S, Daemon, wait_until
from tests.daemon.prompt import IMPATIENT, PROMPT

REPLICAS = f"{LABELS}replicas"
LOST_S = 60.0  # until an API server that does not answer counts as lost
# Two watches; labels are looked for, and written with the pod as their owner; the taint goes.
ONCE = {
    *(("watch", "nodes"), ("watch", "configmaps"), ("patch", "nodes")),
    *(("get", "nodefeatures"), ("get", "pods"), ("create", "nodefeatures")),
}
MOST = {("patch", "nodes/status"): 2, ("create", "events"): 4}  # a condition may come before all is well
THREADS, FILES, RESIDENT_MIB = 40, 40, 64  # as under faults, see docs/performance.md


@pytest.fixture
def cluster(root):
    with ApiServer() as server:
        yield Cluster(server, root)


@pytest.fixture
def follow(start, cluster):
    """Starts a daemon with everything."""

    def begin(launcher: tuple[str, ...] = PROMPT) -> Daemon:
        return start(None, *cluster.all, by_label=True, launcher=launcher)

    return begin


def wait_count(kubelet, count: int) -> None:
    kubelet.wait_until(lambda: len(healthy(kubelet)) == count, LIMIT_S, what=f"{count} Healthy devices")


def wait_settled(cluster, replicas: str) -> None:
    """Until all that is written is as it should be."""
    wait_until(lambda: cluster.condition.get("status") == "True", what="the condition")
    wait_until(lambda: TAINT not in cluster.taints, what="that the taint goes")
    wait_until(lambda: find_labels(cluster).get(REPLICAS) == replicas, what="labels")


def find_labels(cluster) -> dict[str, str]:
    return cluster.feature.get("spec", {}).get("labels", {})


def find_harm(cluster) -> tuple[object, ...]:
    """What others would see of us in the cluster; events may be told more often."""
    return cluster.node["metadata"]["labels"], find_labels(cluster), cluster.condition, cluster.taints


def test_a_server_that_is_away_also_over_a_restart_changes_nothing_and_its_return_is_followed(
    kubelet, cluster, follow, root
):
    daemon = follow()
    wait_count(kubelet, 8)
    wait_settled(cluster, "2")
    daemon.wait_ready()
    before, lists = find_harm(cluster), kubelet.messages(GPU)
    cluster.server.stop()
    wait_until(lambda: count_unreachable(daemon), what="a request without an answer")
    daemon.wait_scans()
    assert daemon.wait_ready().status == 200
    assert kubelet.messages(GPU) == lists
    (root / "state" / "state.json").unlink()  # somebody tidies up
    daemon.stop()

    again = follow(launcher=IMPATIENT)
    assert "is not known yet" in again.log.wait_for("ConfigMissing")["msg"]
    kubelet.wait_until(lambda: len(kubelet.messages(GPU)) > len(lists), LIMIT_S, what="a list of the new process")
    wait_until(lambda: count_unreachable(again), what="a request without an answer")
    assert again.wait_ready().body["config"]["entry"] == "two"
    assert kubelet.messages(GPU)[-1].devices == lists[-1].devices
    assert (len(kubelet.messages(GPU)), find_harm(cluster)) == (len(lists) + 1, before)

    cluster.server.start()
    cluster.server.journal.clear()
    again.look()
    again.wait_probe("/readyz", lambda probe: not probe.body["config"].get("waiting"))
    wait_until(lambda: load_status(root / "run", timeout_s=LIMIT_S).troubles == (), what="no trouble")
    assert find_harm(cluster) == before
    assert {entry.resource for entry in cluster.writes} <= {"events"}
    cluster.label("four")
    wait_count(kubelet, 16)
    wait_until(lambda: find_labels(cluster)[REPLICAS] == "4", what="the labels of it")


def count_unreachable(daemon: Daemon) -> float:
    """Requests that the API server did not answer."""
    return sum(
        value
        for (name, labels), value in daemon.metrics().items()
        if name == "nvdp_api_requests_total" and ("code", "unreachable") in labels
    )


def test_a_server_that_refuses_us_is_told_once_and_so_is_the_end_of_that(kubelet, cluster, follow):
    cluster.remember("two")
    refusal = answer(403, "no", reason="Forbidden")
    cluster.server.faults.add(refusal, verb="watch")
    daemon = follow(IMPATIENT)
    assert daemon.log.wait_for("APIServerLost")["error"]
    wait_count(kubelet, 8)
    cluster.server.faults.clear()
    cluster.server.faults.add(refusal, verb="patch", resource="nodes/status")
    daemon.look()
    daemon.log.wait_for("APIServerReached")
    told = daemon.log.wait_for("NodeWriteFailed")["msg"]
    assert "condition" in told
    daemon.wait_ready()
    cluster.server.faults.clear()
    daemon.look()
    wait_settled(cluster, "2")
    assert len(daemon.log.of("APIServerReached")) == len(daemon.log.of("NodeWriteFailed")) == 1
    assert 1 <= len(daemon.log.of("APIServerLost")) <= 2, "one for each watch at most"


def test_all_of_it_costs_few_requests_threads_files_and_little_memory(kubelet, cluster, follow):
    daemon = follow()
    wait_count(kubelet, 8)
    wait_settled(cluster, "2")
    wait_until(lambda: {event["reason"] for event in cluster.events} >= {"ConfigApplied"}, what="events")
    daemon.wait_ready()
    assert all(used <= most for used, most in zip(measure(daemon), (THREADS, FILES, RESIDENT_MIB), strict=True))

    # Nothing asks or writes again, also where somebody else edits the node.
    cluster.server.store.label(NODE, other="x")
    daemon.wait_scans()
    counts = Counter((entry.verb, entry.resource) for entry in cluster.server.journal.of())
    assert {what: count for what, count in counts.items() if what not in MOST} == dict.fromkeys(ONCE, 1)
    assert all(counts[what] <= most for what, most in MOST.items()), counts


def measure(daemon: Daemon) -> tuple[int, int, float]:
    """Threads, open files, and MiB that are resident."""
    process = psutil.Process(daemon.pid)
    return process.num_threads(), process.num_fds(), process.memory_info().rss / 2**20


@at_length
@pytest.mark.timeout(600)
def test_minutes_without_the_server_are_told_once_and_cost_nothing(kubelet, cluster, follow):
    daemon = follow()
    wait_count(kubelet, 8)
    wait_settled(cluster, "2")
    before, lists = find_harm(cluster), len(kubelet.messages(GPU))
    threads, files, _ = measure(daemon)
    began = time.monotonic()
    cluster.server.stop()
    told = daemon.log.wait_for("APIServerLost", timeout_s=3 * LOST_S)
    assert time.monotonic() - began >= LOST_S
    assert "The node stays as it is" in told["msg"]
    daemon.wait_scans(120, timeout_s=4 * LOST_S)
    assert len(daemon.log.of("APIServerLost")) == 1
    cluster.edit(two=yaml.safe_dump(build_config(share=3)))
    assert len(kubelet.messages(GPU)) == lists
    cluster.server.start()
    daemon.log.wait_for("APIServerReached", timeout_s=2 * LOST_S)
    wait_count(kubelet, 12)
    wait_until(lambda: find_labels(cluster).get(REPLICAS) == "3", 2 * LOST_S, what="labels")
    assert find_harm(cluster)[2:] == before[2:] or cluster.condition["status"] == "True"
    now = measure(daemon)
    assert now[0] <= threads + 3
    assert now[1] <= files + 3
