"""Values as a file spells them: for ``config show``, the JSON schema and the documentation."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from nvdp.config.keys import list_keys
from nvdp.config.options import list_options
from nvdp.config.process import ProcessOptions
from nvdp.config.schema import Config, Document, XidSet
from nvdp.model.deviceref import DeviceRef, DeviceSet
from nvdp.model.duration import Duration
from nvdp.model.names import Pattern
from nvdp.model.quantity import Quantity

_BARE: Final = re.compile(r"[A-Za-z/][A-Za-z0-9/._-]*|[0-9]+[a-z][0-9a-z]*")
_SPECIAL: Final = re.compile(r"(?i:true|false|yes|no|on|off|null|y|n|0[xob].*|[0-9]+e[0-9]*)")
_COMMENT_COLUMN: Final = 48


def build_plain(value: Any) -> Any:
    """``value`` in JSON's own types, as a file would hold it. Keys that hold nothing are left out of blocks."""
    return next((build(value) for kind, build in _PLAIN if isinstance(value, kind)), value)


def _build_plain_set(devices: DeviceSet) -> Any:
    if devices.count is not None:
        return devices.count
    return build_plain(devices.refs) or "all"


def _build_plain_block(block: msgspec.Struct) -> dict[str, Any]:
    held = ((key.name, getattr(block, key.attribute)) for key in list_keys(type(block)))
    return {name: build_plain(value) for name, value in held if value is not None}


_PLAIN: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (enum.Enum, lambda choice: choice.value),
    (DeviceSet, _build_plain_set),
    (XidSet, lambda xids: "all" if xids.every else list(xids.numbers)),
    ((Duration, Quantity, Pattern, DeviceRef, Path, str), str),
    (tuple, lambda items: [build_plain(item) for item in items]),
    (Mapping, lambda items: {str(key): build_plain(item) for key, item in items.items()}),
    (msgspec.Struct, _build_plain_block),
)


def spell(value: Any) -> str:
    """A plain value on one line of YAML, that reads back as the same."""
    if isinstance(value, str) and _BARE.fullmatch(value) and not _SPECIAL.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def build_shown(config: Config, options: ProcessOptions) -> dict[str, Any]:
    """All effective values and where each came from, in JSON's own types. Options are named by their flag."""
    own = [option for option in list_options() if not option.path]
    plain = build_plain(config)
    return {
        "name": config.name,
        "hash": config.hash,
        "config": {key.name: plain[key.name] for key in list_keys(Document)},
        "options": {option.flag: build_plain(getattr(options, option.key.attribute)) for option in own},
        "origins": {path: str(origin) for path, origin in config.origins.items()}
        | {f"--{flag}": str(origin) for flag, origin in options.origins.items()},
        "warnings": [warning.render_warning() for warning in config.warnings],
    }


def render_shown(config: Config, options: ProcessOptions) -> str:
    """The same as YAML with comments: a file that gives the same configuration."""
    shown = build_shown(config, options)
    lines = [f"# {config.name} {config.hash}"]
    lines += _iterate_block(shown["config"], "", "", shown["origins"])
    lines += ["", "# Options of the process, not part of a file"]
    lines += [
        _comment(f"# --{flag} {spell(value)}", shown["origins"][f"--{flag}"])
        for flag, value in shown["options"].items()
        if value is not None
    ]
    return "\n".join(lines) + "\n"


def _iterate_block(block: Mapping[str, Any], path: str, indent: str, origins: Mapping[str, str]) -> Iterator[str]:
    for name, value in block.items():
        inner = f"{path}.{name}" if path else name
        label = f"{indent}{spell(name)}:"
        if isinstance(value, dict) and value:
            yield label
            yield from _iterate_block(value, inner, indent + "  ", origins)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield _comment(label, origins.get(inner, ""))
            for at, entry in enumerate(value):
                first, *rest = _iterate_block(entry, f"{inner}[{at}]", indent + "  ", origins)
                yield from (f"{indent}- {first.lstrip()}", *rest)
        else:
            yield _comment(f"{label} {spell(value)}", origins.get(inner, ""))


def _comment(line: str, comment: str) -> str:
    return f"{line:<{_COMMENT_COLUMN}}  # {comment}" if comment else line
