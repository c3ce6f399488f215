"""The heartbeat of ``nvdp mps``: its report, written every second and at once when something changed.

The main thread says what there is to report, and with that, that it turns: the report is as old as its last word. Files
are written in a thread of their own, and by who has to know that a claim is on the disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from nvdp.errors import HostError
from nvdp.log import Log
from nvdp.model.mps import HEARTBEAT_S, SILENT_S, DaemonReport, MpsReport, Phase
from nvdp.model.reasons import Level, Reason


class Reporter:
    """``write`` writes a report, with ``sync`` so that it stays, and ``copy`` claims to another place, always so.

    Both may raise HostError, and block. ``first`` is what is known at the start: claims of an earlier process. Thread
    ``mps-report``; ``start`` may be called again after a crash.
    """

    THREAD: Final = "mps-report"

    def __init__(
        self,
        write: Callable[[MpsReport, bool], None],
        *,
        copy: Callable[[Mapping[str, str]], None],
        first: MpsReport,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._copy = copy
        self._log = log
        self._clock = clock
        self._changed = threading.Condition()  # guards the next three
        self._report = first
        self._answered: Mapping[str, float] = {}
        self._is_news = False
        self._is_stopped = False
        self._writing = threading.Lock()  # the file has the newest claims whoever writes
        self._is_failing = False

    def start(self) -> None:
        """Write from now on."""
        threading.Thread(target=self._run, name=self.THREAD, daemon=True).start()

    def publish(self, daemons: Mapping[str, DaemonReport], *, answered: Mapping[str, float], heard: str) -> None:
        """The main thread turns, and this is how the daemons are; ``answered`` is when each answered last, monotonic.

        ``heard``: see ``MpsReport``. Does not block.
        """
        with self._changed:
            self._answered = answered
            is_news = (daemons, heard) != (self._report.daemons, self._report.heard)
            self._report = msgspec.structs.replace(self._report, at=self._clock(), daemons=daemons, heard=heard)
            if is_news:
                self._is_news = True
                self._changed.notify_all()

    def persist(self, claims: Mapping[str, str]) -> None:
        """From now on these are the claims; they are on the disk, twice, when this returns. One thread; blocks.

        Raises HostError if they cannot be written: then those before stand, unless nothing was added to them.
        """
        with self._changed:
            before = self._report.claims
            if claims.keys() <= before.keys():
                self._report = msgspec.structs.replace(self._report, claims=claims)
        self._copy(claims)
        with self._changed:
            self._report = msgspec.structs.replace(self._report, claims=claims)
        try:
            self._save(sync=True)
        except HostError:
            if not claims.keys() <= before.keys():
                with self._changed:
                    self._report = msgspec.structs.replace(self._report, claims=before)
            raise

    def flush(self) -> None:
        """Have what is known now in the file. Blocks; HostError if it cannot be written."""
        self._save(sync=True)

    def stop(self) -> None:
        """Write nothing any more; waits for a write that is under way."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        with self._writing:
            pass

    def _run(self) -> None:
        while not self._is_stopped:
            with self._changed:
                if not self._is_news:
                    self._changed.wait(HEARTBEAT_S)
                self._is_news = False
            try:
                self._save(sync=False)
            except HostError as error:
                if not self._is_failing:
                    text = f"{error}; the plugin offers nothing through MPS while it does not hear of nvdp mps"
                    self._log(Reason.STATE_DAMAGED, text, level=Level.ERROR, error=str(error))
                self._is_failing = True
            else:
                self._is_failing = False

    def _save(self, *, sync: bool) -> None:
        with self._writing:
            with self._changed:
                report, answered, is_stopped = self._report, self._answered, self._is_stopped
            if not is_stopped:
                self._write(_doubt_silent(report, answered, now=self._clock()), sync)


def _doubt_silent(report: MpsReport, answered: Mapping[str, float], *, now: float) -> MpsReport:
    """The report, in which no daemon is READY whose actor has not heard of it for so long."""
    silent = {
        resource: msgspec.structs.replace(
            daemon,
            phase=Phase.FAILED,
            text=f"its control daemon has not been heard of for {now - answered[resource]:.0f} s",
        )
        for resource, daemon in report.daemons.items()
        if daemon.phase is Phase.READY and now - answered.get(resource, now) > SILENT_S
    }
    return msgspec.structs.replace(report, daemons={**report.daemons, **silent}) if silent else report
