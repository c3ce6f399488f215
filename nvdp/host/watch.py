"""Notices changes in the file system: at once where inotify tells of them, within a second in any case.

What counts is a *fingerprint*, made by looking. A notification means no more than: look now. A lost one costs a second,
a needless one nothing, and where inotify is exhausted or denied the look of every second is all that is left.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from nvdp.host.change import PathWatch
from nvdp.log import Log
from nvdp.model.reasons import Reason
from nvdp.model.status import Trouble
from nvdp.service_thread import ServiceThread

if TYPE_CHECKING:
    from watchdog.observers.inotify_c import InotifyEvent, WatchDescriptor

_POLL_S: Final = 1.0
_BURST_S: Final = 0.005  # notifications that come this soon after a look share the next one
_RETRY_S: Final = 60.0  # between attempts at notification while it is refused
_JOIN_S: Final = 2.0
_LIMIT_OF_ERRNO: Final = {errno.EMFILE: "max_user_instances", errno.ENOSPC: "max_user_watches"}


class Notification(Protocol):
    """Calls back, on any thread, when something happens in one of its directories. Needless calls are fine."""

    @property
    def alive(self) -> bool: ...

    def add(self, directory: Path) -> None:
        """Raises OSError if the directory is missing, denied, or one too many."""

    def discard(self, directory: Path) -> None: ...

    def covers(self, directory: Path) -> bool:
        """False once the directory that was added has been deleted, also if there is a new one of its name."""
        ...

    def close(self) -> None: ...


class Inotify:
    """One inotify instance with one thread (``watch-inotify``). Raises OSError if there are too many instances.

    This is watchdog's own event loop without its observers: those need a thread for each directory, and may hold a
    rename back for half a second to pair its two halves, which we have no use for.
    """

    def __init__(self, on_event: Callable[[], None]) -> None:
        # Not at the top: 20 ms of import that would delay the first registration.
        from watchdog.observers.inotify_c import CallbackId, InotifyConstants, InotifyFD, Mask  # noqa: PLC0415

        self._on_event = on_event
        self._ids = map(CallbackId, itertools.count())
        self._watched: dict[Path, tuple[WatchDescriptor, CallbackId]] = {}
        # Without IN_OPEN and its like: our own looks would notify us.
        self._mask = Mask(
            InotifyConstants.IN_CREATE
            | InotifyConstants.IN_DELETE
            | InotifyConstants.IN_MOVE
            | InotifyConstants.IN_MODIFY
            | InotifyConstants.IN_CLOSE_WRITE
            | InotifyConstants.IN_ATTRIB
            | InotifyConstants.IN_DELETE_SELF
            | InotifyConstants.IN_MOVE_SELF
            | InotifyConstants.IN_ONLYDIR
        )
        self._loop = InotifyFD()
        self._loop.name = "watch-inotify"
        try:
            self._loop.start()
        except RuntimeError as error:
            self._loop.stop()
            raise OSError(errno.EAGAIN, str(error)) from error

    @property
    def alive(self) -> bool:
        return self._loop.is_alive() and self._loop.should_keep_running()

    def add(self, directory: Path) -> None:
        callback_id = next(self._ids)
        descriptor = self._loop.add_callback(os.fsencode(directory), self._mask, self, callback_id)
        if descriptor < 0:  # watchdog swallows this one
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        self._watched[directory] = (descriptor, callback_id)

    def discard(self, directory: Path) -> None:
        watched = self._watched.pop(directory, None)
        if watched is not None:
            self._loop.remove_callbacks([watched])

    def covers(self, directory: Path) -> bool:
        return directory in self._watched

    def close(self) -> None:
        self._loop.stop()
        self._loop.join(_JOIN_S)

    def on_event(self, event: InotifyEvent) -> None:  # noqa: ARG002 - watchdog's interface; any event means: look
        self._on_event()

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        gone = [directory for directory, (descriptor, _) in tuple(self._watched.items()) if descriptor == wd]
        for directory in gone:
            self._watched.pop(directory, None)
        self._on_event()

    def on_queue_overflow(self) -> None:
        self._on_event()


class Watcher:
    """Watches everything that it is given, on one thread of its own (``watch``) and one inotify instance.

    An exception out of a watch is reported through ``threading.excepthook`` and disturbs neither the thread nor the
    other watches; ``start`` after it makes that watch pass on again what it sees. ``trouble`` is set while notification
    is refused; any thread may read it.
    """

    THREAD: Final = "watch"

    def __init__(
        self,
        watches: Iterable[PathWatch[Any]],
        *,
        log: Log,
        open_notification: Callable[[Callable[[], None]], Notification] = Inotify,
        poll_s: float = _POLL_S,
        retry_s: float = _RETRY_S,
    ) -> None:
        self._watches = tuple(watches)
        self._log = log
        self._open = open_notification
        self._poll_s = poll_s
        self._retry_s = retry_s
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: ServiceThread | None = None
        self._failed: set[PathWatch[Any]] = set()
        self._directories: dict[PathWatch[Any], tuple[Path, ...]] = {}
        self._notification: Notification | None = None
        self._covered: dict[Path, tuple[int, int]] = {}
        self._refused: dict[Path, OSError] = {}
        self._retry_at = -math.inf
        self.trouble: Trouble | None = None

    def start(self) -> None:
        """Start watching: the first look passes every fingerprint on. Does not block. Call it again after a crash."""
        while self._failed:
            self._failed.pop().forget()
        self.check_now()
        if self._thread is None or not self._thread.is_at_work:
            self._thread = ServiceThread(self._run, name=self.THREAD)
            self._thread.start()

    def check_now(self) -> None:
        """Look at everything now. Any thread; does not block."""
        self._wake.set()

    def stop(self) -> None:
        """Stop for good. Waits for a receiver that is at work, at most 2 s."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                look_at = self._look()
                if self._cover():
                    self._wake.set()  # what happened there before was notified to nobody
                self._stopping.wait(_BURST_S)
                self._wake.wait(min(self._poll_s, max(0.0, look_at - time.monotonic())))
        finally:
            self._close()

    def _look(self) -> float:
        """Look at everything; when to look again at the latest."""
        look_at = math.inf
        for watch in self._watches:
            try:
                look_at = min(look_at, watch.look(time.monotonic()) or math.inf)
                self._directories[watch] = tuple(watch.directories())
            except Exception as error:  # noqa: BLE001 - a defect in one receiver must not make us deaf for the others
                self._failed.add(watch)
                threading.excepthook(
                    threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
                )
        return look_at

    def _cover(self) -> bool:
        """Have all directories notified that are wanted now. True if one of them was not before."""
        wanted = _find_existing(itertools.chain.from_iterable(self._directories.values()))
        retrying = time.monotonic() >= self._retry_at
        was_refused = bool(self._refused)
        if retrying:
            self._refused = {}
        if self._notification is not None and not self._notification.alive:
            self._close()
        if self._notification is None and not self._refused:
            try:
                self._notification = self._open(self.check_now)
            except OSError as error:
                self._refused = dict.fromkeys(wanted, error)
        fresh = self._notification is not None and self._cover_with(self._notification, wanted)
        if self._refused and retrying:
            self._retry_at = time.monotonic() + self._retry_s
            if not was_refused:
                self._report()
        if not self._refused:
            self.trouble = None
        return fresh

    def _cover_with(self, notification: Notification, wanted: Mapping[Path, tuple[int, int]]) -> bool:
        for directory, identity in tuple(self._covered.items()):
            if wanted.get(directory) != identity or not notification.covers(directory):
                notification.discard(directory)
                del self._covered[directory]
        fresh = False
        for directory, identity in wanted.items():
            if directory in self._covered or directory in self._refused:
                continue
            try:
                notification.add(directory)
            except (FileNotFoundError, NotADirectoryError):
                self.check_now()  # gone since it was looked at
            except OSError as error:
                self._refused[directory] = error
            else:
                self._covered[directory] = identity
                fresh = True
        return fresh

    def _report(self) -> None:
        error = next(iter(self._refused.values()))
        limit = _LIMIT_OF_ERRNO.get(error.errno or 0)
        why = f"{error.strerror}; raise sysctl fs.inotify.{limit}" if limit else error.strerror
        directories = ", ".join(map(str, self._refused))
        text = f"{directories}: no notification of changes ({why}); looking every {self._poll_s:g}s instead"
        self.trouble = Trouble(reason=Reason.WATCH_DEGRADED.word, text=text)
        self._log(Reason.WATCH_DEGRADED, text, error=str(error))

    def _close(self) -> None:
        if self._notification is not None:
            self._notification.close()
        self._notification = None
        self._covered = {}


def _find_existing(directories: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """The directories and who they are (device, inode); for a missing one the nearest parent, where it will appear."""
    existing = {}
    for directory in directories:
        for candidate in (directory, *directory.parents):
            try:
                found = os.stat(candidate)  # noqa: PTH116 - every second; Path adds frames
            except OSError:
                continue
            if stat.S_ISDIR(found.st_mode):
                existing[candidate] = (found.st_dev, found.st_ino)
                break
    return existing
