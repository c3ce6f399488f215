"""Keeps the CDI specs on disk as they are wished: written, renewed, re-created, and removed once nobody needs them.

All of it is done by a thread of its own, for the driver's files lie on somebody else's disk. What they are is found by
``host/cdi_found.py``, what a spec holds is ``planning/cdi.py``'s, and the directory is ``host/cdi_files.py``'s; here is
what is done when, and what is told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from nvdp.errors import HostError
from nvdp.host.cdi_files import Fingerprint
from nvdp.host.change import PathWatch
from nvdp.log import Log
from nvdp.model.cdi import CdiClass, CdiState, CdiWish
from nvdp.model.cdi_found import Found
from nvdp.model.cdi_spec import CdiSpec, encode_spec
from nvdp.model.reasons import Reason
from nvdp.model.status import Trouble
from nvdp.planning.cdi import build_specs, find_problems
from nvdp.planning.cdi_news import build_news, build_state, decode_specs, explain_problem, join_problems
from nvdp.service_thread import ServiceThread
from nvdp.services.events import CdiWritten, Post

_CLASSES: Final = {cdi_class.file_name: cdi_class for cdi_class in CdiClass}


class Files(Protocol):
    """The directory of the specs (host/cdi_files.py). What fails raises HostError."""

    @property
    def directory(self) -> Path: ...

    @property
    def is_there(self) -> bool: ...

    def load(self) -> dict[str, bytes]: ...

    def write(self, name: str, content: bytes, /) -> None: ...

    def remove(self, name: str, /) -> None: ...

    def remove_abandoned(self) -> None: ...

    def fingerprint(self) -> Fingerprint: ...


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """In seconds. ``look_s``: from one look at the driver's files to the next. ``retry_s``: from the first failure to
    the next try, twice as long after each up to ``look_s``. ``quiet_s``: from a write of ours to a look for somebody
    else's, so that two who write the same file do not keep each other busy. ``slow_s``: a look that takes longer is
    shown.
    """

    look_s: float = 30.0
    retry_s: float = 1.0
    quiet_s: float = 1.0
    slow_s: float = 10.0


class CdiService:
    """Carries out the last wish, and posts ``CdiWritten`` after the first and whenever what came of it has changed.

    What there is before the first is carried out is posted, too, not as an answer.

    ``load_found`` finds the driver's files for a wish, beside the specs that there were, and raises HostError where
    there are none. Then, or if the disk refuses, all files stay, it is told why, and it is tried again. The same wish
    with the same driver writes nothing and posts nothing. ``feature_flags`` and ``disabled_hooks`` are part of every
    wish.

    One thread; the methods may be called from any and do not block. An exception that nobody expected ends the thread;
    ``start`` may then be called again, and the wish is carried out.
    """

    THREAD: Final = "cdi"

    def __init__(
        self,
        post: Post,
        *,
        files: Files,
        load_found: Callable[[CdiWish, Mapping[CdiClass, CdiSpec]], Found],
        log: Log,
        feature_flags: tuple[str, ...] = (),
        disabled_hooks: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
        times: Times | None = None,
    ) -> None:
        self._post = post
        self._files = files
        self._load_found = load_found
        self._log = log
        self._feature_flags = feature_flags
        self._disabled_hooks = disabled_hooks
        self._clock = clock
        self._times = times or Times()
        self._changed = threading.Condition()  # guards the wish, when it is due, and the thread
        self._thread: ServiceThread | None = None
        self._wish: CdiWish | None = None
        self._due_at = float("inf")
        self._wrote_at = float("-inf")
        self._began_at: float | None = None
        # What follows belongs to the thread.
        self._failures = 0
        self._written: dict[CdiClass, CdiSpec] = {}
        self._told: set[str] = set()
        self._hook_problem = ""
        self._state = CdiState()

    def start(self) -> None:
        """Begin to carry out wishes. Nothing if it does already."""
        with self._changed:
            if self._thread is None or not self._thread.is_at_work:
                self._thread = ServiceThread(self._run, name=self.THREAD)
                self._thread.start()

    def want(self, wish: CdiWish) -> None:
        """Carry this out instead of what was wanted before, at once; nothing if it is the same."""
        with self._changed:
            if wish != self._wish:
                self._wish = wish
                self._due_at = self._clock()
                self._changed.notify_all()

    def look(self) -> None:
        """See that all is as it should be: something may have changed."""
        with self._changed:
            self._due_at = min(self._due_at, max(self._clock(), self._wrote_at + self._times.quiet_s))
            self._changed.notify_all()

    def build_watch(self) -> PathWatch[Fingerprint]:
        """The watch that has it look when somebody changes our files. While they are not used nothing is watched."""
        return PathWatch(
            fingerprint=lambda: self._files.fingerprint() if self._is_watched else (),
            directories=lambda: (self._files.directory,) if self._is_watched else (),
            on_change=lambda _: self.look(),
        )

    @property
    def trouble(self) -> Trouble | None:
        """What is wrong with the specs now, and with what containers need beside them. Any thread."""
        problem = join_problems([one for one in (self._state.problem or self._find_delay(), self._hook_problem) if one])
        return Trouble(reason=Reason.CDI_FAILED.word, text=explain_problem(problem, self._wish)) if problem else None

    def _find_delay(self) -> str:
        limit_s, began_at, wish = self._times.slow_s, self._began_at, self._wish
        if began_at is None or wish is None or self._clock() < began_at + limit_s:
            return ""
        root = wish.container_driver_root
        return f"{root}: its files have been looked at for more than {limit_s:g} s, as if a disk did not answer"

    @property
    def _is_watched(self) -> bool:
        wish = self._wish
        return wish is not None and (wish.enabled or bool(self._written))

    def _run(self) -> None:
        while True:
            wish = self._take()
            self._began_at = self._clock()
            try:
                next_s = self._carry_out(wish)
            except Exception as error:
                self._settle(wish, f"a defect, see the log: {type(error).__name__}: {error}")
                self._plan_next(0.0)
                raise
            finally:
                self._began_at = None
            self._plan_next(next_s)

    def _take(self) -> CdiWish:
        """The wish, once there is one and it is due."""
        with self._changed:
            while self._wish is None or self._clock() < self._due_at:
                is_idle = self._wish is None or self._due_at == float("inf")
                self._changed.wait(None if is_idle else self._due_at - self._clock())
            self._due_at = float("inf")
            return msgspec.structs.replace(
                self._wish, feature_flags=self._feature_flags, disabled_hooks=self._disabled_hooks
            )

    def _plan_next(self, in_s: float) -> None:
        with self._changed:
            self._due_at = min(self._due_at, self._clock() + in_s)

    def _carry_out(self, wish: CdiWish) -> float:
        """Make the files as wished, and tell what came of it. In how many seconds to look again."""
        self._files.remove_abandoned()
        try:
            problem = self._update(wish)
        except HostError as error:
            problem = str(error)
            next_s = min(self._times.look_s, self._times.retry_s * 2.0 ** min(self._failures, 30))
            self._failures += 1
        else:
            self._failures = 0
            next_s = self._times.look_s if self._is_watched else float("inf")
        self._tell({explain_problem(problem, wish), explain_problem(self._hook_problem, wish)} - {""})
        self._settle(wish, problem)
        return next_s

    def _tell(self, problems: set[str]) -> None:
        """Log each when it comes up, and once; if none is left, all may come up anew."""
        for problem in sorted(problems - self._told):
            self._log(Reason.CDI_FAILED, problem, error=problem)
        self._told = self._told | problems if problems else set()

    def _update(self, wish: CdiWish) -> str:
        """Write what differs, remove what nobody needs. Why some devices are in no spec; empty if all are.

        What we wrote and somebody removed or damaged is put back first: the driver may be gone, or take its time.
        """
        there = self._load(wish)
        whole = decode_specs(there)
        if not wish.enabled:
            self._written = {one: spec for one, spec in (self._written | whole).items() if _is_kept(one, wish)}
        lost = {one.file_name: encode_spec(spec) for one, spec in self._written.items() if one not in whole}
        there = self._store(there, lost)
        self._tell_what_was_there(there)
        contents: dict[str, bytes] = {}
        problems: tuple[str, ...] = ()
        missing: tuple[str, ...] = ()
        hook_problem = ""
        if wish.enabled:
            # What we wrote comes before what is there now, which somebody may have changed.
            found = self._load_found(wish, decode_specs(there) | self._written)
            wanted, problems, missing = build_specs(wish, found), find_problems(wish, found), found.driver.missing
            hook_problem = found.hook_problem
            self._written = {_CLASSES[name]: spec for name, spec in wanted.items()}
            contents = {name: encode_spec(spec) for name, spec in wanted.items()}
        self._hook_problem = hook_problem
        changed = {name: content for name, content in contents.items() if there.get(name) != content}
        stale = [name for name in there if name not in contents and not _is_kept(_CLASSES[name], wish)]
        self._store(there, changed, stale, missing=missing)
        return join_problems(problems)

    def _store(
        self,
        there: dict[str, bytes],
        changed: Mapping[str, bytes],
        stale: Sequence[str] = (),
        *,
        missing: tuple[str, ...] = (),
    ) -> dict[str, bytes]:
        """Write some of our files and remove others, tell that, and return what there is then."""
        if not changed and not stale:
            return there
        with self._changed:
            self._wrote_at = self._clock()
        for name, content in changed.items():
            self._files.write(name, content)
        for name in stale:
            self._files.remove(name)
        now = self._files.load()
        news = build_news(decode_specs(there), decode_specs(now), written=[*changed], removed=stale)
        text = f"{self._files.directory}: {news.text}"
        self._log(Reason.CDI_WRITTEN, text, files=(*changed, *stale), devices=news.devices, missing=missing)
        return now

    def _load(self, wish: CdiWish) -> dict[str, bytes]:
        """What there is of ours; nothing where it cannot be read and is not needed."""
        try:
            return self._files.load()
        except HostError:
            if wish.enabled:
                raise
            return {}

    def _tell_what_was_there(self, there: Mapping[str, bytes]) -> None:
        """Post what a predecessor left, as the first answer may not come: the driver's disk may not answer."""
        state = build_state(there)
        if state.names and self._state == CdiState():
            self._state = state
            self._post(CdiWritten(state=state, at=self._clock()))

    def _settle(self, wish: CdiWish, problem: str) -> None:
        """Post what resolves now, by what is read from the disk, if that, what was asked or the problem is news."""
        try:
            state = build_state(self._files.load())
        except HostError:  # what we cannot read, runtimes may all the same, unless something else is in its place
            state = self._state if self._files.is_there else CdiState()
        state = msgspec.structs.replace(state, asked=wish.asked, problem=problem, answered=True)
        if state != self._state:
            self._state = state
            self._post(CdiWritten(state=state, at=self._clock()))


def _is_kept(cdi_class: CdiClass, wish: CdiWish) -> bool:
    """Whether the file stays though the wish comes to none: pods may start again with what it has."""
    by_name = bool(wish.keep) and (cdi_class is CdiClass.GPU or not wish.enabled)
    return by_name or cdi_class in wish.keep_classes
