"""The newest valid configuration that was not judged yet. Part of ``adoption``; belongs to the main thread.

It may have to wait long, for a driver or for the end of a pause, and counts meanwhile. So it is kept: its file may be
broken or gone at the next start.
"""

from __future__ import annotations

from typing import Protocol

from nvdp.config.schema import Config
from nvdp.host.state import AppliedConfig
from nvdp.model.chosen import Chosen
from nvdp.services.applied import build_applied
from nvdp.services.events import ConfigRead


class CandidateMemory(Protocol):
    """What outlives the process (services/remembering.py)."""

    def remember_candidate(self, candidate: AppliedConfig | None, /) -> None: ...


class Candidate:
    """``config`` is None if there is none. ``left`` is one that a predecessor did not come to judge."""

    def __init__(self, memory: CandidateMemory, *, left: ConfigRead | None) -> None:
        self._memory = memory
        self._left = left
        self._read: ConfigRead | None = None

    @property
    def config(self) -> Config | None:
        return self._read.config if self._read is not None else None

    @property
    def chosen(self) -> Chosen | None:
        return self._read.chosen if self._read is not None else None

    @property
    def is_left(self) -> bool:
        """Whether one of a predecessor stands in where the newest cannot be had."""
        return self._left is not None

    def put(self, read: ConfigRead, *, is_kept: bool) -> None:
        """Take the newest valid one. ``is_kept``: it is remembered already, as the one that was in force last."""
        assert read.config is not None
        self._read, self._left = read, None
        self._memory.remember_candidate(None if is_kept else build_applied(read.config, read))

    def stand_in(self) -> bool:
        """The newest cannot be had: whether a predecessor's takes its place. Only the first time."""
        left, self._left = self._left, None
        self._read = left or self._read
        return left is not None

    def take_out(self) -> ConfigRead | None:
        """It is judged now; it stays remembered until that has come to its end."""
        read, self._read = self._read, None
        return read

    def forget(self) -> None:
        """It was found to be none, or is not wanted any more."""
        self._read = None
        self._memory.remember_candidate(None)
