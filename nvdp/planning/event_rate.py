"""What is told as events of the Node, and when: few, each once, and bounded whatever happens.

A burst of 10 requests, then one in 30 s. What comes again raises the count of its series; what befalls more than five
devices within two seconds is one event; what is told only if it lasts waits for a minute (observability contract,
section 3). Pure: ``at`` and ``now`` are monotonic seconds, ``wall`` seconds since the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

import msgspec

from nvdp.model.reasons import EventKind, Reason
from nvdp.planning.event_states import State
from nvdp.planning.write_pacing import Allowance

BURST: Final = 10
EVERY_S: Final = 30.0
MOMENT_S: Final = 2.0
MOST_SINGLE: Final = 5
LASTS_S: Final = 60.0
NOTE_BYTES: Final = 1024  # the API server refuses longer ones
SERIES_END_S: Final = 900.0
MOST_WAITING: Final = 64
MOST_SERIES: Final = 128
_SHOWN_S: Final = 2.0  # for the status to show what a line of the log has told
_FIRST_GAP_S: Final = 30.0
_MOST_GAP_S: Final = 600.0
_MOST_GATHERED: Final = 256
_FIRST_BYTES: Final = 400  # of a note about many devices, for what befell the first
_MOST_COUNT: Final = 2**31 - 1  # the API's integer
_FIGURES: Final = re.compile(r"\d+")
_EXACT: Final = frozenset({Reason.CONFIG_REFUSED})  # its figures are the line and column that a person looks for

_Key = tuple[Reason, str, str]
_K = TypeVar("_K")
_V = TypeVar("_V")


class News(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log that has a type of event. ``subject`` is the device or resource, empty for the node.

    ``cause`` is what ails the device, empty if nothing does.
    """

    reason: Reason
    type: EventKind
    subject: str = ""
    of_device: bool = False
    cause: str = ""
    text: str
    at: float
    wall: float


class EventWrite(msgspec.Struct, frozen=True, kw_only=True):
    """What to write next: a new event with ``count`` 1 or more, or (``again``) the count of one that is there.

    ``serial`` and ``began`` tell the events of a process apart; ``began`` and ``last`` are seconds since the epoch.
    """

    serial: int
    reason: str
    type: str
    note: str
    began: float
    last: float
    count: int
    again: bool


class _Series(msgspec.Struct, kw_only=True):
    serial: int
    reason: Reason
    type: EventKind
    note: str
    began: float
    last: float
    last_at: float
    count: int = 1
    written: int = 0
    due_at: float = 0.0
    gap_s: float = _FIRST_GAP_S


class _Gathered(msgspec.Struct, kw_only=True):
    closes_at: float
    news: dict[str, list[News]]


class EventRate:
    """Take news as they come, ask for ``next_write`` and say what became of it. Belongs to one thread."""

    def __init__(self) -> None:
        self._allowance = Allowance(burst=BURST, every_s=EVERY_S)
        self._gathered: dict[Reason, _Gathered] = {}
        self._delayed: dict[State, News] = {}
        self._lasting: AbstractSet[State] = frozenset()
        self._series: dict[_Key, _Series] = {}
        self._serial = 0

    def take(self, news: News) -> None:
        """Something happened."""
        if news.type is EventKind.LASTING:
            self._delayed.setdefault((news.reason, news.subject), news)
            _forget_oldest(self._delayed, MOST_WAITING)
        elif news.of_device:
            self._gather(news)
        else:
            self._tell(news)

    def see(self, lasting: AbstractSet[State], *, now: float) -> None:
        """These are the states of now: what is none of them has not lasted. A moment is given to the state to show."""
        self._lasting = lasting
        self._withdraw(now)

    def next_write(self, now: float) -> EventWrite | None:
        """What may be written now; the same until one hears what became of it, or it is forgotten for newer ones."""
        self._advance(now)
        if self._allowance.next_at(now) > now:
            return None
        series = next(self._list_owed(now), None)
        return None if series is None else _build_write(series)

    def next_at(self, now: float) -> float | None:
        """When ``next_write`` may have something that it has not at ``now``; None if only news can bring it about."""
        times = [gathered.closes_at for gathered in self._gathered.values()]
        times += [news.at + (_SHOWN_S if now < news.at + _SHOWN_S else LASTS_S) for news in self._delayed.values()]
        owed = [series.due_at for series in self._series.values() if series.count > series.written]
        if owed:
            times.append(max(min(owed), self._allowance.next_at(now)))
        return min(times, default=None)

    def written(self, write: EventWrite, *, now: float) -> None:
        """The server has it."""
        self._allowance.use(now)
        series = self._find(write)
        if series is not None:
            series.written = write.count
            series.due_at = now + series.gap_s
            series.gap_s = min(_MOST_GAP_S, 2 * series.gap_s)

    def lost(self, write: EventWrite, *, now: float) -> None:
        """The event whose count was to be raised is not there any more: what came since is a new one."""
        self._allowance.use(now)
        series = self._find(write)
        if series is not None:
            self._serial += 1
            series.serial, series.began = self._serial, series.last
            series.count, series.written, series.due_at, series.gap_s = 1, 0, 0.0, _FIRST_GAP_S

    def give_up(self, write: EventWrite, *, now: float) -> None:
        """The server refuses this one for what it is; the others go on."""
        self._allowance.use(now)
        for key, series in list(self._series.items()):
            if series.serial == write.serial:
                del self._series[key]

    def _gather(self, news: News) -> None:
        gathered = self._gathered.get(news.reason)
        if gathered is not None and news.at >= gathered.closes_at:
            self._close(news.reason)
            gathered = None
        if gathered is None:
            gathered = self._gathered[news.reason] = _Gathered(closes_at=news.at + MOMENT_S, news={})
        known = gathered.news.get(news.subject)
        if known is not None and news.cause and known[-1].cause == news.cause:
            known[-1] = news  # told once more, with what was not known yet
        elif known is not None:
            known[1:] = [news]  # the first and the last of it are enough
        elif len(gathered.news) < _MOST_GATHERED:
            gathered.news[news.subject] = [news]

    def _close(self, reason: Reason) -> None:
        """The moment is over: single events, or one for all."""
        news = self._gathered.pop(reason).news
        if len(news) <= MOST_SINGLE:
            for one in (one for lines in news.values() for one in lines):
                self._tell(one)
            return
        first = next(iter(news.values()))[0]
        others = ", ".join(subject for subject in news if subject != first.subject)
        text = f"{len(news)} devices: {cut_note(first.text, limit=_FIRST_BYTES)}; as well as {others}"
        self._tell(msgspec.structs.replace(first, subject="*", text=text), alike="")

    def _tell(self, news: News, *, alike: str | None = None) -> None:
        """One more event, or one more of its series."""
        if alike is None:
            alike = news.text if news.reason in _EXACT else _FIGURES.sub("#", news.text)
        key = (news.reason, news.subject, alike)
        series = self._series.pop(key, None)
        if series is not None and news.at - series.last_at < SERIES_END_S:
            series.count = min(_MOST_COUNT, series.count + 1)
            series.last, series.last_at = news.wall, max(series.last_at, news.at)
            self._series[key] = series  # those that were heard of last are forgotten last
            return
        self._serial += 1
        self._series[key] = _Series(
            serial=self._serial,
            reason=news.reason,
            type=EventKind.WARNING if news.type is EventKind.LASTING else news.type,
            note=cut_note(news.text),
            began=news.wall,
            last=news.wall,
            last_at=news.at,
        )
        new = [key for key, series in self._series.items() if not series.written]
        for oldest in new[: max(0, len(new) - MOST_WAITING)]:
            del self._series[oldest]
        _forget_oldest(self._series, MOST_SERIES)

    def _advance(self, now: float) -> None:
        for reason in [reason for reason, gathered in self._gathered.items() if gathered.closes_at <= now]:
            self._close(reason)
        self._withdraw(now)
        for state, news in list(self._delayed.items()):
            if news.at + LASTS_S <= now:
                del self._delayed[state]
                self._tell(msgspec.structs.replace(news, at=now))

    def _withdraw(self, now: float) -> None:
        for state, news in list(self._delayed.items()):
            if state not in self._lasting and now >= news.at + _SHOWN_S:
                del self._delayed[state]

    def _list_owed(self, now: float) -> Iterator[_Series]:
        """New ones in the order in which they began, then counts that are due."""
        owed = [one for one in self._series.values() if one.count > one.written and one.due_at <= now]
        return iter(sorted(owed, key=lambda one: (one.written > 0, one.serial)))

    def _find(self, write: EventWrite) -> _Series | None:
        return next((series for series in self._series.values() if series.serial == write.serial), None)


def cut_note(text: str, *, limit: int = NOTE_BYTES) -> str:
    """The text, at most ``limit`` bytes of it, cut at a word."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    mark = " …"
    kept = data[: limit - len(mark.encode())].decode("utf-8", "ignore")
    whole, _, _ = kept.rpartition(" ")
    return f"{whole or kept}{mark}"


def _build_write(series: _Series) -> EventWrite:
    return EventWrite(
        serial=series.serial,
        reason=series.reason.word,
        type=series.type.value,
        note=series.note,
        began=series.began,
        last=series.last,
        count=series.count,
        again=series.written > 0,
    )


def _forget_oldest(known: dict[_K, _V], most: int) -> None:
    while len(known) > most:
        del known[next(iter(known))]
