"""``nvdp plan``: what a configuration would make of this node, or of a node file, before it is applied."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from nvdp.commands.applied import find_applied
from nvdp.commands.flags import collect_flags, take_process_flags
from nvdp.config.document import SIZE_LIMIT_BYTES
from nvdp.config.load import parse_config
from nvdp.config.options import parse_options
from nvdp.errors import HostError
from nvdp.host.files import load_text

FORESEEN: Final = 0
DOUBTFUL: Final = 3


@click.command()
@click.option(
    "--config",
    "file",
    metavar="FILE",
    help="the file to judge, - for the standard input [default: --config-file, or the one applied last by node label]",
)
@click.option("--node", metavar="FILE|NAME", help="judge it on a node file of nvdp devices --export, or a bundled one")
@click.option(
    "--compare", "compares", is_flag=True, help="ID by ID against what any plugin advertises on this node now"
)
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of the text")
@click.option("--strict", is_flag=True, help="exit code 3 if something is withheld, or there is a warning")
@take_process_flags
def plan(*, file: str | None, node: str | None, compares: bool, as_json: bool, strict: bool, **parameters: Any) -> int:
    """Show what a configuration would advertise and why, and what it changes for pods that run.

    Looks at this node and changes nothing; with --node at a description of one. Takes the flags and the environment of
    nvdp run. Exit code 0, 3 with warnings under --strict, 2 if the file is not valid or the node cannot take it, 1 if
    the driver cannot be asked.
    """
    if node is not None and compares:
        raise click.UsageError("--compare is against what runs on this node; leave out --node.")
    options, overrides = parse_options(collect_flags(parameters), os.environ)
    applied = None if file else find_applied(options, remedy="give --config FILE")
    source = file or (str(options.config_file) if options.config_file is not None else "")
    name, text = applied or (_name(source), _load(source) if source else b"")
    config = parse_config(text, name=name, overrides=overrides)
    from nvdp.app.preview import foresee_live, foresee_offline  # noqa: PLC0415 - only for a file that is valid

    if node is not None:
        from nvdp.nvml.simulated.nodefile import find_node_file  # noqa: PLC0415 - brings yaml

        outlook = foresee_offline(config, options, find_node_file(node))
    else:
        outlook = foresee_live(config, options, compares=compares)
    if as_json:
        from nvdp.commands.plan_json import build_json  # noqa: PLC0415 - one of the two is needed

        click.echo(json.dumps(build_json(outlook), ensure_ascii=False, indent=2))
    else:
        from nvdp.commands.plan_text import build_text  # noqa: PLC0415 - as above

        click.echo(build_text(outlook))
    return DOUBTFUL if strict and outlook.preview.is_doubtful else FORESEEN


def _name(source: str) -> str:
    return {"": "flags and environment", "-": "stdin"}.get(source, source)


def _load(source: str) -> bytes:
    """The content, or as much of it as shows that it is too large. HostError if it cannot be read."""
    if source == "-":
        return sys.stdin.buffer.read(SIZE_LIMIT_BYTES + 1)
    text = load_text(Path(source), limit_bytes=SIZE_LIMIT_BYTES)
    if text is None:
        raise HostError(f"{source}: cannot be read: there is no such file")
    return text
