"""The condition of the Node follows the daemon's status: written when it changes, and put back if it is gone."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

import msgspec

from nvdp.log import Log
from nvdp.model.cluster import ObjectSeen
from nvdp.model.status import Status
from nvdp.planning.node_condition import (
    MESSAGE_SETTLE_S,
    Condition,
    ConditionThere,
    build_condition,
    build_there,
    find_condition,
    find_version,
)
from nvdp.planning.write_pacing import Allowance
from nvdp.services.node_writer import NodeReconciler
from nvdp.services.write_attempts import WriteAttempts

_BURST: Final = 5
_EVERY_S: Final = 60.0
_ECHO_S: Final = 10.0  # for a watch to show what was written, where versions cannot be compared
_LATE_S: Final = 60.0  # a watch that tells of a lower version after that has another past: its server was restored
_VERSION_FORM: Final = re.compile(r"[0-9]{1,30}")

_Write: TypeAlias = tuple[Condition, ConditionThere]  # what is wanted, and what is there


class ConditionWriter(Protocol):
    """Who writes it (cluster/node_status.py). Blocks for a request at most and raises ClusterError."""

    def write(self, condition: Condition, /, *, last_transition: str, now: float) -> str:
        """The version of the Node that has it."""
        ...


class _Sight(msgspec.Struct, frozen=True):
    """The condition as it is in a version of the Node, and when (seconds of the clock) that was learned."""

    there: ConditionThere
    version: str
    at: float

    def is_older_than(self, other: _Sight) -> bool:
        """Whether it was so before that: a watch may tell late. Versions of one object grow, and are numbers."""
        if self.at >= other.at + _LATE_S:
            return False
        versions = (self.version, other.version)
        if all(map(_VERSION_FORM.fullmatch, versions)):
            return int(versions[0]) < int(versions[1])
        return self.at < other.at + _ECHO_S


class NodeStatusService(NodeReconciler[_Write]):
    """Has the Node say what the status comes to, by its condition of one type.

    Before the Node was seen nothing is written: what it says already is kept, and so is since when. Two that write the
    same condition cost a request a minute at most.
    """

    THREAD = "node-status"

    def __init__(
        self,
        writer: ConditionWriter,
        *,
        condition_type: str,
        format_time: Callable[[float], str],
        log: Log,
        rng: random.Random,
        first_delay_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        what = f"condition {condition_type} of the node cannot be written"
        attempts = WriteAttempts(what, first_delay_s=first_delay_s, log=log, rng=rng, clock=clock)
        super().__init__(attempts, clock=clock)
        self._writer = writer
        self._type = condition_type
        self._format_time = format_time
        self._wall = wall
        self._allowance = Allowance(burst=_BURST, every_s=_EVERY_S)
        # ``_changed`` guards what follows.
        self._wanted: Condition | None = None
        self._state_since = self._message_since = 0.0
        self._sight: _Sight | None = None
        self._written: _Sight | None = None

    def follow(self, status: Status) -> None:
        wanted = build_condition(status)
        with self._changed:
            before = self._wanted
            if wanted == before:
                return
            now = self._clock()
            self._wanted, self._message_since = wanted, now
            if before is None or before.reason is not wanted.reason:
                self._state_since = now
            self._changed.notify_all()

    def see(self, seen: ObjectSeen) -> None:
        if seen.object is not None and not seen.problem:
            sight = _Sight(find_condition(seen.object, self._type), find_version(seen.object), self._clock())
            with self._changed:
                if self._written is None or not sight.is_older_than(self._written):
                    self._sight = sight
                    self._changed.notify_all()
        super().see(seen)

    def _write(self, write: _Write) -> None:
        condition, there = write
        is_same = there.status == condition.status and there.last_transition
        began_at, wall = self._clock(), self._wall()
        since = there.last_transition if is_same else self._format_time(wall)
        version = self._writer.write(condition, last_transition=since, now=wall)
        self._note_written(_Sight(build_there(condition, since), version, self._clock()), began_at=began_at)

    def _note_written(self, written: _Sight, *, began_at: float) -> None:
        with self._changed:
            self._allowance.use(written.at)
            self._written = written
            sight = self._sight  # one that was learned before is older, whatever its version: a server may be restored
            if sight is None or sight.at < began_at or sight.is_older_than(written):  # else it was changed meanwhile
                self._sight = written

    def _find_due(self, now: float) -> tuple[_Write, float] | None:
        """A state has to last for a moment, another message of the same state for longer."""
        wanted, there = self._wanted, self._sight.there if self._sight is not None else None
        if wanted is None or there is None or there.says(wanted):
            return None
        if (there.status, there.reason) == (wanted.status, wanted.reason.value):
            due_at = self._message_since + MESSAGE_SETTLE_S
        else:
            due_at = self._state_since + wanted.settle_s
        return (wanted, there), max(due_at, self._allowance.next_at(now))
