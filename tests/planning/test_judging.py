"""What the hardware has against a configuration before it is applied."""

from __future__ import annotations

import pytest

from nvdp.planning.judging import find_unfit
from tests.planning.values import gpu, inventory, parse, sliced

pytestmark = [pytest.mark.invariant(8), pytest.mark.requirement(40)]

EIGHT = inventory(*(gpu(number, numa_node=number // 4) for number in range(8)))
UNKNOWN_NODE = inventory(*(gpu(number) for number in range(8)))


def test_a_list_that_passes_2_mib_is_refused_with_the_limit_that_this_node_has():
    config = sliced(70_000)
    assert str(find_unfit(config, EIGHT, {})) == (
        f"{config.name}:{_place(config)}: sharing.timeSlicing.resources[0].replicas: "
        "8 × 70000 devices make a list of 36 MiB; 2 MiB is allowed, at most 3988 replicas here"
    )


def _place(config) -> str:
    """Line and column of the figure that is too large."""
    origin = config.origins["sharing.timeSlicing.resources[0].replicas"]
    assert origin.line > 0
    assert origin.column > 0
    return f"{origin.line}:{origin.column}"


@pytest.mark.parametrize(("nodes", "most"), [(EIGHT, 3988), (UNKNOWN_NODE, 4315)])
def test_the_limit_that_is_named_is_the_last_that_is_taken(nodes, most):
    assert find_unfit(sliced(most), nodes, {}) is None
    problem = find_unfit(sliced(most + 1), nodes, {})
    assert problem.path == "sharing.timeSlicing.resources[0].replicas"
    assert problem.message == (
        f"8 × {most + 1} devices make a list of 2.0 MiB; 2 MiB is allowed, at most {most} replicas here"
    )


def test_numa_nodes_count_only_where_they_are_told():
    assert find_unfit(sliced(4315, more="allocation: {numaHints: false}"), EIGHT, {}) is None


def test_gpus_that_are_withheld_need_no_room():
    config = sliced(7800, more="devices: {exclude: [0, 1, 2, 3]}")
    assert find_unfit(config, EIGHT, {f"devices.exclude={number}": gpu(number).uuid for number in range(4)}) is None
    assert find_unfit(config, EIGHT, {}) is not None


def test_whole_gpus_and_a_node_without_any_are_always_fit():
    assert find_unfit(parse(), EIGHT, {}) is None
    assert find_unfit(sliced(70_000), inventory(), {}) is None
