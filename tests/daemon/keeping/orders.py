"""Orders of words: one row in which each order of some words occurs, and walks that a seed draws."""

from __future__ import annotations

import random
from collections.abc import Sequence


def build_row(words: Sequence[str]) -> list[str]:
    """A row of words in which they stand beside each other in every order: of five words, 153 long.

    It follows from the row of one word less: each order in it becomes itself, the new word, and itself again.
    """
    if len(words) == 1:
        return [*words]
    *fewer, new = words
    row: list[str] = []
    shorter = build_row(fewer)
    seen: set[tuple[str, ...]] = set()
    for start in range(len(shorter) - len(fewer) + 1):
        order = tuple(shorter[start : start + len(fewer)])
        if len(set(order)) == len(order) and order not in seen:
            seen.add(order)
            _append(row, [*order, new, *order])
    return row


def draw_walk(words: Sequence[str], length: int, *, seed: int) -> list[str]:
    """So many words by chance, each as often as any other, but for one."""
    chance = random.Random(seed)
    walk: list[str] = []
    while len(walk) < length:
        walk += chance.sample(words, len(words))
    return walk[:length]


def _append(row: list[str], words: list[str]) -> None:
    """Add the words, less those of their beginning that the row ends with."""
    overlap = next(count for count in range(len(words), -1, -1) if row[len(row) - count :] == words[:count])
    row += words[overlap:]
