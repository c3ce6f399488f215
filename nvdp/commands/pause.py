"""``nvdp pause``: have the daemon of this node let go of the driver, for a GPU reset, MIG mode or another driver."""

from __future__ import annotations

from typing import Final

import click

from nvdp.commands.orders import RUN_DIR, give_order
from nvdp.errors import FormatError
from nvdp.http.routes import NOTE, PAUSE_PATH
from nvdp.model.orders import parse_note

_ABSENT: Final = (
    "Where no nvdp runs, none holds the driver; to have it start paused, set devices.paused: true in its file"
)


def _read_note(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    try:
        return parse_note(text)
    except FormatError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.option(
    "--note",
    default="",
    callback=_read_note,
    metavar="TEXT",
    help="why, for those who ask nvdp status: one line, at most 200 characters",
)
@RUN_DIR
def pause(*, note: str, run_dir: str | None) -> int:
    """Let go of the driver until nvdp resume: all devices Unhealthy, every /dev/nvidia* file closed.

    Pods that run are left alone. The pause outlives restarts of nvdp, but not a reboot of the node. Exit code 0 once
    the driver is free of nvdp, 4 if it is not or may not stay so, 1 if the daemon could not be asked. For root, in the
    daemon's container or on its node.
    """
    return give_order(PAUSE_PATH, {NOTE: note}, run_dir=run_dir, absent=_ABSENT)
