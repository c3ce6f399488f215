"""From the text of a file to its nodes: YAML or JSON, bounded in size, depth and expansion.

Built on the parser's events, not on its tree: they come one at a time, so that deep nesting, aliases that multiply and
anchors inside themselves are refused before anything recurses into them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml

from nvdp.config.nodes import Mapping, Mark, Node, Scalar, Sequence
from nvdp.config.syntax import Opened, explain
from nvdp.errors import ConfigError, Problem, quote

SIZE_LIMIT_BYTES: Final = 2**20
_DEPTH_LIMIT: Final = 64
_ALIAS_LIMIT: Final = 10_000
_LOADER: Final[Any] = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # libyaml where PyYAML was built with it: 20 times faster
_NOT_TEXT: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
_STANDARD_TAG: Final = re.compile(r"tag:yaml\.org,2002:(str|int|bool|float|null|map|seq)")


def parse_document(text: bytes | str, *, name: str, loader: Any = _LOADER) -> Node | None:
    """The root of the one document in ``text``; None if it says nothing. ConfigError with what stopped the reading.

    ``loader`` is a loader class of PyYAML. Both give the same, but that only libyaml lets tabs indent JSON.
    """
    return _Composer(name).compose(_decode(text, name), loader)


def _decode(text: bytes | str, name: str) -> str:
    if len(text) > SIZE_LIMIT_BYTES:
        raise _refuse(name, Mark(1, 1), "", "file is larger than 1 MiB")
    try:
        decoded = (text if isinstance(text, str) else text.decode()).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        byte, before = error.object[error.start], error.object[: error.start].decode()
        raise _refuse(name, _find_end(before), "syntax", f"byte 0x{byte:02x} is not UTF-8 text") from error
    if stranger := _NOT_TEXT.search(decoded):
        where = _find_end(decoded[: stranger.start()])
        raise _refuse(name, where, "syntax", f"character U+{ord(stranger[0]):04X} may not stand in YAML")
    return decoded


def _find_end(text: str) -> Mark:
    return Mark(text.count("\n") + 1, len(text) - text.rfind("\n"))


def _refuse(name: str, mark: Mark, path: str, message: str) -> ConfigError:
    return ConfigError((Problem(file=name, line=mark.line, column=mark.column, path=path, message=message),))


class _Open(msgspec.Struct):
    """A list or block whose end has not come yet. ``key`` is the one that waits for its value."""

    node: Sequence | Mapping
    anchor: str | None
    bracket: str
    key: Scalar | None = None
    size: int = 1


class _Composer:
    def __init__(self, name: str) -> None:
        self._name = name
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._aliased = 0
        self._root: Node | None = None
        self._second: Mark | None = None

    def compose(self, text: str, loader: Any) -> Node | None:
        for event in self._iterate_events(text, loader):
            mark = Mark(event.start_mark.line + 1, event.start_mark.column + 1)
            match event:
                case yaml.DocumentStartEvent() if self._root is not None:
                    self._second = mark
                case yaml.ScalarEvent():
                    self._add_scalar(event, mark)
                case yaml.SequenceStartEvent():
                    self._open(Sequence(mark, []), event)
                case yaml.MappingStartEvent():
                    self._open(Mapping(mark, []), event)
                case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                    self._close()
                case yaml.AliasEvent():
                    self._add_alias(str(event.anchor), mark)
        return None if isinstance(self._root, Scalar) and self._root.is_null else self._root

    def _iterate_events(self, text: str, loader: Any) -> Iterator[Any]:
        try:
            yield from yaml.parse(text, Loader=loader)
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            innermost = self._stack[-1] if self._stack else None
            opened = Opened(innermost.bracket, innermost.node.mark) if innermost else None
            mark, message = explain(error, text=text, opened=opened)
            raise _refuse(self._name, mark, "syntax", message) from error

    def _add_scalar(self, event: yaml.ScalarEvent, mark: Mark) -> None:
        quoted = event.style in {"'", '"', "|", ">"} or self._is_text_by_tag(event.tag, mark)
        scalar = Scalar(mark, event.value, quoted)
        if self._second and not scalar.is_null:
            self._refuse_second()
        self._remember(event.anchor, scalar, 1)
        self._add(scalar, 1)

    def _is_text_by_tag(self, tag: str | None, mark: Mark) -> bool:
        if tag is None:
            return False
        standard = _STANDARD_TAG.fullmatch(tag)
        if standard is None and tag != "!":
            raise _refuse(self._name, mark, "syntax", f"tag {quote(tag)} means nothing here; remove it")
        return standard is None or standard[1] == "str"

    def _open(self, node: Sequence | Mapping, event: Any) -> None:
        if self._second:
            self._refuse_second()
        self._is_text_by_tag(event.tag, node.mark)
        if len(self._stack) >= _DEPTH_LIMIT:
            raise _refuse(self._name, node.mark, "syntax", f"nested more than {_DEPTH_LIMIT} levels deep")
        bracket = ("[" if isinstance(node, Sequence) else "{") if event.flow_style else ""
        self._stack.append(_Open(node, event.anchor, bracket))

    def _close(self) -> None:
        done = self._stack.pop()
        if isinstance(done.node, Mapping):
            self._merge(done.node)
        self._remember(done.anchor, done.node, done.size)
        self._add(done.node, done.size)

    def _add(self, node: Node, size: int) -> None:
        if not self._stack:
            self._root = self._root if self._second else node
            return
        parent = self._stack[-1]
        parent.size += size
        if isinstance(parent.node, Sequence):
            parent.node.items.append(node)
        elif parent.key is not None:
            parent.node.entries.append((parent.key, node))
            parent.key = None
        elif isinstance(node, Scalar):
            parent.key = node
        else:
            raise _refuse(self._name, node.mark, "syntax", "a key must be one word, not a list or a block")

    def _remember(self, anchor: str | None, node: Node, size: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (node, size)

    def _add_alias(self, anchor: str, mark: Mark) -> None:
        if any(container.anchor == anchor for container in self._stack):
            raise _refuse(self._name, mark, "syntax", f"*{anchor} stands inside its own &{anchor}")
        if anchor not in self._anchors:
            raise _refuse(self._name, mark, "syntax", f"*{anchor} has no &{anchor} before it")
        node, size = self._anchors[anchor]
        self._aliased += size
        if self._aliased > _ALIAS_LIMIT:
            raise _refuse(self._name, mark, "", f"aliases expand to more than {_ALIAS_LIMIT} values")
        self._add(node, size)

    def _merge(self, mapping: Mapping) -> None:
        """YAML's ``<<``: keys of other blocks, where this one does not have them itself."""
        sources: list[Node] = []
        for key, value in mapping.entries:
            if key.text == "<<" and not key.quoted:
                sources += value.items if isinstance(value, Sequence) else [value]
        if not sources:
            return
        mapping.entries[:] = [(key, value) for key, value in mapping.entries if key.text != "<<" or key.quoted]
        present = {key.text for key, _ in mapping.entries}
        for source in sources:
            if not isinstance(source, Mapping):
                raise _refuse(self._name, source.mark, "syntax", "<< takes a block, or a list of blocks")
            added = [(key, value) for key, value in source.entries if key.text not in present]
            mapping.entries.extend(added)
            present.update(key.text for key, _ in added)

    def _refuse_second(self) -> None:
        assert self._second is not None
        message = f"second document at line {self._second.line}; one configuration per file"
        raise _refuse(self._name, self._second, "syntax", message)
