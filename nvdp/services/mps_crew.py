"""The actors of all control daemons of the node: who they are, what they were told, and how their daemons are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeAlias

import msgspec

from nvdp.model.mps import DaemonReport, DaemonSpec, Phase
from nvdp.planning.daemon_course import Course, Stage, Standing, Step
from nvdp.services.mps_daemon import DaemonActor
from nvdp.services.mps_events import DaemonSeen, Order
from nvdp.services.mps_left import Adopted

MakeActor: TypeAlias = Callable[[str, Adopted | None], DaemonActor]


class _Member:
    """One actor; the orders of a start that it may be carrying out, by number; and what it said last."""

    def __init__(self, actor: DaemonActor, report: DaemonReport) -> None:
        self.actor = actor
        self.seen = DaemonSeen(resource=actor.resource, daemon=report)
        self.order = Order(stage=Stage.WAIT)
        self.starts: dict[int, DaemonSpec] = {}

    def note(self, event: DaemonSeen) -> None:
        self.seen = event
        self.starts = {number: spec for number, spec in self.starts.items() if number >= event.order}
        if event.order == self.order.number and self.order.stage is not Stage.START:
            self.starts = {}

    def tell(self, order: Order) -> None:
        """Order it, unless that is what it was told last."""
        order = msgspec.structs.replace(order, number=self.order.number)
        if order == self.order:
            return
        self.order = msgspec.structs.replace(order, number=self.order.number + 1)
        if order.stage is Stage.START and order.target is not None:
            self.starts[self.order.number] = order.target
        self.actor.order(self.order)

    @property
    def standing(self) -> Standing:
        pledged = frozenset(gpu for spec in self.starts.values() for gpu in spec.gpus)
        return Standing(
            running=self.seen.daemon.running,
            pledged=pledged,
            cleared=self.seen.cleared,
            refused=self.seen.refused,
            lacks_multi_user=self.seen.lacks_multi_user,
        )

    @property
    def is_gone(self) -> bool:
        return self.seen.is_gone and self.seen.order == self.order.number


class Crew:
    """Belongs to the main thread, but for ``find_pids``, which any may call. ``make`` builds an actor."""

    def __init__(self, make: MakeActor) -> None:
        self._make = make
        self._members: dict[str, _Member] = {}

    def adopt(self, resource: str, adopted: Adopted | None) -> None:
        """There was a daemon of this resource, and it is alive if it is ``adopted``; begin to look after it."""
        running = adopted.report if adopted is not None else DaemonReport(phase=Phase.WAITING)
        self._join(resource, adopted, running)

    @property
    def is_empty(self) -> bool:
        return not self._members

    @property
    def standings(self) -> dict[str, Standing]:
        """How it is with each resource, for planning."""
        return {resource: member.standing for resource, member in self._members.items()}

    @property
    def in_use(self) -> dict[str, bool]:
        """Whether each daemon that runs has clients, or may have some for all that is known."""
        return {
            resource: not member.seen.are_clients_known or bool(member.seen.daemon.clients)
            for resource, member in self._members.items()
            if member.seen.daemon.running is not None
        }

    @property
    def answered(self) -> dict[str, float]:
        """When each daemon answered last, monotonic seconds."""
        return {resource: member.actor.answered_at for resource, member in self._members.items()}

    def find_pids(self) -> Collection[int]:
        """The daemons that are ours."""
        return {pid for member in tuple(self._members.values()) if (pid := member.actor.pid) is not None}

    def note(self, event: DaemonSeen) -> None:
        """An actor has something to say."""
        member = self._members.get(event.resource)
        if member is None:
            return
        member.note(event)
        if member.is_gone:
            member.actor.close()
            del self._members[event.resource]

    def follow(self, course: Course) -> None:
        """Order what the course says."""
        for resource, step in course.steps.items():
            member = self._members.get(resource)
            if member is None:
                if step.stage is Stage.NOTHING:
                    continue
                member = self._join(resource, None, DaemonReport(phase=Phase.WAITING))
            is_waiting = step.stage is Stage.KEEP and bool(step.text)
            member.tell(
                Order(
                    stage=step.stage,
                    target=step.target,
                    by_force=step.by_force,
                    watches_clients=is_waiting and not step.by_force,
                    is_in_use=step.is_in_use,
                )
            )

    def end_all(self) -> None:
        """All daemons shall end, and nothing of them stay."""
        for member in self._members.values():
            member.tell(Order(stage=Stage.NOTHING, by_force=True))

    def build_reports(self, steps: Mapping[str, Step]) -> dict[str, DaemonReport]:
        """What others are told of each daemon."""
        return {resource: _report(member.seen, steps.get(resource)) for resource, member in self._members.items()}

    def restart(self, thread: str) -> bool:
        """Start what has crashed again; False if it is none of ours."""
        for member in self._list_of(thread):
            member.actor.start()
            return True
        return False

    def _list_of(self, thread: str) -> Iterator[_Member]:
        return (member for member in self._members.values() if thread in member.actor.threads)

    def _join(self, resource: str, adopted: Adopted | None, report: DaemonReport) -> _Member:
        actor = self._make(resource, adopted)
        member = self._members[resource] = _Member(actor, report)
        actor.start()
        return member


def _report(seen: DaemonSeen, step: Step | None) -> DaemonReport:
    """What the actor says, with what its daemon waits for, which only the plan knows."""
    daemon = seen.daemon
    if step is None or not step.text:
        return daemon
    if daemon.running is None and (step.stage is Stage.WAIT or daemon.phase is Phase.WAITING):
        return msgspec.structs.replace(daemon, phase=Phase.WAITING, text=step.text)
    if daemon.phase is Phase.READY:
        return msgspec.structs.replace(daemon, text=step.text)
    return daemon
