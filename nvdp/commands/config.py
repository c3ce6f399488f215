"""``nvdp config``: judge a configuration file, show what is in force and why, print the schema. Touches no GPU."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from nvdp.commands.flags import collect_flags, take_process_flags
from nvdp.config.document import SIZE_LIMIT_BYTES
from nvdp.config.load import parse_config
from nvdp.config.options import parse_options
from nvdp.config.schema import Config
from nvdp.config.unbuilt import Unbuilt, find_unbuilt, find_unbuilt_options
from nvdp.errors import ConfigError, HostError

VALID: Final = 0
UNREADABLE: Final = 1
INVALID: Final = 2


@click.group()
def config() -> None:
    """Check a configuration file, or show the one in force."""


@config.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
def check(files: tuple[str, ...]) -> int:
    """Say whether each FILE is valid, and what is wrong.

    A FILE named - is the standard input. Exit code 0 if all are valid, 2 if one is not, 1 if one could not be read.
    """
    verdicts = [_check_file(file) for file in files]
    return INVALID if INVALID in verdicts else max(verdicts)


@config.command()
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of YAML with comments")
@take_process_flags
def show(*, as_json: bool, **parameters: Any) -> int:
    """Show all effective values and where each came from. Takes the flags and the environment of nvdp run."""
    options, overrides = parse_options(collect_flags(parameters), os.environ)
    text = _load_text(str(options.config_file)) if options.config_file else b""
    shown = parse_config(text, name=str(options.config_file or "flags and environment"), overrides=overrides)
    _print_doubts(shown, (*find_unbuilt(shown), *find_unbuilt_options(options)))
    from nvdp.config.spelling import build_shown, render_shown  # noqa: PLC0415 - only this command writes values

    if as_json:
        click.echo(json.dumps(build_shown(shown, options), ensure_ascii=False, indent=2))
    else:
        click.echo(render_shown(shown, options), nl=False)
    return VALID


@config.command()
def schema() -> int:
    """Print the JSON schema of the file, for editors and CI."""
    from nvdp.config.jsonschema import build_json_schema  # noqa: PLC0415 - only this command needs it

    click.echo(json.dumps(build_json_schema(), ensure_ascii=False, indent=2))
    return VALID


def _check_file(file: str) -> int:
    name = "stdin" if file == "-" else file
    try:
        checked = parse_config(_load_text(file), name=name)
    except HostError as error:
        click.echo(str(error), err=True)
        return UNREADABLE
    except ConfigError as error:
        click.echo(str(error), err=True)
        return INVALID
    _print_doubts(checked, find_unbuilt(checked))
    click.echo(f"{name}: valid")
    return VALID


def _load_text(file: str) -> bytes:
    """The content, or as much of it as shows that it is too large. HostError if it cannot be read."""
    try:
        if file == "-":
            return sys.stdin.buffer.read(SIZE_LIMIT_BYTES + 1)
        with Path(file).open("rb") as stream:
            return stream.read(SIZE_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        raise HostError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _print_doubts(checked: Config, unbuilt: tuple[Unbuilt, ...]) -> None:
    for warning in checked.warnings:
        click.echo(warning.render_warning(), err=True)
    for key in unbuilt:
        where = f"{checked.name}:{key.line}: " if key.line else ""
        click.echo(f"{where}warning: {key.sentence}", err=True)
