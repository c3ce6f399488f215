"""The file by which ``nvdp mps`` tells how the control daemons are, and that it is alive: in the MPS root."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nvdp.host.exchange import load_value, remove_value, replace_value
from nvdp.model.mps import REPORT_NAME, MpsReport

_MODE: Final = 0o644


def load_report(mps_dir: Path) -> MpsReport | None:
    """The last report; None if there is none, as where ``nvdp mps`` never ran or was stopped.

    Raises HostError, in one line, if there is one and it cannot be used. Whether it is of this boot, and young enough,
    is the caller's to judge. Any thread; blocks for the disk, which is memory as a rule.
    """
    return load_value(mps_dir / REPORT_NAME, MpsReport)


def write_report(mps_dir: Path, report: MpsReport, *, sync: bool = False) -> None:
    """Replace the report, whole or not at all. ``sync``: it is on the disk when this returns.

    Raises HostError if it cannot be written. One thread at a time; blocks for the disk.
    """
    replace_value(mps_dir / REPORT_NAME, report, mode=_MODE, sync=sync)


def remove_report(mps_dir: Path) -> None:
    """Nobody runs daemons here any more. Raises HostError if the file cannot be removed."""
    remove_value(mps_dir / REPORT_NAME)
