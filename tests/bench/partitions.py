"""A choice of GPUs as NVIDIA's plugin makes it, by its description: for the bench to stand beside ours.

All ways are tried to part the available GPUs into groups of the size that is asked for, one of which may be smaller;
the one whose groups have the most points together wins, and of it the best group with the required GPUs.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from nvdp.model.topology import Weights
from nvdp.planning.weights import sum_pairs


def choose_by_partitions(
    weights: Weights, *, available: Collection[int], required: Collection[int], size: int
) -> tuple[int, ...]:
    """The group, rising."""
    points: dict[tuple[int, ...], int] = {}

    def weigh(group: tuple[int, ...]) -> int:
        found = points.get(group)
        if found is None:
            found = points[group] = sum_pairs(weights, group)
        return found

    best: tuple[tuple[int, ...], ...] = ()
    most = -1
    for groups in _part(tuple(sorted(available)), size, spare=-len(available) % size):
        score = sum(map(weigh, groups))
        if score > most and any(len(group) == size and group_has(group, required) for group in groups):
            best, most = groups, score
    return max((group for group in best if len(group) == size and group_has(group, required)), key=weigh)


def group_has(group: Collection[int], required: Collection[int]) -> bool:
    return set(required) <= set(group)


def _part(free: tuple[int, ...], size: int, *, spare: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way once; one group has ``spare`` fewer than the others, if that is not 0."""
    if not free:
        yield ()
        return
    first, others = free[0], free[1:]
    sizes = {(size, spare), (size - spare, 0)} if spare and len(free) >= size - spare else {(size, spare)}
    for wanted, left in sorted(sizes):
        if wanted > len(free):
            continue
        for more in itertools.combinations(others, wanted - 1):
            group = (first, *more)
            rest = tuple(place for place in others if place not in group)
            for groups in _part(rest, size, spare=left):
                yield (group, *groups)
