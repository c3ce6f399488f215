"""What a file itself has written: each key and each entry of a list, as spelt, beside the value that came of it.

A ``Config`` says what is in force; this says also how it was put, which matters to other readers of the same file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from nvdp.config.keys import find_key
from nvdp.config.nodes import Mapping, Node, Scalar, Sequence
from nvdp.config.schema import Config


class Written(msgspec.Struct, frozen=True):
    """One key, or one entry of a list, that stands in the file.

    ``pattern`` is ``path`` without the numbers of entries: ``sharing.mps.resources[].name``. ``value`` is what the
    configuration holds, None for an entry that is no block. ``blocks`` are those around it, inner first; the last is
    the configuration.
    """

    path: str
    pattern: str
    node: Node
    value: Any
    blocks: tuple[Any, ...]

    @property
    def config(self) -> Config:
        whole = self.blocks[-1]
        assert isinstance(whole, Config)
        return whole

    @property
    def is_null(self) -> bool:
        """Whether nothing stands after the key, so that it is as good as absent here."""
        return isinstance(self.node, Scalar) and self.node.is_null

    @property
    def text(self) -> str:
        """A single value as it was spelt; empty for a list or a block."""
        return self.node.text if isinstance(self.node, Scalar) else ""


def iterate_written(root: Node | None, config: Config) -> Iterator[Written]:
    """All that the file has, from its root, blocks before what is in them. ``config`` is what was read from it."""
    if isinstance(root, Mapping):
        yield from _iterate_block(root, "", "", (config,))


def _iterate_block(block: Mapping, path: str, pattern: str, blocks: tuple[Any, ...]) -> Iterator[Written]:
    dot = "." if path else ""
    for name, node in block.entries:
        key = find_key(type(blocks[0]), name.text)
        value = getattr(blocks[0], key.attribute)
        inner = Written(f"{path}{dot}{key.name}", f"{pattern}{dot}{key.name}", node, value, blocks)
        yield inner
        yield from _iterate_inside(inner)


def _iterate_inside(outer: Written) -> Iterator[Written]:
    if isinstance(outer.node, Mapping) and isinstance(outer.value, msgspec.Struct):
        yield from _iterate_block(outer.node, outer.path, outer.pattern, (outer.value, *outer.blocks))
    if not isinstance(outer.node, Sequence):
        return
    for at, node in enumerate(outer.node.items):
        value = outer.value[at] if isinstance(node, Mapping) else None
        inner = Written(f"{outer.path}[{at}]", f"{outer.pattern}[]", node, value, outer.blocks)
        yield inner
        yield from _iterate_inside(inner)
