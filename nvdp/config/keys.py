"""What an annotation says of a key: its meaning, its range, its flag and environment variables.

The structs of ``schema`` carry these annotations; file reader, options, JSON schema and documentation derive from them.
A field without one is no key: the loader fills it in.
"""

from __future__ import annotations

import functools
import types
import typing
from typing import Any, Final

import msgspec

_ACRONYMS: Final = {"api": "API", "ctk": "CTK", "id": "ID", "ids": "IDs", "xids": "XIDs", "gpus": "GPUs"}


class Setting(msgspec.Struct, frozen=True):
    """One key. ``doc`` is a sentence for people: meaning, unit, consequence.

    ``flags`` are long names without dashes, the one to show first; ``environment`` names count in their order. Both are
    empty for keys that exist only in the file. The other fields are exceptions to what its type allows.
    """

    doc: str
    flags: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    least: Any = None  # inclusive, of the key's own type
    most: Any = None
    too_small: str = ""  # what to say after "N is too small; "
    too_large: str = ""
    percent: bool = False  # a range of whole percents: mistakes are explained so
    infinite: bool = False  # the duration "infinite" is allowed
    single: bool = False  # one value stands for a list of one
    refused: tuple[tuple[str, str], ...] = ()  # values of the type that this key does not take, and what to say
    form: str = ""  # a regular expression that a text matches as a whole, and what to say after "X is not "
    form_text: str = ""
    remedy: str = ""  # what to say after "X is missing; ", and that a list must not be empty
    null_is_empty: bool = False  # written with nothing after it: an empty value, not an absent key
    default_text: str = ""  # shown in place of a default that is computed
    hidden: bool = False  # an option that --help does not list


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


def find_key(block: type[msgspec.Struct], name: str) -> Key:
    """The key of this name; StopIteration is a defect of the caller."""
    return next(key for key in list_keys(block) if key.name == name)


def _is_annotated(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Annotated


def _find_default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def strip_optional(hint: Any) -> Any:
    """``X`` of ``X | None``."""
    if isinstance(hint, types.UnionType):
        return next(member for member in typing.get_args(hint) if member is not types.NoneType)
    return hint


def find_item(hint: Any) -> Any | None:
    """``X`` of ``tuple[X, ...]``: what the key is a list of. None if it is no list."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None


def find_block(hint: Any) -> type[msgspec.Struct] | None:
    """The block behind a key, optional or one of a list. None for a key that holds a value."""
    hint = strip_optional(hint)
    inner = find_item(hint) or hint
    is_struct = isinstance(inner, type) and issubclass(inner, msgspec.Struct)
    return inner if is_struct and list_keys(inner) else None
