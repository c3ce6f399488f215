"""What the plugin sees of the MPS control daemons: the report of ``nvdp mps``, read again and again.

The plugin itself has neither their program nor their pipes: what no report says is not so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from nvdp.errors import HostError
from nvdp.host.mps_report import load_report
from nvdp.model.mps import REPORT_NAME, SILENT_S, MpsReport, MpsView
from nvdp.service_thread import ServiceThread
from nvdp.services.events import MpsSeen, Post

_AHEAD_S: Final = 1.0  # a report from the future is of another boot, whose clock began anew


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """In seconds: from one look to the next while MPS is in use, and while it is not; how old a report may be."""

    look_s: float = 0.5
    idle_s: float = 10.0
    silent_s: float = SILENT_S


class MpsLink:
    """Posts ``MpsSeen`` with the first look, and whenever what is seen has changed, heartbeats apart.

    In use, or with GPUs that ``nvdp mps`` has claimed, it looks twice a second; else now and then, as GPUs may still be
    claimed from before. One thread, ``mps``; the methods may be called from any, and do not block unless they say so.
    An exception that nobody expected ends the thread; ``start`` may then be called again.
    """

    THREAD: Final = "mps"

    def __init__(
        self,
        post: Post,
        *,
        mps_dir: Path,
        boot_id: str,
        clock: Callable[[], float] = time.monotonic,
        times: Times | None = None,
    ) -> None:
        self._post = post
        self._mps_dir = mps_dir
        self._boot_id = boot_id
        self._clock = clock
        self._times = times or Times()
        self._changed = threading.Condition()  # guards what follows
        self._is_used = False
        self._is_asked = True
        self._looked_at = clock()
        self._view: MpsView | None = None
        self._thread: ServiceThread | None = None

    def start(self) -> None:
        """Begin to look. Nothing happens if it does already."""
        if self._thread is None or not self._thread.is_at_work:
            self._thread = ServiceThread(self._run, name=self.THREAD)
            self._thread.start()

    def wait_seen(self, timeout_s: float) -> bool:
        """Wait until the first look is posted: what is planned before does not know which daemons answer, and which
        GPUs are claimed. False if that did not come about within the time.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._view is not None, timeout_s)

    def use(self, *, is_used: bool) -> None:
        """Whether the plan has a resource that needs a daemon, or ``nvdp mps`` may take GPUs by an earlier one."""
        with self._changed:
            self._is_asked = self._is_asked or (is_used and not self._is_used)
            self._is_used = is_used
            self._changed.notify_all()

    def look(self) -> None:
        """Look at once: something may have changed."""
        with self._changed:
            self._is_asked = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            self._wait_due()
            view = self._load_view()
            if view != self._view:
                self._post(MpsSeen(view=view, at=self._clock()))
            with self._changed:
                self._view = view
                self._changed.notify_all()

    def _wait_due(self) -> None:
        with self._changed:
            while not self._is_asked and (left_s := self._looked_at + self._pause_s - self._clock()) > 0:
                self._changed.wait(left_s)
            self._is_asked, self._looked_at = False, self._clock()

    @property
    def _pause_s(self) -> float:
        is_close = self._is_used or (self._view is not None and bool(self._view.claims))
        return self._times.look_s if is_close else self._times.idle_s

    def _load_view(self) -> MpsView:
        known = self._view.claims if self._view is not None else {}
        silent_s = self._times.silent_s
        return load_view(self._mps_dir, now=self._clock(), boot_id=self._boot_id, silent_s=silent_s, known=known)


def load_view(
    mps_dir: Path, *, now: float, boot_id: str, silent_s: float = SILENT_S, known: Mapping[str, str] | None = None
) -> MpsView:
    """What is to be seen there now (``judge_report``). Claims that are ``known`` stand if the report is no good.

    Blocks for the disk.
    """
    path = mps_dir / REPORT_NAME
    try:
        report = load_report(mps_dir)
    except HostError as error:
        return MpsView(problem=f"the report of nvdp mps cannot be used: {error}", claims=known or {})
    if report is None:
        text = f"nvdp mps does not run on this node, or its directory is not mounted here: there is no {path}"
        return MpsView(problem=text)
    return judge_report(report, path=path, now=now, boot_id=boot_id, silent_s=silent_s)


def judge_report(report: MpsReport, *, path: Path, now: float, boot_id: str, silent_s: float = SILENT_S) -> MpsView:
    """What there is to be seen in a report that was read at ``now``, monotonic seconds of the node.

    One that is too old still tells which GPUs are claimed, as nobody has put them back. With another boot of the node
    the modes of its GPUs have gone, and all that was known of daemons.
    """
    is_of_another = bool(boot_id and report.boot_id) and report.boot_id != boot_id
    if is_of_another or report.at > now + _AHEAD_S:
        return MpsView(problem=f"nvdp mps has not run since the node booted: {path} is of another boot")
    silence = f"nvdp mps does not answer: {path} is older than {silent_s:g}s" if now - report.at > silent_s else ""
    return MpsView(problem=silence, daemons=report.daemons, claims=report.claims, heard=report.heard)
