"""The log: one call for each thing that happened, named by its reason (see ``model.reasons``).

Text for a terminal, one JSON object a line otherwise, on stderr. Repeats of one warning are folded (``log.repeats``),
values are bounded and cleaned (``log.render``).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol, TextIO

from nvdp.log.process import (
    TERMINATION_LOG,
    describe_exception,
    open_standard_streams,
    silence_libraries,
    write_termination_message,
)
from nvdp.log.render import render_json, render_text
from nvdp.log.repeats import Folded, Repeats
from nvdp.log.sink import Sink
from nvdp.model.reasons import Level, Reason

__all__ = [
    "TERMINATION_LOG",
    "Log",
    "StreamLog",
    "configure_log",
    "describe_exception",
    "open_standard_streams",
    "silence_libraries",
    "write_termination_message",
]

_Format = Literal["text", "json"]
_LEVELS = {level.name.lower(): level for level in Level}
_RENDER = {"text": render_text, "json": render_json}
_DEFECTS = frozenset({Reason.SERVICE_RESTARTED})  # their tracebacks are shown at any level


class Log(Protocol):
    """Writes one line for one thing that happened. Any thread; never raises, blocks for half a second at most."""

    def __call__(self, reason: Reason, msg: str, /, *, level: Level | None = None, **fields: object) -> None:
        """``msg`` is the sentence; ``fields`` are the log's own (``resource device index pci xid … error trace``).

        ``level`` replaces the reason's own: the last line of a process that failed is an error. A ``trace`` is
        written at debug level only, except for defects.
        """
        ...


class StreamLog:
    """The log on a stream of text. A line that cannot be written is lost: the log is never why something fails.

    The next line that gets through tells, as ``linesLost``, how many did not.
    """

    def __init__(
        self, *, render: Callable[..., str], level: Level, stream: TextIO, clock: Callable[[], float] = time.time
    ) -> None:
        self._render = render
        self._level = level
        self._sink = Sink(stream)
        self._clock = clock
        self._repeats = Repeats()
        self._lock = threading.RLock()

    def __call__(self, reason: Reason, msg: str, /, *, level: Level | None = None, **fields: object) -> None:
        effective = reason.level if level is None else level
        if effective < self._level:
            return
        if self._level > Level.DEBUG and reason not in _DEFECTS:
            fields.pop("trace", None)
        subject = str(fields.get("device") or fields.get("resource") or "")
        with self._lock:
            now = self._clock()
            self._write_folded(now, self._repeats.take_due(now))
            if effective == Level.WARNING:
                if self._repeats.is_repeat(now, reason, msg, subject=subject, fields=fields):
                    return
            else:
                self._write_folded(now, self._repeats.forget(subject))
            self._write(now, effective, reason, msg, fields)

    def flush(self) -> None:
        """Write what is folded and not told yet. For the end of the process."""
        with self._lock:
            now = self._clock()
            self._write_folded(now, self._repeats.forget(None))

    def _write_folded(self, now: float, folded: list[Folded]) -> None:
        for one in folded:
            self._write(now, Level.WARNING, one.reason, one.describe(now), {**one.fields, "repeats": one.count})

    def _write(self, now: float, level: Level, reason: Reason, msg: str, fields: dict[str, object]) -> None:
        if self._sink.lost:
            fields = {**fields, "lines_lost": self._sink.lost}
        try:
            line = self._render(now, level, reason.word, msg, fields)
        except Exception as error:  # noqa: BLE001 - a value that breaks while it is looked at must not break its user
            line = self._render(now, level, reason.word, msg, {"error": f"fields lost: {type(error).__name__}"})
        self._sink.write(line)


def configure_log(
    *,
    format: _Format | None = None,  # noqa: A002 - the word of --log-format
    level: str = "info",
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.time,
) -> StreamLog:
    """The process's log. ``level`` is debug, info, warning or error, ``clock`` gives seconds since the epoch.

    Without ``format`` it is text on a terminal and JSON elsewhere; without ``stream`` it is stderr, if there is one.
    """
    target = stream or sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115 - it is for the life of the process
    chosen = format or ("text" if target.isatty() else "json")
    return StreamLog(render=_RENDER[chosen], level=_LEVELS[level], stream=target, clock=clock)
