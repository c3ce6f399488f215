"""What happens, as events of the Node: lines of the log that have a type of event, written by a thread of its own.

Whoever logs waits for none of it. Which are told, and when, is decided by planning/event_rate.py.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

import msgspec

from nvdp.errors import ClusterError, ClusterFault
from nvdp.log import Log
from nvdp.log.render import render_sentence
from nvdp.model.cluster import ObjectSeen
from nvdp.model.reasons import EventKind, Level, Reason
from nvdp.model.status import Status
from nvdp.planning.event_rate import EventRate, EventWrite, News, cut_note
from nvdp.planning.event_states import State, list_lasting
from nvdp.services.node_writer import NodeWriter
from nvdp.services.write_attempts import WriteAttempts

_BACKLOG: Final = 256  # lines that wait for the thread; it takes them several times a second
_BATCH_S: Final = 0.2
_NODE_WAIT_S: Final = 60.0
_MSG_LIMIT: Final = 4096  # characters
_SUBJECT_LIMIT: Final = 256


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log that may become an event. ``at`` is monotonic seconds, ``wall`` seconds since the epoch."""

    reason: Reason
    type: EventKind
    msg: str
    fields: dict[str, object]
    at: float
    wall: float


class EventLog:
    """A Log: writes to ``log``, and keeps what may become an event for whoever takes it, the newest 256 lines.

    Costs microseconds more than ``log`` and never waits for the cluster. Any thread.
    """

    def __init__(
        self, log: Log, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._log = log
        self._clock = clock
        self._wall = wall
        self._lines: deque[Line] = deque(maxlen=_BACKLOG)
        self.came = threading.Event()

    def __call__(self, reason: Reason, msg: str, /, *, level: Level | None = None, **fields: object) -> None:
        kind = find_kind(reason, level)
        if kind is not EventKind.NONE:
            kept = {name: value for name, value in fields.items() if name != "trace"}
            now, wall = self._clock(), self._wall()
            self._lines.append(Line(reason=reason, type=kind, msg=msg[:_MSG_LIMIT], fields=kept, at=now, wall=wall))
            if not self.came.is_set():
                self.came.set()
        self._log(reason, msg, level=level, **fields)

    def take(self) -> Line | None:
        """The oldest line there is, which is then taken. One thread."""
        try:
            return self._lines.popleft()
        except IndexError:
            return None


def find_kind(reason: Reason, level: Level | None) -> EventKind:
    """The type of a line's event. A line that is more serious than its reason makes a Warning, a lesser one none."""
    if reason.event is EventKind.NONE or level is None or level is reason.level:
        return reason.event
    if level >= Level.WARNING:
        return EventKind.WARNING if reason.event is EventKind.NORMAL else reason.event
    return reason.event if level >= reason.level else EventKind.NONE


class EventWriter(Protocol):
    """Who writes them (cluster/node_events.py). Both block for a request at most and raise ClusterError."""

    def create(self, write: EventWrite, uid: str, /) -> None: ...

    def repeat(self, write: EventWrite, /) -> bool:
        """False if the event is not there any more."""
        ...


class EventService(NodeWriter):
    """Writes what ``lines`` brings as events of the node.

    They name the Node's uid: they wait for ``see``, for a minute at most, and then name the node's name for it, as the
    kubelet does. Of the status, what has passed is not told.
    """

    THREAD = "events"

    def __init__(
        self,
        lines: EventLog,
        writer: EventWriter,
        *,
        node_name: str,
        log: Log,
        rng: random.Random,
        first_delay_s: float = 0.0,
        node_wait_s: float = _NODE_WAIT_S,
        batch_s: float = _BATCH_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        what = "events of the node cannot be written"
        super().__init__(WriteAttempts(what, first_delay_s=first_delay_s, log=log, rng=rng, clock=clock))
        self._lines = lines
        self._writer = writer
        self._node_name = node_name
        self._batch_s = batch_s
        self._clock = clock
        self._node_due_at = clock() + node_wait_s
        self._rate = EventRate()
        self._uid = ""
        self._lasting: AbstractSet[State] = frozenset()
        self._states: deque[AbstractSet[State]] = deque(maxlen=_BACKLOG)
        self._hurried = False

    def see(self, seen: ObjectSeen) -> None:
        uid = find_uid(seen)
        if uid and uid != self._uid:
            self._uid = uid
            self._wake()
        super().see(seen)

    def follow(self, status: Status) -> None:
        lasting = list_lasting(status)
        if lasting != self._lasting:
            self._lasting = lasting
            self._states.append(lasting)
            self._wake()

    def look(self) -> None:
        self._hurried = True
        self._wake()

    def _wake(self) -> None:
        self._lines.came.set()

    def _run(self) -> None:
        while not self._stopping:
            self._lines.came.clear()
            self._take_all()
            if self._hurried:
                self._hurried = False
                self._attempts.hurry()
            wait_s = self._write_due()
            if self._lines.came.wait(wait_s) and not self._stopping:
                time.sleep(self._batch_s)  # nobody waits for an event; a flood is taken in batches

    def _take_all(self) -> None:
        """Lines first, then states: a line may come a moment before the state that it tells of."""
        for _ in range(_BACKLOG):
            line = self._lines.take()
            if line is None:
                break
            self._rate.take(build_news(line))
        while self._states:
            self._rate.see(self._states.popleft(), now=self._clock())

    def _write_due(self) -> float | None:
        """Write all that may be written now; in how many seconds there may be more, None if only news bring it."""
        while not self._stopping:
            now = self._clock()
            write = self._rate.next_write(now)
            if write is None:
                at = self._rate.next_at(now)
                return None if at is None else max(0.0, at - now)
            due_at = self._attempts.next_at if self._uid else max(self._attempts.next_at, self._node_due_at)
            if due_at > now:
                return due_at - now
            self._try_to_write(write)
            self._take_all()
        return 0.0

    def _try_to_write(self, write: EventWrite) -> None:
        try:
            if not write.again:
                self._writer.create(write, self._uid or self._node_name)
            elif not self._writer.repeat(write):
                self._rate.lost(write, now=self._clock())
                return
        except ClusterError as error:
            if error.fault is ClusterFault.REFUSED:
                self._attempts.refuse(error)
                self._rate.give_up(write, now=self._clock())
            else:
                self._attempts.fail(error)
            return
        self._attempts.succeed()
        self._rate.written(write, now=self._clock())


def build_news(line: Line) -> News:
    """In the words of the log's text."""
    device, resource = line.fields.get("device"), line.fields.get("resource")
    try:
        text = render_sentence(line.msg, line.fields)
    except Exception:  # noqa: BLE001 - a value that breaks while it is looked at; the sentence alone will do
        text = line.msg
    return News(
        reason=line.reason,
        type=line.type,
        subject=str(device or resource or "")[:_SUBJECT_LIMIT],
        of_device=bool(device),
        cause=str(line.fields.get("cause") or "")[:_SUBJECT_LIMIT],
        text=cut_note(text),
        at=line.at,
        wall=line.wall,
    )


def find_uid(seen: ObjectSeen) -> str:
    """The uid of an object that was seen; empty where an answer has none."""
    metadata = seen.object.get("metadata") if seen.object is not None else None
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    return uid if isinstance(uid, str) else ""
