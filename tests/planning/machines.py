"""Weights of well-known machines and of random ones, and the best set of GPUs found by trying all of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Iterable, Mapping

from nvdp.model.topology import Weights

SYSTEM, NODE, HOSTBRIDGE, MULTIPLE, SINGLE, INTERNAL = range(10, 70, 10)
LINK = 100


def build(count: int, points: Callable[[int, int], int]) -> Weights:
    """``points`` is asked once for each pair, the lower place first."""
    rows = [[0] * count for _ in range(count)]
    for a, b in itertools.combinations(range(count), 2):
        rows[a][b] = rows[b][a] = points(a, b)
    return tuple(map(tuple, rows))


def linked(count: int, links: Mapping[tuple[int, int], int], *, otherwise: int = NODE) -> Weights:
    return build(count, lambda a, b: otherwise + LINK * links.get((a, b), 0))


def hgx(count: int = 8) -> Weights:
    """All on NVSwitches: two sockets, but the links make next to nothing of that."""
    return build(count, lambda a, b: (NODE if a * 2 // count == b * 2 // count else SYSTEM) + 18 * LINK)


def pairs(count: int = 8) -> Weights:
    """Bridges between neighbours."""
    return build(count, lambda a, b: NODE + 4 * LINK * (a // 2 == b // 2))


def two_sockets(count: int = 8) -> Weights:
    """PCIe alone: two GPUs to a switch, half of them to a processor."""
    half = count // 2
    return build(count, lambda a, b: SINGLE if a // 2 == b // 2 else NODE if a // half == b // half else SYSTEM)


def cube_mesh() -> Weights:
    """A DGX-1 with V100: six links each, two of them to some neighbours."""
    double = {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)}
    single = {(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)}
    links = dict.fromkeys(double, 2) | dict.fromkeys(single, 1)
    return build(8, lambda a, b: (NODE if a // 4 == b // 4 else SYSTEM) + LINK * links.get((a, b), 0))


def _anything(source: random.Random, count: int) -> Weights:
    return build(count, lambda _a, _b: source.randrange(10, 1861))


def _few_values(source: random.Random, count: int) -> Weights:
    return build(count, lambda _a, _b: source.choice((SYSTEM, NODE, SINGLE, NODE + LINK)))


def _all_equal(source: random.Random, count: int) -> Weights:
    points = source.choice((SYSTEM, NODE + 18 * LINK))
    return build(count, lambda _a, _b: points)


def tree(source: random.Random, count: int) -> Weights:
    """Groups that are joined two at a time, with ever fewer points across, often as many as before."""
    groups = [[place] for place in range(count)]
    rows = [[0] * count for _ in range(count)]
    points = SYSTEM + 10 * count
    while len(groups) > 1:
        source.shuffle(groups)
        first, second = groups.pop(), groups.pop()
        for a, b in itertools.product(first, second):
            rows[a][b] = rows[b][a] = points
        groups.append(first + second)
        points -= source.choice((0, 0, 10))
    return tuple(map(tuple, rows))


KINDS: Mapping[str, Callable[[random.Random, int], Weights]] = {
    "anything": _anything,
    "few values": _few_values,
    "all equal": _all_equal,
    "tree": tree,
}


def add_up(weights: Weights, places: Iterable[int]) -> int:
    return sum(weights[a][b] for a, b in itertools.combinations(places, 2))


def try_all(
    weights: Weights, available: Collection[int], required: Collection[int], size: int
) -> tuple[tuple[int, ...], int]:
    """The best set by the rules of ``planning/aligned``, and its points."""

    def worth(chosen: tuple[int, ...]) -> int:
        rest = [place for place in available if place not in chosen]
        return sum(
            max((add_up(weights, some) for some in itertools.combinations(rest, wanted)), default=0)
            for wanted in (2, 4, 8)
        )

    sets = [chosen for chosen in itertools.combinations(sorted(available), size) if set(required) <= set(chosen)]
    most = max(add_up(weights, chosen) for chosen in sets)
    best = [chosen for chosen in sets if add_up(weights, chosen) == most]
    return min(best, key=lambda chosen: (-worth(chosen), chosen)), most
