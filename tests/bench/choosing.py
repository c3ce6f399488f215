"""How long it takes to choose GPUs by what connects them, beside trying all ways to part them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from nvdp.model.topology import Weights
from nvdp.planning.aligned import choose_aligned
from nvdp.planning.aligned_table import Table
from nvdp.planning.weights import sum_pairs
from tests.bench.figures import Figure, build_figure
from tests.bench.partitions import choose_by_partitions
from tests.bench.scale import Scale
from tests.planning.machines import cube_mesh, pairs

GROUP = "choice of GPUs"
_FEW, _MANY = 8, 16
_PARTED = 8  # of 16 GPUs: 6,435 ways; of four there would be 2,627,625
_PREPARE_UNDER_S, _CHOOSE_UNDER_S = 0.05, 0.005


def measure_choosing(scale: Scale) -> Iterator[Figure]:
    """In this process. Of many GPUs all are free, as few of them as there may be and as many."""
    few, many = cube_mesh(), pairs(_MANY)
    _check(few)
    ours, theirs = [], []
    for size in [*range(1, _FEW)] * scale.choices:
        ours.append(_time(lambda size=size: choose_aligned(few, available=range(_FEW), required=(), size=size)))
        theirs.append(_time(lambda size=size: _part(few, size)))
    yield _build("choose_8", f"choose 1 to {_FEW - 1} of {_FEW} GPUs", ours)
    yield _build("choose_8_partitions", "  the same, by all partitions", theirs)
    prepared = [_time(lambda: Table(many)) for _ in range(scale.choices)]
    yield _build("prepare_16", f"prepare {_MANY} GPUs, once", prepared, under=_PREPARE_UNDER_S)
    choose_aligned(many, available=range(_MANY), required=(), size=1)
    ours = [
        _time(lambda size=size: choose_aligned(many, available=range(_MANY), required=(), size=size))
        for size in [*range(1, _MANY)] * scale.choices
    ]
    yield _build("choose_16", f"choose 1 to {_MANY - 1} of {_MANY} GPUs", ours, under=_CHOOSE_UNDER_S)
    theirs = [_time(lambda: _part(many, _PARTED)) for _ in range(scale.choices)]
    yield _build("choose_16_partitions", f"  {_PARTED} of {_MANY}, by all partitions", theirs)


def _part(weights: Weights, size: int) -> tuple[int, ...]:
    return choose_by_partitions(weights, available=range(len(weights)), required=(), size=size)


def _check(weights: Weights) -> None:
    """What is compared must be right, too: no partition has a better group than our set."""
    for size in range(1, len(weights)):
        best = choose_aligned(weights, available=range(len(weights)), required=(), size=size)
        assert sum_pairs(weights, _part(weights, size)) <= best.score


def _time(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _build(key: str, text: str, seconds: list[float], *, under: float | None = None) -> Figure:
    return build_figure(key, text, seconds, group=GROUP, unit="s", under=under)
