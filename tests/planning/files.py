"""Random configuration files over all of sharing, valid by construction, and small changes of one.

A file is drawn in parts (names, sharing, excluded, cordoned, the rest) that are valid in any combination, so that an
edit can change one and leave the others. Parsing is cached: histories come back to files that were in force before.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from nvdp.config.load import parse_config
from nvdp.config.schema import Config

GPU, A10, L4 = "nvidia.com/gpu", "nvidia.com/a10", "example.com/l4"
PLAIN = (GPU, A10, L4)
SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb.me"
CUT = (GPU, SMALL, LARGE)  # plain names where cards are cut
REMOVE_AFTER_S = 12
_RULES = (
    (),
    ((("NVIDIA A10", A10)),),
    (("NVIDIA L*", L4),),
    (("*A10*", A10), ("*", L4)),
    (("NVIDIA L4", GPU), ("NVIDIA A*", A10)),
)
_REPLICAS = (1, 2, 2, 3, 4, 5, 8, 12)
_SHARED = (2, 2, 3, 4, 5, 8, 12)
# Several entries may lead to one name, and names need not be in NVIDIA's domain.
_SLICED_AS = ("nvidia.com/sliced", "example.com/sliced", "nvidia.com/gpu.shared")


@dataclasses.dataclass(frozen=True)
class Spelled:
    """One card, or one place for a card, in the ways in which a file can name it."""

    index: int
    pci: str
    uuids: tuple[str, ...]

    def draw(self, chance: random.Random) -> object:
        return chance.choice([self.index, self.index, str(self.index), self.pci, *self.uuids])


@dataclasses.dataclass(frozen=True)
class Part:
    """One place for a MIG device, in the ways in which a file can name it."""

    place: str
    uuids: tuple[str, ...]

    def draw(self, chance: random.Random) -> object:
        return chance.choice([self.place, self.place, *self.uuids])


@dataclasses.dataclass(frozen=True)
class File:
    """The parts of a file, as values of JSON."""

    rules: tuple[tuple[str, str], ...] = ()
    time_slicing: Mapping[str, Any] | None = None
    mps: Mapping[str, Any] | None = None
    exclude: tuple[object, ...] = ()
    cordon: tuple[object, ...] = ()
    immediate: bool = False
    numa_hints: bool = True
    mig: str = "none"
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def tree(self) -> dict[str, Any]:
        sharing = {"timeSlicing": self.time_slicing, "mps": self.mps}
        return {
            "version": "v1",
            "devices": {"removeAfter": REMOVE_AFTER_S, "exclude": self.exclude, "cordon": self.cordon}
            | self.more.get("devices", {}),
            "resources": {"gpus": [{"pattern": pattern, "name": name} for pattern, name in self.rules]},
            "sharing": {block: content for block, content in sharing.items() if content is not None},
            "allocation": {
                "modeChange": "immediate" if self.immediate else "when-free",
                "numaHints": self.numa_hints,
            },
            **({"flags": {"migStrategy": self.mig}} if self.mig != "none" else {}),
        } | {key: value for key, value in self.more.items() if key != "devices"}

    @property
    def text(self) -> str:
        return json.dumps(self.tree)


@functools.lru_cache(maxsize=4096)
def parse_file(text: str) -> Config:
    return parse_config(text, name="test.yaml")


def share_all(replicas: int, *, rename: bool = False) -> File:
    """All GPUs time-sliced in one way."""
    return File(time_slicing={"renameByDefault": rename, "resources": [{"name": GPU, "replicas": replicas}]})


class Drawing:
    """Draws files about certain cards. ``immediately`` is how many of them change modes at once.

    With ``parts``, places of MIG devices, the cards are cut.
    """

    def __init__(
        self,
        chance: random.Random,
        cards: Sequence[Spelled],
        *,
        parts: Sequence[Part] = (),
        immediately: float = 0.0,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self._chance = chance
        self._cards = (*cards, *parts)
        self._plain = CUT if parts else PLAIN
        self._is_cut = bool(parts)
        self._immediately = immediately
        self._past = [File(mig="mixed" if parts else "none", more=more or {})]

    def draw(self) -> File:
        """The next file: one part of the last one is new, or all are, or it is one of the past."""
        chance, last = self._chance, self._past[-1]
        how = chance.random()
        if how < 0.15:
            fresh = chance.choice(self._past)
        elif how < 0.30:
            fresh = dataclasses.replace(
                last,
                rules=self._draw_rules(),
                **self._draw_sharing(),
                **self._draw_kept_back(),
                numa_hints=chance.random() < 0.8,
            )
        elif how < 0.60:
            fresh = dataclasses.replace(last, **self._draw_sharing())
        elif how < 0.75:
            fresh = self._draw_numbers(last)
        elif how < 0.88:
            fresh = dataclasses.replace(last, **self._draw_kept_back())
        elif how < 0.95:
            fresh = dataclasses.replace(last, rules=self._draw_rules())
        else:
            fresh = dataclasses.replace(last, numa_hints=not last.numa_hints)
        fresh = dataclasses.replace(fresh, immediate=chance.random() < self._immediately)
        if self._is_cut:
            fresh = dataclasses.replace(fresh, mig=chance.choice(["none", *["mixed"] * 7]))
        self._past.append(fresh)
        return fresh

    def _draw_rules(self) -> tuple[tuple[str, str], ...]:
        return self._chance.choice(_RULES)

    def _draw_kept_back(self) -> dict[str, Any]:
        """Cards that are excluded, and others (or the same, spelled differently) that are cordoned."""
        chance = self._chance
        refs = [card.draw(chance) for card in chance.sample(self._cards, min(len(self._cards), 3))]
        refs = list({str(ref): ref for ref in refs}.values())
        exclude = refs[: chance.choice([0, 0, 0, 1, 1, 2])]
        cordon = refs[len(exclude) :][: chance.choice([0, 0, 1, 1, 2])]
        return {"exclude": tuple(exclude), "cordon": tuple(cordon)}

    def _draw_numbers(self, last: File) -> File:
        """The same sharing, cut into more or fewer pieces: what is shared stays so."""
        return dataclasses.replace(last, time_slicing=self._cut(last.time_slicing), mps=self._cut(last.mps))

    def _cut(self, block: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        if block is None:
            return None
        resources = [
            entry if entry["replicas"] == 1 else {**entry, "replicas": self._chance.choice(_SHARED)}
            for entry in block["resources"]
        ]
        return {**block, "resources": resources}

    def _draw_sharing(self) -> dict[str, Any]:
        """Entries by list, count and ``all``, whose names make one promise each, whatever the plain names are."""
        chance = self._chance
        rename_by_default = chance.random() < 0.3
        cards = list(self._cards)
        chance.shuffle(cards)
        spelled: set[str] = set()
        time_slicing: list[dict[str, Any]] = []
        mps: list[dict[str, Any]] = []
        for name in self._plain:
            rest = chance.choice(["whole", "whole", "whole", "sliced", "sliced", "sliced", "one", "mps"])
            sliced_alike = rest == "sliced" and chance.random() < 0.6  # under the plain name, or as NAME.shared
            is_bare = sliced_alike and not rename_by_default
            bare_mps = rest == "mps" and chance.random() < 0.6  # under the plain name, which nothing else can have
            for _ in range(chance.choice([0, 0, 0, 1, 1, 2])):
                entry = {"name": name, "devices": self._draw_devices(cards, spelled)}
                if entry["devices"] and chance.random() < 0.2:
                    mps.append({**entry, **self._draw_mps(name, bare=bare_mps)})
                elif entry["devices"]:
                    time_slicing.append(
                        {**entry, **self._draw_slices(name, bare=is_bare, by_default=rename_by_default, apart=bare_mps)}
                    )
            if rest == "sliced":
                rename = {} if sliced_alike else {"rename": chance.choice(_SLICED_AS)}
                time_slicing.append({"name": name, "replicas": chance.choice(_SHARED), **rename})
            elif rest == "one":
                time_slicing.append({"name": name, "replicas": 1})
            elif rest == "mps":
                mps.append({"name": name, **self._draw_mps(name, bare=bare_mps)})
        chance.shuffle(time_slicing)
        time_slicing = _tell_counts_apart(time_slicing, suffix=".shared" if rename_by_default else "")
        mps = _tell_counts_apart(mps)
        block = {
            "renameByDefault": rename_by_default,
            "requireDistinctGPUs": chance.random() < 0.2,
            "resources": time_slicing,
        }
        return {"time_slicing": block if time_slicing else None, "mps": {"resources": mps} if mps else None}

    def _draw_devices(self, cards: list[Spelled], spelled: set[str]) -> object:
        """A count, or a list of cards that no other entry has; now and then one has them in another spelling."""
        chance = self._chance
        if chance.random() < 0.35:
            return chance.choice([1, 1, 2, 2, 3])
        mine = [cards.pop() for _ in range(min(len(cards), chance.choice([1, 1, 2, 3])))]
        if chance.random() < 0.15:
            mine.append(chance.choice(self._cards))
        refs = [ref for card in mine if str(ref := card.draw(chance)) not in spelled]
        spelled.update(str(ref) for ref in refs)
        return refs

    def _draw_slices(self, name: str, *, bare: bool, by_default: bool, apart: bool) -> dict[str, Any]:
        """``bare``: all others of the name are slices of that name, so these can be, and none can be whole.

        ``apart``: the plain name is another's.
        """
        chance = self._chance
        if apart:
            return {"replicas": chance.choice(_SHARED), "rename": chance.choice(_SLICED_AS)}
        if bare and chance.random() < 0.5:
            return {"replicas": chance.choice(_SHARED)}
        replicas = chance.choice(_REPLICAS)
        if replicas == 1:
            return {"replicas": 1, "rename": f"{name}.whole"} if bare or chance.random() < 0.5 else {"replicas": 1}
        if by_default and chance.random() < 0.5:
            return {"replicas": replicas}
        return {"replicas": replicas, "rename": chance.choice(_SLICED_AS)}

    def _draw_mps(self, name: str, *, bare: bool) -> dict[str, Any]:
        """``bare``: all others of the name are under MPS, so these can be. One replica is apart from more."""
        chance = self._chance
        if bare:
            return {"replicas": chance.choice(_SHARED)}
        if chance.random() < 0.2:
            return {"replicas": 1, "rename": f"{name}.one"}
        return {"replicas": chance.choice(_SHARED), "rename": f"{name}.mps"}


def _tell_counts_apart(entries: list[dict[str, Any]], *, suffix: str = "") -> list[dict[str, Any]]:
    """Entries of which nobody could say which is which after an edit are taken once."""
    kept: dict[object, dict[str, Any]] = {}
    for entry in entries:
        devices, name = entry.get("devices"), entry["name"]
        final = entry.get("rename", name + suffix)
        kept.setdefault((name, final, devices) if isinstance(devices, int) else id(entry), entry)
    return list(kept.values())
