"""The JSON schema of a configuration file, for editors and for checks in CI. Derived from the annotations.

It says what a key may hold; rules between keys are left to ``nvdp config check``.
"""

from __future__ import annotations

import enum
import typing
from collections import abc
from typing import Any, Final

import msgspec

from nvdp.config.keys import Key, Setting, find_block, find_item, list_keys, strip_optional
from nvdp.config.scalars import list_choices
from nvdp.config.schema import Document, XidSet
from nvdp.config.spelling import build_plain
from nvdp.model.deviceref import DeviceRef, DeviceSet
from nvdp.model.duration import Duration
from nvdp.model.names import Pattern, ResourceName
from nvdp.model.quantity import Quantity

_HEX: Final = "[0-9a-fA-F]"
_UUID: Final = f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
_DEFINITIONS: Final[dict[Any, dict[str, Any]]] = {
    Duration: {"type": ["string", "number"], "description": "like 10s, 1m30s or 500ms; a bare number is seconds"},
    Quantity: {"type": ["string", "integer"], "description": "like 16Gi, 500M or 17179869184"},
    ResourceName: {
        "type": "string",
        "minLength": 1,
        "description": "like nvidia.com/gpu; without a domain, nvidia.com/ is put in front",
    },
    Pattern: {"type": "string", "minLength": 1, "description": "* is any text, everything else stands for itself"},
    DeviceRef: {
        "anyOf": [
            {"type": "integer", "minimum": 0},
            {"type": "string", "pattern": "^[0-9]+(:[0-9]+)?$"},
            {"type": "string", "pattern": f"^(GPU|MIG)-{_UUID}$|^MIG-GPU-{_UUID}/[0-9]+/[0-9]+$"},
            {"type": "string", "pattern": f"^{_HEX}{{4,8}}:{_HEX}{{2}}:{_HEX}{{2}}\\.[0-7]$"},
        ],
        "description": "a UUID, a PCI address, an index, or GPU:INSTANCE",
    },
    DeviceSet: {
        "anyOf": [
            {"const": "all"},
            {"type": "integer", "minimum": 1},
            {"type": "array", "items": {"$ref": "#/$defs/DeviceRef"}, "minItems": 1},
        ]
    },
    XidSet: {"anyOf": [{"const": "all"}, {"type": "array", "items": {"type": "integer", "minimum": 1}}]},
}


def build_json_schema() -> dict[str, Any]:
    """The whole schema, in an order that does not change."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "nvdp configuration",
        **_describe_block(Document),
        "$defs": {hint.__name__: definition for hint, definition in _DEFINITIONS.items()},
    }


def _describe_block(block: type[msgspec.Struct]) -> dict[str, Any]:
    keys = list_keys(block)
    required = [key.name for key in keys if key.default is msgspec.NODEFAULT]
    return {
        "type": "object",
        "additionalProperties": False,
        **({"required": required} if required else {}),
        "properties": {key.name: _describe_key(key) for key in keys},
    }


def _describe_key(key: Key) -> dict[str, Any]:
    """One property. A key with nothing after it is as good as absent, so most may be null."""
    described = _describe_value(strip_optional(key.type), key.setting)
    needed = key.default is msgspec.NODEFAULT or key.setting.null_is_empty
    described = described if needed else _allow_null(described)
    described["description"] = key.setting.doc
    plain = None if key.default is msgspec.NODEFAULT else build_plain(key.default)
    if key.setting.default_text:
        described["description"] += f"; default: {key.setting.default_text}"
    elif plain is not None and not isinstance(plain, dict):
        described["default"] = plain
    return described


def _describe_value(hint: Any, setting: Setting) -> dict[str, Any]:
    block, item = find_block(hint), find_item(hint)
    if item is not None:
        return _describe_list(_describe_value(item, setting), setting)
    if block is not None:
        return _describe_block(block)
    if typing.get_origin(hint) is abc.Mapping:
        return {"type": "object", "additionalProperties": _refer(typing.get_args(hint)[1])}
    if issubclass(hint, enum.Enum):
        return {"enum": list_choices(hint, setting)}
    if hint in _DEFINITIONS:
        return _refer(hint)
    return {"type": _TYPES[hint], **_describe_range(hint, setting), **_describe_form(setting)}


def _describe_list(item: dict[str, Any], setting: Setting) -> dict[str, Any]:
    several = {"type": "array", "items": item, **({"minItems": 1} if setting.remedy else {})}
    return {"anyOf": [item, several]} if setting.single else several


def _describe_range(hint: Any, setting: Setting) -> dict[str, Any]:
    bounds = {"minimum": setting.least, "maximum": setting.most}
    return {name: bound for name, bound in bounds.items() if bound is not None} if hint is int else {}


def _describe_form(setting: Setting) -> dict[str, Any]:
    return {"pattern": f"^({setting.form})$"} if setting.form else {}


def _refer(hint: Any) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _allow_null(described: dict[str, Any]) -> dict[str, Any]:
    if "enum" in described:
        return {**described, "enum": [*described["enum"], None]}
    if "type" in described:
        return {**described, "type": [described["type"], "null"]}
    return {"anyOf": [*described.get("anyOf", [described]), {"type": "null"}]}


_TYPES: Final = {bool: "boolean", int: "integer", str: "string"}
