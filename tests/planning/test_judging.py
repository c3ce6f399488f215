"""What the hardware has against a configuration before it is applied."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.planning.allotment import resolve_pins
from nvdp.planning.judging import find_unfit
from tests.planning.values import gpu, inventory, parse, sliced

pytestmark = [pytest.mark.invariant(8), pytest.mark.requirement(40)]

EIGHT = inventory(*(gpu(number, numa_node=number // 4, compute_capability="8.0") for number in range(8)))
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


# Several entries under one name, and what does not count

ENTRIES = """\
sharing:
  timeSlicing:
    resources:
    - {name: gpu, rename: s, devices: [0, 1], replicas: %s}
    - {name: gpu, rename: %s, devices: 6, replicas: %s}
"""


def judge(text, node=EIGHT):
    config = parse(text)
    return find_unfit(config, node, resolve_pins(config, node.gpus, {}, {}))


def test_entries_of_one_name_share_the_room_of_its_list():
    assert judge(ENTRIES % (10_000, "s", 1900)) is None
    problem = judge(ENTRIES % (10_000, "s", 3000))
    assert (problem.path, problem.line) == ("sharing.timeSlicing.resources[0].replicas", 4)
    assert problem.message == (
        "2 × 10000 devices make a list of 2.4 MiB together with others of that name; 2 MiB is allowed, "
        "at most 7015 replicas here"
    )


def test_the_entry_that_takes_most_room_is_named():
    assert judge(ENTRIES % (1000, "s", 6000)).path == "sharing.timeSlicing.resources[1].replicas"


@given(few=st.integers(2, 12_000), many=st.integers(2, 5000))
def test_the_limit_that_is_named_is_the_last_that_is_taken_also_beside_others(few, many):
    problem = judge(ENTRIES % (few, "s", many))
    if problem is None:
        return
    most = int(problem.message.rpartition("at most ")[2].split()[0])
    is_first = problem.path.startswith("sharing.timeSlicing.resources[0]")
    assert judge(ENTRIES % ((most, "s", many) if is_first else (few, "s", most))) is None
    assert judge(ENTRIES % ((most + 1, "s", many) if is_first else (few, "s", most + 1))) is not None


def test_where_others_fill_the_list_alone_the_limit_is_that_of_all():
    problem = judge(ENTRIES % (70_000, "s", 60_000))
    assert problem.message == (
        "6 × 60000 devices make a list of 32 MiB together with others of that name; 2 MiB is allowed, "
        "at most 3988 replicas of each device"
    )
    assert judge(ENTRIES % (3988, "s", 3988)) is None
    assert judge(ENTRIES % (3989, "s", 3989)) is not None


def test_each_name_has_a_list_of_its_own():
    assert judge(ENTRIES % (10_000, "t", 5000)) is None


WITHHELD = {
    "MPS that the hardware cannot do": "mps: {resources: [{name: gpu, rename: s, devices: 8, replicas: 70000}]}",
    "a card in two entries": f"""timeSlicing: {{resources: [
      {{name: gpu, rename: s, devices: [0], replicas: 2}},
      {{name: gpu, rename: t, devices: [{gpu(0).uuid}, 1], replicas: 70000}}]}}""",
    "no card of that name": "timeSlicing: {resources: [{name: x, replicas: 70000}]}",
}


@pytest.mark.parametrize("sharing", WITHHELD.values(), ids=WITHHELD)
def test_what_is_withheld_needs_no_room(sharing):
    assert judge(f"sharing:\n  {sharing}") is None


def test_what_is_cordoned_is_listed_and_needs_room():
    assert judge("devices: {cordon: [0, 1]}\n" + ENTRIES % (70_000, "s", 2)) is not None
