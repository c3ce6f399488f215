"""What to say about a key that nobody knows: the nearest one of its block, or the place where it belongs."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from nvdp.config.keys import find_block, find_item, list_keys, strip_optional
from nvdp.config.schema import Document, Mps, MpsResource, SharedResource
from nvdp.errors import quote

_ONLY_MPS: Final = {
    "defaultActiveThreadPercentage": "only MPS can limit threads (sharing.mps)",
    "defaultPinnedDeviceMemoryLimit": "only MPS can limit memory (sharing.mps)",
    "defaultPerDevicePinnedMemoryLimit": "only MPS can limit memory (sharing.mps)",
    "memoryOvercommitPercentage": "only MPS can limit memory (sharing.mps)",
    "multiUser": "only MPS has a server that users share (sharing.mps)",
}
_MISPLACED: Final[dict[tuple[type[msgspec.Struct], str], str]] = {
    (Mps, "requireDistinctGPUs"): "MPS clients work on one GPU. It belongs to sharing.timeSlicing",
    **{(SharedResource, key): text for key, text in _ONLY_MPS.items()},
}
_ALIKE: Final = 0.6  # difflib's own threshold


class Suggestion(msgspec.Struct, frozen=True):
    """``message`` says it all; ``meant`` is the key of the same block that was probably meant, empty if none."""

    message: str
    meant: str = ""


def suggest(key: str, *, block: type[msgspec.Struct]) -> Suggestion:
    """What to say about the unknown ``key`` of ``block``."""
    if text := _MISPLACED.get((block, key)):
        return Suggestion(f"unknown key; {text}")
    here = [known.name for known in list_keys(block)]
    same_but_case = [name for name in here if name.lower() == key.lower()]
    if same_but_case:
        return Suggestion(f"unknown key; did you mean {same_but_case[0]}? (case counts)", same_but_case[0])
    if (place := _find_place(key)) is not None:
        return Suggestion(f"unknown key; it belongs to {place if '.' in place else 'the top level'}")
    near = _find_nearest(key, here)
    if near is not None:
        return Suggestion(f"unknown key; did you mean {near}?", near)
    return Suggestion(f"unknown key; known here: {', '.join(here)}")


def show_key(key: str) -> str:
    """A key as it stands in a path: as written where it is a short word, else in quotes."""
    return key if 0 < len(key) <= 63 and key.isprintable() and not set(key) & set(' ."[]') else quote(key)  # noqa: PLR2004 - as long as a label


def _find_nearest(key: str, names: Iterable[str]) -> str | None:
    from difflib import SequenceMatcher  # noqa: PLC0415 - only a file with a mistake pays for it

    scored = [(SequenceMatcher(None, name.lower(), key[:100].lower()).ratio(), name) for name in names]
    best = max(scored, default=(0.0, ""))
    return best[1] if best[0] >= _ALIKE else None


def _find_place(key: str) -> str | None:
    """The shortest path at which ``key`` is known, whatever its case, or else the name of a block and a key in it."""
    return _index_places().get(key.lower())


@functools.cache
def _index_places() -> dict[str, str]:
    places: dict[str, str] = {}
    found = sorted(_iterate_places(Document, ""), key=lambda place: place[0].count("."))
    for path, name in found:
        places.setdefault(name.lower(), path)
    for path, name in found:  # as flags have them: imexRequired of --imex-required
        block = path.replace("[]", "").split(".")[-2:-1]
        places.setdefault("".join([*block, name]).lower(), path)
    return places


def _iterate_places(block: type[msgspec.Struct], path: str) -> Iterator[tuple[str, str]]:
    for key in list_keys(block):
        yield path + key.name, key.name
        inner = find_block(key.type)
        if inner is not None and inner is not MpsResource:
            many = "[]" if find_item(strip_optional(key.type)) else ""
            yield from _iterate_places(inner, f"{path}{key.name}{many}.")
