"""By which NVML index pods know the GPUs that they hold, and which GPUs take no new pods for it: pure rules.

With ``deviceIDStrategy: index`` a container is told "3". The kubelet keeps that answer and gives it to the container
again at each of its restarts, after a reboot too (kubelet contract, "Allocate"). Once NVML counts another GPU as 3, the
pod that restarts gets that one. So two GPUs take no new pods until such a pod is gone: the one that the kubelet counts
as its own, and the one that it would get. Its own work is left alone, and so is every other GPU. The same goes for MIG
devices and their indices, as "3:1".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from nvdp.model.health import Ailment
from nvdp.model.held import Held, Holding
from nvdp.model.listing import AllocateTrace, DeviceIDStrategy
from nvdp.model.reasons import Cause
from nvdp.planning.devices import Device
from nvdp.planning.handed_out import Trail, follow_handed_out
from nvdp.planning.ledger import Given, uuid_of_id
from nvdp.planning.withdrawal import QUIET_S, Verdict, Waiting

BY_UUID = ""
"""Stands for the index where a pod knows its GPU by UUID: no renumbering concerns it."""

_MAX_NAMED = 5  # pods in one sentence
_UNSEEN_POD = "a pod that has just been admitted"
_IN_FLIGHT_S = 1.0  # how often to look whether an Allocate is over


class HandedOut(msgspec.Struct, frozen=True):
    """The index under which one ID was handed out, and ``at`` which monotonic second: then, or at the latest then."""

    index: str
    at: float


Indices: TypeAlias = Mapping[str, Mapping[str, HandedOut]]
"""By resource and ID. While GPUs are handed out by UUID there is nothing in it but what was handed out before."""


class Renumbered(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU that takes no new pods: a sentence, and the pods that it waits for (``namespace/pod``, where known)."""

    text: str
    pods: tuple[str, ...] = ()


class Numbering(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of indices, the GPUs that take no new pods for it, by UUID, and what these wait for."""

    indices: Indices
    renumbered: Mapping[str, Renumbered]
    waits: tuple[Verdict, ...]


class _Claim(msgspec.Struct, frozen=True):
    """A pod that knows ``gpu_uuid`` by an index that it has no more. ``pod`` is empty while it cannot be seen yet."""

    pod: str
    gpu_uuid: str
    index: str


def restore_indices(kept: Mapping[str, Mapping[str, str]], *, now: float) -> Indices:
    """What a predecessor handed out (``keep_indices``), perhaps as late as now."""
    return {
        resource: {device_id: HandedOut(index, now) for device_id, index in ids.items()}
        for resource, ids in kept.items()
    }


def keep_indices(indices: Indices) -> dict[str, dict[str, str]]:
    """What must outlive the process."""
    return {resource: {device_id: one.index for device_id, one in ids.items()} for resource, ids in indices.items()}


def judge_indices(
    before: Indices,
    *,
    strategy: DeviceIDStrategy,
    devices: Iterable[Device],
    ailments: Mapping[str, Ailment],
    given: Mapping[str, Given],
    waiting: Waiting,
) -> Numbering:
    """Both rules at once, for one plan: ``follow_indices``, and ``find_renumbered`` by the indices of now."""
    listed = tuple(devices)
    newest = {device.gpu.uuid: str(device.gpu.index) for device in listed} | {one.uuid: one.index for one in listed}
    indices = follow_indices(
        before, strategy=strategy, given=given, holders=waiting.holders, held=waiting.held, places=newest
    )
    if not indices:
        return Numbering(indices={}, renumbered={}, waits=())
    gone = {uuid for uuid, ailment in ailments.items() if ailment.cause is Cause.VANISHED}
    places = {uuid: index for uuid, index in newest.items() if uuid not in gone}  # theirs may be another's now
    found = find_renumbered(indices, holders=waiting.holders, places=places)
    renumbered = {
        one.uuid: found.get(one.uuid) or found[one.gpu.uuid]
        for one in listed
        if {one.uuid, one.gpu.uuid} & found.keys()
    }
    waits = []
    for resource, device_id in _find_misled(indices, places) if renumbered else ():
        record = given.get(resource)
        trace = record.allocations.get(device_id) if record is not None else None
        holder = waiting.find_holder(resource, device_id)
        waits.append(_find_release(indices[resource][device_id], trace, holder, now=waiting.now))
    return Numbering(indices=indices, renumbered=renumbered, waits=tuple(waits))


def follow_indices(
    before: Indices,
    *,
    strategy: DeviceIDStrategy,
    given: Mapping[str, Given],
    holders: Mapping[str, Mapping[str, Holding]],
    held: Held,
    places: Mapping[str, str],
) -> Indices:
    """The indices by which pods know what they hold now. ``places`` are the newest known, by UUID.

    An Allocate of the last minute tells the index itself, and what was known ``before`` stands. A pod of which nothing
    is known, under ``index``, is taken to know its GPU by the index that it has when the pod is first seen, unless the
    list that has been in force until now hands out UUIDs. What nobody holds is forgotten, by an answer about holders
    that was requested 2 s after it was handed out.
    """
    by_index = strategy is DeviceIDStrategy.INDEX

    def judge(trail: Trail[HandedOut]) -> tuple[HandedOut, float] | None:
        one = trail.before
        if trail.trace.answered_at is not None:
            one = HandedOut(trail.trace.index, trail.trace.answered_at)
        elif one is None and trail.is_held:
            one = _guess(trail.record, places.get(uuid_of_id(trail.device_id)), seen_at=trail.seen_at)
        return None if one is None or (one.index == BY_UUID and not by_index) else (one, one.at)

    return follow_handed_out(
        before,
        is_used=lambda _: by_index,
        tells=lambda trace: bool(trace.index),
        judge=judge,
        given=given,
        holders=holders,
        held=held,
    )


def find_renumbered(
    indices: Indices, *, holders: Mapping[str, Mapping[str, Holding]], places: Mapping[str, str]
) -> dict[str, Renumbered]:
    """The GPUs that take no new pods, by UUID. ``places`` are the indices of those that NVML counts now, by UUID."""
    by_place: dict[str, list[str]] = {}
    for uuid, place in places.items():
        by_place.setdefault(place, []).append(uuid)
    moved: dict[str, list[_Claim]] = {}
    taken: dict[str, list[_Claim]] = {}
    for resource, device_id in _find_misled(indices, places):
        holding = holders.get(resource, {}).get(device_id)
        index, gpu_uuid = indices[resource][device_id].index, uuid_of_id(device_id)
        claim = _Claim(holding.holder if holding is not None else "", gpu_uuid, index)
        if gpu_uuid in places:
            moved.setdefault(gpu_uuid, []).append(claim)
        for uuid in by_place.get(index, ()):
            taken.setdefault(uuid, []).append(claim)
    return {
        uuid: Renumbered(
            text="; ".join([*_tell_moved(places[uuid], moved.get(uuid, ())), *_tell_taken(taken.get(uuid, ()))]),
            pods=tuple(sorted({one.pod for one in (*moved.get(uuid, ()), *taken.get(uuid, ())) if one.pod})),
        )
        for uuid in sorted(moved.keys() | taken.keys())
    }


def _find_misled(indices: Indices, places: Mapping[str, str]) -> list[tuple[str, str]]:
    """Resource and ID of what is known by an index that its GPU has no more, if it is there at all."""
    return [
        (resource, device_id)
        for resource, ids in indices.items()
        for device_id, one in ids.items()
        if one.index != BY_UUID and one.index != places.get(uuid_of_id(device_id))
    ]


def _find_release(one: HandedOut, trace: AllocateTrace | None, holder: str, *, now: float) -> Verdict:
    """What may let go of GPUs that wait for ``one``: the end of its pod, or an answer that shows no such pod."""
    if holder:
        return Verdict(allowed=False, holder=holder)
    if trace is not None and trace.in_flight:
        return Verdict(allowed=False, at=now + _IN_FLIGHT_S)
    quiet_at = one.at + QUIET_S
    return Verdict(allowed=False, at=quiet_at) if now < quiet_at else Verdict(allowed=False, ask_since=quiet_at)


def _guess(record: Given | None, place: str | None, *, seen_at: float) -> HandedOut | None:
    """Of a holder whose Allocate nobody remembers. A list of version 0 is a predecessor's, whose facts are lost."""
    if record is not None and record.version and record.listed.facts.device_id_strategy is DeviceIDStrategy.UUID:
        return HandedOut(BY_UUID, seen_at)
    return HandedOut(place, seen_at) if place is not None else None


def _tell_moved(place: str, claims: Iterable[_Claim]) -> Iterable[str]:
    for index, pods in _group(claims).items():
        yield f"held by {pods} as index {index}, and it is {place} now"


def _tell_taken(claims: Iterable[_Claim]) -> Iterable[str]:
    by_gpu: dict[str, list[_Claim]] = {}
    for claim in claims:
        by_gpu.setdefault(claim.gpu_uuid, []).append(claim)
    for uuid, some in by_gpu.items():
        for index, pods in _group(some).items():
            what = "MIG device" if ":" in index else "GPU"
            yield f"{uuid} is held by {pods} as index {index}, which is this {what} now"


def _group(claims: Iterable[_Claim]) -> dict[str, str]:
    """The pods of each index, the first few by name."""
    pods: dict[str, set[str]] = {}
    for claim in claims:
        pods.setdefault(claim.index, set()).add(claim.pod or _UNSEEN_POD)
    return {index: _some(sorted(names)) for index, names in sorted(pods.items())}


def _some(names: list[str]) -> str:
    rest = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
