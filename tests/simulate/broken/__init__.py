"""Daemons with one deliberate fault each, composed of nvdp's own parts with one exchanged.

Each is a program: ``python -m tests.simulate.broken.NAME run FLAGS`` in the place of ``nvdp run FLAGS``.
"""

from __future__ import annotations

import os
import sys

import click

from nvdp.app.daemon import Daemon
from nvdp.commands.flags import collect_flags, take_process_flags
from nvdp.config.options import parse_options
from nvdp.log import configure_log


def play(daemon: type[Daemon]) -> None:
    """Run ``daemon`` as ``nvdp run`` runs its own, with the command line of this process.

    It may only replace what ``Daemon`` has: a fault at a place that nobody comes by any more is none.
    """
    unknown = [name for name in vars(daemon) if not hasattr(Daemon, name)]
    assert not unknown, unknown

    @click.command()
    @take_process_flags
    def run(**parameters):
        options, overrides = parse_options(collect_flags(parameters), os.environ)
        log = configure_log(format="text", level="info")
        code = daemon(options, overrides, log).run()
        log.flush()
        os._exit(code)

    run(args=sys.argv[2:])
