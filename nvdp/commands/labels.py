"""``nvdp labels``: the feature labels of this node, computed as the daemon does and printed; or taken away."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from nvdp.commands.applied import find_applied
from nvdp.commands.flags import collect_flags, take_process_flags
from nvdp.config.cluster import LabelTarget
from nvdp.config.document import SIZE_LIMIT_BYTES
from nvdp.config.load import parse_config
from nvdp.config.options import parse_options
from nvdp.config.overrides import Overrides
from nvdp.config.process import ProcessOptions
from nvdp.config.schema import Config
from nvdp.errors import HostError
from nvdp.host.files import load_text


@click.command()
@click.option("--node", metavar="FILE|NAME", help="those of a node file of nvdp devices --export, or of a bundled one")
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of lines")
@click.option("--remove", "removes", is_flag=True, help="take away what nvdp wrote where --write-labels says")
@take_process_flags
def labels(*, node: str | None, as_json: bool, removes: bool, **parameters: Any) -> None:
    """Print the labels that describe the GPUs of this node, one a line: KEY=VALUE.

    Looks at this node and changes nothing; with --node at a description of one. Takes the flags and the environment of
    nvdp run. With --remove it takes away what nvdp wrote and prints the names; an nvdp that runs here writes none from
    then on, until it is started anew. Exit code 0, 2 if the configuration is not valid, 1 if the driver cannot be
    asked, or labels cannot be taken away.
    """
    if removes and node is not None:
        raise click.UsageError("--remove and --node exclude each other.")
    options, overrides = parse_options(collect_flags(parameters), os.environ)
    if removes:
        _remove(options, overrides, as_json=as_json)
        return
    config = _load_config(options, overrides)
    from nvdp.app.labels import foresee_label_facts, load_label_facts  # noqa: PLC0415 - only for a file that is valid
    from nvdp.planning.labels import build_labels  # noqa: PLC0415 - as above

    if node is not None:
        from nvdp.nvml.simulated.nodefile import find_node_file  # noqa: PLC0415 - brings yaml

        facts = foresee_label_facts(config, options, find_node_file(node))
    else:
        facts = load_label_facts(config, options)
    built = build_labels(facts)
    if as_json:
        click.echo(json.dumps({"labels": built}, indent=2))
    else:
        for key, value in built.items():
            click.echo(f"{key}={value}")


def _remove(options: ProcessOptions, overrides: Overrides, *, as_json: bool) -> None:
    from nvdp.app.labelling import remove_labels  # noqa: PLC0415 - for this option only

    is_by_config = options.write_labels in {LabelTarget.AUTO, LabelTarget.FILE}
    removed = remove_labels(options, _load_config(options, overrides) if is_by_config else Config())
    if as_json:
        click.echo(json.dumps({"place": removed.place, "removed": removed.keys}, indent=2))
    else:
        for key in removed.keys:
            click.echo(key)
    number = len(removed.keys)
    said = f"{number} label{'' if number == 1 else 's'} removed" if number else "nothing there is of nvdp"
    held = "nvdp writes none until it is started anew" if removed.is_held else "an nvdp that runs may write them again"
    click.echo(f"{removed.place}: {said}; {held}", err=True)


def _load_config(options: ProcessOptions, overrides: Overrides) -> Config:
    """The file of the options, or the one that was applied last where the node's label chooses it."""
    applied = find_applied(options, remedy="give --config-file FILE")
    file = options.config_file
    if applied is None and file is not None:
        text = load_text(file, limit_bytes=SIZE_LIMIT_BYTES)
        if text is None:
            raise HostError(f"{file}: cannot be read: there is no such file")
        applied = str(file), text
    name, text = applied or ("flags and environment", b"")
    return parse_config(text, name=name, overrides=overrides)
