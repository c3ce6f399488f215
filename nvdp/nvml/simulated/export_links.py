"""What connects the GPUs of a real node, as the keys of a node file: see ``export``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nvdp.model.inventory import Gpu, Inventory
from nvdp.model.topology import Ancestor, Connection
from nvdp.nvml.simulated.entries import ANCESTOR_WORDS


def build_fabric_links(gpu: Gpu, connections: Iterable[Connection]) -> dict[str, int]:
    """A card's NVLinks to switches: as many as with the card that has most of them in common with it."""
    count = max((one.fabric_links for one in connections if gpu.uuid in {one.a, one.b}), default=0)
    return {"nvswitchLinks": count} if count else {}


def build_conditions(gpus: Iterable[Gpu]) -> dict[str, Any]:
    """The places of cards in a fabric, as far as the driver tells them."""
    found = []
    for gpu in gpus:
        if gpu.clique:
            cluster, _, clique = gpu.clique.rpartition(".")
            found.append({"gpu": gpu.index, "fabric": {"cluster": cluster, "clique": int(clique)}})
        elif gpu.clique is None and gpu.fault is None:
            found.append({"gpu": gpu.index, "fabric": {"state": "NotStarted"}})
    return {"conditions": found} if found else {}


def build_links(inventory: Inventory) -> dict[str, Any]:
    """Direct NVLinks, and common ancestors where the NUMA nodes do not say them already."""
    gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
    nvlinks = [
        {"gpus": [gpus[one.a].index, gpus[one.b].index], "links": one.nvlinks}
        for one in inventory.connections
        if one.nvlinks
    ]
    found = {
        frozenset((gpus[one.a].index, gpus[one.b].index)): one.ancestor
        for one in inventory.connections
        if one.ancestor is not _guess_ancestor(gpus[one.a], gpus[one.b])
    }
    ancestors = {word: groups for word, ancestor in ANCESTOR_WORDS.items() if (groups := _group(found, ancestor))}
    return {key: value for key, value in (("nvlinks", nvlinks), ("ancestors", ancestors)) if value}


def _guess_ancestor(a: Gpu, b: Gpu) -> Ancestor:
    """What a simulated machine makes of the NUMA nodes."""
    return Ancestor.NODE if a.numa_node == b.numa_node else Ancestor.SYSTEM


def _group(found: Mapping[frozenset[int], Ancestor | None], ancestor: Ancestor | None) -> list[list[int]]:
    """Lists of cards of which each two have this ancestor, so that every two that have it are in one of them."""
    pairs = {pair for pair, each in found.items() if each is ancestor}
    groups: list[list[int]] = []
    for pair in sorted(map(sorted, pairs)):
        if any(set(pair) <= set(group) for group in groups):
            continue
        first, second = pair
        groups.append([first, second])
        for other in range(second + 1, max(map(max, pairs)) + 1):
            if all(frozenset((member, other)) in pairs for member in groups[-1]):
                groups[-1].append(other)
    return groups
