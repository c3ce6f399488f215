"""Durations as Kubernetes writes them: ``500ms``, ``10s``, ``1m30s``; a bare number means seconds."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from nvdp.errors import FormatError, quote

_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # micro sign
    "μs": 1_000,  # Greek mu: Go takes both
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_LIMIT_NS: Final = 2**63 - 1  # Go's time.Duration, which NVIDIA's plugin also uses to mean "infinite"
_AMOUNT: Final = r"(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})"
_PART: Final = re.compile(rf"({_AMOUNT})({'|'.join(sorted(_UNITS, key=len, reverse=True))})")
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern})+")
_BARE: Final = re.compile(_AMOUNT)
_WORDED: Final = re.compile(rf"({_AMOUNT})\s*([a-z]+)", re.IGNORECASE)
_REMEDIES: Final[
    tuple[tuple[tuple[str, ...], Callable[[int], str]], ...]
] = (  # first letters of a unit in words -> the spellings to offer for a whole amount
    (("mil", "mse"), lambda n: f"{n}ms"),
    (("sec",), lambda n: f"{n}s"),
    (("min",), lambda n: f"{n}m or {n * 60}s"),
    (("ho", "hr"), lambda n: f"{n}h or {n * 60}m"),
    (("d",), lambda n: f"{n * 24}h"),
    (("w",), lambda n: f"{n * 168}h"),
)


class Duration(msgspec.Struct, frozen=True, order=True):
    """A length of time that is not negative. Nanoseconds, as in Go; ``INFINITE`` is longer than any other."""

    ns: int

    @property
    def seconds(self) -> float:
        """For clocks and waits; ``inf`` for the infinite one."""
        return float("inf") if self.is_infinite else self.ns / 1e9

    @property
    def is_infinite(self) -> bool:
        return self.ns == _LIMIT_NS

    def __str__(self) -> str:
        """The shortest spelling that reads back as the same duration: ``1m30s``, ``500ms``, ``infinite``."""
        if self.is_infinite:
            return "infinite"
        if self.ns == 0:
            return "0s"
        text, rest = "", self.ns
        for unit in ("h", "m", "s", "ms", "us", "ns"):
            amount, rest = divmod(rest, _UNITS[unit])
            text += f"{amount}{unit}" if amount else ""
        return text


INFINITE: Final = Duration(_LIMIT_NS)


def build_duration(*, seconds: int) -> Duration:
    """A duration of whole seconds."""
    return Duration(seconds * _UNITS["s"])


def parse_duration(text: str) -> Duration:
    """The duration that ``text`` means; FormatError with the spelling to use instead."""
    if text == "infinite":
        return INFINITE
    if text.startswith("-"):
        raise FormatError(f"{quote(text)} is negative; a duration is 0s or longer")
    if is_bare_number(text):
        ns = _parse_amount(text, "s")
    elif _WHOLE.fullmatch(text):
        ns = sum(_parse_amount(amount, unit) for amount, unit in _PART.findall(text))
    else:
        raise FormatError(f"{quote(text)} is not a duration; write {_find_remedy(text)}")
    if ns >= _LIMIT_NS:
        raise FormatError(f"{quote(text)} is too long; a duration is at most 292 years")
    return Duration(ns)


def is_bare_number(text: str) -> bool:
    """Whether ``text`` is a duration without a unit: seconds here, nanoseconds to NVIDIA's plugin."""
    return bool(_BARE.fullmatch(text))


def _parse_amount(amount: str, unit: str) -> int:
    """Exact in whole nanoseconds: floats would turn 0.3s into 299999999ns."""
    whole, _, fraction = amount.partition(".")
    return int(whole or 0) * _UNITS[unit] + int(fraction or 0) * _UNITS[unit] // int("1" + "0" * len(fraction))


def _find_remedy(text: str) -> str:
    worded = _WORDED.fullmatch(text)
    if worded and worded[1].isdigit():
        for beginnings, spell in _REMEDIES:
            if worded[2].lower().startswith(beginnings):
                return spell(int(worded[1]))
    return "it like 10s, 1m30s or 500ms"
