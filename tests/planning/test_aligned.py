"""Which GPUs go together: the best set by brute force, the machines that people have, and what is left for the next."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.planning.aligned import choose_aligned
from nvdp.planning.aligned_table import Table, build_table
from tests.planning.machines import (
    KINDS,
    LINK,
    NODE,
    add_up,
    build,
    cube_mesh,
    hgx,
    linked,
    pairs,
    tree,
    try_all,
    two_sockets,
)


def choose(weights, size, *, available=None, required=()):
    free = range(len(weights)) if available is None else available
    return choose_aligned(weights, available=free, required=required, size=size).places


def draw_request(source, count):
    available = source.sample(range(count), source.randint(1, count))
    size = source.randint(1, len(available))
    return available, source.sample(available, source.randint(0, size)), size


@pytest.mark.parametrize("kind", KINDS)
def test_no_set_is_better_on_a_thousand_random_machines_of_each_kind(kind):
    source = random.Random(kind)
    for _ in range(1000):
        weights = KINDS[kind](source, source.randint(1, 8))
        available, required, size = draw_request(source, len(weights))
        choice = choose_aligned(weights, available=available, required=required, size=size)
        assert (choice.places, choice.score) == try_all(weights, available, required, size), (
            weights,
            available,
            required,
            size,
        )
        assert choice.bound == choice.score


@given(st.data())
def test_no_set_is_better_whatever_the_weights(data):
    count = data.draw(st.integers(1, 6))
    points = data.draw(st.lists(st.integers(0, 40), min_size=count * count, max_size=count * count))
    weights = build(count, lambda a, b: points[a * count + b])
    available = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    size = data.draw(st.integers(1, len(available)))
    required = data.draw(st.sets(st.sampled_from(sorted(available)), max_size=size))
    choice = choose_aligned(weights, available=available, required=required, size=size)
    assert (choice.places, choice.score) == try_all(weights, available, required, size)


def test_the_order_in_which_gpus_are_named_does_not_matter():
    weights = cube_mesh()
    for size in range(1, 8):
        for required in ([], [5], [6, 2]):
            if len(required) <= size:
                free = list(range(8))
                first = choose(weights, size, available=free, required=required)
                random.Random(size).shuffle(free)
                assert choose(weights, size, available=free, required=required[::-1]) == first


def test_all_that_is_available_is_the_answer_without_a_look_at_what_connects_it():
    build_table.cache_clear()
    assert choose(hgx(), 3, available=[6, 1, 4]) == (1, 4, 6)
    assert build_table.cache_info().misses == 0


def test_four_requests_of_one_use_up_two_pairs_so_that_two_requests_of_two_get_one_each():
    weights, free, singles = pairs(), set(range(8)), []
    for _ in range(4):
        (one,) = choose(weights, 1, available=free)
        singles.append(one)
        free.remove(one)
    assert singles == [0, 1, 2, 3]
    for expected in ((4, 5), (6, 7)):
        assert choose(weights, 2, available=free) == expected
        free -= set(expected)


def test_a_request_of_one_takes_the_rest_of_a_broken_pair_first():
    assert choose(pairs(), 1, available=[0, 1, 2, 3, 5]) == (5,)


def test_a_request_of_two_leaves_a_four_whole_if_there_is_a_pair_elsewhere():
    fours = build(6, lambda a, b: NODE + LINK * ((a < 4) == (b < 4)))
    assert choose(fours, 2) == (4, 5)


def test_a_request_of_one_leaves_an_eight_whole_if_there_are_six_elsewhere():
    eight = build(14, lambda a, b: NODE + LINK * ((a < 8) == (b < 8)))
    assert choose(eight, 1) == (8,)


def test_where_all_are_on_one_switch_the_first_ones_of_a_socket_are_taken_together():
    assert choose(hgx(), 4) == (0, 1, 2, 3)
    assert choose(hgx(), 2, required=[5]) == (4, 5)
    assert choose(build(8, lambda _a, _b: NODE + 18 * LINK), 3) == (0, 1, 2)


def test_a_cube_mesh_gives_double_links_and_squares():
    weights = cube_mesh()
    assert add_up(weights, choose(weights, 2)) == NODE + 2 * LINK
    assert choose(weights, 4) == (0, 1, 2, 3)
    assert choose(weights, 4, available=range(1, 8)) == (4, 5, 6, 7)
    assert choose(weights, 2, required=[0]) == (0, 3)


def test_with_pcie_alone_gpus_of_one_switch_go_together_and_then_those_of_one_processor():
    weights = two_sockets()
    assert choose(weights, 2, available=[0, 2, 3, 4]) == (2, 3)
    assert choose(weights, 2, available=[0, 2, 4]) == (0, 2)
    assert choose(weights, 4, available=[0, 1, 2, 4, 5, 6, 7]) == (4, 5, 6, 7)


def test_a_link_counts_more_than_any_way_over_pcie():
    assert choose(linked(4, {(0, 3): 1}, otherwise=60), 2) == (0, 3)


def test_sixteen_gpus_of_any_kind_take_milliseconds():
    source = random.Random(16)
    for weights in (KINDS["anything"](source, 16), KINDS["few values"](source, 16), hgx(16), pairs(16)):
        began = time.thread_time()
        table = Table(weights)
        prepared = time.thread_time()
        for size in range(1, 16):
            table.choose(range(16), {3} if size > 1 else (), size)
        done = time.thread_time()
        assert prepared - began < 0.5, "20 ms on an idle machine"
        assert (done - prepared) / 15 < 0.05, "0.2 ms on an idle machine"


def test_a_table_of_sixteen_finds_what_trying_all_sets_finds():
    source = random.Random(5)
    for kind in KINDS:
        weights = KINDS[kind](source, 16)
        assert choose(weights, 3) == _best_of_three(weights)


def _best_of_three(weights):
    sets = list(itertools.combinations(range(16), 3))
    most = max(add_up(weights, chosen) for chosen in sets)
    best = [chosen for chosen in sets if add_up(weights, chosen) == most]
    if len(best) == 1:
        return best[0]
    table = build_table(weights)

    def worth(chosen):
        rest = [place for place in range(16) if place not in chosen]
        return sum(add_up(weights, table.choose(rest, (), wanted)) for wanted in (2, 4, 8))

    return min(best, key=lambda chosen: (-worth(chosen), chosen))


def test_of_many_gpus_few_that_are_free_are_chosen_as_of_few():
    source = random.Random(7)
    weights = KINDS["few values"](source, 24)
    free = sorted(source.sample(range(24), 8))
    for size in range(1, 8):
        assert choose(weights, size, available=free) == try_all(weights, free, (), size)[0]
        assert choose(weights, size, available=free, required=free[-1:]) == try_all(weights, free, free[-1:], size)[0]


def test_of_many_gpus_in_a_tree_no_set_has_more_points():
    source = random.Random(24)
    for _ in range(4):
        weights = tree(source, 18)
        for size, required in ((2, []), (3, [4, 9]), (3, [])):
            choice = choose_aligned(weights, available=range(18), required=required, size=size)
            sets = (chosen for chosen in itertools.combinations(range(18), size) if set(required) <= set(chosen))
            best = max(add_up(weights, chosen) for chosen in sets)
            assert (choice.score, choice.bound) == (best, best)
            assert set(required) <= set(choice.places)


def test_of_many_gpus_in_pairs_small_requests_use_up_broken_pairs_as_well():
    assert choose(pairs(20), 1, available=[*range(18), 19]) == (19,)
    assert choose(pairs(20), 2, available=range(1, 20)) == (2, 3)


def test_of_many_gpus_in_no_tree_the_choice_is_told_with_a_bound():
    source = random.Random(3)
    for size in (1, 2, 3, 17):
        weights = KINDS["anything"](source, 18)
        required = [source.randrange(18)] if size > 1 else []
        choice = choose_aligned(weights, available=range(18), required=required, size=size)
        assert len(set(choice.places)) == size
        assert set(required) <= set(choice.places)
        assert choice.score == add_up(weights, choice.places) <= choice.bound
        if size <= 3:
            sets = (chosen for chosen in itertools.combinations(range(18), size) if set(required) <= set(chosen))
            assert max(add_up(weights, chosen) for chosen in sets) <= choice.bound


def test_thirty_two_gpus_take_milliseconds():
    source = random.Random(32)
    for weights in (tree(source, 32), KINDS["anything"](source, 32)):
        began = time.thread_time()
        choose(weights, 16)
        assert time.thread_time() - began < 0.5, "6 ms on an idle machine"
