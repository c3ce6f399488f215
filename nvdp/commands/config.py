"""``nvdp config``: judge a configuration file, show what it comes to and why, print the schema. Touches no GPU."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from nvdp.commands.applied import find_applied
from nvdp.commands.flags import collect_flags, take_process_flags
from nvdp.commands.verdict import Checked, build_checked, find_exit_code, print_checked, print_warnings
from nvdp.config.document import SIZE_LIMIT_BYTES
from nvdp.config.doubts import find_doubts
from nvdp.config.load import parse_config
from nvdp.config.nvidia import find_differences
from nvdp.config.options import parse_options
from nvdp.errors import ConfigError, HostError

SHOWN: Final = 0


@click.group()
def config() -> None:
    """Check a configuration file, or show what file, flags and environment come to."""


@config.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--target",
    type=click.Choice(["nvidia"]),
    help="say as well what means something else to NVIDIA's plugin, before going back to it",
)
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of lines")
def check(*, files: tuple[str, ...], target: str | None, as_json: bool) -> int:
    """Say whether each FILE is valid, and what is wrong.

    A FILE named - is the standard input. Exit code 0 if all are valid, 2 if one is not, 1 if one could not be read.

    With --target nvidia, each difference is a line with "dangerous:" or "note:" in it, in the order of the file, and
    the verdict is the last line about a FILE. Exit code 3 if something is dangerous: pods would get devices otherwise
    than the file says, or none at all.
    """
    found = []
    for file in files:
        found.append(_check_file(file, target=target))
        if not as_json:
            print_checked(found[-1])
    if as_json:
        click.echo(json.dumps({"files": [build_checked(one) for one in found]}, ensure_ascii=False, indent=2))
    return find_exit_code(found)


@config.command(short_help="Show all effective values and where each came from.")
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of YAML with comments")
@take_process_flags
def show(*, as_json: bool, **parameters: Any) -> int:
    """Show what file, flags and environment come to, and where each value came from.

    Takes the flags and the environment of nvdp run; where the node's label chooses the file, it is the one that was
    applied on this node last. What the daemon has in force: nvdp status.
    """
    options, overrides = parse_options(collect_flags(parameters), os.environ)
    file = str(options.config_file) if options.config_file else ""
    name, text = find_applied(options, remedy="give --config-file FILE") or (
        file or "flags and environment",
        _load_text(file) if file else b"",
    )
    shown = parse_config(text, name=name, overrides=overrides)
    print_warnings(shown.warnings)
    for _, doubt in find_doubts(options):
        click.echo(f"warning: {doubt}", err=True)
    from nvdp.config.spelling import build_shown, render_shown  # noqa: PLC0415 - only this command writes values

    if as_json:
        click.echo(json.dumps(build_shown(shown, options), ensure_ascii=False, indent=2))
    else:
        click.echo(render_shown(shown, options), nl=False)
    return SHOWN


@config.command()
def schema() -> int:
    """Print the JSON schema of the file, for editors and CI."""
    from nvdp.config.jsonschema import build_json_schema  # noqa: PLC0415 - only this command needs it

    click.echo(json.dumps(build_json_schema(), ensure_ascii=False, indent=2))
    return SHOWN


def _check_file(file: str, *, target: str | None) -> Checked:
    name = "stdin" if file == "-" else file
    try:
        text = _load_text(file)
        checked = parse_config(text, name=name)
    except HostError as error:
        return Checked(name=name, unreadable=str(error))
    except ConfigError as error:
        return Checked(name=name, errors=error.problems)
    differences = find_differences(checked, text) if target else None
    return Checked(name=name, warnings=checked.warnings, differences=differences)


def _load_text(file: str) -> bytes:
    """The content, or as much of it as shows that it is too large. HostError if it cannot be read."""
    try:
        if file == "-":
            return sys.stdin.buffer.read(SIZE_LIMIT_BYTES + 1)
        with Path(file).open("rb") as stream:
            return stream.read(SIZE_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        raise HostError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
