"""The signals of the process, as events of the supervisor; those that end it start the clock of its end as well."""

from __future__ import annotations

import signal
from types import FrameType

from nvdp.app.deadline import LIMIT_S, Deadline
from nvdp.services.events import Post, SignalReceived


def catch_signals(post: Post, *, limit_s: float = LIMIT_S) -> None:
    """SIGTERM and SIGINT end the process, within ``limit_s`` whatever hangs; SIGHUP makes it look. Main thread only."""
    deadline = Deadline(limit_s)

    def stop(number: int, _frame: FrameType | None) -> None:
        deadline.start()
        post(SignalReceived(number=number))

    def look(number: int, _frame: FrameType | None) -> None:
        post(SignalReceived(number=number))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGHUP, look)
