"""Files that a campaign publishes: each card whole, shared, cordoned or excluded, and what then is on offer of it."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from tests.daemon.node import GPU, SHARED

NAMES = (GPU, SHARED)

Form = tuple[str, bool]
"""The resource under which a card is on offer, and whether it is in pieces there."""


@dataclasses.dataclass(frozen=True)
class Offer:
    """What is listed of one card in one form."""

    healthy: int
    ids: frozenset[str]


Key = tuple[str, Form]
"""A card, by UUID, in one form."""

Offers = Mapping[Key, Offer]


@dataclasses.dataclass(frozen=True)
class File:
    """``replicas`` of each card in order, 1 for a whole one. ``ignores_xids``: the driver's events take no card.

    ``is_paused``: the driver is let go of.
    """

    replicas: tuple[int, ...]
    excluded: frozenset[int] = frozenset()
    cordoned: frozenset[int] = frozenset()
    ignores_xids: bool = False
    is_paused: bool = False
    profile: str = "compat"

    def build(self, uuids: tuple[str, ...]) -> dict[str, Any]:
        """The file's tree. Its times are short, so that a calm need not be long."""
        entries = [
            {
                "name": GPU,
                "rename": SHARED,
                "replicas": count,
                "devices": [uuids[card] for card, replicas in enumerate(self.replicas) if replicas == count],
            }
            for count in sorted({*self.replicas} - {1})
        ]
        return {
            "version": "v1",
            "devices": {
                "rescanInterval": "1s",
                "removeAfter": "1h",
                "exclude": [uuids[card] for card in sorted(self.excluded)],
                "cordon": [uuids[card] for card in sorted(self.cordoned)],
                "paused": self.is_paused,
            },
            "health": {
                "profile": self.profile,
                "callTimeout": "1s",
                "recovery": {"holdOff": "200ms", "maxHoldOff": "800ms"},
                **({"ignoredXIDs": "all"} if self.ignores_xids else {"fatalXIDs": [79]}),
            },
            **({"sharing": {"timeSlicing": {"resources": entries}}} if entries else {}),
        }

    def find_form(self, card: int) -> Form:
        shared = self.replicas[card] > 1
        return (SHARED if shared else GPU), shared

    def find_mistake(
        self,
        found: Offers,
        held: Mapping[Key, Collection[str]],
        *,
        uuids: tuple[str, ...],
        ailing: Collection[int],
        unseen: Collection[int],
        is_long: bool,
    ) -> str:
        """What of ``found`` is not as it has to be under this file; empty if all is.

        ``ailing`` cards are not fit for pods, ``held`` are the IDs that pods have; ``unseen`` cards need not be listed
        at all. ``is_long``: what nobody wants any more has left.
        """
        wanted: dict[Key, int] = {}
        for card, uuid in enumerate(uuids):
            form = self.find_form(card)
            elsewhere = any(ids and key[0] == uuid and key[1] != form for key, ids in held.items())
            if card not in self.excluded:
                is_fit = not (card in ailing or card in self.cordoned or elsewhere)
                wanted[uuid, form] = self.replicas[card] if is_fit else 0
        nothing = Offer(0, frozenset())
        for key in sorted(found.keys() | held.keys() | wanted.keys()):
            offer, mine = found.get(key, nothing), frozenset(held.get(key, ()))
            if offer.healthy != wanted.get(key, 0):
                return f"{key}: {offer.healthy} Healthy, and not {wanted.get(key, 0)}"
            if mine - offer.ids:
                return f"{key}: {sorted(mine - offer.ids)} held, and not listed"
            card = uuids.index(key[0])
            planned = self.replicas[card] if key in wanted else 0
            counts = {max(planned, len(mine))} | ({len(mine)} if card in unseen else set())
            if is_long and len(offer.ids) not in counts:
                return f"{key}: {len(offer.ids)} listed, and not {max(counts)}"
            if not is_long and len(offer.ids) < min(counts):
                return f"{key}: {len(offer.ids)} listed, and not at least {min(counts)}"
        return ""


def draw_file(dice: random.Random, cards: int) -> File:
    """Mostly a change that pods feel; now and then one that shuts cards out."""
    replicas = tuple(dice.choice([1, 1, 2, 3, 4]) for _ in range(cards))
    away = dice.sample(range(cards), dice.choice([0, 0, 0, 1, 2]))
    excluded = frozenset(card for card in away if dice.random() < 0.5)
    return File(
        replicas=replicas,
        excluded=excluded,
        cordoned=frozenset(away) - excluded,
        ignores_xids=dice.random() < 0.2,
        is_paused=dice.random() < 0.04,
        profile=dice.choice(["compat", "catalog"]),
    )


def sort_ids(listed: Mapping[str, Mapping[str, bool]]) -> dict[Key, Offer]:
    """What is listed, by resource and ID with whether it is Healthy, by card and form."""
    healthy: Counter[Key] = Counter()
    ids: dict[Key, set[str]] = {}
    for resource, devices in listed.items():
        for device, is_healthy in devices.items():
            key = find_key(resource, device)
            healthy[key] += is_healthy
            ids.setdefault(key, set()).add(device)
    return {key: Offer(healthy[key], frozenset(found)) for key, found in ids.items()}


def find_key(resource: str, device: str) -> Key:
    uuid, mark, _ = device.partition("::")
    return uuid, (resource, bool(mark))
