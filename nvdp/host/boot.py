"""Which boot of the host this is, and how long ago it was: what happened to hardware before another one is over."""

from __future__ import annotations

import time
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def load_boot_id(path: Path = _BOOT_ID) -> str:
    """The kernel's name for this boot, the same in every container of the node; empty if it cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def find_boot_age_s() -> float | None:
    """Seconds since the host booted, with those that it slept; None where the kernel does not tell."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    except OSError:
        return None
