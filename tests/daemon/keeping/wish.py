"""What a file wants of the five cards of the node: two of them by MPS under one name, others under other names.

Each change that a file can bring is a value of ``Wish``, so that what shall come of all of them in any order can be
told.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.daemon.node import GPU, SHARED, build_config, gpu_uuid, replicas

PAIR = f"{GPU}.pair"
ONE = f"{GPU}.one"
MORE = f"{GPU}.more"
RESOURCES = (PAIR, ONE, MORE, SHARED, GPU)
CARDS = 5
ALREADY_EXCLUSIVE = 1  # the card whose compute mode is that of MPS from the beginning, by whomever
_OF_ONE = 2
_OF_SHARED = 3
_OF_MORE = 4
_SHARES = 2
_BOTH = (0, ALREADY_EXCLUSIVE)


class Form(NamedTuple):
    """What a card is offered as: whole with one replica."""

    resource: str
    mps: bool = False
    replicas: int = 1


class Wish(NamedTuple):
    """What the file says: into how many shares the pair of cards is cut, and whether it has lost its second card;
    whether the one is time-sliced, under the same name; whether MPS shares one card more; and the pause.
    """

    shares: int = _SHARES
    is_less: bool = False
    is_sliced: bool = False
    is_more: bool = False
    is_paused: bool = False

    @property
    def forms(self) -> dict[int, Form]:
        """By card."""
        forms = {card: Form(PAIR, mps=True, replicas=self.shares) for card in _BOTH}
        if self.is_less:
            forms[ALREADY_EXCLUSIVE] = Form(GPU)
        forms[_OF_ONE] = Form(ONE, mps=not self.is_sliced, replicas=_SHARES)
        forms[_OF_SHARED] = Form(SHARED, replicas=_SHARES)
        forms[_OF_MORE] = Form(MORE, mps=True, replicas=_SHARES) if self.is_more else Form(GPU)
        return forms

    def list_cards(self, resource: str) -> set[int]:
        """Those that MPS shall share under this name."""
        return {card for card, form in self.forms.items() if form.mps and form.resource == resource}

    def build_file(self) -> dict[str, Any]:
        """The configuration."""
        entries: dict[str, list[dict[str, Any]]] = {"mps": [], "timeSlicing": []}
        for resource in RESOURCES:
            cards = [card for card, form in self.forms.items() if form.resource == resource and form.replicas > 1]
            if cards:
                form = self.forms[cards[0]]
                entries["mps" if form.mps else "timeSlicing"].append(
                    {"name": GPU, "rename": resource, "devices": cards, "replicas": form.replicas}
                )
        return build_config(
            devices={"paused": self.is_paused},
            health={"callTimeout": "1s"},
            sharing={block: {"resources": resources} for block, resources in entries.items()},
        )


def list_ids(card: int, count: int) -> set[str]:
    """The IDs of a card that is offered as that many."""
    return replicas(card, count) if count > 1 else {gpu_uuid(card)}


def find_card(device: str) -> int:
    """The card of an ID."""
    return int(device[4:12])
