"""Flags and environment variables: one table, derived from the annotations, and its reader.

Precedence: flag, then environment, then file, then default. An empty value is as good as none. What does not parse is a
UsageError, not a broken configuration: it cannot be mended while the process runs.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from nvdp.config.cluster import ClusterOptions
from nvdp.config.keys import Key, Setting, find_block, find_item, list_keys, strip_optional
from nvdp.config.nodes import Mark, Scalar
from nvdp.config.overrides import Overrides
from nvdp.config.process import KUBELET_ROOT, ProcessOptions
from nvdp.config.scalars import check_form, check_range, read_enum
from nvdp.config.schema import DEFAULT, Document, Origin
from nvdp.errors import FormatError, UsageError, quote
from nvdp.model.duration import Duration, parse_duration
from nvdp.model.quantity import Quantity, parse_quantity

__all__ = ["Option", "Overrides", "list_options", "parse_options"]

_DIGITS: Final = 18

_BOOLEANS: Final = dict.fromkeys(("1", "t", "T", "true", "True", "TRUE"), True) | dict.fromkeys(
    ("0", "f", "F", "false", "False", "FALSE"), False
)  # Go's ParseBool


class Option(msgspec.Struct, frozen=True):
    """One flag with its environment variables. ``path`` is its key in the file, empty if it has none."""

    key: Key
    path: str

    @property
    def flag(self) -> str:
        """The name to show, without dashes; also the option's name in ``parse_options``."""
        return self.key.setting.flags[0]

    @property
    def is_bool(self) -> bool:
        return self.key.type is bool

    @property
    def is_list(self) -> bool:
        return find_item(self.key.type) is not None


@functools.cache
def list_options() -> tuple[Option, ...]:
    """All options, those of the process first, and of these last the ones that are about the cluster."""
    about_cluster = {key.attribute for key in list_keys(ClusterOptions)}
    own = sorted(list_keys(ProcessOptions), key=lambda key: key.attribute in about_cluster)
    return (*(Option(key, "") for key in own), *_iterate_options(Document, ""))


def _iterate_options(block: type[msgspec.Struct], path: str) -> Iterator[Option]:
    for key in list_keys(block):
        inner = find_block(key.type) if find_item(key.type) is None else None
        if key.setting.flags:
            yield Option(key, path + key.name)
        elif inner is not None:
            yield from _iterate_options(inner, f"{path}{key.name}.")


def parse_options(flags: Mapping[str, object], environment: Mapping[str, str]) -> tuple[ProcessOptions, Overrides]:
    """The options of the process, and what flags and environment say about keys of the file.

    ``flags`` holds, by ``Option.flag``, the text of a flag, or several texts for one that may be repeated; one that was
    not given is absent, None or empty. UsageError names the flag or variable that does not parse.
    """
    own: dict[str, Any] = {}
    own_origins: dict[str, Origin] = {}
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for option in list_options():
        texts, source = _find_given(option, flags, environment)
        if not texts:
            if not option.path:
                own_origins[option.flag] = DEFAULT
            continue
        try:
            value = _parse(option, texts)
        except FormatError as error:
            raise UsageError(f"{source}: {error}") from error
        if option.path:
            values[option.path], origins[option.path] = value, Origin(text=source)
        else:
            own[option.key.attribute], own_origins[option.flag] = value, Origin(text=source)
    _follow_kubelet(own, own_origins)
    return ProcessOptions(**own, origins=own_origins), Overrides(values, origins)


def _find_given(option: Option, flags: Mapping[str, object], environment: Mapping[str, str]) -> tuple[list[str], str]:
    """The texts given for an option, and where."""
    given = flags.get(option.flag)
    texts = [str(text) for text in (given if isinstance(given, (list, tuple)) else (given,)) if text not in {None, ""}]
    if texts:
        return texts, f"flag --{option.flag}"
    for name in option.key.setting.environment:
        if environment.get(name):
            return [environment[name]], f"environment {name}"
    return [], ""


def _parse(option: Option, texts: list[str]) -> Any:
    hint, setting = strip_optional(option.key.type), option.key.setting
    item = find_item(hint)
    if item is None:
        return _parse_one(texts[-1], hint, setting)
    parts = [part.strip() for text in texts for part in text.split(",")]
    return tuple(dict.fromkeys(_parse_one(part, item, setting) for part in parts if part))


def _parse_one(text: str, hint: Any, setting: Setting) -> Any:
    if issubclass(hint, enum.Enum):
        return read_enum(Scalar(Mark(1, 1), text), setting, _ignore, choices=hint)
    return _PARSERS[hint](text, setting)


def _parse_bool(text: str, _setting: Setting) -> bool:
    if text not in _BOOLEANS:
        raise FormatError(f"{quote(text)} is not true or false")
    return _BOOLEANS[text]


def _parse_int(text: str, setting: Setting) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS:
        raise FormatError(f"{quote(text)} is not a number")
    return check_range(int(text), setting, text)


_PARSERS: Final[dict[Any, Callable[[str, Setting], Any]]] = {
    bool: _parse_bool,
    int: _parse_int,
    str: check_form,
    Path: lambda text, _: Path(text),
    Duration: lambda text, _: parse_duration(text),
    Quantity: lambda text, setting: check_range(parse_quantity(text), setting, text),
}


def _follow_kubelet(own: dict[str, Any], origins: dict[str, Origin]) -> None:
    """The kubelet's root moves its sockets, and its socket the one beside it, where these are not given themselves."""
    root = own.get("kubelet_root", KUBELET_ROOT)
    if "kubelet_socket" not in own:
        own["kubelet_socket"] = root / "device-plugins" / "kubelet.sock"
        if "kubelet_root" in own:
            origins["kubelet-socket"] = Origin(text="follows --kubelet-root")
    if "pod_resources_socket" not in own:
        own["pod_resources_socket"] = own["kubelet_socket"].parent.parent / "pod-resources" / "kubelet.sock"
        if origins["kubelet-socket"] != DEFAULT:
            origins["pod-resources-socket"] = Origin(text="follows --kubelet-socket")


def _ignore(_text: str) -> None:
    """A flag has no doubtful spellings to note."""
