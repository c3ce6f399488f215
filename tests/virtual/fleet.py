"""Thousands of nodes and their one API server, in virtual time: who asks what, and when.

Of nvdp it is the very code that decides when: ``start_spread``, ``following``, ``label_pace``, ``event_rate`` and
``write_pacing``. The rest is a stand-in: an answer takes a moment, the server can be away, be busy, or cut watches.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from random import Random

from nvdp.config.cluster import ClusterOptions
from nvdp.errors import ClusterFault
from nvdp.model.reasons import EventKind, Reason
from nvdp.planning import following
from nvdp.planning.event_rate import EventRate, News
from nvdp.planning.label_pace import LabelPace
from nvdp.planning.start_spread import plan_start
from nvdp.planning.write_pacing import Backoff

ANSWER_S = 0.02
ADVERTISED_S = 1.0  # from the configuration to devices that the kubelet has
KUBELET_S = 10.0  # the kubelet tells the Node this often what is allocatable
WATCH_S = (3000, 3900)  # how long a watch asks to live, cluster/api.py
Request = tuple[str, str]  # verb and resource


class Time:
    """Virtual seconds, and what is to happen at which of them."""

    def __init__(self) -> None:
        self.now = 0.0
        self._scheduled: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def at(self, when: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._scheduled, (max(when, self.now), next(self._count), call))

    def run(self, until: float) -> None:
        while self._scheduled and self._scheduled[0][0] <= until:
            self.now, _, call = heapq.heappop(self._scheduled)
            call()
        self.now = until


class Server:
    """Notes every request that reaches it. ``busy`` is the part that it refuses with 429 while it is ``up``."""

    def __init__(self, time: Time, rng: Random) -> None:
        self.time = time
        self.up = True
        self.busy = 0.0
        self.noted: list[tuple[float, Request, str]] = []
        self.watches: set[Watcher] = set()
        self._rng = rng

    def ask(self, request: Request) -> ClusterFault | None:
        """What becomes of it; None if all is well."""
        fault = None
        if not self.up:
            fault = ClusterFault.UNREACHABLE
        elif self._rng.random() < self.busy:
            fault = ClusterFault.THROTTLED
        self.noted.append((self.time.now, request, fault.value if fault else "ok"))
        return fault

    def go_down(self) -> None:
        self.up = False
        self.cut()

    def come_back(self) -> None:
        self.up = True

    def cut(self) -> None:
        """Break every watch."""
        for watch in sorted(self.watches, key=lambda one: one.number):
            watch.end()

    def count(self, *, since: float = 0.0) -> Counter[Request]:
        return Counter(request for at, request, _ in self.noted if at >= since)

    def find_busiest(self, *, since: float = 0.0, only: str = "") -> float:
        """Requests a second, in the mean of the busiest ten seconds."""
        times = [at for at, _, outcome in self.noted if at >= since and only in {"", outcome}]
        most, first = 0, 0
        for last, at in enumerate(times):
            while times[first] <= at - 10:
                first += 1
            most = max(most, last - first + 1)
        return most / 10


class Watcher:
    """One watch of one node, as ``cluster/watching.py`` leads it."""

    numbers = itertools.count()

    def __init__(self, server: Server, resource: str, rng: Random, *, first_delay_s: float, seen: Callable) -> None:
        self.number = next(self.numbers)
        self.is_known = False
        self._server = server
        self._time = server.time
        self._resource = resource
        self._rng = rng
        self._seen = seen
        self._round = 0
        self._state = following.begin(self._time.now, first_delay_s=first_delay_s)
        self._wait()

    def end(self) -> None:
        self._server.watches.discard(self)
        self._state = following.note_ended(self._state, self._time.now, random=self._rng)
        self._wait()

    def _wait(self) -> None:
        self._round += 1
        self._time.at(self._state.open_at, self._open)

    def _open(self) -> None:
        fault = self._server.ask(("watch", self._resource))
        if fault is not None:
            self._state = following.note_failed(
                self._state, self._time.now, fault=fault, problem="no", random=self._rng, retry_after_s=busy_s(fault)
            )
            self._wait()
            return
        self._state = following.note_opened(self._state, self._time.now)
        self._server.watches.add(self)
        this = self._round
        self._time.at(self._time.now + ANSWER_S, lambda: self._hear(this))
        self._time.at(self._time.now + self._rng.randint(*WATCH_S), lambda: self._expire(this))

    def _hear(self, this: int) -> None:
        if this == self._round:
            self._state = following.note_heard(self._state, "1")
            self.is_known = True
            self._seen()

    def _expire(self, this: int) -> None:
        if this == self._round:
            self.end()


class FleetNode:
    """One node: watches, and what it writes once it knows its configuration."""

    def __init__(self, server: Server, options: ClusterOptions, rng: Random, *, with_others: bool) -> None:
        self.decided_at: float | None = None
        self.written: Counter[str] = Counter()
        self._server = server
        self._time = server.time
        self._rng = rng
        self._options = options
        self._delays = plan_start(options, with_others=with_others, rng=rng)
        self._labels = LabelPace(first_at=self._delays.labels_s, rng=rng)
        self._rate = EventRate()
        self._backoffs = {name: Backoff(rng) for name in ("taint", "condition", "events")}
        resources = ["nodes", *(["configmaps"] if options.config_map else [])]
        self._watchers = [
            Watcher(server, resource, rng, first_delay_s=self._delays.ask_s, seen=self._see) for resource in resources
        ]

    def _see(self) -> None:
        if self.decided_at is not None or not all(watcher.is_known for watcher in self._watchers):
            return
        now = self.decided_at = self._time.now
        advertised_at = now + ADVERTISED_S
        if self._options.startup_taint:
            shown_at = advertised_at + self._rng.uniform(0, KUBELET_S)
            self._time.at(max(shown_at, self._delays.state_s), self._take_off_taint)
        if self._options.node_condition:
            self._time.at(max(advertised_at + 1, self._delays.state_s), self._write_condition)
        if self._options.write_labels.value == "node-feature":
            self._time.at(max(advertised_at, self._labels.change_at), lambda: self._write_labels(0))
        if self._options.events:
            for reason in (Reason.DRIVER_READY, Reason.CONFIG_APPLIED, Reason.STARTUP_TAINT_REMOVED):
                self._rate.take(News(reason=reason, type=EventKind.NORMAL, text=reason.word, at=now, wall=now))
            self._time.at(max(now, self._delays.events_s), self._write_events)

    def _take_off_taint(self) -> None:
        self._write_once("taint", ("patch", "nodes"), self._take_off_taint)

    def _write_condition(self) -> None:
        self._write_once("condition", ("patch", "nodes/status"), self._write_condition)

    def _write_once(self, name: str, request: Request, again: Callable[[], None]) -> None:
        fault = self._server.ask(request)
        if fault is None:
            self.written[name] += 1
            return
        backoff = self._backoffs[name]
        backoff.fail(fault, retry_after_s=busy_s(fault), now=self._time.now)
        self._time.at(backoff.next_at, again)

    def _write_labels(self, done: int) -> None:
        """The object is read, then the pod, then the object is made; after a failure all but what is known."""
        request = (("get", "nodefeatures"), ("get", "pods"), ("create", "nodefeatures"))[done]
        fault = self._server.ask(request)
        if fault is not None:
            self._labels.failed(self._time.now, fault, retry_after_s=busy_s(fault))
            self._time.at(self._labels.change_at, lambda: self._write_labels(done))
        elif done < 2:
            self._time.at(self._time.now + ANSWER_S, lambda: self._write_labels(done + 1))
        else:
            self.written["labels"] += 1
            self._labels.succeeded()

    def _write_events(self) -> None:
        now = self._time.now
        write = self._rate.next_write(now)
        if write is None:
            at = self._rate.next_at(now)
            if at is not None:
                self._time.at(at, self._write_events)
            return
        fault = self._server.ask(("create", "events"))
        if fault is None:
            self.written["events"] += 1
            self._rate.written(write, now=now)
            self._time.at(now + ANSWER_S, self._write_events)
            return
        self._backoffs["events"].fail(fault, retry_after_s=busy_s(fault), now=now)
        self._time.at(self._backoffs["events"].next_at, self._write_events)


def busy_s(fault: ClusterFault) -> float | None:
    """What the API server asks for in ``Retry-After``, as a rule."""
    return 1.0 if fault is ClusterFault.THROTTLED else None


class Fleet:
    """Nodes that start at the same moment."""

    def __init__(self, size: int, options: ClusterOptions, *, with_others: bool = True, seed: int = 1) -> None:
        rng = Random(seed)
        self.size = size
        self.time = Time()
        self.server = Server(self.time, rng)
        self._new = lambda: FleetNode(self.server, options, rng, with_others=with_others)
        self.nodes: list[FleetNode] = []

    def start(self) -> None:
        self.nodes = [self._new() for _ in range(self.size)]

    def run(self, seconds: float) -> None:
        self.time.run(self.time.now + seconds)

    @property
    def last_decision(self) -> float:
        """When the last node had its configuration; infinite if one has none."""
        return max(float("inf") if node.decided_at is None else node.decided_at for node in self.nodes)

    @property
    def undone(self) -> list[FleetNode]:
        """Those that have not written all that they have to."""
        kinds = {"taint", "condition", "labels", "events"}
        return [node for node in self.nodes if not kinds <= {kind for kind, count in node.written.items() if count}]
