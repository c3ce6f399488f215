"""Which of several configurations this node has: follows its label and them, and posts the one that it comes to.

What is seen of the cluster comes by ``see_node`` and ``see_config_map`` from whoever watches it, what is in a mounted
directory by a watch of the file system. Deciding, reading and parsing happen on a thread of our own, so that neither
the supervisor's event loop nor a watch waits. Nothing is posted that was posted already: not for a heartbeat of the
Node, nor for an edit of a configuration that other nodes have.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from nvdp.config.document import SIZE_LIMIT_BYTES
from nvdp.config.overrides import Overrides
from nvdp.errors import FormatError, HostError
from nvdp.host.change import PathWatch
from nvdp.host.config_directory import (
    DirectoryFingerprint,
    directory_fingerprint,
    directory_settle_s,
    list_watched,
)
from nvdp.host.files import load_text
from nvdp.model.chosen import Chosen
from nvdp.model.cluster import ObjectPath, ObjectSeen
from nvdp.planning.selecting import Kind, Sight, Source, Verdict, decide
from nvdp.planning.selection import Rules
from nvdp.planning.selection_objects import Entries, parse_entries, parse_label
from nvdp.services.configuration import judge_text
from nvdp.services.events import ConfigRead

_WITHOUT_ENTRY: Final = "flags and environment"


class SelectionService:
    """``node`` and ``config_map`` are the objects that are seen, the latter None if there is none to be looked at.

    ``decide_at`` (``clock`` seconds) is how long the API server is given to answer before the first decision; then it
    waits with what was applied last, if ``keeps_one``. Only after that it is the default of the directory.
    """

    THREAD: Final = "selection"

    def __init__(
        self,
        post: Callable[[ConfigRead], None],
        *,
        rules: Rules,
        overrides: Overrides,
        node: ObjectPath,
        config_map: ObjectPath | None,
        directory: Path | None,
        keeps_one: bool,
        decide_at: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._post = post
        self._rules = rules
        self._overrides = overrides
        self._node = node
        self._config_map = config_map
        self._directory = directory
        self._decide_at = decide_at
        self._clock = clock
        self._changed = threading.Condition()
        self._is_fresh = False
        self._changed_at = 0.0
        self._sight = Sight(
            node=str(node),
            config_map_place=str(config_map) if config_map is not None else "",
            directory_place=str(directory) if directory is not None else "",
            keeps_one=keeps_one,
        )
        self._entries = Entries()
        self._files = DirectoryFingerprint()
        self._told: tuple[object, ...] | None = None

    def start(self) -> None:
        """Start the thread, or start it anew after a crash: then what is known is decided on once more."""
        with self._changed:
            self._is_fresh = True
            self._changed.notify_all()
        threading.Thread(target=self._run, name=self.THREAD, daemon=True).start()

    def build_watch(self) -> PathWatch[DirectoryFingerprint] | None:
        """The watch that looks at the directory; None if there is none."""
        directory = self._directory
        if directory is None:
            return None
        return PathWatch(
            fingerprint=lambda: directory_fingerprint(directory),
            directories=lambda: list_watched(directory),
            on_change=self._see_directory,
            settle_s=directory_settle_s,
        )

    def see_node(self, seen: ObjectSeen) -> None:
        """How this Node was seen. Any thread; does not block. What is there no more keeps the label that it had."""
        if seen.problem:
            self._take(seen.at, node_problem=seen.problem)
        elif seen.object is None:
            self._take(seen.at, node_problem="there is no such Node; is it called so? see --node-name")
        else:
            try:
                label = parse_label(seen.object, self._node, key=self._rules.label_key)
            except FormatError as error:
                self._take(seen.at, node_problem=str(error))
            else:
                self._take(seen.at, label=label, node_problem="")

    def see_config_map(self, seen: ObjectSeen) -> None:
        """How the ConfigMap was seen. Any thread; does not block."""
        assert self._config_map is not None
        place = str(self._config_map)
        if seen.problem:
            self._take(seen.at, config_map_problem=seen.problem)
        elif seen.object is None:
            text = f"{place}: there is no such ConfigMap; nvdp goes on by itself once it is there"
            source = Source(place, problem=text, missing=True)
            self._take(seen.at, entries=Entries(), config_map=source, config_map_problem="")
        else:
            try:
                entries = parse_entries(seen.object, self._config_map)
            except FormatError as error:
                self._take(seen.at, config_map_problem=str(error))
            else:
                source = Source(place, entries.names, entries.problem)
                self._take(seen.at, entries=entries, config_map=source, config_map_problem="")

    def _see_directory(self, files: DirectoryFingerprint) -> None:
        source = Source(self._sight.directory_place, frozenset(files.files), files.problem, files.missing)
        self._take(self._clock(), files=files, directory=source)

    def _take(
        self,
        at: float,
        *,
        entries: Entries | None = None,
        files: DirectoryFingerprint | None = None,
        **changes: object,
    ) -> None:
        with self._changed:
            before = self._sight, self._entries, self._files
            self._sight = msgspec.structs.replace(self._sight, **changes)
            self._entries = self._entries if entries is None else entries
            self._files = self._files if files is None else files
            if _is_other(before[0].label, self._sight.label) or (before[0].directory and before[2] != self._files):
                self._sight = msgspec.structs.replace(self._sight, has_news=True)
            if (self._sight, self._entries, self._files) != before:
                self._is_fresh, self._changed_at = True, at
                self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                was_late = self._sight.is_late
                limit_s = None if was_late else max(0.0, self._decide_at - self._clock())
                self._changed.wait_for(lambda: self._is_fresh, limit_s)
                at = self._changed_at if self._is_fresh else self._clock()
                self._is_fresh = False
                self._sight = msgspec.structs.replace(self._sight, is_late=self._clock() >= self._decide_at)
                sight, entries, files = self._sight, self._entries, self._files
            verdict = decide(sight, self._rules)
            if verdict is not None:
                self._tell(verdict, entries, files, at=at)

    def _tell(self, verdict: Verdict, entries: Entries, files: DirectoryFingerprint, *, at: float) -> None:
        chosen = verdict.chosen
        if chosen is None:
            self._tell_once((verdict,), lambda: _build_refusal(verdict, at=at))
        elif not chosen.entry:
            self._tell_once((verdict,), lambda: self._judge(b"", _WITHOUT_ENTRY, chosen, at=at))
        elif verdict.place == self._sight.config_map_place:
            name = f"{verdict.place}:{chosen.entry}"
            if chosen.entry in entries.refused:
                problem = f"{name}: {entries.refused[chosen.entry]}"
                self._tell_once((verdict, problem), lambda: ConfigRead(source=name, problems=(problem,), at=at))
            else:
                text = entries.texts[chosen.entry]
                self._tell_once((verdict, text), lambda: self._judge(text, name, chosen, at=at))
        else:
            path = Path(verdict.place, chosen.entry)
            self._tell_once((verdict, files.files[chosen.entry]), lambda: self._read(path, chosen, at=at))

    def _tell_once(self, what: tuple[object, ...], build: Callable[[], ConfigRead | None]) -> None:
        """Post what ``build`` makes of it, unless that is what was posted last."""
        if what == self._told:
            return
        read = build()
        if read is not None:
            self._post(read)
            self._told = what

    def _read(self, path: Path, chosen: Chosen, *, at: float) -> ConfigRead | None:
        """None for a file that went a moment ago: that is seen by itself."""
        try:
            text = load_text(path, limit_bytes=SIZE_LIMIT_BYTES)
        except HostError as error:
            return ConfigRead(source=str(path), problems=(str(error),), at=at)
        return None if text is None else self._judge(text, str(path), chosen, at=at)

    def _judge(self, text: bytes, name: str, chosen: Chosen, *, at: float) -> ConfigRead:
        return judge_text(text, name=name, overrides=self._overrides, at=at, chosen=chosen)


def _is_other(before: str | None, label: str | None) -> bool:
    return before is not None and label != before


def _build_refusal(verdict: Verdict, *, at: float) -> ConfigRead:
    return ConfigRead(
        source=verdict.place,
        problems=(verdict.problem,),
        missing=verdict.kind is Kind.MISSING,
        unknown=verdict.kind is Kind.UNKNOWN,
        waiting=verdict.kind is Kind.WAITING,
        at=at,
    )
