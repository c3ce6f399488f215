"""Why the driver is let go of."""

from __future__ import annotations

import msgspec


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause: who ordered it (a command or a key of the file), why, and since when (wall seconds)."""

    by: str
    note: str = ""
    since: float

    def __str__(self) -> str:
        """``paused by nvdp pause (change of the driver)``."""
        return f"paused by {self.by}{f' ({self.note})' if self.note else ''}"
