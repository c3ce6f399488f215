"""``nvdp status``: what the daemon of this node does, and what is wrong, asked on its control socket."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Final, NoReturn

import click
import msgspec

from nvdp.commands.status_json import build_document
from nvdp.commands.status_text import build_text, no_style
from nvdp.config.options import parse_options
from nvdp.errors import HostError
from nvdp.http.control import load_status
from nvdp.model.status import Status
from nvdp.planning.diagnosis import diagnose
from nvdp.planning.findings import Finding, Gravity, describe_moment

OK: Final = 0
DEGRADED: Final = 3
NOT_READY: Final = 4
_LIMIT_S: Final = 10.0
_WATCH_EVERY_S: Final = 1.0
_CLEAR: Final = "\x1b[H\x1b[2J"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of the text")
@click.option("--watch", "watches", is_flag=True, help="show it anew whenever it changes, until Ctrl-C")
@click.option("--run-dir", metavar="PATH", help="where the daemon's control socket is [env NVDP_RUN_DIR]")
def status(*, as_json: bool, watches: bool, run_dir: str | None) -> int:
    """Show what the daemon of this node offers and what is wrong with it: causes and remedies first.

    Exit code 0 if all is well, 3 if something does not work as it should, 4 if the daemon is not ready, 1 if it could
    not be asked. For root, in the daemon's container or on its node.
    """
    options, _ = parse_options({"run-dir": run_dir}, os.environ)
    if watches:
        _watch(options.run_dir, as_json=as_json)
    loaded = load_status(options.run_dir, timeout_s=_LIMIT_S)
    findings = diagnose(loaded)
    click.echo(_render(loaded, findings, as_json=as_json))
    return _find_exit_code(loaded, findings)


def _find_exit_code(loaded: Status, findings: tuple[Finding, ...]) -> int:
    if not loaded.ready:
        return NOT_READY
    return DEGRADED if any(finding.gravity is Gravity.DEGRADED for finding in findings) else OK


def _render(loaded: Status, findings: tuple[Finding, ...], *, as_json: bool) -> str:
    if as_json:
        return json.dumps(build_document(loaded, findings), ensure_ascii=False, indent=2)
    return build_text(loaded, findings, style=click.style if _has_colour() else no_style)


def _has_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _watch(run_dir: Path, *, as_json: bool) -> NoReturn:
    """Until Ctrl-C. A daemon that is away, or comes back, is one more thing to show."""
    shown = None
    while True:
        text = _look(run_dir, as_json=as_json)
        if text != shown:
            _show(text, is_first=shown is None, as_json=as_json)
            shown = text
        time.sleep(_WATCH_EVERY_S)


def _look(run_dir: Path, *, as_json: bool) -> str:
    """What to show now, without what changes though nothing happens."""
    try:
        loaded = load_status(run_dir, timeout_s=_LIMIT_S)
    except HostError as error:
        return json.dumps({"error": str(error)}, ensure_ascii=False) if as_json else str(error)
    calm = msgspec.structs.replace(loaded, scanned_at=None, queue_length=0)
    if as_json:
        return json.dumps(build_document(calm, diagnose(calm)), ensure_ascii=False)
    return _render(calm, diagnose(calm), as_json=False)


def _show(text: str, *, is_first: bool, as_json: bool) -> None:
    """A terminal is filled anew, from its top; elsewhere one follows the other, and JSON is an object a line."""
    if as_json:
        click.echo(text)
    elif sys.stdout.isatty():
        lines, height = text.splitlines(), shutil.get_terminal_size().lines - 1
        cut = [*lines[: height - 1], f"… {len(lines) - height + 1} lines more"] if len(lines) > height else lines
        click.echo(_CLEAR + "\n".join(cut), color=True)
    else:
        click.echo(f"{'' if is_first else chr(10)}at {describe_moment(time.time())}\n{text}")
    sys.stdout.flush()
