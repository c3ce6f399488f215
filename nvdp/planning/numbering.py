"""Which replica numbers of a GPU are on offer, so that an edit moves as few as it can."""

from __future__ import annotations

from collections.abc import Collection


def choose_numbers(replicas: int, *, held: Collection[int], offered: Collection[int]) -> tuple[int, ...]:
    """``replicas`` numbers in rising order: those that pods hold first, then those on offer now, then the lowest.

    Among equals the lowest win. So a pod keeps its number when replicas shrink, and no number moves for another's sake.
    """
    chosen = sorted(held)[:replicas]
    chosen += sorted(set(offered).difference(held))[: replicas - len(chosen)]
    taken = set(chosen)
    number = 0
    while len(taken) < replicas:
        taken.add(number)
        number += 1
    return tuple(sorted(taken))
