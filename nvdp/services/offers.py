"""All resources that are given out: one actor each, and the memory of what the kubelet was told through it.

Belongs to the main thread; the actors do their work in their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from nvdp.kubelet.feed import Feed
from nvdp.kubelet.sockets import SocketIdentity
from nvdp.log import Log
from nvdp.model.health import Ailment
from nvdp.model.held import Held
from nvdp.model.listing import AllocateTrace, ListedDevice, ResourceList
from nvdp.planning.ledger import Given, begin_anew, give, note_taken, restore
from nvdp.planning.reporting import Serving
from nvdp.services.events import ResourceReport
from nvdp.services.list_times import Cause, ListTimes, TimesObserver

_SETTLED_S = 1.0  # from a list's leaving to the kubelet's having taken it in, generously


class Actor(Protocol):
    """What others ask of a resource's actor (services/resource.py). Only ``join`` and ``probe`` block."""

    @property
    def feed(self) -> Feed: ...

    def start(self) -> None: ...

    def look(self) -> None: ...

    def confirm(self, requested_at: float, /) -> None: ...

    def reclaim(self) -> None: ...

    def stop(self, reason: str) -> None: ...

    def join(self, timeout_s: float) -> bool: ...

    def probe(self, timeout_s: float) -> bool: ...


class Offers:
    """The actors by resource. ``make_actor`` builds one for a first list, not started."""

    def __init__(
        self,
        make_actor: Callable[[ResourceList], Actor],
        *,
        observer: TimesObserver,
        log: Log,
        clock: Callable[[], float],
    ) -> None:
        self._make_actor = make_actor
        self._clock = clock
        self._times = ListTimes(observer=observer, log=log, clock=clock)
        self._actors: dict[str, Actor] = {}
        self._stopping: list[Actor] = []
        self._given: dict[str, Given] = {}
        self._inherited: dict[str, Mapping[str, AllocateTrace]] = {}  # Allocate calls that dead actors answered
        self._kubelet: SocketIdentity | None = None
        self._changed_at: dict[str, float] = {}
        self.serving: dict[str, Serving] = {}

    @property
    def given(self) -> Mapping[str, Given]:
        """What each resource was given out, with the Allocate calls up to now: read after the last list went out."""
        for resource, actor in self._actors.items():
            allocations = {**self._inherited.get(resource, {}), **actor.feed.allocations()}
            self._given[resource] = msgspec.structs.replace(self._given[resource], allocations=allocations)
        return self._given

    @property
    def actors(self) -> Mapping[str, Actor]:
        """A copy, for readers in other threads."""
        return dict(self._actors)

    def restore(self, held: Held, *, names: frozenset[str]) -> None:
        """Remember what a predecessor must have given out: see ``planning.ledger.restore``. For the first answer only.

        What pods get later of resources that we never offered, they get from another plugin.
        """
        for resource, given in restore(held, names=names, now=self._clock()).items():
            self._given.setdefault(resource, given)

    def carry_out(self, lists: Mapping[str, ResourceList], *, cause: Cause | None) -> bool:
        """Make the actors equal to ``lists``: start, update, withdraw. True if any changed."""
        changed = False
        for resource, listed in lists.items():
            if resource in self._actors and self._given[resource].listed == listed:
                continue
            changed = True
            self._give(resource, listed, cause)
        for resource in [resource for resource in self._given if resource not in lists]:
            changed = True
            self._withdraw(resource)
        return changed

    def mark_ailing(self, ailments: Mapping[str, Ailment], *, cause: Cause | None) -> None:
        """Have what is given out as Healthy and ails, by UUID, be Unhealthy, and leave everything else as it is."""
        for resource in self._actors:
            listed = self._given[resource].listed
            marked = msgspec.structs.replace(
                listed, devices=tuple(_mark(device, ailments.get(device.gpu_uuid)) for device in listed.devices)
            )
            if marked != listed:
                self._give(resource, marked, cause)

    def note(self, report: ResourceReport) -> None:
        """Take in what an actor reported of the kubelet's side."""
        if report.stopped:
            self._stopping = [actor for actor in self._stopping if not actor.join(0.0)]
        if report.stopped or report.resource not in self._actors:
            return  # of an actor that is no more, perhaps of a resource that is offered again since
        if report.registered != self.serving[report.resource].registered:
            self._changed_at[report.resource] = self._clock()
        self.serving[report.resource] = Serving(
            registered=report.registered,
            streams=report.streams,
            taken_version=report.taken_version,
            missing=report.missing,
        )
        self._times.reported(report)
        given = self._given[report.resource]
        # With no stream open nobody offers the IDs of the last list: it is as good as taken.
        version = report.taken_version if report.streams else given.version
        self._given[report.resource] = note_taken(given, version=version, now=self._clock())

    def restart(self, thread: str) -> bool:
        """Put a new actor in the place of the one whose thread died; False if it is the thread of none."""
        for resource, actor in self._actors.items():
            if thread == f"resource {resource}":
                actor.stop("its thread died")
                self._inherited[resource] = self.given[resource].allocations
                self._given[resource] = begin_anew(self._given[resource], now=self._clock())
                self._start(resource, self._given[resource].listed)
                return True
        return False

    def kubelet_changed(self, identity: SocketIdentity | None, *, at: float) -> bool:
        """Take in the identity of the kubelet's socket, seen ``at``; True if it came, went or is another one.

        What is to be done about it the actors know once they ``look``.
        """
        before, self._kubelet = self._kubelet, identity
        if identity == before:
            return False
        if identity is not None:
            self._times.kubelet_came(identity, self._actors, at=at)
        return True

    def set_held_elsewhere(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """By resource and GPU: IDs that pods hold beyond what the kubelet's requests show."""
        for resource, actor in self._actors.items():
            actor.feed.replace_held(counts.get(resource, {}))

    def reclaim(self, offered: frozenset[str], *, requested_at: float) -> None:
        """Take in what the kubelet offers by its own word.

        What it took from us, a while before it was asked, and does not offer is registered anew.
        """
        for resource, actor in self._actors.items():
            if resource in offered:
                actor.confirm(requested_at)
                continue
            serving, given = self.serving[resource], self._given[resource]
            is_taken = serving.registered and serving.taken_version == given.version
            is_settled = is_taken and self._changed_at[resource] + _SETTLED_S < requested_at
            if is_settled and given.listed.healthy_count:
                actor.reclaim()

    def repeat(self) -> None:
        """Send the lists again, as they are: the kubelet then writes the whole of its checkpoint anew.

        One would do, were it known which streams are the kubelet's and not somebody else's.
        """
        for actor in self._actors.values():
            actor.feed.repeat()

    def look(self) -> None:
        """Let every actor look at the kubelet's socket and at its own."""
        for actor in self._actors.values():
            actor.look()

    def stop(self, *, timeout_s: float) -> None:
        """Stop all actors, in parallel; waits at most ``timeout_s``."""
        actors = [*self._actors.values(), *self._stopping]
        for actor in actors:
            actor.stop("nvdp stops")
        deadline = self._clock() + timeout_s
        for actor in actors:
            actor.join(max(0.0, deadline - self._clock()))

    def _give(self, resource: str, listed: ResourceList, cause: Cause | None) -> None:
        actor, before = self._actors.get(resource), 0
        if actor is None:
            self._start(resource, listed)
        else:
            before = self._given[resource].version
            self._record(resource, listed, version=actor.feed.publish(listed))
        version = self._given[resource].version
        # What the kubelet cannot see is not sent, and while there is none nothing is.
        if cause is not None and self._kubelet is not None and version > before:
            self._times.sent(resource, version, cause)

    def _withdraw(self, resource: str) -> None:
        del self._given[resource]
        for known in (self.serving, self._changed_at, self._inherited):
            known.pop(resource, None)
        self._times.forget(resource)
        if (actor := self._actors.pop(resource, None)) is not None:
            actor.stop("nothing is left of it")
            self._stopping.append(actor)

    def _start(self, resource: str, listed: ResourceList) -> None:
        actor = self._make_actor(listed)
        self._actors[resource] = actor
        self.serving[resource] = Serving()
        self._record(resource, listed, version=1)
        actor.start()

    def _record(self, resource: str, listed: ResourceList, *, version: int) -> None:
        now = self._changed_at[resource] = self._clock()
        given = give(self._given.get(resource), listed, version=version, now=now)
        if self.serving[resource].streams == 0:
            given = note_taken(given, version=version, now=now)
        self._given[resource] = given


def _mark(device: ListedDevice, ailment: Ailment | None) -> ListedDevice:
    if ailment is None or not device.healthy:
        return device
    return msgspec.structs.replace(device, cause=ailment.cause, text=ailment.text)
