"""The log: one call for each thing that happened, named by its reason (see ``model.reasons``).

Text for a terminal, one JSON object a line otherwise. The rendering is set once, by ``configure``.
"""

from __future__ import annotations

from typing import Protocol

from nvdp.model.reasons import Reason


class Log(Protocol):
    """Writes one line for one thing that happened. Any thread; never raises, never blocks on anything but stderr."""

    def __call__(self, reason: Reason, msg: str, /, **fields: object) -> None:
        """``msg`` is the sentence; ``fields`` are the log's own (``resource device index pci xid … error trace``)."""
        ...
