"""What 5,000 nodes ask of their API server, in virtual time: the code that decides when is nvdp's own."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from nvdp.config.cluster import ClusterOptions, LabelTarget
from nvdp.planning.start_spread import FLEET
from tests.virtual.fleet import Fleet

FULL = os.environ.get("NVDP_CAMPAIGN") == "full"
SIZE = FLEET if FULL else 500
LIMIT = 400 * SIZE / FLEET  # requests a second, in the mean of any ten seconds
PAGE = (Path(__file__).parents[1] / "docs/cluster.md").read_text().split("## How much it asks")[1]
ALL = ClusterOptions(
    config_map="nvdp-configs",
    write_labels=LabelTarget.NODE_FEATURE,
    events=True,
    node_condition="nvidia.com/GPUReady",
    startup_taint="nvidia.com/gpu-not-ready",
)
FEW = ClusterOptions(config_map="nvdp-configs", write_labels=LabelTarget.NODE_FEATURE, events=True)
DAY_S = 24 * 3600.0


def started(size: int = SIZE, options: ClusterOptions = ALL, *, with_others: bool = True, seed: int = 1) -> Fleet:
    fleet = Fleet(size, options, with_others=with_others, seed=seed)
    fleet.start()
    return fleet


def test_5000_nodes_that_boot_at_once_keep_to_the_budget():
    fleet = started(FLEET)
    fleet.run(240)
    assert fleet.last_decision < 60
    assert fleet.server.find_busiest() < 400
    assert fleet.undone == []
    assert fleet.server.count() == {
        ("watch", "nodes"): FLEET,
        ("watch", "configmaps"): FLEET,
        ("patch", "nodes"): FLEET,
        ("patch", "nodes/status"): FLEET,
        ("get", "nodefeatures"): FLEET,
        ("get", "pods"): FLEET,
        ("create", "nodefeatures"): FLEET,
        ("create", "events"): 3 * FLEET,
    }
    (told,) = re.findall(r"boot at once: at most (\d+) requests a second.* the last .* after (\d+) s", PAGE)
    assert told == (f"{fleet.server.find_busiest():.0f}", f"{fleet.last_decision:.0f}")


@pytest.mark.skipif(not FULL, reason="takes seconds; `make campaign` does it")
@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("options", [ALL, FEW], ids=["all features", "the overlay cluster"])
def test_the_budget_holds_whatever_chance_does(options: ClusterOptions, seed: int):
    fleet = started(FLEET, options, seed=seed)
    fleet.run(240)
    assert fleet.last_decision < 60
    assert fleet.server.find_busiest() < 400


def test_an_update_of_the_daemon_set_is_felt_by_nobody():
    fleet = started(FLEET // 10, with_others=False)  # maxUnavailable
    fleet.run(60)
    assert fleet.last_decision < 2
    assert fleet.server.find_busiest() < 400


@pytest.mark.campaign
def test_after_an_outage_all_come_back_and_not_at_once():
    fleet = started()
    fleet.run(600)
    before = sum(fleet.server.count().values())
    fleet.server.go_down()
    fleet.run(300)
    assert len(fleet.server.watches) == 0
    tries = sum(fleet.server.count().values()) - before
    assert tries / (2 * SIZE) < 20, "a watch asks less and less often"
    fleet.server.come_back()
    back_at = fleet.time.now
    fleet.run(61)
    assert len(fleet.server.watches) == 2 * SIZE
    assert fleet.server.find_busiest(since=back_at) < LIMIT
    assert fleet.server.count(since=back_at) == {("watch", "nodes"): SIZE, ("watch", "configmaps"): SIZE}


@pytest.mark.campaign
def test_nodes_that_start_while_the_server_is_away_are_configured_by_it_once_it_is_back():
    fleet = Fleet(SIZE, ALL)
    fleet.server.go_down()
    fleet.start()
    fleet.run(300)
    assert set(fleet.server.count()) == {("watch", "nodes"), ("watch", "configmaps")}
    fleet.server.come_back()
    back_at = fleet.time.now
    fleet.run(240)
    assert fleet.undone == []
    assert fleet.last_decision < back_at + 61
    # Labels and events have waited for long enough by then, and follow at once: more than the budget, yet bounded.
    assert fleet.server.find_busiest(since=back_at) < 3.5 * LIMIT


@pytest.mark.campaign
def test_watches_that_are_all_cut_at_once_cost_one_request_each():
    fleet = started()
    fleet.run(600)
    fleet.server.cut()
    cut_at = fleet.time.now
    fleet.run(2)
    assert len(fleet.server.watches) == 2 * SIZE
    fleet.run(600)
    assert fleet.server.count(since=cut_at) == {("watch", "nodes"): SIZE, ("watch", "configmaps"): SIZE}


@pytest.mark.campaign
def test_a_server_that_cuts_again_and_again_is_asked_less_and_less_often():
    fleet = started(SIZE // 10)
    fleet.run(600)
    begun_at = fleet.time.now
    for _ in range(600):
        fleet.server.cut()
        fleet.run(1)
    each = sum(fleet.server.count(since=begun_at).values()) / (2 * fleet.size)
    assert each < 10 + 600 / 30, "of 600 chances"


@pytest.mark.campaign
def test_a_server_that_refuses_half_of_the_requests_gets_all_of_them_through():
    fleet = started()
    fleet.server.busy = 0.5
    fleet.run(1200)
    assert fleet.undone == []
    assert sum(fleet.server.count().values()) < 2.2 * 10 * SIZE
    decided = sorted(node.decided_at or float("inf") for node in fleet.nodes)
    assert decided[int(0.95 * SIZE)] < 90
    assert fleet.server.find_busiest(only="ok") < LIMIT * 1.1


def test_a_quiet_day_of_a_node_is_a_few_dozen_requests():
    fleet = started(1)
    fleet.run(DAY_S)
    counted = fleet.server.count()
    assert sum(counted.values()) <= 300
    told = re.findall(r"^\| (\w+) \| `([\w/]+)[\w.-]*` \| (\d+) \|", PAGE, re.MULTILINE)
    assert Counter({(verb, resource): int(number) for verb, resource, number in told}) == counted
