"""Which GPUs of those that are free a container should get, by what connects them.

The set of the asked size, with all that it must include, whose pairs have the most points together
(``planning/weights``). Of equal sets the one whose rest is worth most: the points of the best two, the best four and
the best eight that could still be had from it, together. So small requests use up broken pairs and leave whole ones
alone. Of those the one with the lowest places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from nvdp.model.topology import Weights
from nvdp.planning.aligned_many import choose_of_many
from nvdp.planning.aligned_table import EXACT_UP_TO, build_table
from nvdp.planning.weights import sum_pairs


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """``places`` rising, and their points. No set has more than ``bound``, which is ``score`` if that is the best."""

    places: tuple[int, ...]
    score: int
    bound: int


def choose_aligned(weights: Weights, *, available: Iterable[int], required: Iterable[int], size: int) -> Choice:
    """The set of ``size`` of the ``available`` places of ``weights`` that has all the ``required`` ones.

    The required must be available, and no more than ``size``, which must be at least 1 and no more than are available.
    With up to ``EXACT_UP_TO`` GPUs available it is the best by all rules. With more it has the most points if the
    weights make a tree, as those of PCIe switches and processors do, and else about as many as ``bound`` says; and of
    equal sets it is the one that the fewest points connect with its rest. New weights of 16 GPUs cost about 10 ms at
    their first use, if that was not prepared, and everything else is far below that.
    """
    free, needed = sorted(set(available)), set(required)
    if size == len(free):
        return _be_exact(weights, tuple(free))
    if len(weights) <= EXACT_UP_TO:
        return _be_exact(weights, build_table(weights).choose(free, needed, size))
    part = tuple(tuple(weights[a][b] for b in free) for a in free)
    places = {place: number for number, place in enumerate(free)}
    inside = {places[place] for place in needed}
    if len(free) <= EXACT_UP_TO:
        return _be_exact(weights, _name(free, build_table(part).choose(range(len(free)), inside, size)))
    chosen, bound = choose_of_many(part, inside, size)
    return Choice(places=_name(free, chosen), score=sum_pairs(part, chosen), bound=bound)


def find_shortfalls(weights: Weights) -> dict[int, int]:
    """By size, for 2, 4 and 8 of all these GPUs: how many percent of the most points a choice has for certain.

    Sizes of which every choice is the best are left out. It takes some milliseconds where there are any.
    """
    places = range(len(weights))
    choices = {
        size: choose_aligned(weights, available=places, required=(), size=size)
        for size in (2, 4, 8)
        if size < len(weights)
    }
    return {size: 100 * one.score // one.bound for size, one in choices.items() if one.score < one.bound}


def prepare_choice(weights: Weights) -> None:
    """Do now what the first choice by these weights would have to do. Nothing if it was done not long ago."""
    if 0 < len(weights) <= EXACT_UP_TO:
        build_table(weights)


def _be_exact(weights: Weights, places: tuple[int, ...]) -> Choice:
    score = sum_pairs(weights, places)
    return Choice(places=places, score=score, bound=score)


def _name(free: Sequence[int], chosen: Iterable[int]) -> tuple[int, ...]:
    """Places among the free ones as places among all."""
    return tuple(free[number] for number in chosen)
