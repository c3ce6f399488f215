"""``nvdp simulate``: the guided tour, and a node to play with. No GPU, no cluster, nothing changed on the machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

import click

from nvdp.errors import FormatError
from nvdp.log import silence_libraries
from nvdp.model.duration import parse_duration

_NODE: Final = "dgx-h100"
STEP_NAMES: Final = ("capacity", "pods", "share-more", "typo", "kubelet-restart", "stop")


@click.command()
@click.option("--node", metavar="FILE|NAME", default=_NODE, show_default=True, help="the node to simulate")
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="a configuration of your own; it is only read",
)
@click.option("--step", "only", type=click.Choice(STEP_NAMES), help="show this step only")
@click.option("--pace", metavar="DURATION", default="0s", help="wait between the steps, like 2s")
@click.option(
    "--slack", type=click.FloatRange(1, 100), default=1, metavar="FACTOR", help="multiply the limits: a busy machine"
)
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of the text")
@click.option("--serve", "serves", is_flag=True, help="no tour: keep the node running, and show what changes")
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="work in this directory, which stays: sockets, configuration, logs",
)
@click.option("--daemon", "command", metavar="COMMAND", default="", hidden=True, help="run this in the place of nvdp")
def simulate(
    *,
    node: str,
    config_file: Path | None,
    only: str | None,
    pace: str,
    slack: float,
    as_json: bool,
    serves: bool,
    keep: Path | None,
    command: str,
) -> int:
    """See everything happen on a simulated node, in a few seconds: the guided tour.

    The daemon is real, and so are its sockets and its configuration file; GPUs and kubelet are simulated. Exit code 0
    if every step was as expected, 1 otherwise.
    """
    pace_s = _parse_pace(pace)
    if serves and (only or as_json):
        raise click.UsageError(f"--serve plays no steps; leave out {'--step' if only else '--json'}.")
    silence_libraries()
    from nvdp.simulate.session import Setting, run_serve, run_tour  # noqa: PLC0415 - brings grpc, which is silent now

    setting = Setting(node=node, config_file=config_file, keep=keep, command=shlex.split(command))
    if serves:
        return run_serve(setting)
    return run_tour(setting, only=only, pace_s=pace_s, slack=slack, as_json=as_json)


def _parse_pace(text: str) -> float:
    """Seconds."""
    try:
        pace = parse_duration(text)
    except FormatError as error:
        raise click.BadParameter(str(error), param_hint="--pace") from error
    if pace.is_infinite:
        raise click.BadParameter("the tour would never end", param_hint="--pace")
    return pace.seconds
