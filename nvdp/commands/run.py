"""``nvdp run``: the daemon of a node."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

import click

from nvdp.commands.flags import collect_flags, take_process_flags
from nvdp.config.cluster_rules import check_options
from nvdp.config.options import parse_options


@click.command()
@take_process_flags
def run(**parameters: Any) -> None:
    """Serve this node's GPUs to the kubelet.

    Runs until SIGTERM. Looks at everything anew on SIGHUP. Exit codes: 0 stopped as asked, 1 cannot do its job at all,
    2 a flag or an environment variable does not parse, or does not fit to another.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop_at_once)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # everything is about to be looked at
    options, overrides = parse_options(collect_flags(parameters), os.environ)
    check_options(options)
    from nvdp.app import daemon  # noqa: PLC0415 - only once the options are known to be good

    daemon.run(options, overrides)


def _stop_at_once(_number: int, _frame: FrameType | None) -> None:
    """There is nothing to clean up until the daemon has signal handlers of its own.

    Without this one, a process that is its container's first would not even notice a signal that comes so early.
    """
    os._exit(0)
