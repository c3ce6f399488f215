"""A set of more GPUs than a table can hold: see ``planning/aligned``.

The best one where the weights make a tree, found from its leaves to its root; otherwise one that is built step by step,
with a bound to what any set could have. Both have a simpler rule for equal sets: the fewest points between the set and
its rest, then the lowest places.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from nvdp.model.topology import Weights
from nvdp.planning.weights import sum_pairs


def choose_of_many(weights: Weights, required: Collection[int], size: int) -> tuple[tuple[int, ...], int]:
    """``size`` places of ``weights``, rising, with the ``required`` among them; and the points that no set exceeds."""
    chosen = _choose_in_tree(weights, required, size)
    if chosen is not None:
        return chosen, sum_pairs(weights, chosen)
    return _choose_by_steps(weights, required, size), _find_bound(weights, required, size)


def _choose_in_tree(weights: Weights, required: Collection[int], size: int) -> tuple[int, ...] | None:
    """The best set; None if the weights make no tree.

    They do if GPUs can be joined to groups, two at a time, so that all pairs across have the same points, no more than
    those within. Of each group the best sets of all sizes are known, as one number each: from the top how many of the
    required it has, its points, how few its members have with others, and the members, each of which adds its part.
    """
    count = len(weights)
    within = [sum(row) for row in weights]
    most = max(within)
    cut_at, score_at = count, count + (count * most).bit_length()
    required_at = score_at + sum(within).bit_length()

    def describe(place: int) -> int:
        is_required = int(place in required)
        return is_required << required_at | most - within[place] << cut_at | 1 << count - 1 - place

    groups: list[tuple[int, ...]] = [(place,) for place in range(count)]
    best = [[0, describe(place)] for place in range(count)]
    of_place = list(range(count))
    for a, b in sorted(itertools.combinations(range(count), 2), key=lambda pair: -weights[pair[0]][pair[1]]):
        first, second = of_place[a], of_place[b]
        if first == second:
            continue
        points = weights[a][b]
        if any(weights[x][y] != points for x in groups[first] for y in groups[second]):
            return None
        best[first] = _join(best[first], best[second], points << score_at, size)
        groups[first] += groups[second]
        for place in groups[second]:
            of_place[place] = first
    found = best[of_place[0]][size]
    return tuple(place for place in range(count) if found >> count - 1 - place & 1)


def _join(first: Sequence[int], second: Sequence[int], points: int, size: int) -> list[int]:
    """The best sets of both groups together, by size; ``points`` are those of each pair across."""
    joined = [0] * min(size + 1, len(first) + len(second) - 1)
    for m, one in enumerate(first):
        for n, other in enumerate(second[: len(joined) - m]):
            joined[m + n] = max(joined[m + n], one + other + m * n * points)
    return joined


def _choose_by_steps(weights: Weights, required: Collection[int], size: int) -> tuple[int, ...]:
    """From each possible first one on, always the GPU that adds most; of the sets so found the best."""
    starts = [set(required)] if required else [{place} for place in range(len(weights))]
    return min((_grow(weights, start, size) for start in starts), key=lambda places: _rank(weights, places))


def _grow(weights: Weights, chosen: set[int], size: int) -> tuple[int, ...]:
    gains = {one: sum(weights[one][other] for other in chosen) for one in range(len(weights)) if one not in chosen}
    while len(chosen) < size:
        best = min(gains, key=lambda one: (-gains[one], one))
        chosen.add(best)
        del gains[best]
        for one in gains:
            gains[one] += weights[one][best]
    return tuple(sorted(chosen))


def _rank(weights: Weights, places: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
    return -sum_pairs(weights, places), sum(sum(weights[one]) for one in places), places


def _find_bound(weights: Weights, required: Collection[int], size: int) -> int:
    """No set has more: each member has at most its ``size`` - 1 best connections, and each of these has two ends."""
    at_most = [sum(sorted(row, reverse=True)[: size - 1]) for row in weights]
    others = sorted((points for place, points in enumerate(at_most) if place not in required), reverse=True)
    return (sum(at_most[place] for place in required) + sum(others[: size - len(required)])) // 2
