"""Replica numbers: a pod keeps its own, and as few as possible move."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.planning.numbering import choose_numbers

TABLE = {
    "from nothing, the lowest": (3, [], [], (0, 1, 2)),
    "shrunk with nothing held, the lowest stay": (2, [], [0, 1, 2, 3, 4], (0, 1)),
    "shrunk, those held stay first": (3, [7, 4], [0, 1, 2, 3], (0, 4, 7)),
    "shrunk below what is held, the lowest held stay": (2, [9, 4, 7], [0], (4, 7)),
    "one that was kept for a pod stays after the pod": (3, [], [0, 4, 7], (0, 4, 7)),
    "grown, the lowest that are missing come": (5, [7], [4], (0, 1, 2, 4, 7)),
    "grown beyond what was ever used": (6, [], [1, 2], (0, 1, 2, 3, 4, 5)),
}
numbers = st.sets(st.integers(0, 40), max_size=20)


@pytest.mark.parametrize(("replicas", "held", "offered", "chosen"), TABLE.values(), ids=TABLE)
def test_numbers_are_held_first_then_offered_then_the_lowest(replicas, held, offered, chosen):
    assert choose_numbers(replicas, held=held, offered=offered) == chosen


@given(replicas=st.integers(1, 30), held=numbers, offered=numbers)
def test_any_choice_is_whole_ordered_and_prefers_held_to_offered_to_new(replicas, held, offered):
    chosen = choose_numbers(replicas, held=held, offered=offered)
    assert len(chosen) == replicas
    assert list(chosen) == sorted(set(chosen))
    free = offered - held
    kept_held, kept_offered = held & set(chosen), free & set(chosen)
    new = set(chosen) - held - offered
    assert len(kept_held) == min(len(held), replicas)
    assert len(kept_offered) == min(len(free), replicas - len(kept_held))
    assert kept_held == set(sorted(held)[: len(kept_held)])
    assert kept_offered == set(sorted(free)[: len(kept_offered)])
    assert all(number in chosen or number >= max(new, default=0) for number in range(max(new, default=0)))


@given(replicas=st.integers(1, 30), held=numbers, offered=numbers)
def test_a_choice_stands_once_it_is_made(replicas, held, offered):
    chosen = choose_numbers(replicas, held=held, offered=offered)
    stay = set(held) & set(chosen)
    assert choose_numbers(replicas, held=held, offered=chosen) == chosen
    assert choose_numbers(replicas, held=stay, offered=chosen) == chosen
    assert choose_numbers(replicas, held=(), offered=chosen) == chosen


@given(replicas=st.integers(1, 30), more=st.integers(0, 30), held=numbers, offered=numbers)
def test_growing_takes_nothing_away(replicas, more, held, offered):
    before = choose_numbers(replicas, held=held, offered=offered)
    after = choose_numbers(replicas + more, held=held & set(before), offered=before)
    assert set(before) <= set(after)
