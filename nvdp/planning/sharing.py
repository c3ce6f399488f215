"""Which sharing entry gets which GPU, in the order of the configuration contract ("How cards are given to entries").

Lists first, then counts, then ``all``; what nobody takes stays whole under its plain name. A count is turned into GPUs
when the configuration is applied and stays with them (``pin_counts``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from nvdp.model.inventory import Gpu
from nvdp.model.names import ResourceName
from nvdp.planning.entries import Entry
from nvdp.planning.pins import Reference, refer

Names = Mapping[str, ResourceName]
"""The plain name of each GPU that takes part, by UUID."""

_CARD: Final = "one card can be shared in one way only"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why this node cannot honour an entry: the place in the file, and a sentence."""

    path: str
    text: str


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """``takers`` is the entry of each GPU that is in one, by UUID; ``problems`` are by the path of the entry."""

    takers: Mapping[str, Entry]
    problems: Mapping[str, Problem]


def claim(entries: Sequence[Entry], gpus: Sequence[Gpu], names: Names, pins: Mapping[str, str]) -> Claims:
    """Give GPUs, in list order, to entries. Entries by count get the GPUs that are pinned for them, and no others."""
    takers, problems = _claim_lists(entries, gpus, names, pins)
    for entry in entries:
        if entry.setting.devices.count is not None:
            pinned = set(_pinned(entry, pins))
            takers |= {uuid: entry for uuid in _find_free(entry, gpus, names, takers) if uuid in pinned}
    for entry in entries:
        if entry.setting.devices.is_all:
            takers |= dict.fromkeys(_find_free(entry, gpus, names, takers), entry)
    return Claims(takers=takers, problems=problems)


def pin_counts(
    entries: Sequence[Entry], gpus: Sequence[Gpu], names: Names, pins: Mapping[str, str], before: Mapping[str, str]
) -> dict[str, str]:
    """The GPUs behind each ``devices: N``, by slot: those pinned ``before``, then the first that are left.

    ``pins`` are those of references by index. A pinned GPU that is not on the node keeps its slot, for its neighbour is
    no replacement; one that the file itself gives to another purpose leaves it.
    """
    known = {gpu.uuid for gpu in gpus}
    takers, _ = _claim_lists(entries, gpus, names, pins)
    counts = [entry for entry in entries if entry.setting.devices.count is not None]
    kept: dict[str, dict[int, str]] = {}
    for entry in counts:
        free = set(_find_free(entry, gpus, names, takers))
        slots = {slot: before.get(_key(entry, slot), "") for slot in range(entry.setting.devices.count or 0)}
        kept[entry.identity] = {
            slot: uuid for slot, uuid in slots.items() if uuid and (uuid in free or uuid not in known)
        }
        takers |= dict.fromkeys(kept[entry.identity].values(), entry)
    found = {}
    for entry in counts:
        slots = kept[entry.identity]
        free_in_order = iter(_find_free(entry, gpus, names, takers))
        for slot in range(entry.setting.devices.count or 0):
            uuid = slots.get(slot) or next(free_in_order, None)
            if uuid is not None:
                takers[uuid] = entry
                found[_key(entry, slot)] = uuid
    return found


def find_short(entry: Entry, claims: Claims, pins: Mapping[str, str]) -> str | None:
    """A sentence about an entry by count that has fewer GPUs than it asks for."""
    count = entry.setting.devices.count
    taken = {uuid for uuid, taker in claims.takers.items() if taker is entry}
    if count is None or len(taken) >= count:
        return None
    gone = [uuid for uuid in _pinned(entry, pins) if uuid not in taken]
    text = f"{entry.path}.devices: {count} asked, {len(taken)} of {entry.setting.name} here"
    if gone:
        return f"{text}; {', '.join(gone)} is not on this node any more and not replaced by a neighbour"
    return f"{text} (fine if other nodes share this file)"


def list_devices(entry: Entry) -> tuple[Reference, ...]:
    """The references of an entry with a list."""
    return tuple(refer(f"{entry.path}.devices", entry.setting.devices.refs, of=entry.identity))


def _claim_lists(
    entries: Sequence[Entry], gpus: Sequence[Gpu], names: Names, pins: Mapping[str, str]
) -> tuple[dict[str, Entry], dict[str, Problem]]:
    takers: dict[str, Entry] = {}
    problems: dict[str, Problem] = {}
    taking = [gpu for gpu in gpus if gpu.uuid in names]
    for entry in entries:
        for reference in list_devices(entry):
            for gpu in taking:
                if not reference.matches(gpu, pins):
                    continue
                other = takers.setdefault(gpu.uuid, entry)
                text = _object(entry, reference, gpu, other=other, name=names[gpu.uuid])
                if text is not None:
                    problems.setdefault(entry.path, Problem(path=reference.path, text=text))
    return takers, problems


def _object(entry: Entry, reference: Reference, gpu: Gpu, *, other: Entry, name: ResourceName) -> str | None:
    if other is not entry:
        named = str(reference.ref) if str(reference.ref) == gpu.uuid else f"{reference.ref} is {gpu.uuid}, which"
        return f"{named} is already shared by {other.path} (line {other.setting.line}); {_CARD}"
    if name != entry.setting.name and not reference.is_mig:
        return f"{reference.ref} is {gpu.uuid}, which is {name} here, not {entry.setting.name}"
    return None


def _find_free(entry: Entry, gpus: Sequence[Gpu], names: Names, takers: Mapping[str, Entry]) -> list[str]:
    return [gpu.uuid for gpu in gpus if gpu.uuid not in takers and names.get(gpu.uuid) == entry.setting.name]


def _key(entry: Entry, slot: int) -> str:
    return f"{entry.identity}={entry.setting.devices.count}[{slot}]"


def _pinned(entry: Entry, pins: Mapping[str, str]) -> list[str]:
    slots = range(entry.setting.devices.count or 0)
    return [pins[key] for slot in slots if (key := _key(entry, slot)) in pins]
