"""The sharing entries of a file in their order, and what each is told by."""

from __future__ import annotations

import pytest

from nvdp.model.listing import Strategy
from nvdp.planning.entries import list_entries
from tests.planning.values import parse

BOTH = """\
sharing:
  mps:
    renameByDefault: true
    resources:
    - {name: nvidia.com/gpu, devices: [6], replicas: 4}
  timeSlicing:
    resources:
    - {name: a100, rename: a100.slice, devices: 2, replicas: 10}
    - {name: gpu, rename: one, devices: [1], replicas: 1}
"""


def test_time_slicing_comes_before_mps_wherever_the_file_has_it():
    assert [(entry.path, entry.strategy, entry.final_name) for entry in list_entries(parse(BOTH))] == [
        ("sharing.timeSlicing.resources[0]", Strategy.TIME_SLICING, "nvidia.com/a100.slice"),
        ("sharing.timeSlicing.resources[1]", Strategy.TIME_SLICING, "nvidia.com/one"),
        ("sharing.mps.resources[0]", Strategy.MPS, "nvidia.com/gpu.shared"),
    ]


def test_a_file_that_shares_nothing_has_no_entries():
    assert list_entries(parse()) == ()


@pytest.mark.parametrize(("block", "of_one"), [("timeSlicing", Strategy.NONE), ("mps", Strategy.MPS)])
def test_one_replica_is_the_device_itself_though_mps_needs_its_daemon_for_it(block, of_one):
    whole, shared = list_entries(
        parse(f"sharing: {{{block}: {{resources: [{{name: a, replicas: 1}}, {{name: b, replicas: 2}}]}}}}")
    )
    assert whole.shared_strategy is of_one
    assert shared.shared_strategy is shared.strategy is not Strategy.NONE


def identities(*entries, block="timeSlicing"):
    text = "".join(f"    - {{{entry}}}\n" for entry in entries)
    return [entry.identity for entry in list_entries(parse(f"sharing:\n  {block}:\n    resources:\n{text}"))]


SLICES, FEW, OTHERS = (
    "name: gpu, rename: s, devices: 2, replicas: 4",
    "name: gpu, rename: s, devices: 1, replicas: 4",
    "name: gpu, rename: t, devices: 2, replicas: 4",
)


@pytest.mark.parametrize("others", [[FEW], [OTHERS], [FEW, OTHERS], ["name: x, rename: s, devices: 2, replicas: 4"]])
def test_an_entry_is_the_same_wherever_it_stands_among_others(others):
    (alone,) = identities(SLICES)
    assert identities(SLICES, *others)[0] == identities(*others, SLICES)[-1] == alone


def test_entries_that_say_different_things_are_different():
    entries = [SLICES, FEW, OTHERS, SLICES.replace("replicas: 4", "replicas: 5")]
    assert len({*identities(*entries), *identities(SLICES, block="mps")}) == 5


def test_entries_by_count_that_say_the_same_are_told_apart():
    first, second, third = identities(SLICES, SLICES, SLICES)
    assert len({first, second, third}) == 3
    assert first == identities(SLICES)[0]
