"""The kubelet's topology manager for devices: hints by NUMA mask, their merge, and what each policy admits. Pure.

Source: the kubelet contract, A.8. A mask is a frozen set of NUMA nodes; None stands for "any".
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
WITHOUT_NODE = -1


class Hint(NamedTuple):
    """A set of NUMA nodes that could serve a request; ``preferred`` if no smaller one ever could."""

    nodes: frozenset[int] | None
    preferred: bool


class Alignment(NamedTuple):
    """Free devices by how well they fit a hint, each in the order in which the kubelet would take them."""

    aligned: tuple[str, ...]
    unaligned: tuple[str, ...]
    without_node: tuple[str, ...]


def build_hints(
    listed: Mapping[str, Collection[int]],
    *,
    usable: Collection[str],
    reusable: Collection[str],
    requested: int,
    numa_nodes: Sequence[int],
) -> list[Hint]:
    """Every mask that can serve ``requested`` devices out of ``usable`` and ``reusable``.

    Whether a mask is preferred counts all listed devices, taken and unhealthy ones too: that is why a node with an
    unhealthy GPU may refuse pods under ``restricted``.
    """
    smallest = len(numa_nodes)
    masks: list[frozenset[int]] = []
    for size in range(1, len(numa_nodes) + 1):
        for chosen in itertools.combinations(numa_nodes, size):
            mask = frozenset(chosen)
            if size < smallest and sum(not mask.isdisjoint(nodes) for nodes in listed.values()) >= requested:
                smallest = size
            if any(listed[device] and mask.isdisjoint(listed[device]) for device in reusable):
                continue
            fitting = sum(not mask.isdisjoint(listed[device]) for device in {*usable, *reusable})
            if fitting >= requested:
                masks.append(mask)
    return [Hint(mask, len(mask) == smallest) for mask in masks]


def merge_hints(per_resource: Sequence[Sequence[Hint] | None], *, policy: str, numa_nodes: Sequence[int]) -> Hint:
    """The best common hint of a container's resources. None is a resource that does not mind."""
    everywhere = frozenset(numa_nodes)
    choices: list[Sequence[Hint]] = [
        [Hint(None, True)] if hints is None else (hints or [Hint(None, False)])  # noqa: FBT003 - a hint's own words
        for hints in per_resource
    ]
    if policy == "single-numa-node":
        choices = [
            [hint for hint in hints if hint.nodes is None or (hint.preferred and len(hint.nodes) == 1)]
            for hints in choices
        ]
    best = Hint(everywhere, preferred=False)
    for combination in itertools.product(*choices):
        masks = [everywhere if hint.nodes is None else hint.nodes for hint in combination]
        merged = frozenset.intersection(everywhere, *masks)
        if not merged:
            continue
        same = len({hint.nodes for hint in combination if hint.nodes is not None}) <= 1
        hint = Hint(merged, same and all(hint.preferred for hint in combination))
        if (hint.preferred, -len(merged)) > (best.preferred, -len(best.nodes or everywhere)):
            best = hint
    return best


def is_admitted(hint: Hint, *, policy: str) -> bool:
    """Whether ``policy`` lets a container with this hint in."""
    return policy in {"none", "best-effort"} or hint.preferred


def align(
    listed: Mapping[str, Collection[int]], available: Collection[str], affinity: frozenset[int] | None
) -> Alignment:
    """Sort free devices by the hint; without one, or if no device has a node, all are ``without_node``."""
    if affinity is None or not any(listed.values()):
        return Alignment((), (), tuple(available))
    by_fit: dict[str, list[str]] = {"aligned": [], "unaligned": [], "without": []}
    for device in available:
        nodes = listed[device]
        fit = "without" if not nodes else "unaligned" if affinity.isdisjoint(nodes) else "aligned"
        by_fit[fit].append(device)
    return Alignment(tuple(by_fit["aligned"]), tuple(by_fit["unaligned"]), tuple(by_fit["without"]))
