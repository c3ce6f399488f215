"""What an annotation says of a key: its meaning, its range, its flag and environment variables.

The structs of ``schema`` carry these annotations; file reader, options, JSON schema and documentation derive from them.
A field without one is no key: the loader fills it in.
"""

from __future__ import annotations

import functools
import typing
from typing import Any, Final

import msgspec

from nvdp.model.duration import Duration
from nvdp.model.quantity import Quantity

_ACRONYMS: Final = {"api": "API", "ctk": "CTK", "id": "ID", "ids": "IDs", "xids": "XIDs", "gpus": "GPUs"}


class Setting(msgspec.Struct, frozen=True):
    """One key. ``doc`` is a sentence for people: meaning, unit, consequence.

    ``flags`` are long names without dashes, the one to show first; ``environment`` names count in their order. Both are
    empty for keys that exist only in the file. The range is inclusive; the two texts say why a value outside of it
    is none, after "N is too small; ". ``infinite`` allows that duration, ``default_text`` shows a computed default.
    """

    doc: str
    flags: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    least: int | Duration | Quantity | None = None
    most: int | Duration | Quantity | None = None
    too_small: str = ""
    too_large: str = ""
    infinite: bool = False
    default_text: str = ""
    hidden: bool = False


class Key(msgspec.Struct, frozen=True):
    """One key of a block: the name in the file, the attribute, the type of its value, and what its annotation says.

    ``default`` is ``msgspec.NODEFAULT`` where the key must be given.
    """

    name: str
    attribute: str
    type: Any
    default: Any
    setting: Setting


def camel_key(attribute: str) -> str:
    """The file's spelling of an attribute: ``device_id_strategy`` is ``deviceIDStrategy``."""
    first, *rest = attribute.split("_")
    return first + "".join(_ACRONYMS.get(word, word.capitalize()) for word in rest)


@functools.cache
def list_keys(block: type[msgspec.Struct]) -> tuple[Key, ...]:
    """The keys of a struct in their order; fields without a ``Setting`` are left out."""
    hints = typing.get_type_hints(block, include_extras=True)
    keys = []
    for field in msgspec.structs.fields(block):
        base, *extras = typing.get_args(hints[field.name]) if _is_annotated(hints[field.name]) else (None,)
        keys += [
            Key(field.encode_name, field.name, base, _find_default(field), extra)
            for extra in extras
            if isinstance(extra, Setting)
        ]
    return tuple(keys)


def _is_annotated(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Annotated


def _find_default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
