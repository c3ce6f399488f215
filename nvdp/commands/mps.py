"""``nvdp mps``: the MPS control daemons of a node."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

import click
import msgspec

from nvdp.commands.flags import collect_flags, take_process_flags
from nvdp.config.cluster_rules import check_options
from nvdp.config.options import parse_options
from nvdp.config.schema import DEFAULT


@click.command()
@take_process_flags
def mps(**parameters: Any) -> None:
    """Run the MPS control daemons that the configuration, or the plugin of this node, calls for.

    Runs until SIGTERM, and then ends the daemons with all their clients. Looks at everything anew on SIGHUP. Where
    nothing is shared through MPS it does nothing. /healthz and /readyz are on port 9403 unless --metrics-port says
    another. Exit codes: 0 stopped as asked, 1 cannot do its job at all, 2 a flag or an environment variable does not
    parse, or does not fit to another.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop_at_once)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # everything is about to be looked at
    options, overrides = parse_options(collect_flags(parameters), os.environ)
    check_options(options)
    from nvdp.app import mps as daemons  # noqa: PLC0415 - only once the options are known to be good

    if options.origins["metrics-port"] == DEFAULT:
        options = msgspec.structs.replace(options, metrics_port=daemons.METRICS_PORT)
    daemons.run(options, overrides)


def _stop_at_once(_number: int, _frame: FrameType | None) -> None:
    """There is nothing to clean up until there are signal handlers of its own; see ``nvdp run``."""
    os._exit(0)
