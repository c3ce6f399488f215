"""The real supervisor among stand-ins of its collaborators, in virtual time."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping

import msgspec

from nvdp.config.load import parse_config
from nvdp.config.schema import Config
from nvdp.kubelet.sockets import SocketIdentity
from nvdp.model.cdi import CdiClass, CdiState, CdiWish, qualify
from nvdp.model.held import Held, Holding, Source
from nvdp.model.inventory import Gpu
from nvdp.model.listing import DeviceListStrategy, ResourceList
from nvdp.model.pause import Pause as Order
from nvdp.model.status import DriverState, DriverStatus, Status
from nvdp.services.adoption import Adoption
from nvdp.services.collaborators import Collaborators
from nvdp.services.events import (
    AllocateAnswered,
    CdiWritten,
    ConfigRead,
    GpusScanned,
    ServiceCrashed,
    SignalReceived,
    SocketDirectoryChanged,
)
from nvdp.services.offers import Offers
from nvdp.services.steering import Steering
from nvdp.supervisor import Supervisor
from tests.planning.values import inventory
from tests.virtual.actor import STREAM_S, VirtualActor
from tests.virtual.clock import Clock, Pause
from tests.virtual.holders import VirtualHolders
from tests.virtual.mps import VirtualMps
from tests.virtual.recorder import Recorder


class VirtualNode:
    """The supervisor and everything around it. ``run`` lets time pass; everything else happens at the moment."""

    def __init__(
        self,
        *,
        last_good: Config | None = None,
        held: Held | None = None,
        edits_wait_s: float = 0.0,
        runs_mps: bool = False,
    ) -> None:
        self.clock = Clock()
        self.clock.idle = self._serve
        self.record = Recorder()
        self.kubelet: SocketIdentity | None = SocketIdentity(1, 100, 1)
        self.stream_s = STREAM_S
        self.recorded_s = 0.0  # after Allocate, until PodResources shows the holder
        self.pods: dict[str, tuple[str, str]] = {}
        self.readable = True
        self.restarted: list[str] = []
        self.looked = self.asked_standing = 0
        self.configured: list[dict[str, float]] = []
        self.pauses: list[Order | None] = []
        self.judged: list[tuple[DeviceListStrategy, ...]] = []
        self.wishes: list[CdiWish] = []
        self.mps = VirtualMps(self.clock)
        if runs_mps:
            self.mps.come()
        self.writes_specs_s: float | None = 0.1  # None: what is wished for is not written
        self.at_wish: Callable[[], None] = lambda: None  # what happens at the same moment
        self._edits_wait_s = edits_wait_s
        self._got_at: dict[str, float] = {}
        self._unreadable_since: float | None = None
        self._last_answer = held or Held(source=Source.POD_RESOURCES, requested_at=self.clock.now)
        self._start(last_good)

    def _start(self, last_good: Config | None) -> None:
        self.made: list[VirtualActor] = []
        self.holders = VirtualHolders(self.clock, self.answer)
        self.adoption = Adoption(
            last_good=last_good,
            memory=self.record,
            log=self.record,
            count_edit=lambda result: self.record.counted.append(("edit", result)),
            wall=lambda: self.clock.now,
            clock=lambda: self.clock.now,
            choose_delay_s=lambda: self._edits_wait_s,
        )
        self.offers = Offers(self._make_actor, observer=self.record, log=self.record, clock=lambda: self.clock.now)
        self.steering = Steering(
            self, ordered=None, log=self.record, clock=lambda: self.clock.now, wall=lambda: self.clock.now
        )
        self.mps.say(self.mps.view)
        self.supervisor = Supervisor(
            self.clock,
            Collaborators(
                adoption=self.adoption,
                offers=self.offers,
                steering=self.steering,
                holders=self.holders,
                standing=self,
                specs=self,
                mps=self.mps,
                grants=self.mps,
                runtime=self,
                memory=self.record,
                observer=self.record,
                log=self.record,
                restart=self._restart,
                look_now=self._look_now,
                publish_status=self.record.statuses.append,
                label=self.record.labelled.append,
            ),
            held=self._last_answer,
            clock=lambda: self.clock.now,
            wall=lambda: self.clock.now,
        )

    # Collaborators' side.

    def configure(self, **settings: float) -> None:
        self.configured.append(settings)

    def pause(self, pause: Order) -> None:
        self.pauses.append(pause)

    def resume(self) -> None:
        self.pauses.append(None)

    def ask_soon(self) -> None:
        self.asked_standing += 1

    def want(self, wish: CdiWish) -> None:
        self.wishes.append(wish)
        self.at_wish()
        if self.writes_specs_s is not None:
            names = {qualify(CdiClass.GPU, name) for device in wish.devices for name in device.names}
            names |= {qualify(CdiClass.GPU, name) for name in wish.keep}
            names |= {qualify(CdiClass.IMEX_CHANNEL, str(channel)) for channel in wish.imex_channels}
            nodes = {qualify(CdiClass.GPU, name): device.nodes for device in wish.devices for name in device.names}
            self.tell_specs(*names, nodes=nodes, after_s=self.writes_specs_s)

    def judge(self, strategies: Iterable[DeviceListStrategy]) -> None:
        self.judged.append(tuple(strategies))

    def tell_specs(
        self,
        *names: str,
        nodes: Mapping[str, tuple[str, ...]] | None = None,
        problem: str = "",
        answered: bool = True,
        after_s: float = 0.0,
    ) -> None:
        """What the writer of the CDI specs says to the last wish, after a while; or what it finds before."""
        known = {name: frozenset(paths) for name, paths in (nodes or {}).items()}
        asked = self.wishes[-1].asked if self.wishes else {}
        state = CdiState(names=frozenset(names), nodes=known, asked=asked, problem=problem, answered=answered)
        self.clock.after(after_s, lambda: self.clock.put(CdiWritten(state=state, at=self.clock.now)))

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

    def scan(
        self, *gpus: Gpu, ailments=None, state: DriverState = DriverState.READY, found: bool = True, **others
    ) -> None:
        self.clock.put(
            GpusScanned(
                driver=DriverStatus(state=state),
                inventory=inventory(*gpus) if found else None,
                ailments=ailments or {},
                at=self.clock.now,
                wall=self.clock.now,
                **others,
            )
        )

    def see_kubelet(self, identity: SocketIdentity | None) -> None:
        """The kubelet's socket is this one now."""
        self.kubelet = identity
        self.clock.put(SocketDirectoryChanged(kubelet=identity, at=self.clock.now))

    def crash(self, thread: str) -> None:
        self.clock.put(ServiceCrashed(thread=thread, error="ValueError: x", trace="trace"))

    def restart_daemon(self, seconds: float) -> None:
        """The process ends, and after ``seconds`` another goes on with what the state directory and pods have."""
        self.clock.forget()
        self.mps.pass_time(seconds)
        applied = self.record.config
        self._last_answer = self.answer(self.clock.now)
        self._start(None if applied is None else parse_config(applied.text, name=applied.source))
        self.see_kubelet(self.kubelet)

    def signal(self, number: signal.Signals) -> None:
        self.clock.put(SignalReceived(number=number))

    def allocate(self, pod: str, device_id: str, resource: str) -> None:
        """The pod gets the device: Allocate is answered, and PodResources shows it ``recorded_s`` later."""
        with self.actor(resource).feed.allocating([device_id]) as snapshot:
            assert snapshot.listed.by_id[device_id].healthy
        self.pods[pod] = (resource, device_id)
        self._got_at[pod] = self.clock.now
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
            if self.clock.now - self._got_at.get(pod, float("-inf")) >= self.recorded_s
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
