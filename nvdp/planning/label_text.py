"""Names and values of labels: whatever a driver or a machine is called, what is written is one that Kubernetes takes.

The text rules are NVIDIA's (GPU Feature Discovery); that a value is cut where it would be refused is ours. Pure.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

PREFIX: Final = "nvidia.com/"
LENGTH_LIMIT: Final = 63  # characters of a value, and of a name behind its prefix
_DROPPED: Final = re.compile(r"[^A-Za-z0-9 _.\-]")
_ENDS: Final = " _.-"  # what a value may not begin or end with
_DIGEST_DIGITS: Final = 6

# The families by compute capability, from the first one that has the name.
_FAMILIES: Final = (
    ((1, 0), "tesla"),
    ((2, 0), "fermi"),
    ((3, 0), "kepler"),
    ((4, 0), ""),
    ((5, 0), "maxwell"),
    ((6, 0), "pascal"),
    ((7, 0), "volta"),
    ((7, 5), "turing"),
    ((8, 0), "ampere"),
    ((8, 9), "ada-lovelace"),
    ((9, 0), "hopper"),
    ((10, 0), "blackwell"),
    ((11, 0), ""),
    ((12, 0), "blackwell"),
    ((13, 0), "rubin"),
    ((14, 0), ""),
)
_NO_FAMILY: Final = "undefined"


def sanitise(text: str) -> str:
    """The words of a text, joined by ``-``, without what no value may hold: ``NVIDIA TITAN X (Pascal)`` loses its
    brackets. It may still be too long, or have ends that are not letters or digits.
    """
    return "-".join(_DROPPED.sub("", text.replace("\t", " ").replace("\n", " ")).split())


def build_value(text: str, suffix: str = "") -> str:
    """A valid value: the sanitised text with ``suffix``, which stays whole, if there is room, where text is cut.

    May be empty. ``suffix`` has no characters that no value may hold.
    """
    cut = sanitise(text).lstrip(_ENDS)[: max(0, LENGTH_LIMIT - len(suffix))].rstrip(_ENDS)
    return (cut + suffix).lstrip(_ENDS)[:LENGTH_LIMIT].rstrip(_ENDS)


def build_part(text: str, *, room: int) -> str:
    """A part of a label's name, of at most ``room`` characters: one that is cut ends with a digest of the whole."""
    if len(text) <= room:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]
    return f"{text[: room - _DIGEST_DIGITS - 1].rstrip(_ENDS)}-{digest}"


def build_bool(value: bool) -> str:  # noqa: FBT001 - the value to spell
    return "true" if value else "false"


def find_family(capability: tuple[int, int]) -> str:
    """NVIDIA's word for the generation of a GPU; ``undefined`` for one that has none here."""
    names = [name for first, name in _FAMILIES if first <= capability]
    return (names[-1] if names else "") or _NO_FAMILY
