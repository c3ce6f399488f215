"""The driver and the cards of a node as they are, whatever the daemon says: steps change them, truth is read here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

CARDS = range(5)
LINKED = range(3)  # these have NVLinks
# Of these calls it is known what their failing means: to the node, to the card that they are about, to nobody.
OF_ALL = ("nvmlDeviceGetCount",)
OF_ONE = ("nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMinorNumber")
OF_NONE = ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion")
_MOST_FAULTS = 6

Condition = Mapping[str, Any]
"""How a card fares, in the words of a node file's ``conditions``."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """``call`` fails: with an error's word, or it hangs or crashes. About one card, or, if None, about any and none."""

    call: str
    card: int | None
    effect: str

    @property
    def is_error(self) -> bool:
        return self.effect not in {"hang", "crash"}


@dataclasses.dataclass(frozen=True)
class Event:
    """An XID, or, where that is None, an ECC error of the kind ``ecc``."""

    card: int
    xid: int | None = None
    ecc: str = ""


@dataclasses.dataclass(frozen=True)
class Step:
    """One thing that happens. Its name is that of what does it: a method of ``World`` or of ``Node``."""

    name: str
    args: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}{self.args}"


class World:
    """The driver and its cards. ``events`` only grow, until ``heal``."""

    def __init__(self) -> None:
        self.order = list(CARDS)
        self.driver = "ready"
        self.removed: set[int] = set()
        self.lost: set[int] = set()
        self.faults: list[Fault] = []
        self.conditions: dict[int, Condition] = {}
        self.events: list[Event] = []

    def apply(self, step: Step) -> bool:
        """Whether the step was one of the world's."""
        change = getattr(self, step.name, None)
        if change is not None:
            change(*step.args)
        return change is not None

    def heal(self) -> None:
        """All is well again. The cards stay in the order in which they are counted."""
        self.driver = "ready"
        self.removed, self.lost, self.faults, self.conditions = set(), set(), [], {}

    def forget_events(self) -> None:
        self.events.clear()

    def tell(self, card: int, xid: int | None, ecc: str = "") -> None:
        self.events.append(Event(card, xid, ecc))

    def fare(self, card: int, condition: Condition) -> None:
        self.conditions[card] = condition

    def lose(self, card: int) -> None:
        self.lost.add(card)

    def remove(self, card: int) -> None:
        self.removed.add(card)

    def bring_back(self, card: int) -> None:
        self.lost.discard(card)
        self.removed.discard(card)

    def fail(self, call: str, card: int | None, effect: str) -> None:
        self.faults = [*self.faults, Fault(call, card, effect)][-_MOST_FAULTS:]

    def mend(self) -> None:
        """No call fails any more."""
        self.faults = []

    def count_anew(self, order: tuple[int, ...]) -> None:
        """NVML counts the cards in this order."""
        self.order = list(order)

    def set_driver(self, state: str) -> None:
        self.driver = state

    @property
    def is_driver_well(self) -> bool:
        return self.driver == "ready" and not any(fault.call in OF_ALL for fault in self.faults)

    @property
    def unseen(self) -> set[int]:
        """The cards of which a daemon that has just started may not even learn that they are there."""
        if not self.is_driver_well:
            return set(CARDS)
        return self.removed | self.lost | {fault.card for fault in self.faults if fault.card is not None}

    @property
    def ailing(self) -> set[int]:
        """The cards that must not be given to pods, once everything has been looked at. Not meant for storms."""
        assert all(fault.call in {*OF_ALL, *OF_ONE, *OF_NONE} for fault in self.faults), "its effect is not known"
        return self.unseen | {card for card, condition in self.conditions.items() if _is_bad(condition)}


def _is_bad(condition: Condition) -> bool:
    fabric = condition.get("fabric", {})
    return bool(
        condition.get("recoveryAction", "None") != "None"
        or condition.get("remapFailure")
        or condition.get("retiredPagesPending")
        or fabric.get("state", "Completed") == "InProgress"
        or {*fabric.get("faults", ())} - {"Misconfigured"}
    )
