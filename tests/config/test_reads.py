"""That every key of the file is read, and every option: none is taken and then ignored."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import nvdp
from nvdp.config.keys import find_block, find_item, list_keys, strip_optional
from nvdp.config.process import ProcessOptions
from nvdp.config.schema import Document

ROOT = Path(__file__).parents[2]
SOURCES = Path(nvdp.__file__).parent
# What reads a key only in order to show it.
NOT_READERS = ("config/", "commands/config.py", "commands/flags.py")


class _Leaf(msgspec.Struct, frozen=True):
    path: str
    attribute: str
    block: str


def _iterate_leaves(block: type[msgspec.Struct], path: str = "", name: str = "") -> Iterator[_Leaf]:
    for key in list_keys(block):
        inner = find_block(key.type)
        many = "[]" if find_item(strip_optional(key.type)) else ""
        if inner is None:
            yield _Leaf(path + key.name, key.attribute, name)
        else:
            yield from _iterate_leaves(inner, f"{path}{key.name}{many}.", key.attribute)


LEAVES = [*_iterate_leaves(Document)]
BUILT = [leaf for leaf in LEAVES if not leaf.path.startswith(("version", "resources"))]


@functools.cache
def _list_reads() -> frozenset[tuple[str, str]]:
    """Every attribute that the code reads, with the name of what it is read from, and with none."""
    found: set[tuple[str, str]] = set()
    for source in SOURCES.rglob("*.py"):
        place = str(source.relative_to(SOURCES))
        if place.startswith(NOT_READERS) and place != "config/load.py":  # it settles what follows from what
            continue
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Attribute):
                holder = node.value
                name = holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")
                found |= {(name, node.attr), ("", node.attr)}
    return frozenset(found)


@pytest.mark.parametrize("leaf", BUILT, ids=lambda leaf: leaf.path)
def test_every_key_is_read(leaf: _Leaf):
    assert ("", leaf.attribute) in _list_reads(), f"nothing reads {leaf.path}"


def test_every_option_is_read():
    settled = {"kubelet_root"}  # only moves the two sockets, where it is parsed
    reads = _list_reads()
    read_ones = {
        key.attribute
        for key in list_keys(ProcessOptions)
        if not reads.isdisjoint({("options", key.attribute), ("_options", key.attribute)})
    }
    assert read_ones == {key.attribute for key in list_keys(ProcessOptions)} - settled
