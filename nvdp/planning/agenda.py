"""What a plan in the making waits for: when to look again, and which answer about holders is missing."""

from __future__ import annotations

from nvdp.planning.withdrawal import Verdict


class Agenda:
    """``check_at``, ``ask_since`` and ``waiting`` as in ``Plan``."""

    def __init__(self) -> None:
        self.check_at: float | None = None
        self.ask_since: float | None = None
        self.waiting = False

    def note(self, verdict: Verdict) -> None:
        """Something is not allowed yet."""
        self.waiting = True
        if verdict.ask_since is not None and (self.ask_since is None or verdict.ask_since > self.ask_since):
            self.ask_since = verdict.ask_since
        if verdict.at is not None and (self.check_at is None or verdict.at < self.check_at):
            self.check_at = verdict.at
