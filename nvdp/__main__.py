"""The command line: finds the command, and turns whatever ends it into one line and an exit code.

A command's module is imported when the command is used, so that ``nvdp run`` does not pay for tables and colours, and
``nvdp config`` not for gRPC. Exit codes: 0 well, 1 could not, 2 wrong usage or configuration, 130 interrupted; and what
a command returns: 3 well with warnings, 4 works not.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

import click

import nvdp
from nvdp.errors import ConfigError, NvdpError, UsageError

_FAILED: Final = 1
_WRONG: Final = 2
_INTERRUPTED: Final = 130


class _Command(NamedTuple):
    place: str
    summary: str


COMMANDS: Final = {
    "run": _Command("nvdp.commands.run:run", "Serve this node's GPUs to the kubelet."),
    "config": _Command("nvdp.commands.config:config", "Check a configuration file, or show what it comes to."),
    "devices": _Command("nvdp.commands.devices:devices", "List the GPUs of this node."),
    "plan": _Command("nvdp.commands.plan:plan", "Show what a configuration would change, before it is applied."),
    "labels": _Command("nvdp.commands.labels:labels", "Print the labels that describe this node's GPUs."),
    "status": _Command("nvdp.commands.status:status", "Show what the daemon of this node does, and what is wrong."),
    "pause": _Command("nvdp.commands.pause:pause", "Let go of the driver, for a reset, MIG mode or another driver."),
    "resume": _Command("nvdp.commands.resume:resume", "Take the driver back."),
    "health": _Command("nvdp.commands.health:health", "Forget the faults of a GPU that is well again."),
    "mps": _Command("nvdp.commands.mps:mps", "Run the MPS control daemons of this node."),
    "simulate": _Command("nvdp.commands.simulate:simulate", "See everything happen on a simulated node."),
}
_DAEMONS: Final = frozenset({"run", "mps"})


class _LazyGroup(click.Group):
    """A group that knows its commands by name, and imports only the one that is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].place.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(nvdp.__version__, "-v", "--version", message="nvdp %(version)s")
def cli() -> None:
    """A Kubernetes device plugin for NVIDIA GPUs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``arguments`` default to those of the process.

    Why the daemon cannot even start is also left for ``kubectl describe pod``, as is why it had to end.
    """
    try:
        code = cli.main(args=arguments, prog_name="nvdp", standalone_mode=False)
        sys.stdout.flush()
    except (click.ClickException, NvdpError) as error:
        text = _say(error)
        click.echo(text, err=True)
        if not _DAEMONS.isdisjoint(list(sys.argv[1:] if arguments is None else arguments)[:1]):
            from nvdp.log import TERMINATION_LOG, write_termination_message  # noqa: PLC0415 - for the daemon only

            write_termination_message(TERMINATION_LOG, text)
        return _WRONG if isinstance(error, (click.UsageError, UsageError, ConfigError)) else _FAILED
    except (click.Abort, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient second one would kill the interpreter at its end
        return _INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return _FAILED
    return code if isinstance(code, int) else 0


def _say(error: click.ClickException | NvdpError) -> str:
    if isinstance(error, click.UsageError) and not isinstance(error, click.exceptions.NoArgsIsHelpError):
        command = error.ctx.command_path if error.ctx is not None else "nvdp"
        return f"{command}: {error.format_message()} Try {command} --help"
    return error.format_message() if isinstance(error, click.ClickException) else str(error)


if __name__ == "__main__":
    sys.exit(main())
