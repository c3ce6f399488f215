"""The event sets of a simulated machine: what happens is told once to each set in which the card is registered."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

import msgspec

from nvdp.nvml.simulated.node import Instance


class Happening(msgspec.Struct, frozen=True):
    """An event in NVML's terms. ``handle`` is its card's, which is the same wherever the card is in the node file."""

    type: int
    handle: int
    data: int
    instance: Instance | None


class EventSet:
    """One set: the event types that it is to be told, by the handle of the card, and what waits to be fetched."""

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}
        self.waiting: deque[Happening] = deque()

    def hear(self, happening: Happening) -> None:
        """Keep it, if it is of a registered kind."""
        if self.registered.get(happening.handle, 0) & happening.type:
            self.waiting.append(happening)


class EventSets:
    """All sets of a machine, by the addresses that stand for them."""

    def __init__(self) -> None:
        self._sets: dict[int, EventSet] = {}

    def create(self) -> int:
        """The address of a new set."""
        address = 0x10 * (len(self._sets) + 1)
        self._sets[address] = EventSet()
        return address

    def find(self, address: int) -> EventSet | None:
        return self._sets.get(address)

    def deliver(self, happenings: Iterable[Happening]) -> None:
        """Tell all sets."""
        for happening in happenings:
            for event_set in self._sets.values():
                event_set.hear(happening)


def find_new(before: Sequence[Happening], now: Sequence[Happening]) -> Iterator[Happening]:
    """What has happened since: the entries that were not there before. Lists grow at their end, or begin anew."""
    known = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, now, strict=False)))
    yield from now[known:]
