"""What the commands that order something of the daemon have in common: its socket, one line, and the exit code."""

from __future__ import annotations

import os
from typing import Final

import click

from nvdp.config.options import parse_options
from nvdp.errors import HostError
from nvdp.http.control import AbsentError, send_order
from nvdp.http.routes import Query

DONE: Final = 0
NOT_DONE: Final = 4
_LIMIT_S: Final = 15.0  # the daemon takes ten at most

RUN_DIR: Final = click.option(
    "--run-dir", metavar="PATH", help="where the daemon's control socket is [env NVDP_RUN_DIR]"
)


def give_order(path: str, query: Query, *, run_dir: str | None, absent: str) -> int:
    """Send an order, print what came of it, and return the exit code: 0 carried out, 4 not.

    Blocks for 15 s at most. Raises HostError if the daemon could not be asked; ``absent`` is what to do where none
    runs, and UsageError for a variable of the environment that does not parse.
    """
    options, _ = parse_options({"run-dir": run_dir}, os.environ)
    try:
        carried = send_order(options.run_dir, path, query, timeout_s=_LIMIT_S)
    except AbsentError as error:
        raise HostError(f"{error}. {absent}") from error
    click.echo(carried.text)
    return DONE if carried.done else NOT_DONE
