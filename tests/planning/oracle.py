"""What a file says of each card, read from its text by the configuration contract alone: no code of ours is asked.

The contract's five rules ("How cards are given to entries") in its own words, and its word on indices and counts: they
mean the cards that they meant when the file was applied, until the entry changes. Where the contract leaves open what
that implies, this is the reading, here as in nvdp:

- An entry is the same over an edit for as long as its block, its name, what that becomes, and its count are.
- An index that no card had may mean one that comes later, but none that has had its place on the node until then.
- A card that nobody finds is not counted anew, nor one that may turn out to be cut; and one that a list names and that
  is of another resource is left alone.

MPS is a form of its own, under whatever name. With ``migStrategy: mixed`` the MIG devices of a card are cards of their
own, each under the name of its profile, and a reference to the card means all of them. Without, a card is one, and is
kept back with any of its MIG devices.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nvdp.model.inventory import Gpu, MigInstance, MigMode

_PLACE = re.compile(r"[0-9]{1,4}(?::[0-9]{1,4})?")
List = tuple[object, Sequence[str]]
"""What the pins of a list are kept under, and its references."""


@dataclasses.dataclass(frozen=True)
class Said:
    """A card is to be on offer under ``resource``, whole or in so many pieces, and perhaps by MPS."""

    resource: str
    replicas: int = 1
    mps: bool = False

    @property
    def form(self) -> tuple[str, bool, bool]:
        return self.resource, self.replicas > 1, self.mps


@dataclasses.dataclass(frozen=True)
class Entry:
    """One entry of ``sharing``."""

    block: str
    name: str
    final: str
    replicas: int
    listed: tuple[str, ...]
    count: int

    @property
    def key(self) -> tuple[object, ...]:
        return self.block, self.name, self.final

    @property
    def slots(self) -> list[tuple[object, ...]]:
        return [(*self.key, self.count, slot) for slot in range(self.count)]


@dataclasses.dataclass(frozen=True)
class Unit:
    """What can be on offer: a card, or one of its MIG devices."""

    gpu: Gpu
    part: MigInstance | None = None

    @property
    def uuid(self) -> str:
        return self.gpu.uuid if self.part is None else self.part.uuid

    @property
    def parts(self) -> list[MigInstance]:
        """The MIG devices with which it comes and goes."""
        return [self.part] if self.part is not None else _list_parts(self.gpu)


def _list_parts(gpu: Gpu) -> list[MigInstance]:
    return list(gpu.instances or ()) if gpu.mig is MigMode.ENABLED else []


def _list_units(gpu: Gpu, strategy: str) -> list[Unit]:
    if strategy == "none" or gpu.mig is not MigMode.ENABLED:
        return [Unit(gpu)]
    numbered = sorted(_list_parts(gpu), key=lambda part: part.gpu_instance or 0)
    return [Unit(gpu, part) for part in numbered]


@functools.lru_cache(maxsize=4096)
def read_text(text: str) -> tuple[Mapping[str, Any], tuple[Entry, ...]]:
    """The file as it stands, and its entries in the order in which they take cards."""
    file = json.loads(text)
    found = []
    for block in ("timeSlicing", "mps"):
        content = file.get("sharing", {}).get(block, {"resources": []})
        for entry in content["resources"]:
            by_default = content.get("renameByDefault", False) and entry["replicas"] >= 2
            final = entry.get("rename") or entry["name"] + (".shared" if by_default else "")
            devices = entry.get("devices", "all")
            listed = tuple(str(ref) for ref in devices) if isinstance(devices, list) else ()
            count = devices if isinstance(devices, int) else 0
            found.append(Entry(block, entry["name"], final, entry["replicas"], listed, count))
    return file, tuple(found)


class Oracle:
    """Follows one node from file to file. What it found last is in its attributes, by UUID."""

    def __init__(self) -> None:
        self.said: dict[str, Said] = {}
        self.excluded: set[str] = set()
        self.cordoned: set[str] = set()
        self._text = ""
        self._indices: dict[object, str] = {}
        self._slots: dict[object, str] = {}
        self._settled: dict[object, set[str]] = {}  # by index that no card had: the cards that it cannot mean

    def forget(self) -> None:
        """The pins were lost with the directory they were kept in."""
        self._text, self._indices, self._slots, self._settled = "", {}, {}, {}

    def look(self, text: str, gpus: Sequence[Gpu], *, gone: Collection[str]) -> None:
        """A file is applied, or the cards of the node are others. Nobody finds those that are ``gone``."""
        file, entries = read_text(text)
        is_edited, self._text = text != self._text, text
        ordered = sorted(gpus, key=lambda gpu: (gpu.pci or "~", gpu.uuid))
        strategy = file.get("flags", {}).get("migStrategy", "none")
        units = [unit for gpu in ordered for unit in _list_units(gpu, strategy)]
        devices = file.get("devices", {})
        exclude, cordon = ((block, tuple(map(str, devices.get(block, ())))) for block in ("exclude", "cordon"))
        lists = [exclude, cordon, *((entry.key, entry.listed) for entry in entries)]
        places = {str(gpu.index): gpu.uuid for gpu in gpus if gpu.uuid not in gone}
        for gpu in (gpu for gpu in gpus if gpu.uuid not in gone):
            places |= {f"{gpu.index}:{part.index}": part.uuid for part in _list_parts(gpu)}
        self._pin_indices(lists, entries, places)
        self.excluded, self.cordoned = (
            {unit.uuid for unit in units if self._names(one, unit, parts=unit.parts)} for one in lists[:2]
        )

        # 1. Excluded cards are gone; names are assigned by `resources`.
        taking = [unit for unit in units if unit.uuid not in self.excluded]
        names = {unit.uuid: _name(file, unit) for unit in taking}
        may_be_cut = {unit.uuid for unit in units if strategy != "none" and unit.gpu.mig is None}
        gone = {unit.uuid for unit in units if unit.gpu.uuid in gone} | may_be_cut
        # 2. Entries with a list take their cards. One that names a card of another is withheld.
        takers: dict[str, Entry] = {}
        spoilt = []
        for entry in entries:
            mine = self._find_mine(entry, taking, names)
            spoilt += [entry for uuid in mine if takers.setdefault(uuid, entry) is not entry]
        # 3. Entries with a count take that many of the remaining cards of their resource, lowest PCI address first.
        known = {gpu.uuid for gpu in gpus} | {part.uuid for gpu in gpus for part in _list_parts(gpu)}
        kept_back = self.excluded | self._find_named(exclude) | (known - {unit.uuid for unit in units})
        self._fill_slots(entries, names, taken={*takers, *kept_back}, gone=gone, edited=is_edited)
        for entry in entries:
            counted = (uuid for uuid in map(self._slots.get, entry.slots) if uuid and names.get(uuid) == entry.name)
            takers = dict.fromkeys(counted, entry) | takers
        # 4. `all` takes what then remains.
        for entry in entries:
            if not entry.listed and not entry.count:
                rest = (uuid for uuid, name in names.items() if name == entry.name)
                takers = dict.fromkeys(rest, entry) | takers
        # 5. Cards in no entry stay exclusive under their plain name.
        self.said = {uuid: Said(name) for uuid, name in names.items() if name is not None and uuid not in takers}
        # MPS is for whole cards: an entry that has or names anything else is withheld.
        parts = {part.uuid for gpu in gpus for part in _list_parts(gpu)}
        in_mig_mode = {unit.uuid for unit in units if unit.gpu.mig is MigMode.ENABLED}
        for uuid, entry in takers.items():
            mine = {other for other, taker in takers.items() if taker is entry}
            named = self._find_named((entry.key, entry.listed))
            is_cut = entry.block == "mps" and (mine & in_mig_mode or named & parts)
            if entry not in spoilt and not is_cut:
                self.said[uuid] = Said(entry.final, entry.replicas, mps=entry.block == "mps")

    def _find_mine(self, entry: Entry, units: Sequence[Unit], names: Mapping[str, str | None]) -> list[str]:
        """The cards that the entry lists, without those of another resource."""
        listed = (entry.key, entry.listed)
        mine = (unit for unit in units if names[unit.uuid] == entry.name)
        return [unit.uuid for unit in mine if self._names(listed, unit, parts=[unit.part] if unit.part else [])]

    def _pin_indices(self, lists: Sequence[List], entries: Sequence[Entry], places: Mapping[str, str]) -> None:
        before, self._indices = self._indices, {}
        settled, self._settled = self._settled, {}
        counted = {self._slots[slot] for entry in entries for slot in entry.slots if slot in self._slots}
        for key, refs in lists:
            for ref in filter(_PLACE.fullmatch, refs):
                uuid, others = before.get((key, ref)), settled.get((key, ref), set())
                if uuid is None and places.get(ref) not in others:
                    uuid = places.get(ref)
                if uuid is not None:
                    self._indices[key, ref] = uuid
                else:
                    alike = {uuid for place, uuid in places.items() if (":" in place) is (":" in ref)}
                    self._settled[key, ref] = others | counted | alike

    def _names(self, refs: List, unit: Unit, *, parts: Sequence[MigInstance]) -> bool:
        named = self._find_named(refs)
        return unit.gpu.uuid in named or unit.gpu.pci in refs[1] or any(part.uuid in named for part in parts)

    def _find_named(self, *lists: List) -> set[str]:
        """The cards that lists name by UUID or by index, there or not."""
        return {
            self._indices.get((key, ref), "") if _PLACE.fullmatch(ref) else ref for key, refs in lists for ref in refs
        }

    def _fill_slots(
        self,
        entries: Sequence[Entry],
        names: Mapping[str, str | None],
        *,
        taken: Collection[str],
        gone: Collection[str],
        edited: bool,
    ) -> None:
        """The cards of entries by count: those that they had, and then others up to their number.

        A card stays, there or not, unless the file was edited and gives it to another purpose.
        """
        before, self._slots = self._slots, {}
        taken = set(taken)
        for entry in entries:
            listed = self._find_named(*((other.key, other.listed) for other in entries if other.name == entry.name))
            for slot in entry.slots:
                uuid = before.get(slot, "")
                stays = uuid not in taken | listed and names.get(uuid) in {entry.name, None}
                if uuid and (stays or not edited):
                    self._slots[slot] = uuid
                    taken.add(uuid)
        for entry in entries:
            rest = [uuid for uuid, name in names.items() if name == entry.name and uuid not in {*taken, *gone}]
            for slot in entry.slots:
                if slot not in self._slots and rest:
                    self._slots[slot] = rest.pop(0)
                    taken.add(self._slots[slot])


def _name(file: Mapping[str, Any], unit: Unit) -> str | None:
    """The first pattern that matches wins. A product that cannot be read may be any: it has a name if all agree."""
    if unit.part is not None:
        return f"nvidia.com/mig-{(unit.part.profile or '').replace('+', '.')}"
    product = unit.gpu.product
    rules = [(rule["pattern"], rule["name"]) for rule in file.get("resources", {}).get("gpus", ())]
    rules.append(("*", "nvidia.com/gpu"))
    if product is not None:
        return next(name for pattern, name in rules if _matches(pattern, product))
    open_to_all = next(at for at, (pattern, _) in enumerate(rules) if pattern == "*")
    possible = {name for _, name in rules[: open_to_all + 1]}
    return possible.pop() if len(possible) == 1 else None


def _matches(pattern: str, product: str) -> bool:
    return re.fullmatch(".*".join(re.escape(piece) for piece in pattern.split("*")), product, re.DOTALL) is not None
