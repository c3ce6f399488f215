"""What it is worth to have two GPUs together, by what NVML tells of them."""

from __future__ import annotations

import pytest

from nvdp.model.topology import Ancestor, Connection
from nvdp.planning.weights import build_weights
from tests.planning.values import gpu, uuid


def points(*connections, **facts):
    """Of GPUs 0 and 1."""
    ((_, there), (back, _)) = build_weights([gpu(0, **facts), gpu(1, **facts)], connections)
    assert there == back
    return there


def connection(**facts):
    return Connection(a=uuid(0), b=uuid(1), **facts)


@pytest.mark.parametrize(
    ("ancestor", "told"),
    [
        (Ancestor.SYSTEM, 10),
        (Ancestor.NODE, 20),
        (Ancestor.HOSTBRIDGE, 30),
        (Ancestor.MULTIPLE, 40),
        (Ancestor.SINGLE, 50),
        (Ancestor.INTERNAL, 60),
    ],
)
def test_a_common_ancestor_has_the_points_of_nvidias_plugin(ancestor, told):
    assert points(connection(ancestor=ancestor)) == told


def test_each_link_has_a_hundred_points_besides_also_over_switches():
    assert points(connection(ancestor=Ancestor.SYSTEM, nvlinks=4)) == 410
    assert points(connection(ancestor=Ancestor.NODE, fabric_links=18)) == 1820
    assert points(connection(ancestor=Ancestor.NODE, nvlinks=2, fabric_links=6)) == 820


def test_without_a_known_ancestor_gpus_of_one_numa_node_are_nearer():
    assert points(numa_node=1) == points(connection(), numa_node=1) == 20
    assert points() == points(connection()) == 10, "and those of which it is not known are as far as can be"
    weights = build_weights([gpu(0, numa_node=0), gpu(1, numa_node=1), gpu(2, numa_node=0)], ())
    assert weights == ((0, 10, 20), (10, 0, 10), (20, 10, 0))


def test_the_ancestor_counts_where_it_is_known_and_not_the_numa_node():
    assert points(connection(ancestor=Ancestor.SYSTEM), numa_node=1) == 10


def test_connections_of_others_do_not_matter_nor_does_their_order():
    others = [Connection(a=uuid(1), b=uuid(7), nvlinks=9), Connection(a=uuid(1), b=uuid(2), nvlinks=3)]
    weights = build_weights([gpu(2), gpu(1)], others)
    assert weights == ((0, 310), (310, 0))
