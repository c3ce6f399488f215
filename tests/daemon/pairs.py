"""A machine with two cards for each ordered pair of forms: one that a pod will hold, and one that nobody will.

All pairs with ``make campaign``, and 14 of the 42 in the suite: each form is left twice and come to twice.
"""

from __future__ import annotations

from tests.daemon.forms import FORMS, Offer, build_file
from tests.daemon.node import FULL, gpu_uuid

_APART = range(1, len(FORMS)) if FULL else (1, 5)  # in the order of the forms, which is a ring
PAIRS = tuple((form, [*FORMS][(number + apart) % len(FORMS)]) for number, form in enumerate(FORMS) for apart in _APART)
_KEPT_BACK = frozenset({"cordoned", "mps", "excluded"})  # what a pod holds in these, it was given when it was whole


def family(before: str, after: str) -> str:
    """By what the plain name must stand for: whole cards or slices, first and last."""
    first, last = FORMS[before].plain_is_shared, FORMS[after].plain_is_shared
    if first is None:
        first = bool(last) and before not in _KEPT_BACK
    return "".join("s" if shared else "w" for shared in (first, first if last is None else last))


# One card for each pair that a pod will hold, and another one that nobody will.
HELD = dict(enumerate(PAIRS))
CARDS = HELD | {len(PAIRS) + number: pair for number, pair in enumerate(PAIRS)}
FAMILY = {card: family(*pair) for card, pair in CARDS.items()}
CARD = {gpu_uuid(card): card for card in CARDS}
MACHINE = {"count": len(CARDS), "products": [f"Card {FAMILY[card]}" for card in CARDS]}
FIRST = {card: "whole" if before in _KEPT_BACK else before for card, (before, _) in CARDS.items()}
BEFORE = {card: before for card, (before, _) in CARDS.items()}
AFTER = {card: after for card, (_, after) in CARDS.items()}


def write(forms, *, sliced, **allocation):
    return build_file({card: (FAMILY[card], form) for card, form in forms.items()}, sliced=sliced, **allocation)


def offer(card, form) -> Offer | None:
    return FORMS[form].offer(FAMILY[card])


def build_offers(forms, holds=()) -> dict[str, set[Offer]]:
    """What is on offer under a file: no card that a pod holds in another form."""
    held = {hold.uuid: hold.form for hold in holds}
    return {
        gpu_uuid(card): {given}
        for card, form in forms.items()
        if (given := offer(card, form)) is not None
        and FORMS[form].takes_pods
        and held.get(gpu_uuid(card)) in {None, given.form}
    }


def build_listed(forms, holds=()) -> dict[str, set[Offer]]:
    """What is listed in the end: each card in the form of the file, and what pods hold in another one."""
    listed: dict[str, set[Offer]] = {}
    for card, form in forms.items():
        if (given := offer(card, form)) is not None:
            listed[gpu_uuid(card)] = {given}
    for hold in holds:
        known = listed.setdefault(hold.uuid, set())
        if hold.form not in {given.form for given in known}:
            known.add(Offer(*hold.form, 1))
    return listed
