"""A node in virtual time around the real supervisor: the event queue turns the clock, and hours take milliseconds.

Actors, GPUs and holders are small stand-ins that answer as the services do, through real feeds and real events.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import signal
from collections import deque
from collections.abc import Callable

import msgspec

from nvdp.config.schema import Config
from nvdp.host.state import AppliedConfig
from nvdp.kubelet.feed import Feed
from nvdp.kubelet.sockets import SocketIdentity
from nvdp.model.held import Held, Holding, Source
from nvdp.model.inventory import Gpu
from nvdp.model.listing import ResourceList
from nvdp.model.reasons import Level, Reason
from nvdp.model.status import DriverState, DriverStatus, Status
from nvdp.services.adoption import Adoption
from nvdp.services.collaborators import Collaborators
from nvdp.services.events import (
    AllocateAnswered,
    ConfigRead,
    Event,
    GpusScanned,
    HeldRead,
    ResourceReport,
    ServiceCrashed,
    SignalReceived,
    SocketDirectoryChanged,
)
from nvdp.services.offers import Offers
from nvdp.supervisor import Supervisor
from tests.planning.values import inventory

STREAM_S = 0.005  # until a stream is open, or has taken a list
ANSWER_S = 0.010  # until PodResources answers
POLL_S = 1.0  # how often holders are asked while something waits


class Pause(BaseException):
    """The time that a test wanted to see has passed."""


class Clock:
    """Virtual seconds, and what is to happen at which of them. It is the supervisor's queue as well."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.until = self.now
        self.waits = 0
        self.idle: Callable[[], None] = lambda: None
        self._events: deque[Event] = deque()
        self._scheduled: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._scheduled, (self.now + seconds, next(self._count), call))

    def put(self, event: Event) -> None:
        self._events.append(event)

    def get_nowait(self) -> Event:
        if not self._events:
            raise queue.Empty
        return self._events.popleft()

    def qsize(self) -> int:
        return len(self._events)

    def get(self, timeout: float | None = None) -> Event:
        """As of ``queue.SimpleQueue``; ``Pause`` when the time of the test is up."""
        self.idle()
        self.waits += 1
        end = float("inf") if timeout is None else self.now + timeout
        while not self._events:
            at = min(end, self.until, self._scheduled[0][0] if self._scheduled else float("inf"))
            self.now = max(self.now, at)
            if self._scheduled and self._scheduled[0][0] <= self.now:
                heapq.heappop(self._scheduled)[2]()
            elif self.now >= self.until:
                raise Pause
            elif self.now >= end:
                raise queue.Empty
        return self._events.popleft()


class VirtualActor:
    """Stands in for one resource's actor: a real feed, and a stream that takes lists after a moment."""

    def __init__(self, listed: ResourceList, node: VirtualNode) -> None:
        self.feed = Feed(listed, clock=lambda: node.clock.now)
        self.resource = listed.resource
        self.stopped = ""
        self.looks = self.reclaims = 0
        self.taken: list[tuple[float, ResourceList]] = []
        self._node = node
        self._stream = None
        self._under_way = False

    def start(self) -> None:
        self._report()
        self._connect()

    def kubelet_changed(self, identity: SocketIdentity | None) -> None:
        self.lose_stream()
        self._connect()

    def look(self) -> None:
        self.looks += 1

    def reclaim(self) -> None:
        self.reclaims += 1

    def stop(self, reason: str) -> None:
        self.stopped = reason
        self.lose_stream()
        self._node.clock.after(STREAM_S, lambda: self._report(stopped=True))

    def join(self, timeout_s: float) -> bool:
        return bool(self.stopped)

    def probe(self, timeout_s: float) -> bool:
        return True

    def lose_stream(self) -> None:
        if self._stream is not None:
            self.feed.leave(self._stream)
            self._stream = None
            self._report()

    def take_news(self) -> None:
        """If the stream has not seen the newest list, it takes it in a moment."""
        if self._stream is not None and not self._under_way and self._stream.taken < self.feed.current.version:
            self._under_way = True
            self._node.clock.after(self._node.stream_s, self._take)

    def _connect(self) -> None:
        if self._node.kubelet is not None and not self.stopped and self._stream is None:
            self._node.clock.after(STREAM_S, self._open)

    def _open(self) -> None:
        if self._node.kubelet is not None and not self.stopped and self._stream is None:
            self._stream = self.feed.watch()
            self._take()

    def _take(self) -> None:
        self._under_way = False
        if self._stream is not None:
            current = self.feed.current
            self._stream.note_taken(current.version)
            self.taken.append((self._node.clock.now, current.listed))
            self._report()

    def _report(self, *, stopped: bool = False) -> None:
        streams = self.feed.streams
        self._node.clock.put(
            ResourceReport(
                resource=self.resource,
                registered=streams > 0,
                streams=streams,
                taken_version=self.feed.taken_version,
                missing=None if streams else "no stream",
                stopped=stopped,
            )
        )


class VirtualHolders:
    """Stands in for services/held.py: an answer a moment after a question, and every second while something waits."""

    def __init__(self, node: VirtualNode) -> None:
        self.asked = 0
        self.plans = 0
        self.waiting = False
        self._node = node
        self._polls = 0

    def ask(self) -> None:
        self.asked += 1
        asked_at = self._node.clock.now
        self._node.clock.after(ANSWER_S, lambda: self._node.clock.put(HeldRead(held=self._node.answer(asked_at))))

    def set_waiting(self, waiting: bool, /) -> None:  # noqa: FBT001 - as the service
        self.plans += 1  # it is told once a plan
        if waiting and not self.waiting:
            self._polls += 1
            self._poll(self._polls)
        self.waiting = waiting

    def _poll(self, number: int) -> None:
        def again() -> None:
            if self.waiting and number == self._polls:
                self.ask()
                self.asked -= 1  # tests count what the supervisor asks
                self._poll(number)

        self._node.clock.after(POLL_S, again)


class Recorder:
    """Memory, observers and log in one: what was remembered, counted and told."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.names: frozenset[str] = frozenset()
        self.pins: dict[str, str] = {}
        self.config: AppliedConfig | None = None
        self.told: list[tuple[Reason, str]] = []
        self.levels: list[Level] = []
        self.counted: list[tuple[object, ...]] = []
        self.latencies: list[tuple[str, float]] = []
        self.statuses: list[Status] = []

    def remember_names(self, names) -> None:
        self.names |= set(names)

    def remember_pins(self, pins, /) -> None:
        self.pins = dict(pins)

    def remember_config(self, config, pins, /) -> None:
        self.config, self.pins = config, dict(pins)

    def __call__(self, reason: Reason, msg: str, /, *, level: Level | None = None, **fields: object) -> None:
        self.told.append((reason, msg))
        self.levels.append(level or reason.level)

    def texts(self, reason: Reason) -> list[str]:
        return [text for told, text in self.told if told is reason]

    def list_latency(self, cause: str, seconds: float) -> None:
        self.latencies.append((cause, round(seconds, 3)))

    def config_applied(self, seconds: float) -> None:
        self.counted.append(("config_applied", round(seconds, 3)))

    def kubelet_restarted(self) -> None:
        self.counted.append(("kubelet_restarted",))

    def device_health_changed(self, uuid: str, to: str) -> None:
        self.counted.append(("health", uuid, to))

    def service_restarted(self, service: str) -> None:
        self.counted.append(("restarted", service))

    def edits(self) -> list[object]:
        return [one[1] for one in self.counted if one[0] == "edit"]


class VirtualNode:
    """The supervisor and everything around it. ``run`` lets time pass; everything else happens at the moment."""

    def __init__(self, *, last_good: Config | None = None, held: Held | None = None, record: Recorder | None = None):
        self.clock = Clock()
        self.record = record or Recorder(self.clock)
        self.kubelet: SocketIdentity | None = SocketIdentity(1, 100, 1)
        self.stream_s = STREAM_S
        self.pods: dict[str, tuple[str, str]] = {}
        self.readable = True
        self.made: list[VirtualActor] = []
        self.restarted: list[str] = []
        self.looked = self.asked_standing = 0
        self.configured: list[dict[str, float]] = []
        self._unreadable_since: float | None = None
        self._last_answer = held or Held(source=Source.POD_RESOURCES, requested_at=self.clock.now)
        self.holders = VirtualHolders(self)
        self.adoption = Adoption(
            last_good=last_good,
            memory=self.record,
            log=self.record,
            count_edit=lambda result: self.record.counted.append(("edit", result)),
            wall=lambda: self.clock.now,
        )
        self.offers = Offers(self._make_actor, observer=self.record, log=self.record, clock=lambda: self.clock.now)
        self.supervisor = Supervisor(
            self.clock,
            Collaborators(
                adoption=self.adoption,
                offers=self.offers,
                gpus=self,
                holders=self.holders,
                standing=self,
                memory=self.record,
                observer=self.record,
                log=self.record,
                restart=self._restart,
                look_now=self._look_now,
                publish_status=self.record.statuses.append,
            ),
            held=self._last_answer,
            clock=lambda: self.clock.now,
            wall=lambda: self.clock.now,
        )
        self.clock.idle = self._serve

    # Collaborators' side.

    def configure(self, **settings: float) -> None:
        self.configured.append(settings)

    def ask_soon(self) -> None:
        self.asked_standing += 1

    def _make_actor(self, listed: ResourceList) -> VirtualActor:
        self.made.append(VirtualActor(listed, self))
        return self.made[-1]

    def _restart(self, thread: str) -> bool:
        self.restarted.append(thread)
        return thread != "unknown"

    def _look_now(self) -> None:
        self.looked += 1

    def _serve(self) -> None:
        for actor in self.made:
            actor.take_news()

    # What a test does.

    def run(self, seconds: float) -> int | None:
        """Let time pass; the exit code if the supervisor has come to its end."""
        self.clock.until = self.clock.now + seconds
        try:
            return self.supervisor.run()
        except Pause:
            return None

    def read(self, config: Config | None = None, *problems: str, text: bytes = b"", missing: bool = False) -> None:
        self.clock.put(
            ConfigRead(
                source="test.yaml", config=config, text=text, problems=problems, missing=missing, at=self.clock.now
            )
        )

    def scan(self, *gpus: Gpu, ailments=None, state: DriverState = DriverState.READY, found: bool = True) -> None:
        self.clock.put(
            GpusScanned(
                driver=DriverStatus(state=state),
                inventory=inventory(*gpus) if found else None,
                ailments=ailments or {},
                at=self.clock.now,
                wall=self.clock.now,
            )
        )

    def see_kubelet(self, identity: SocketIdentity | None) -> None:
        """The kubelet's socket is this one now."""
        self.kubelet = identity
        self.clock.put(SocketDirectoryChanged(kubelet=identity, at=self.clock.now))

    def crash(self, thread: str) -> None:
        self.clock.put(ServiceCrashed(thread=thread, error="ValueError: x", trace="trace"))

    def signal(self, number: signal.Signals) -> None:
        self.clock.put(SignalReceived(number=number))

    def allocate(self, pod: str, device_id: str, resource: str) -> None:
        """The pod gets the device: Allocate is answered, and PodResources shows it from now on."""
        with self.actor(resource).feed.allocating([device_id]) as snapshot:
            assert snapshot.listed.by_id[device_id].healthy
        self.pods[pod] = (resource, device_id)
        self.clock.put(AllocateAnswered(resource=resource))

    def answer(self, asked_at: float) -> Held:
        """What the holders' service would say to a question asked then."""
        if self.kubelet is None:
            return self._last_answer
        if not self.readable:
            self._unreadable_since = self._unreadable_since or self.clock.now
            return msgspec.structs.replace(self._last_answer, unreadable_since=self._unreadable_since)
        self._unreadable_since = None
        holdings = sorted(
            Holding(resource=resource, device_id=device_id, namespace="team", pod=pod, container="main")
            for pod, (resource, device_id) in self.pods.items()
        )
        self._last_answer = Held(source=Source.POD_RESOURCES, requested_at=asked_at, holdings=tuple(holdings))
        return self._last_answer

    # What a test sees.

    def actor(self, resource: str) -> VirtualActor:
        return self.offers.actors[resource]

    def healthy(self, resource: str) -> list[str]:
        """The Healthy IDs of the list that the kubelet took last."""
        return [device.id for device in self.taken(resource).devices if device.healthy]

    def unhealthy(self, resource: str) -> list[str]:
        return [device.id for device in self.taken(resource).devices if not device.healthy]

    def taken(self, resource: str) -> ResourceList:
        return self.actor(resource).taken[-1][1]

    @property
    def status(self) -> Status:
        return self.record.statuses[-1]
