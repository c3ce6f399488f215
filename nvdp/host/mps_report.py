"""The file by which ``nvdp mps`` tells how the control daemons are, and that it is alive: in the MPS root."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from nvdp.host.exchange import load_value, remove_value, replace_value
from nvdp.model.mps import REPORT_NAME, DaemonReport, MpsReport, Phase

_MODE: Final = 0o644


class _Outline(msgspec.Struct, frozen=True, kw_only=True):
    """A report whose daemons are not looked at yet."""

    at: float
    boot_id: str = ""
    pid: int = 0
    version: str = ""
    daemons: Mapping[str, Any] = {}
    claims: Mapping[str, str] = {}
    heard: str = ""


def load_report(mps_dir: Path) -> MpsReport | None:
    """The last report; None if there is none, as where ``nvdp mps`` never ran or was stopped.

    What another version says of one daemon and cannot be understood is left out, and a phase that nobody knows is
    STARTING: the rest counts. Raises HostError, in one line, if there is a report and it cannot be used. Whether it is
    of this boot, and young enough, is the caller's to judge. Any thread; blocks for the disk, which is memory as a
    rule.
    """
    found = load_value(mps_dir / REPORT_NAME, _Outline)
    if found is None:
        return None
    facts = msgspec.structs.asdict(found)
    return MpsReport(**{**facts, "daemons": {name: _read(daemon) for name, daemon in found.daemons.items()}})


def write_report(mps_dir: Path, report: MpsReport, *, sync: bool = False) -> None:
    """Replace the report, whole or not at all. ``sync``: it is on the disk when this returns.

    Raises HostError if it cannot be written. One thread at a time; blocks for the disk.
    """
    replace_value(mps_dir / REPORT_NAME, report, mode=_MODE, sync=sync)


def remove_report(mps_dir: Path) -> None:
    """Nobody runs daemons here any more. Raises HostError if the file cannot be removed."""
    remove_value(mps_dir / REPORT_NAME)


def _read(said: Any) -> DaemonReport:
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert(said, DaemonReport)
    facts: dict[str, Any] = {"phase": Phase.STARTING}
    for field in msgspec.structs.fields(DaemonReport):
        if isinstance(said, dict) and field.name in said:
            with contextlib.suppress(msgspec.ValidationError):
                facts[field.name] = msgspec.convert(said[field.name], field.type)
    return DaemonReport(**facts)
