"""Keeps one object of the API server in sight, for as long as the process lives (``planning.following`` says how)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, Protocol

from nvdp.cluster.contact import Contact
from nvdp.cluster.watch import Watch, WatchEvent
from nvdp.errors import ClusterError, ClusterFault
from nvdp.model.cluster import ObjectPath, ObjectSeen
from nvdp.planning.following import (
    QUIET_S,
    Following,
    begin,
    goes_back,
    hurry,
    note_ended,
    note_failed,
    note_heard,
    note_left,
    note_opened,
)
from nvdp.service_thread import ServiceThread

_BOOKMARK: Final = "BOOKMARK"
_DELETED: Final = "DELETED"
_DOUBTED_AFTER_S: Final = 10.0  # of silence


class Server(Protocol):
    """What it needs of ``api.Api``. Both raise ClusterError."""

    def read(self, path: ObjectPath, /) -> dict[str, Any]: ...

    def watch(self, path: ObjectPath, /, *, version: str = "") -> Watch: ...


class ObjectWatch:
    """Calls ``on_seen``, on its own thread, with each state of the object that the server tells, and when it stops or
    begins again to answer. ``on_seen`` must not block for long.

    Methods are for any thread and do not block. An exception that nobody expects ends the thread; ``start`` may then be
    called again, and begins with the present state.
    """

    def __init__(
        self,
        api: Server,
        path: ObjectPath,
        *,
        name: str,
        on_seen: Callable[[ObjectSeen], None],
        contact: Contact,
        first_delay_s: float = 0.0,
        quiet_s: float = QUIET_S,
        random: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.THREAD: Final = f"watch-{name}"
        self._api = api
        self._path = path
        self._name = name
        self._on_seen = on_seen
        self._contact = contact
        self._quiet_s = quiet_s
        self._random = random or Random()  # noqa: S311 - spreads requests
        self._clock = clock
        self._changed = threading.Condition()
        self._stopping = False
        self._hurry = False
        self._watch: Watch | None = None
        self._heard_at = clock()  # of the present watch
        self._is_left = False  # the present watch, by ``look``
        self._thread: ServiceThread | None = None
        self._state = begin(clock(), first_delay_s=first_delay_s)
        self._object: Mapping[str, Any] | None = None
        self._is_well = False  # the present watch, or the last one
        self._has_bookmarks = False  # any watch had some, and so will the others
        self._shown = ""

    def start(self) -> None:
        """Begin to watch. Nothing happens if it does already."""
        if self._thread is None or not self._thread.is_at_work:
            self._thread = ServiceThread(self._run, name=self.THREAD)
            self._thread.start()

    def look(self) -> None:
        """Ask now, if it waits to ask again; or, where the server said when to come again, as soon as that is over.

        A watch that has told nothing for ten seconds is left for another one, which tells the present state: whether
        there is still a server at its other end cannot be seen.
        """
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            if self._watch is not None and self._clock() >= self._heard_at + _DOUBTED_AFTER_S:
                self._is_left = True
                self._watch.close()

    def stop(self) -> None:
        """Watch no more. For good; ``on_seen`` may be called once more if it was about to be."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            if self._watch is not None:
                self._watch.close()

    def _run(self) -> None:
        if self._state.open_at is None:  # it was watching when it died
            self._state = begin(self._clock())
        while self._wait_due():
            self._follow()

    def _follow(self) -> None:
        """One watch, from its opening to its end."""
        self._is_well = False
        try:
            watch = self._api.watch(self._path, version=self._state.version)
        except ClusterError as error:
            self._fail(error)
            return
        with watch:
            if not self._adopt(watch):
                return
            self._state = note_opened(self._state, self._clock())
            watch.has_bookmarks = self._has_bookmarks
            try:
                self._listen(watch)
            except ClusterError as error:
                self._end(error)
            else:
                self._end(None)
            finally:
                self._adopt(None)
                self._has_bookmarks = watch.has_bookmarks

    def _listen(self, watch: Watch) -> None:
        """Until the watch ends. Raises ClusterError."""
        if not watch.hears_within(self._quiet_s):
            if not self._state.version:
                self._look()
            self._note_well("")
        for event in watch:
            self._take(event)

    def _look(self) -> None:
        """The watch is silent: ask whether the object is there at all. Raises ClusterError."""
        try:
            found: Mapping[str, Any] | None = self._api.read(self._path)
        except ClusterError as error:
            if error.fault is not ClusterFault.MISSING:
                raise
            found = None
        about = {} if found is None else _get_metadata(found)
        if found is not None and (not _is_whole(about) or about["name"] != self._path.name):
            raise self._build_nonsense("get")
        self._show(found)
        self._state = note_heard(self._state, _get_version(about))  # what the watch tells may be older

    def _take(self, event: WatchEvent) -> None:
        self._heard_at = self._clock()
        about = _get_metadata(event.object)
        if event.kind != _BOOKMARK and not _is_whole(about):
            raise self._build_nonsense("watch")
        version = _get_version(about)
        is_ours = event.kind == _BOOKMARK or about.get("name") == self._path.name
        if is_ours and goes_back(self._state, version):
            text = f"watch {self._path}: the API server goes back from version {self._state.version} to {version}"
            raise ClusterError(text, fault=ClusterFault.GONE)
        if event.kind == _BOOKMARK:
            if not self._state.version:
                self._show(None)  # had it been there, it would have been told first
        elif is_ours:
            self._show(None if event.kind == _DELETED else event.object)
        else:
            return  # a server that does not select: this is none of ours
        self._note_well(version)

    def _build_nonsense(self, verb: str) -> ClusterError:
        """A fault of the server's: if it stays with that, its version is given up, and the present state asked for."""
        text = f"{verb} {self._path}: the API server sent something else than such an object"
        return ClusterError(text, fault=ClusterFault.FAILED)

    def _note_well(self, version: str) -> None:
        self._state = note_heard(self._state, version)
        if not self._is_well:
            self._is_well = True
            self._contact.note_heard(self._name)
        if self._shown:
            self._show(self._object)  # it stands as it was

    def _end(self, error: ClusterError | None) -> None:
        """The watch is over. If all was well, whether the server is lost shows when it is opened anew."""
        if self._is_left:
            self._state = note_left(self._state, self._clock())
            return
        is_refusal = error is not None and error.fault is not ClusterFault.UNREACHABLE
        if self._is_well and not is_refusal:
            self._state = note_ended(self._state, self._clock(), random=self._random)
            return
        text = f"watch {self._path}: the API server ends it without a word"
        self._fail(error or ClusterError(text, fault=ClusterFault.UNREACHABLE))

    def _fail(self, error: ClusterError) -> None:
        self._state = note_failed(
            self._state,
            self._clock(),
            fault=error.fault,
            problem=str(error),
            retry_after_s=error.retry_after_s,
            random=self._random,
        )
        if not self._state.problem:
            return
        self._contact.note_failed(self._name, error.fault, self._state.problem)
        if self._state.problem != self._shown:
            self._shown = self._state.problem
            self._on_seen(ObjectSeen(object=self._object, problem=self._shown, at=self._clock()))

    def _show(self, found: Mapping[str, Any] | None) -> None:
        self._object, self._shown = found, ""
        self._on_seen(ObjectSeen(object=found, at=self._clock()))

    def _adopt(self, watch: Watch | None) -> bool:
        """Let ``stop`` know of the watch; false if it was called already."""
        with self._changed:
            self._watch, self._heard_at, self._is_left = watch, self._clock(), False
            return not self._stopping

    def _wait_due(self) -> bool:
        """Until the next watch is due; False if there is to be none."""
        while True:
            self._contact.look()
            with self._changed:
                if self._stopping:
                    return False
                now = self._clock()
                if self._hurry:
                    self._hurry = False
                    self._state = hurry(self._state, now, random=self._random)
                assert self._state.open_at is not None
                if self._state.open_at <= now:
                    return True
                self._changed.wait(max(0.0, self._find_due(self._state) - now))

    def _find_due(self, state: Following) -> float:
        told_at = self._contact.find_due()
        assert state.open_at is not None
        return state.open_at if told_at is None else min(state.open_at, told_at)


def _get_metadata(found: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = found.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _is_whole(about: Mapping[str, Any]) -> bool:
    """Whether metadata can be those of an object: it has a name, and its labels and annotations are texts."""
    texts = [about[key] for key in ("labels", "annotations") if about.get(key) is not None]
    has_texts = all(isinstance(one, dict) and all(isinstance(value, str) for value in one.values()) for one in texts)
    return has_texts and isinstance(about.get("name"), str)


def _get_version(about: Mapping[str, Any]) -> str:
    version = about.get("resourceVersion")
    return version if isinstance(version, str) else ""
