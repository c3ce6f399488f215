"""Kill, stop, hang, reconfigure and upgrade in every order, between both twins: no trace, and no pod's daemon touched.

In full with ``make campaign``: the five stand beside each other in each of their 120 orders, each with all that it may
mean, among pods and cards that come and go. A failure tells its steps; NVDP_ORDERS_SEED begins other lives.
"""

from __future__ import annotations

import itertools
import os

import pytest

from tests.daemon.keeping.life import Life
from tests.daemon.keeping.node import ModedMachine, Node
from tests.daemon.keeping.orders import build_row, draw_walk
from tests.daemon.keeping.steps import STEPS, change_limits, kill_keeper, let_daemon_die, upgrade_plugin
from tests.daemon.keeping.wish import CARDS
from tests.daemon.node import at_length

FIRST_SEED = int(os.environ.get("NVDP_ORDERS_SEED", "1"))
KINDS = tuple(STEPS)
ENDS = tuple(itertools.permutations(("plugin", "keeper", "pods")))
WALK = 40


@pytest.fixture
def machine(root):
    return ModedMachine(root / "node.yaml", count=CARDS)


@pytest.fixture
def node(kubelet, machine, config_map, start, mps):
    return Node(kubelet=kubelet, machine=machine, config_map=config_map, start=start, mps=mps)


@pytest.fixture
def life(node, seed):
    found = Life(node, seed=seed)
    found.begin()
    yield found
    node.dismiss_all()
    print("its steps:", *found.told)  # noqa: T201 - pytest shows it if the test fails
    found.stop()


def test_a_row_of_words_has_each_of_their_orders():
    row = build_row(KINDS)
    orders = {tuple(row[start : start + len(KINDS)]) for start in range(len(row))}
    assert orders >= {*itertools.permutations(KINDS)}
    assert len(row) == 153


@pytest.mark.invariant(4)
@pytest.mark.parametrize("seed", [0])
def test_a_kill_a_change_an_upgrade_and_a_death_touch_no_other_daemon_and_the_end_leaves_no_trace(life):
    life.do([kill_keeper, change_limits, upgrade_plugin, let_daemon_die])
    life.end(("pods", "plugin", "keeper"))


@at_length
@pytest.mark.campaign
@pytest.mark.invariant(4)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [FIRST_SEED])
def test_kill_stop_hang_reconfigure_and_upgrade_in_every_order_leave_no_trace_and_no_pod_without_its_daemon(life):
    life.live(build_row(KINDS))
    life.end(ENDS[0])


@at_length
@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(FIRST_SEED + 1, FIRST_SEED + 1 + len(ENDS)))
def test_after_any_walk_an_end_in_any_order_leaves_no_trace(life, seed):
    life.live(draw_walk(KINDS, WALK, seed=seed))
    life.end(ENDS[seed % len(ENDS)])
