"""From the nodes of a file to the structs of ``schema``, driven by their annotations: all mistakes in one pass.

What is wrong in one place is reported and left out, and the rest is read on, so that rules between keys can still be
checked where all that they need is there.
"""

from __future__ import annotations

import enum
import functools
import typing
from collections import abc
from typing import Any, Final, Literal

import msgspec

from nvdp.config.findings import Findings
from nvdp.config.keys import Key, Setting, find_block, find_item, list_keys, strip_optional
from nvdp.config.nodes import Mapping, Mark, Node, Scalar, Sequence
from nvdp.config.overrides import Overrides
from nvdp.config.scalars import READERS, Reader, looks_like_number, read_enum
from nvdp.config.schema import DEFAULT, Document, Origin, XidSet
from nvdp.config.suggest import show_key, suggest
from nvdp.errors import FormatError, quote
from nvdp.model.deviceref import ALL_DEVICES, DeviceRef, DeviceSet, parse_device_ref
from nvdp.model.duration import Duration, is_bare_number


class _Left(enum.Enum):
    OUT = "a value that is wrong: it was reported and is left out"


_OUT: Final = _Left.OUT
_Out = Literal[_Left.OUT]


class Reading:
    """One file being read. Afterwards ``origins`` says where each value came from."""

    def __init__(self, findings: Findings, overrides: Overrides) -> None:
        self.origins: dict[str, Origin] = {}
        self._findings = findings
        self._overrides = overrides

    def read_document(self, root: Node | None) -> Document:
        """All that the file says, under what flags and environment say. A wrong value has become its default."""
        if root is not None and not isinstance(root, Mapping):
            self._findings.report(
                "", 'a configuration is a block of keys and begins with "version: v1"', mark=root.mark
            )
        read = self._read_block(root if isinstance(root, Mapping) else Mapping(Mark(1, 1), []), Document, "")
        assert isinstance(read, Document)  # no key of it is required
        return read

    def _read_block(self, node: Mapping, block: type[msgspec.Struct], path: str) -> msgspec.Struct | _Out:
        """The struct of a block; out if a key that it needs is missing or wrong."""
        entries, meant = self._match_keys(node, block, path)
        values: dict[str, Any] = {}
        complete = True
        for key in list_keys(block):
            value = self._read_key(key, entries.get(key.name), _join(path, key.name))
            if value is not msgspec.NODEFAULT:
                values[key.attribute] = value
                continue
            complete = False
            if key.name not in entries and key.name not in meant:
                remedy = f"; {key.setting.remedy}" if key.setting.remedy else ""
                self._findings.report(path, f"{key.name} is missing{remedy}", mark=node.mark)
        if not complete:
            return _OUT
        if "line" in block.__struct_fields__:
            values |= {"path": path, "line": node.mark.line}
        return block(**values)

    def _match_keys(self, node: Mapping, block: type[msgspec.Struct], path: str) -> tuple[dict[str, Node], set[str]]:
        """What the known keys of a block hold, and the keys that unknown ones were probably meant to be.

        A key with nothing after it is as good as absent, unless its setting says otherwise.
        """
        keys = {key.name: key for key in list_keys(block)}
        seen: dict[str, Mark] = {}
        entries: dict[str, Node] = {}
        meant: set[str] = set()
        for name, value in node.entries:
            inner = _join(path, show_key(name.text))
            if name.text in seen:
                first = seen[name.text].line
                self._findings.report(inner, f"second time in this file, first at line {first}", mark=name.mark)
            elif name.text not in keys and self._findings.is_full:
                self._findings.report(inner, "unknown key", mark=name.mark)
            elif name.text not in keys:
                suggestion = suggest(name.text, block=block)
                meant.add(suggestion.meant)
                self._findings.report(inner, suggestion.message, mark=name.mark)
            else:
                content = self._find_content(keys[name.text], name, value)
                if content is not None:
                    entries[name.text] = content
                    self._findings.place(inner, content.mark)
            seen.setdefault(name.text, name.mark)
        return entries, meant

    def _find_content(self, key: Key, name: Scalar, value: Node) -> Node | None:
        if not isinstance(value, Scalar) or not value.is_null:
            return value
        if not key.setting.null_is_empty:
            return None
        return Mapping(name.mark, []) if find_block(key.type) else Sequence(name.mark, [])

    def _read_key(self, key: Key, node: Node | None, path: str) -> Any:
        """The effective value of one key: from flag, environment or file, else its default."""
        hint = strip_optional(key.type)
        block = find_block(hint)
        if block is None or find_item(hint) is not None:
            value = _OUT if node is None else self._read_value(node, hint, key.setting, path)
            self.origins.setdefault(path, DEFAULT)
            if path not in self._overrides.values:
                return key.default if value is _OUT else value
            self.origins[path] = self._overrides.origins[path]
            return self._overrides.values[path]
        if node is None and key.default is None:
            return None
        if node is not None and not isinstance(node, Mapping):
            self._findings.report(path, f"a block of keys is needed{_say_what_is(node)}")
            node = None
        read = self._read_block(node or Mapping(Mark(1, 1), []), block, path)
        return key.default if read is _OUT else read

    def _read_value(self, node: Node, hint: Any, setting: Setting, path: str) -> Any:
        self.origins[path] = _build_origin(node, hint)
        if hint is DeviceSet:
            return self._read_device_set(node, setting, path)
        if hint is XidSet:
            return self._read_xids(node, setting, path)
        item = find_item(hint)
        if item is not None:
            return self._read_list(node, item, setting, path)
        if typing.get_origin(hint) is abc.Mapping:
            return self._read_mapping(node, typing.get_args(hint), setting, path)
        return self._read_scalar(node, hint, setting, path)

    def _read_scalar(self, node: Node, hint: Any, setting: Setting, path: str) -> Any:
        if not isinstance(node, Scalar):
            return self._leave_out(path, f"one value is needed{_say_what_is(node)}")
        try:
            return _find_reader(hint)(node, setting, functools.partial(self._findings.warn, path))
        except FormatError as error:
            return self._leave_out(path, str(error))

    def _read_list(self, node: Node, item: Any, setting: Setting, path: str) -> tuple[Any, ...] | _Out:
        if setting.single and isinstance(node, Scalar):
            value = self._read_scalar(node, item, setting, path)
            return _OUT if value is _OUT else (value,)
        if isinstance(node, Scalar):
            return self._leave_out(path, f"a list is needed: [{_spell(node)}]")
        if isinstance(node, Mapping):
            return self._leave_out(path, 'a list is needed; begin each entry with "- "')
        if setting.remedy and not node.items:
            return self._leave_out(path, f"is empty; {setting.remedy}")
        read = [self._read_item(inner, item, setting, f"{path}[{at}]") for at, inner in enumerate(node.items)]
        kept = [at for at, value in enumerate(read) if value is not _OUT]
        if len(kept) < len(read):
            self._findings.keep(path, kept)
        for at in kept:
            if find_block(item) is None and read[at] in read[:at]:
                self._findings.warn(f"{path}[{at}]", f"{_spell(node.items[at])} is listed twice")
        return tuple(read[at] for at in kept)

    def _read_item(self, node: Node, item: Any, setting: Setting, path: str) -> Any:
        """One entry of a list: wrong as a whole if anything in it is wrong."""
        self._findings.place(path, node.mark)
        block = find_block(item)
        if block is None:
            return self._read_scalar(node, item, setting, path)
        if not isinstance(node, Mapping):
            return self._leave_out(path, f"a block of keys is needed{_say_what_is(node)}")
        before = self._findings.count
        read = self._read_block(node, block, path)
        return read if self._findings.count == before else _OUT

    def _read_mapping(self, node: Node, hints: tuple[Any, ...], setting: Setting, path: str) -> dict[Any, Any] | _Out:
        if not isinstance(node, Mapping):
            return self._leave_out(path, f"a block of keys is needed{_say_what_is(node)}")
        values: dict[Any, Any] = {}
        for name, inner in node.entries:
            inner_path = _join(path, show_key(name.text))
            self._findings.place(inner_path, name.mark)
            key = self._read_scalar(name, hints[0], setting, inner_path)
            if key in values:
                self._findings.report(inner_path, f"{quote(name.text)} is listed twice", mark=name.mark)
            self._findings.place(inner_path, inner.mark)
            values[key] = self._read_scalar(inner, hints[1], setting, inner_path)
        return values

    def _read_device_set(self, node: Node, setting: Setting, path: str) -> DeviceSet | _Out:
        if isinstance(node, Sequence):
            refs = self._read_list(node, DeviceRef, setting, path)
            return _OUT if refs is _OUT else DeviceSet(refs=refs)
        if isinstance(node, Mapping):
            return self._leave_out(path, f"{setting.remedy}, not a block")
        if node.text == "all":
            return ALL_DEVICES
        if not node.quoted and looks_like_number(node.text):
            count = self._read_scalar(node, int, setting, path)
            return _OUT if count is _OUT else DeviceSet(count=count)
        try:
            parse_device_ref(node.text)
        except FormatError:
            return self._leave_out(path, f"{quote(node.text)} is not all, a count, or a list of devices")
        return self._leave_out(path, f"a list is needed: [{_spell(node)}]")

    def _read_xids(self, node: Node, setting: Setting, path: str) -> XidSet | _Out:
        if isinstance(node, Scalar) and node.text == "all":
            return XidSet(every=True)
        numbers = self._read_list(node, int, setting, path)
        return _OUT if numbers is _OUT else XidSet(numbers=numbers)

    def _leave_out(self, path: str, message: str) -> _Out:
        self._findings.report(path, message)
        return _OUT


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _find_reader(hint: Any) -> Reader:
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return functools.partial(read_enum, choices=hint)
    return READERS[hint]


def _build_origin(node: Node, hint: Any) -> Origin:
    text = f"file line {node.mark.line}"
    if hint is Duration and isinstance(node, Scalar) and is_bare_number(node.text):
        text += " (a bare number: seconds)"
    return Origin(text=text, line=node.mark.line, column=node.mark.column)


def _say_what_is(node: Node) -> str:
    return {Scalar: "", Sequence: ", not a list", Mapping: ", not a block"}[type(node)]


def _spell(node: Node) -> str:
    """A scalar as it may stand in a list."""
    text = quote(node.text) if isinstance(node, Scalar) else ""
    return text if isinstance(node, Scalar) and (node.quoted or len(text) > len(node.text) + 2) else text[1:-1]
