"""What is wrong with the newest configuration, or that nobody knows which one it is: kept, and told once.

Part of ``adoption``. Belongs to the main thread.
"""

from __future__ import annotations

from collections.abc import Callable

from nvdp.config.schema import Config
from nvdp.log import Log
from nvdp.model.chosen import Chosen
from nvdp.model.reasons import Reason
from nvdp.services.events import ConfigRead


class Refusals:
    """``first`` is the first of ``count`` problems of the newest configuration, None if it is good.

    ``is_missing``: there is none; ``is_unknown``: what the node's label names is none. ``waiting`` is a sentence while
    it is not known which one it is: nothing is wrong with it then. ``find_kept`` gives what stays in force, and by
    what it was chosen.
    """

    def __init__(
        self,
        *,
        log: Log,
        count_edit: Callable[[str], None],
        find_kept: Callable[[], tuple[Config | None, Chosen | None]],
    ) -> None:
        self._log = log
        self._count_edit = count_edit
        self._find_kept = find_kept
        self.clear()

    @property
    def is_any(self) -> bool:
        """Whether the newest configuration cannot be had, so that the last good one stands in."""
        return self.first is not None or bool(self.waiting)

    def clear(self) -> None:
        """The newest configuration is good."""
        self.first: str | None = None
        self.count = 0
        self.is_missing = self.is_unknown = False
        self.waiting = ""

    def take(self, event: ConfigRead) -> None:
        """Take in a reading without a configuration."""
        if event.waiting:
            self._wait(event.problems[0])
        else:
            self.refuse(event.problems, missing=event.missing, unknown=event.unknown)

    def refuse(self, problems: tuple[str, ...], *, missing: bool = False, unknown: bool = False) -> None:
        """The newest configuration has these problems: full lines, at least one."""
        first = problems[0]
        errors = f"{len(problems)} error{'s' if len(problems) > 1 else ''}"
        if missing:
            if not self.is_missing:
                self._log(Reason.CONFIG_MISSING, f"{first}  ({self._describe_kept()})")
        elif first != self.first:
            if unknown:
                self._log(Reason.CONFIG_UNKNOWN, f"{first}  ({self._describe_kept()})", error=first)
            else:
                self._log(Reason.CONFIG_REFUSED, f"{first}  ({errors}; {self._describe_kept()})", error=first)
            for problem in problems[1:]:
                self._log(Reason.CONFIG_REFUSED, problem, error=problem)
        self.first, self.count = first, len(problems)
        self.is_missing, self.is_unknown, self.waiting = missing, unknown, ""
        self._count_edit("refused")

    def _wait(self, why: str) -> None:
        if not self.waiting:
            self._log(Reason.CONFIG_MISSING, f"{why}  ({self._describe_kept()})")
        self.clear()
        self.waiting = why

    def _describe_kept(self) -> str:
        kept, chosen = self._find_kept()
        if kept is None:
            return "nothing in force before"
        return f"keeping {chosen.entry} {kept.hash}" if chosen is not None and chosen.entry else f"keeping {kept.hash}"
