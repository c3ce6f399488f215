"""How often the daemon of a resource has failed, when it may be started again, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvdp.log import Log
from nvdp.model.mps import Phase
from nvdp.model.reasons import Reason
from nvdp.services.mps_card import Card
from nvdp.services.mps_running import Times, is_power_of_two


class Failures:
    """Used by one thread. The first start after a failure may follow at once, the next ones wait longer and longer."""

    def __init__(self, resource: str, card: Card, *, log: Log, times: Times, clock: Callable[[], float]) -> None:
        self._resource = resource
        self._card = card
        self._log = log
        self._times = times
        self._clock = clock
        self._count = 0
        self._since = clock()

    @property
    def retry_at(self) -> float:
        """When it may be started, monotonic seconds."""
        return self._since + self._times.find_delay_s(self._count)

    def note(self) -> None:
        """Once more."""
        self._count += 1
        self._since = self._clock()

    def note_ready(self) -> None:
        """It works from now on."""
        self._since = self._clock()

    def note_steady(self) -> None:
        """It still works; after a minute of that the next failure counts as the first."""
        if self._clock() - self._since >= self._times.steady_s:
            self._count = 0

    def forget(self) -> None:
        """What failed so far is over: something else is started next."""
        self._count = 0

    def tell(
        self, text: str, *, runs: bool, exit_code: int | None = None, lines: tuple[str, ...] = (), **more: str
    ) -> None:
        """Report and log what went wrong, and when it is started anew unless it still ``runs``.

        What fails again and again is logged the first time, the second, the fourth and so on.
        """
        if not runs:
            delay_s = self._times.find_delay_s(self._count)
            text = f"{text}; started anew {f'in {delay_s:g} s' if delay_s else 'at once'}"
        self._card.report(phase=Phase.FAILED, text=text, exit_code=exit_code, last_lines=lines)
        if is_power_of_two(max(1, self._count)):
            told: dict[str, Any] = {**more, "exit_code": exit_code} if exit_code is not None else {**more}
            self._log(Reason.MPS_DAEMON_FAILED, text, resource=self._resource, last_lines=list(lines), **told)
