"""Where the YAML reader of Go programs, NVIDIA's plugin among them, reads a valid file otherwise than nvdp does.

That reader (``sigs.k8s.io/yaml`` over version 2 of Go's YAML package) follows YAML 1.1: an unquoted word may be a
number or a boolean. A key of ``<<`` replaces what stands before it. nvdp takes words as written, and for it a block's
own keys win.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml

from nvdp.config.nodes import Mark, Scalar
from nvdp.config.suggest import show_key

_BOOLEAN: Final = re.compile(r"[yYnN]|[yY]es|YES|[nN]o|NO|[oO]n|ON|[oO]ff|OFF|[tT]rue|TRUE|[fF]alse|FALSE")
_NUMBER: Final = re.compile(
    r"[-+]?(?:0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+|(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
)
_SPELT_THE_SAME: Final = re.compile(r"true|false|0|-?[1-9][0-9]{0,17}")
_VERSION: Final = re.compile(r"(?:(?:[ \t]*(?:#[^\n]*)?|%[^\n]*)\n)*?%YAML[ \t]+1\.2\b")
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE: Final = "tag:yaml.org,2002:merge"


class LateMerge(msgspec.Struct, frozen=True):
    """A ``<<``, at ``mark``, that has a key which also stands before it. ``path`` is that key's."""

    mark: Mark
    path: str


def find_kind(scalar: Scalar) -> str:
    """What is made of a single value: ``text``, ``a number`` or ``a boolean``."""
    if scalar.quoted:
        return "text"
    if _BOOLEAN.fullmatch(scalar.text):
        return "a boolean"
    is_number = scalar.text[:1] != "_" and _NUMBER.fullmatch(scalar.text.replace("_", ""))
    return "a number" if is_number else "text"


def is_respelt(scalar: Scalar) -> bool:
    """Whether a key that takes any text gets another one: ``010`` becomes 8, and ``no`` becomes false."""
    return find_kind(scalar) != "text" and not _SPELT_THE_SAME.fullmatch(scalar.text)


def find_version_directive(text: str) -> Mark | None:
    """Where the file declares YAML 1.2, which that reader refuses."""
    found = _VERSION.match(text)
    return Mark(found[0].count("\n") + 1, 1) if found else None


def find_late_merges(text: str) -> tuple[LateMerge, ...]:
    """Every key that ``<<`` replaces there and not here. ``parse_document`` must have passed ``text``: it bounds it."""
    if "<<" not in text:
        return ()
    return tuple(_iterate_late_merges(yaml.compose(text, Loader=_LOADER), "", set()))


def _iterate_late_merges(node: yaml.Node | None, path: str, seen: set[int]) -> Iterator[LateMerge]:
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for at, item in enumerate(node.value):
            yield from _iterate_late_merges(item, f"{path}[{at}]", seen)
    if not isinstance(node, yaml.MappingNode):
        return
    dot = "." if path else ""
    before: set[str] = set()
    for key, value in node.value:
        if key.tag != _MERGE:
            before.add(key.value)
            yield from _iterate_late_merges(value, f"{path}{dot}{show_key(key.value)}", seen)
            continue
        added = _list_merged(value)
        mark = Mark(key.start_mark.line + 1, key.start_mark.column + 1)
        yield from (LateMerge(mark, f"{path}{dot}{show_key(name)}") for name in added if name in before)
        before.update(added)


def _list_merged(node: yaml.Node) -> dict[str, None]:
    """The keys that a block brings in, or a list of blocks; each once, in their order."""
    if isinstance(node, yaml.SequenceNode):
        return {name: None for block in node.value for name in _list_merged(block)}
    names: dict[str, None] = {}
    for key, value in node.value:
        names |= _list_merged(value) if key.tag == _MERGE else {key.value: None}
    return names
