"""How much it is worth to give a container two GPUs together: points, from what connects them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from nvdp.model.inventory import Gpu
from nvdp.model.topology import Ancestor, Connection, Weights

# Both tables are NVIDIA's plugin's, so that the same machine has the same best sets (nvidia-plugin specification 4.2).
_ANCESTOR_POINTS: Final[Mapping[Ancestor, int]] = {
    Ancestor.SYSTEM: 10,
    Ancestor.NODE: 20,
    Ancestor.HOSTBRIDGE: 30,
    Ancestor.MULTIPLE: 40,
    Ancestor.SINGLE: 50,
    Ancestor.INTERNAL: 60,
}
_NVLINK_POINTS: Final = 100


def build_weights(gpus: Sequence[Gpu], connections: Iterable[Connection]) -> Weights:
    """The points of each two of ``gpus``, in their order.

    Where NVML does not tell the common ancestor, GPUs of one NUMA node count as being on one processor, and all others
    as far apart as GPUs of one machine can be.
    """
    known = {frozenset((one.a, one.b)): one for one in connections}
    return tuple(
        tuple(0 if a is b else _weigh(a, b, known.get(frozenset((a.uuid, b.uuid)))) for b in gpus) for a in gpus
    )


def _weigh(a: Gpu, b: Gpu, connection: Connection | None) -> int:
    ancestor = connection.ancestor if connection is not None else None
    if ancestor is None:
        is_near = a.numa_node is not None and a.numa_node == b.numa_node
        ancestor = Ancestor.NODE if is_near else Ancestor.SYSTEM
    nvlinks = connection.nvlinks + connection.fabric_links if connection is not None else 0
    return _ANCESTOR_POINTS[ancestor] + _NVLINK_POINTS * nvlinks


def sum_pairs(weights: Weights, places: Sequence[int]) -> int:
    """The points of a set of GPUs: those of all pairs in it."""
    return sum(weights[a][b] for number, a in enumerate(places) for b in places[number + 1 :])
