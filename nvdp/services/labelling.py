"""Keeps the labels of the node as they should be, where they are written: a thread of its own, as nobody waits for it.

What is written stays through everything: it is only ever replaced by what is known now, never taken away because
something is not known, and an API server or a disk that does not take it is tried again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Generic, Protocol, TypeVar

from nvdp.errors import ClusterError, ClusterFault, NvdpError
from nvdp.log import Log
from nvdp.model.cluster import ObjectSeen
from nvdp.model.reasons import Reason
from nvdp.model.status import Trouble
from nvdp.planning.label_changes import LabelWrite, describe_keys
from nvdp.planning.label_pace import LabelPace
from nvdp.planning.label_wish import LabelWish
from nvdp.service_thread import ServiceThread

_PATIENCE_S: Final = 60.0
_SLOW_S: Final = 60.0  # longer than the few requests that may be one after the other
_PASSING: Final = frozenset(
    {ClusterFault.UNREACHABLE, ClusterFault.THROTTLED, ClusterFault.FAILED, ClusterFault.CONFLICT, ClusterFault.GONE}
)
_NEVER: Final = float("inf")

Facts = TypeVar("Facts")


class LabelPlace(Protocol):
    """Where labels are written (cluster/node_features.py, cluster/node_labels.py, host/feature_file.py).

    ``write`` and ``remove`` block for requests or the disk, and raise ClusterError or HostError. After ``forget`` the
    next of them looks at what is there, whatever is known of it.
    """

    def write(self, labels: Mapping[str, str], /) -> LabelWrite: ...

    def remove(self) -> tuple[str, ...]: ...

    def forget(self) -> None: ...


class LabelPlaces(Protocol):
    """Finds the place of a wish, the same object for the same place. HostError for one that cannot be.

    ``see`` tells those that care of the Node; whether that calls for a look at what is written.
    """

    def find(self, wish: LabelWish, /) -> LabelPlace: ...

    def see(self, seen: ObjectSeen, /) -> bool: ...


class LabelService(Generic[Facts]):
    """Writes what follows from the newest facts, as long as it is not there.

    ``plan`` makes a wish of facts, on our thread, and is None where nothing is to be written: then all stays as it is.
    When a wish names another place, the labels are written there first and then removed from the place before.
    ``alone`` is held from the plan to the end of a write: others who take labels away do not come in between.
    ``count`` hears of each write: ``written``, ``removed`` or ``failed``. ``pace``, in seconds of ``clock``, is ours
    from here on. What may pass by itself is told in the log once it has lasted for ``patience_s``.

    One thread; the methods may be called from any and do not block. An exception that nobody expected ends the thread;
    ``start`` may then be called again, and what is wanted is looked at anew.
    """

    THREAD: Final = "labels"

    def __init__(
        self,
        plan: Callable[[Facts], LabelWish | None],
        places: LabelPlaces,
        *,
        pace: LabelPace,
        log: Log,
        count: Callable[[str], None],
        alone: Callable[[], AbstractContextManager[object]] = nullcontext,
        clock: Callable[[], float] = time.monotonic,
        patience_s: float = _PATIENCE_S,
        slow_s: float = _SLOW_S,
    ) -> None:
        self._plan = plan
        self._places = places
        self._log = log
        self._count = count
        self._alone = alone
        self._clock = clock
        self._changed = threading.Condition()  # guards the facts, what is owed, the pace and the thread
        self._pace = pace
        self._patience_s = patience_s
        self._slow_s = slow_s
        self._facts: Facts | None = None
        self._owes_change = False
        self._owes_repair = False
        self._is_doubted = False
        self._is_node_lost = False  # to whoever watches it
        self._look_at = _NEVER
        self._thread: ServiceThread | None = None
        self._problem = ""
        self._began_at: float | None = None
        # What follows belongs to the thread.
        self._place: LabelPlace | None = None
        self._left: list[LabelPlace] = []  # of wishes before, to be cleared
        self._is_written_once = False
        self._failing_since: float | None = None
        self._told: set[str] = set()

    def start(self) -> None:
        """Begin to write what is wanted. Nothing if it does already."""
        with self._changed:
            if self._thread is None or not self._thread.is_at_work:
                self._thread = ServiceThread(self._run, name=self.THREAD)
                self._thread.start()

    def want(self, facts: Facts) -> None:
        """These from now on; nothing if they are the same."""
        with self._changed:
            if facts != self._facts:
                self._facts = facts
                self._owes_change = True
                self._pace.renew(self._clock())
                self._changed.notify_all()

    def see(self, seen: ObjectSeen) -> None:
        """The Node, as it is now: labels that somebody took away or changed are put back.

        Once it can be watched again, what was refused in the meantime is tried again soon: the token had expired.
        """
        is_damaged = self._places.see(seen)
        with self._changed:
            if is_damaged:
                self._owes_repair = True
                self._pace.saw_damage(self._clock())
            if self._is_node_lost and not seen.problem:
                self._pace.renew(self._clock())
            self._is_node_lost = bool(seen.problem)
            self._changed.notify_all()

    def look(self) -> None:
        """See that what is written is still there, and try again soon what waits for another try."""
        with self._changed:
            self._pace.renew(self._clock())
            self._is_doubted, self._look_at = True, self._clock()
            self._changed.notify_all()

    @property
    def trouble(self) -> Trouble | None:
        """Why labels are not as they should be. No GPU is offered less for it. Any thread."""
        problem, began_at = self._problem, self._began_at
        if began_at is not None and self._clock() >= began_at + self._slow_s:
            problem = f"labels: a write has taken more than {self._slow_s:g}s, as if a disk did not answer"
        return Trouble(reason=Reason.LABELS_FAILED.word, text=problem) if problem else None

    def _run(self) -> None:
        while True:
            facts, is_repair = self._take()
            look_s = None
            try:
                with self._alone():
                    look_s = self._carry_out(facts, is_repair=is_repair)
            finally:
                self._settle(look_s)

    def _settle(self, look_s: float | None) -> None:
        """In how many seconds to look again; None after a defect: what is wanted is still owed."""
        with self._changed:
            self._began_at = None
            if look_s is None:
                self._owes_change = True
            else:
                self._look_at = min(self._look_at, self._clock() + look_s)

    def _take(self) -> tuple[Facts, bool]:
        """The newest facts once something is due, and whether only what somebody else did calls for it."""
        with self._changed:
            while self._facts is None or (due_at := self._find_due()) > self._clock():
                self._changed.wait(None if self._facts is None or due_at == _NEVER else due_at - self._clock())
            is_repair = not self._owes_change
            self._owes_change = self._owes_repair = False
            self._look_at = _NEVER
            self._began_at = self._clock()
            return self._facts, is_repair

    def _find_due(self) -> float:
        change_at = self._pace.change_at if self._owes_change else _NEVER
        repair_at = self._pace.repair_at if self._owes_repair else _NEVER
        return min(change_at, repair_at, max(self._look_at, self._pace.look_at))

    def _carry_out(self, facts: Facts, *, is_repair: bool) -> float:
        """Have it as the facts call for. In how many seconds to look again at what nobody tells us of."""
        wish = self._plan(facts)
        if wish is None or (wish.is_once and self._is_written_once):
            self._forget_failure()
            return _NEVER
        try:
            place = self._turn_to(wish)
            if self._is_doubted:
                self._is_doubted = False
                place.forget()
            outcome = place.write(wish.labels)
            if outcome.is_written:
                self._count("written")
                self._log(
                    Reason.LABELS_WRITTEN, f"{place}: {outcome}", labels=len(outcome.labels), changed=outcome.changed
                )
                with self._changed:
                    self._pace.wrote(self._clock(), is_repair=is_repair)
            self._clear_left()
            if outcome.problem is not None:
                raise outcome.problem
        except NvdpError as error:
            self._count("failed")
            self._fail(error)
            return _NEVER
        self._is_written_once = True
        self._forget_failure()
        return wish.look_s

    def _forget_failure(self) -> None:
        """Nothing is owed any more."""
        self._problem, self._failing_since = "", None
        self._told.clear()
        with self._changed:
            self._pace.succeeded()

    def _turn_to(self, wish: LabelWish) -> LabelPlace:
        """The place of the wish; the one before, if it is another, is to be cleared once this one has the labels."""
        place = self._places.find(wish)
        if place is not self._place:
            if self._place is not None:
                self._left.append(self._place)
            self._left = [one for one in self._left if one is not place]
            self._place = place
        return place

    def _clear_left(self) -> None:
        while self._left:
            place = self._left[0]
            if keys := place.remove():
                self._tell(
                    "removed", f"{place}: no labels any more; {describe_keys(keys)} removed", number=0, keys=keys
                )
            del self._left[0]

    def _tell(self, result: str, text: str, *, number: int, keys: tuple[str, ...]) -> None:
        self._count(result)
        self._log(Reason.LABELS_WRITTEN, text, labels=number, changed=keys)

    def _fail(self, error: NvdpError) -> None:
        """Show it, tell it, and try again later: at once what does not pass by itself, else if it lasts."""
        now = self._clock()
        fault = error.fault if isinstance(error, ClusterError) else None
        if self._failing_since is None:
            self._failing_since = now
        text = f"{error}; the labels that are there stay"
        self._problem = text
        if text not in self._told and (fault not in _PASSING or now >= self._failing_since + self._patience_s):
            self._told.add(text)
            self._log(Reason.LABELS_FAILED, text, error=str(error))
        with self._changed:
            self._owes_change = True
            retry_after_s = error.retry_after_s if isinstance(error, ClusterError) else None
            self._pace.failed(now, fault, retry_after_s=retry_after_s)
