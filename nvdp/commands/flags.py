"""The flags of the command line, generated from the one table of options (``config.options``)."""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from nvdp.config.keys import find_item, strip_optional
from nvdp.config.options import Option, list_options
from nvdp.config.scalars import list_choices
from nvdp.config.spelling import build_plain, spell
from nvdp.model.duration import Duration
from nvdp.model.quantity import Quantity

_Command = TypeVar("_Command", bound=Callable[..., Any])
_METAVARS: Final = {bool: "[true|false]", int: "N", str: "TEXT", Path: "PATH", Duration: "DURATION", Quantity: "SIZE"}


def take_process_flags(command: _Command) -> _Command:
    """Gives a click command every option of the table.

    The command gets them as keyword arguments, which ``collect_flags`` turns into what ``parse_options`` takes.
    """
    for option in reversed(list_options()):
        # ``--x`` alone is true, ``--x=false`` is false, as in Go.
        alone: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if option.is_bool else {}
        command = click.option(
            *(f"--{flag}" for flag in option.key.setting.flags),
            _name_parameter(option),
            help=_build_help(option),
            metavar=_build_metavar(option),
            multiple=option.is_list,
            hidden=option.key.setting.hidden,
            **alone,
        )(command)
    return command


def collect_flags(parameters: dict[str, Any]) -> dict[str, object]:
    """The texts of the flags by ``Option.flag``, out of a command's keyword arguments."""
    return {option.flag: parameters[_name_parameter(option)] for option in list_options()}


def _name_parameter(option: Option) -> str:
    return option.flag.replace("-", "_")


def _build_help(option: Option) -> str:
    """What it means, then its other names and its default."""
    notes = [f"env {', '.join(option.key.setting.environment)}"]
    if option.path:
        notes.append(f"key {option.path}")
    default = build_default_text(option)
    if default:
        notes.append(f"default {default}")
    return f"{option.key.setting.doc}. [{'; '.join(notes)}]"


def build_default_text(option: Option) -> str:
    """The default as shown to people; empty if there is none."""
    if option.key.setting.default_text:
        return option.key.setting.default_text
    plain = build_plain(option.key.default)
    if plain is None or plain is msgspec.NODEFAULT or plain == "":
        return ""
    return ",".join(map(str, plain)) or "none" if isinstance(plain, list) else spell(plain)


def _build_metavar(option: Option) -> str:
    hint = strip_optional(option.key.type)
    inner = find_item(hint) or hint
    if issubclass(inner, enum.Enum):
        words = "|".join(list_choices(inner, option.key.setting))
        return f"[{words}],…" if option.is_list else f"[{words}]"
    return _METAVARS[inner] + (",…" if option.is_list else "")
