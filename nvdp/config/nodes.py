"""A configuration's text as a tree of nodes that know their line and column. Lines and columns count from 1."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Mark(msgspec.Struct, frozen=True):
    """A place in the text."""

    line: int
    column: int


class Scalar(msgspec.Struct, frozen=True):
    """One value as written, before any YAML rule makes a number or a boolean of it. ``quoted`` means text for sure."""

    mark: Mark
    text: str
    quoted: bool = False

    @property
    def is_null(self) -> bool:
        return not self.quoted and self.text in {"", "~", "null", "Null", "NULL"}


class Sequence(msgspec.Struct, frozen=True):
    mark: Mark
    items: list[Node]


class Mapping(msgspec.Struct, frozen=True):
    """``entries`` are in the order of the file; a key may occur twice."""

    mark: Mark
    entries: list[tuple[Scalar, Node]]


Node: TypeAlias = Scalar | Sequence | Mapping


def find_value(mapping: Mapping, key: str) -> Node | None:
    """The value of the first entry with this key."""
    return next((value for name, value in mapping.entries if name.text == key), None)
