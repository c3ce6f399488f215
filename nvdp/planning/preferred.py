"""Which of the free devices a container should get: the answer to GetPreferredAllocation.

A pure function of the request, of the list last sent and of what pods hold beyond it. Whole GPUs are chosen by what
connects them (``planning/aligned``); replicas as ``allocation.sharedPolicy`` says, and whole MIG devices as it says of
their GPUs: packed fills one GPU, so that others stay free to be cut otherwise or given out whole, the others use all of
them. Several shares by MPS must be of one GPU, for a process works on one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nvdp.model.listing import AllocationFacts, ResourceList, SharedPolicy
from nvdp.planning.aligned import choose_aligned


@dataclass(slots=True)
class _Gpu:
    """One GPU while a request is answered. ``candidates`` are its free IDs, from the lowest replica number up.

    ``held`` counts the IDs in use besides this request, ``held_elsewhere`` those of them that are not Healthy here;
    ``picked`` counts this request's own, those that must be included among them.
    """

    order: int
    candidates: list[str]
    held: int
    held_elsewhere: int
    picked: int = 0
    taken: int = 0

    def take(self) -> str:
        taken = self.candidates[self.taken]
        self.taken += 1
        self.picked += 1
        return taken

    @property
    def free(self) -> int:
        return len(self.candidates) - self.taken


_Rank: TypeAlias = tuple[int, int, int]


def _rank_distributed(gpu: _Gpu) -> _Rank:
    return gpu.held + gpu.picked, gpu.picked, gpu.order


def _rank_packed(gpu: _Gpu) -> _Rank:
    return -gpu.held - gpu.picked, gpu.picked, gpu.order


def _rank_spread(gpu: _Gpu) -> _Rank:
    # A container that asks for several gets several GPUs; among those the one with the most free shares comes first.
    return gpu.picked, gpu.held_elsewhere - gpu.free, gpu.order


_RANK_OF_POLICY: Mapping[SharedPolicy, Callable[[_Gpu], _Rank]] = {
    SharedPolicy.DISTRIBUTED: _rank_distributed,
    SharedPolicy.PACKED: _rank_packed,
    SharedPolicy.SPREAD: _rank_spread,
}


def choose_preferred(
    listed: ResourceList,
    *,
    held_elsewhere: Mapping[str, int],
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
) -> tuple[str, ...]:
    """``size`` different IDs of ``available``, ``must_include`` among them (first); empty if that cannot be had.

    A GPU is in use by its Healthy IDs that are not ``available``, and by ``held_elsewhere`` (GPU UUID to number of IDs
    that pods hold and that are Unhealthy here or belong to another resource). Ties go to the GPU picked least in this
    call, then to the first of the list; within a GPU to the lowest replica number. Whole GPUs are chosen together, by
    the ``weights`` of the list's facts, and come in list order; without weights it is the first ones. IDs that the list
    calls Unhealthy are only given if they must be. The order of ``available`` and ``must_include`` does not matter.
    Where the file asks for different GPUs, none is given twice; where it allows several shares by MPS, all are of one.

    Impossible requests get an empty answer, with which the kubelet chooses by itself: an error would reject the pod
    (kubelet contract A.7, requirement 38).
    """
    free = set(available)
    required = set(must_include)
    possible = size > 0 and required <= free and len(required) <= size <= len(free)
    if not possible or not listed.by_id.keys() >= free:
        return ()

    picks = sorted(required, key=lambda text: (len(text), text))
    gpus = _weigh(listed, held_elsewhere=held_elsewhere, free=free, required=required)
    if listed.facts.distinct_gpus_key:
        for gpu in gpus.values():
            del gpu.candidates[0 if gpu.picked else 1 :]
    if size - len(picks) > sum(gpu.free for gpu in gpus.values()):
        return ()

    facts = listed.facts
    if facts.is_unshared:
        if parents := _find_parents(listed):
            return (*picks, *_choose_parts(gpus, parents, held_elsewhere, facts.shared_policy, size - len(picks)))
        return (*picks, *_choose_whole(gpus, facts, required, size - len(picks)))
    rank = _RANK_OF_POLICY[facts.shared_policy]
    if facts.mps is not None and facts.mps.one_gpu_key:
        return _choose_one(gpus.values(), rank, picks, size)
    queue = [(rank(gpu), gpu) for gpu in gpus.values() if gpu.free]
    heapq.heapify(queue)
    while len(picks) < size:
        _, best = queue[0]
        picks.append(best.take())
        if best.free:
            heapq.heapreplace(queue, (rank(best), best))
        else:
            heapq.heappop(queue)
    return tuple(picks)


def _choose_one(gpus: Iterable[_Gpu], rank: Callable[[_Gpu], _Rank], picks: list[str], size: int) -> tuple[str, ...]:
    """All of one GPU, the one of ``picks`` if there are any: the first by rank that has enough of them; else none."""
    mine = [gpu for gpu in gpus if gpu.picked] if picks else list(gpus)
    able = [gpu for gpu in mine if gpu.picked == len(picks) and gpu.free >= size - len(picks)]
    if not able:
        return ()
    best = min(able, key=rank)
    return (*picks, *(best.take() for _ in range(size - len(picks))))


def _weigh(
    listed: ResourceList, *, held_elsewhere: Mapping[str, int], free: set[str], required: set[str]
) -> dict[str, _Gpu]:
    gpus: dict[str, _Gpu] = {}
    for order, (uuid, healthy) in enumerate(listed.healthy_by_gpu.items()):
        available = [text for text in healthy if text in free]
        elsewhere = held_elsewhere.get(uuid, 0)
        gpus[uuid] = _Gpu(
            order=order,
            candidates=[text for text in available if text not in required] if required else available,
            held=len(healthy) - len(available) + elsewhere,
            held_elsewhere=elsewhere,
        )
    for text in required:
        gpus[listed.by_id[text].gpu_uuid].picked += 1
    return gpus


def _choose_whole(gpus: Mapping[str, _Gpu], facts: AllocationFacts, required: set[str], count: int) -> list[str]:
    """``count`` free GPUs, unshared, that go best with the required ones and with each other."""
    free = [text for gpu in gpus.values() for text in gpu.candidates]
    places = {gpu.uuid: place for place, gpu in enumerate(facts.gpus)} if facts.weights else {}
    if count in {0, len(free)} or not places.keys() >= set(free):
        return free[:count]
    # One that must be included may be on its way out: then it is not known what it is connected with.
    fixed = [places[uuid] for uuid in required if uuid in places]
    choice = choose_aligned(
        facts.weights,
        available=[*fixed, *(places[uuid] for uuid in free)],
        required=fixed,
        size=count + len(fixed),
    )
    chosen = {facts.gpus[place].uuid for place in choice.places}
    return [uuid for uuid in free if uuid in chosen]


def _find_parents(listed: ResourceList) -> dict[str, str]:
    """The GPU of each MIG device."""
    return {gpu.uuid: gpu.parent_uuid for gpu in listed.facts.gpus if gpu.parent_uuid}


def _choose_parts(
    devices: Mapping[str, _Gpu],
    parents: Mapping[str, str],
    held_elsewhere: Mapping[str, int],
    policy: SharedPolicy,
    count: int,
) -> list[str]:
    """``count`` free MIG devices, unshared: each the next one of the GPU that comes first by now.

    A GPU is in use by its MIG devices that are not free, whatever resource they are of.
    """
    gpus: dict[str, _Gpu] = {}
    for uuid, device in devices.items():
        parent = parents.get(uuid, uuid)
        elsewhere = held_elsewhere.get(parent, 0)
        gpu = gpus.setdefault(parent, _Gpu(order=len(gpus), candidates=[], held=elsewhere, held_elsewhere=elsewhere))
        gpu.candidates += device.candidates
        gpu.held += device.held - device.held_elsewhere
        gpu.picked += device.picked
    rank = _RANK_OF_POLICY[policy]
    picks: list[str] = []
    while len(picks) < count:
        best = min((gpu for gpu in gpus.values() if gpu.free), key=rank)
        picks.append(best.take())
    return picks
