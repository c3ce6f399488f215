"""Amounts of memory as Kubernetes writes them: ``16Gi``, ``500M``, ``17179869184``."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from nvdp.errors import FormatError, quote

_MIB: Final = 2**20
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_SUFFIXES: Final = _DECIMAL | _BINARY
_TOO_FINE: Final = ("n", "u", "m")  # nano, micro, milli: real suffixes of a quantity, never of memory
_LIMIT_BYTES: Final = 2**63 - 1  # what Kubernetes can hold
_NUMBER: Final = re.compile(r"\+?([0-9]{1,24})?(?:\.([0-9]{0,24}))?(?:[eE](\+?[0-9]{1,2}))?([A-Za-z]*)")
_LOOSE: Final = re.compile(r"([0-9.]+)\s*([kmgtpe])(i)?b?(?:ytes)?", re.IGNORECASE)


class Quantity(msgspec.Struct, frozen=True, order=True):
    """An amount of memory, exact in bytes."""

    bytes: int

    @property
    def mib(self) -> int:
        """Whole MiB, rounded down: the unit in which limits are given to MPS."""
        return self.bytes // _MIB

    def __str__(self) -> str:
        """The shortest spelling that reads back as the same amount."""
        for suffix, factor in sorted((_BINARY | _DECIMAL).items(), key=lambda item: -item[1]):
            if self.bytes and self.bytes % factor == 0:
                return f"{self.bytes // factor}{suffix}"
        return "0"


def parse_quantity(text: str) -> Quantity:
    """The amount that ``text`` means; FormatError, also for milli-units and fractions of a byte."""
    match = _NUMBER.fullmatch(text)
    if text.startswith("-"):
        raise FormatError(f"{quote(text)} is negative; an amount of memory is meant, like 16Gi")
    if match is None or not (match[1] or match[2]) or match[4] not in _SUFFIXES or (match[3] and match[4]):
        raise FormatError(f"{quote(text)} is not an amount of memory; write {_find_remedy(text, match)}")
    whole, fraction, exponent, suffix = match[1] or "0", match[2] or "", int(match[3] or 0), match[4]
    numerator = int(whole + fraction) * 10**exponent * _SUFFIXES[suffix]
    size, rest = divmod(numerator, 10 ** len(fraction))
    if rest:
        raise FormatError(f"{quote(text)} is not a whole number of bytes")
    if size > _LIMIT_BYTES:
        raise FormatError(f"{quote(text)} is too large; the most is 8Ei")
    return Quantity(size)


def _find_remedy(text: str, match: re.Match[str] | None) -> str:
    if match and match[4] in _TOO_FINE:
        return f"whole bytes: {match[4]} is a fraction of one; M or Mi is mega"
    loose = _LOOSE.fullmatch(text)
    if loose is None:
        return "it like 16Gi, 500M or 17179869184"
    number, letter = loose[1], loose[2]
    binary, decimal = letter.upper() + "i", "k" if letter in "kK" else letter.upper()
    return f"{number}{binary}" if loose[3] else f"{number}{binary} (binary) or {number}{decimal} (decimal)"
