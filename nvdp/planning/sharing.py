"""Which sharing entry gets which device, in the order of the configuration contract ("How cards are given to entries").

Lists first, then counts, then ``all``; what nobody takes stays whole under its plain name. A count is turned into
devices when the configuration is applied and stays with them (``pin_counts``). A device is a GPU or a MIG device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from nvdp.model.names import ResourceName
from nvdp.planning.devices import Device, list_known
from nvdp.planning.entries import Entry
from nvdp.planning.pins import build_slot, list_devices, list_pinned

_ONE_WAY: Final = "one card can be shared in one way only"

Names = Mapping[str, ResourceName | None]
"""The plain name of each GPU that takes part, by UUID; None while it cannot be told."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why this node cannot honour an entry: the place in the file, and a sentence."""

    path: str
    text: str


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """``takers`` is the entry of each GPU that is in one, by UUID; ``problems`` are by the path of the entry.

    ``strays`` are sentences about GPUs that an entry lists and does not take, for they are of another resource.
    """

    takers: Mapping[str, Entry]
    problems: Mapping[str, Problem]
    strays: tuple[str, ...]


def claim(entries: Sequence[Entry], devices: Sequence[Device], names: Names, pins: Mapping[str, str]) -> Claims:
    """Give GPUs, in list order, to entries. Entries by count get the GPUs that are pinned for them, and no others."""
    listed = _claim_lists(entries, devices, names, pins)
    takers = dict(listed.takers)
    for entry in entries:
        if entry.setting.devices.count is not None:
            pinned = set(list_pinned(entry.identity, pins))
            takers |= {uuid: entry for uuid in _find_free(entry, devices, names, takers) if uuid in pinned}
    for entry in entries:
        if entry.setting.devices.is_all:
            takers |= dict.fromkeys(_find_free(entry, devices, names, takers), entry)
    return msgspec.structs.replace(listed, takers=takers)


def pin_counts(
    entries: Sequence[Entry],
    devices: Sequence[Device],
    names: Names,
    pins: Mapping[str, str],
    before: Mapping[str, str],
    *,
    absent: Collection[str],
    excluded: Collection[str],
    edited: bool,
) -> dict[str, str]:
    """The GPUs behind each ``devices: N``: those pinned ``before``, then the first that are left and not ``absent``.

    ``pins`` are those of references by index. A pinned GPU that is not on the node keeps its place, for its neighbour
    is no replacement. One that the file gives to another purpose, there or not, is replaced if that was ``edited``, and
    not otherwise, as when it comes back: this would move another GPU.
    """
    known = list_known(devices)
    takers = dict(_claim_lists(entries, devices, names, pins).takers)
    counts = [entry for entry in entries if entry.setting.devices.count is not None]
    named = _find_named(entries, pins)
    chosen: dict[str, list[str]] = {}
    for identity, (entry, pinned) in _recall(counts, before).items():
        away = {*takers, *excluded, *known.difference(names), *named[entry.setting.name]}
        away |= {uuid for uuid, name in names.items() if name not in {None, entry.setting.name}}
        chosen[identity] = [uuid for uuid in pinned if not edited or uuid not in away]
        takers |= dict.fromkeys(chosen[identity], entry)
    for entry in counts:
        assert entry.setting.devices.count is not None
        missing = entry.setting.devices.count - len(chosen[entry.identity])
        added = [uuid for uuid in _find_free(entry, devices, names, takers) if uuid not in absent][:missing]
        chosen[entry.identity] += added
        takers |= dict.fromkeys(added, entry)
    return {build_slot(identity, place): uuid for identity, uuids in chosen.items() for place, uuid in enumerate(uuids)}


def find_short(entry: Entry, devices: Sequence[Device], claims: Claims, pins: Mapping[str, str]) -> str | None:
    """A sentence about an entry by count that has fewer GPUs than it asks for."""
    count = entry.setting.devices.count
    taken = sum(taker is entry for taker in claims.takers.values())
    if count is None or taken >= count:
        return None
    known = list_known(devices)
    gone = [uuid for uuid in list_pinned(entry.identity, pins) if uuid not in known]
    text = f"{entry.path}.devices: {count} asked, {taken} of {entry.setting.name} here"
    if gone:
        are = "is" if len(gone) == 1 else "are"
        return (
            f"{text}; {', '.join(gone)} {are} not on this node any more and {are} not replaced by a neighbour, "
            "change the entry to choose another"
        )
    return f"{text} (fine if other nodes share this file)"


def _claim_lists(entries: Sequence[Entry], devices: Sequence[Device], names: Names, pins: Mapping[str, str]) -> Claims:
    """What entries take by their lists. A reference to a GPU in MIG mode means those of its MIG devices that are named
    as the entry says.
    """
    takers: dict[str, Entry] = {}
    problems: dict[str, Problem] = {}
    strays: list[str] = []
    for entry in entries:
        for reference in list_devices(entry):
            named = [one for one in devices if names.get(one.uuid) is not None and reference.matches(one, pins)]
            mine = [device for device in named if names[device.uuid] == entry.setting.name]
            for device in named[:1] if not mine else ():
                text = f"is {names[device.uuid]} here, not {entry.setting.name}; this entry leaves it alone"
                strays.append(f"{reference.path}: {reference.introduce(device)} {text}")
            if reference.is_mig and any(one.instance is None and reference.concerns(one, pins) for one in devices):
                text = "is a MIG device, and flags.migStrategy is none: its GPU is offered as one"
                strays.append(f"{reference.path}: {reference.ref} {text}")
            for device in mine:
                other = takers.setdefault(device.uuid, entry)
                if other is not entry:
                    text = f"is already shared by {other.path} (line {other.setting.line}); {_ONE_WAY}"
                    problem = Problem(path=reference.path, text=f"{reference.introduce(device)} {text}")
                    problems.setdefault(entry.path, problem)
    return Claims(takers=takers, problems=problems, strays=tuple(strays))


def _find_named(entries: Sequence[Entry], pins: Mapping[str, str]) -> dict[ResourceName, set[str]]:
    """By resource the devices, there or not, that are in lists of its entries. A slot does not tell its GPU."""
    named: dict[ResourceName, set[str]] = {entry.setting.name: set() for entry in entries}
    for entry in entries:
        for reference in list_devices(entry):
            uuid = reference.find_uuid(pins)
            if uuid is not None:
                named[entry.setting.name].add(uuid)
    return named


def _find_free(entry: Entry, devices: Sequence[Device], names: Names, takers: Mapping[str, Entry]) -> list[str]:
    return [
        device.uuid for device in devices if device.uuid not in takers and names.get(device.uuid) == entry.setting.name
    ]


def _recall(counts: Sequence[Entry], before: Mapping[str, str]) -> dict[str, tuple[Entry, list[str]]]:
    """What was pinned for each entry. One of which only the replicas were edited goes on with what it had."""
    found = {entry.identity: (entry, list_pinned(entry.identity, before)) for entry in counts}
    left = sorted({key.rpartition("[")[0] for key in before} - found.keys())
    for entry in counts:
        heirloom = next((identity for identity in left if identity.startswith(entry.kin)), None)
        if heirloom is not None and not found[entry.identity][1]:
            left.remove(heirloom)
            found[entry.identity] = entry, list_pinned(heirloom, before)
    return found
