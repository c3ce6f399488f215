"""All sets of up to 16 GPUs, weighed at once, so that the best one can be looked up: see ``planning/aligned``.

A bit of a long integer stands for each of the 2^n sets of n GPUs: bit number s for the set whose members are the binary
digits of s. So an integer is a collection of sets, and one operation on it treats them all. Numbers are kept as such
integers too, one for each binary digit: digit d of the points of every set. What is made ahead depends on the weights
alone; a choice is then some dozens of operations on integers of 2^n bits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from nvdp.model.topology import Weights

# A table of 16 has half a MiB; each GPU more would double that, and the time.
EXACT_UP_TO: Final = 16
# A rest is worth what containers that ask for so many GPUs could still get from it.
_WORTH_SIZES: Final = (2, 4, 8)

# A number for each set: its binary digits, the lowest first, each the collection of the sets that have it.
_Numbers: TypeAlias = list[int]


@functools.lru_cache(maxsize=4)
def build_table(weights: Weights) -> Table:
    """The table of these GPUs, ``EXACT_UP_TO`` at most. Those that were used last are kept."""
    return Table(weights)


class Table:
    """The points of every set, and what every set is worth as a rest. Any thread may use it."""

    def __init__(self, weights: Weights) -> None:
        self._count = len(weights)
        self._having = [self._collect_having(place) for place in range(self._count)]
        self._of_size = self._collect_by_size()
        self._scores = self._weigh_all(weights)
        self._worths: _Numbers = []
        for size in _WORTH_SIZES:
            if size <= self._count:
                self._worths = _add(self._worths, self._find_best_within(size))

    def choose(self, available: Sequence[int], required: Iterable[int], size: int) -> tuple[int, ...]:
        """See ``choose_aligned``; ``available`` rises."""
        sets = self._of_size[size]
        for place in set(range(self._count)).difference(available):
            sets &= ~self._having[place]
        for place in required:
            sets &= self._having[place]
        rests = self._complement(_keep_largest(sets, self._scores), available)
        rests = _keep_largest(rests, self._worths)
        chosen: list[int] = []
        for place in available:
            if len(chosen) < size and (without := rests & ~self._having[place]):
                rests = without
                chosen.append(place)
        return tuple(chosen)

    def _complement(self, sets: int, available: Iterable[int]) -> int:
        """What each of the sets leaves of the available: all members turned into others, and all others into members.

        With one GPU more a set has a number that is higher by the GPU's bit.
        """
        for place in available:
            having = self._having[place]
            sets = (sets & having) >> (1 << place) | (sets & ~having) << (1 << place)
        return sets

    def _collect_having(self, place: int) -> int:
        """The sets that have this GPU: the second half of each row of 2^(place + 1)."""
        half = 1 << place
        sets, length = ((1 << half) - 1) << half, 2 * half
        while length < 1 << self._count:
            sets |= sets << length
            length *= 2
        return sets

    def _collect_by_size(self) -> list[int]:
        of_size = [1] + [0] * self._count  # the empty set alone
        for place in range(self._count):
            for size in range(place + 1, 0, -1):
                of_size[size] |= of_size[size - 1] << (1 << place)
        return of_size

    def _weigh_all(self, weights: Weights) -> _Numbers:
        scores: _Numbers = []
        for b in range(self._count):
            for a in range(b):
                both = self._having[a] & self._having[b]
                points = weights[a][b]
                scores = _add(scores, [both if points >> digit & 1 else 0 for digit in range(points.bit_length())])
        return scores

    def _find_best_within(self, size: int) -> _Numbers:
        """For each set the most points that ``size`` of its members have together."""
        best = [digit & self._of_size[size] for digit in self._scores]
        for place in range(self._count):
            having = self._having[place]
            best = _keep_larger(best, [(digit & ~having) << (1 << place) for digit in best])
        return best


def _add(first: _Numbers, second: _Numbers) -> _Numbers:
    """The sum, for each set."""
    total: _Numbers = []
    carry = 0
    for digit in range(max(len(first), len(second))):
        a = first[digit] if digit < len(first) else 0
        b = second[digit] if digit < len(second) else 0
        either = a ^ b
        total.append(either ^ carry)
        carry = a & b | either & carry
    return [*total, carry] if carry else total


def _keep_larger(first: _Numbers, second: _Numbers) -> _Numbers:
    """The larger of the two, for each set; both have as many digits."""
    first_is_larger = second_is_larger = 0
    for a, b in zip(reversed(first), reversed(second), strict=True):
        decided = first_is_larger | second_is_larger
        first_is_larger |= a & ~b & ~decided
        second_is_larger |= b & ~a & ~decided
    return [a & ~second_is_larger | b & second_is_larger for a, b in zip(first, second, strict=True)]


def _keep_largest(sets: int, numbers: _Numbers) -> int:
    """Those of the sets whose number is the largest among them."""
    for digit in reversed(numbers):
        sets = sets & digit or sets
    return sets
