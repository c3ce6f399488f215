"""A model of one kubelet for random histories: what it believes, who holds what, and where a real one would crash.

Times are seconds of the history's own clock, passed in. A broken rule is an ``AssertionError`` with its story.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from nvdp.model.held import Held, Holding, Source
from nvdp.model.listing import AllocateTrace, ResourceList

RECORDED_S = 1.9  # after an answered Allocate the holder shows in PodResources within this time, which is under 2 s
FINISHED_S = 3.0  # for so long an old kubelet's PodResources may name a pod that has ended
Key = tuple[str, str]  # resource and device ID


@dataclasses.dataclass(frozen=True)
class Grant:
    """The devices that one pod has, or is about to get; ``mps`` is whether it works on them through MPS."""

    pod: str
    resource: str
    device_ids: tuple[str, ...]
    mps: bool = False

    @property
    def keys(self) -> list[Key]:
        return [(self.resource, device_id) for device_id in self.device_ids]


class Kubelet:
    """Devices by resource, pods, and Allocate calls on their way.

    A call is ``chosen`` (the kubelet has picked devices, the plugin knows nothing), then ``in_flight`` (the plugin has
    looked at its list), then answered or, if the plugin refuses, over: that pod fails and holds nothing.
    """

    def __init__(self, *, names_finished: bool = False) -> None:
        self.names_finished = names_finished  # kubelets before 1.34
        self.up = True
        self.readable = True  # PodResources, and the checkpoint
        self.lists: dict[str, ResourceList] = {}
        self.unhealthy_since: dict[Key, float] = {}
        self.pods: dict[str, Grant] = {}
        self.chosen: list[tuple[float, Grant]] = []
        self.in_flight: list[Grant] = []
        self.refused: list[Grant] = []  # the plugin still counts them as under way
        self.streams: set[str] = set()
        self.answered: dict[Key, float] = {}
        self.answered_by_mps: dict[Key, bool] = {}
        self.unrecorded: dict[str, float] = {}
        # Pods that the plugin cannot know of, until something that it reads names them; and those whose IDs left
        # because nobody could be asked for long enough.
        self.unknowable: set[str] = set()
        self.given_up: set[str] = set()
        self._sent: dict[str, list[tuple[float, ResourceList]]] = {}
        self._finished: dict[str, tuple[float, Grant]] = {}
        self._request: tuple[float, tuple[Holding, ...]] | None = None
        self._next_pod = 0

    # -- lists -------------------------------------------------------------------------------------------------------

    def send(self, resource: str, listed: ResourceList, at: float) -> None:
        """A list is on its way through the stream; it is read ``at``, and never before the one that was sent first.

        Under a topology policy kubelets of 1.34 to 1.36 crash if the first one lacks what a pod holds.
        """
        self.streams.add(resource)
        queue = self._sent.setdefault(resource, [])
        for grant in self.pods.values() if resource not in self.lists and not queue else ():
            if grant.resource == resource and grant.pod not in self.unknowable | self.given_up:
                missing = set(grant.device_ids) - listed.by_id.keys()
                assert not missing, f"the kubelet crashes: {missing} of {grant.pod} are not in its first list"
        queue.append((max([at, *(due for due, _ in queue)]), listed))

    def read_sent(self, now: float) -> None:
        for resource, queue in self._sent.items():
            while queue and queue[0][0] <= now:
                at, listed = queue.pop(0)
                self._take(resource, listed, at)

    @property
    def next_at(self) -> float | None:
        """When it reads the next list."""
        return min((queue[0][0] for queue in self._sent.values() if queue), default=None)

    def _take(self, resource: str, listed: ResourceList, now: float) -> None:
        """Kubelets of 1.34 to 1.36 crash if the list lacks what is being allocated."""
        known = self.lists[resource].by_id if resource in self.lists else {}
        gone = known.keys() - listed.by_id.keys()
        for call in self.calls:
            if call.resource == resource:
                assert not gone.intersection(call.device_ids), f"the kubelet crashes: {gone} left during {call}"
        for device in listed.devices:
            if device.healthy:
                self.unhealthy_since.pop((resource, device.id), None)
            else:  # one that comes Unhealthy was never on offer
                since = now if device.id in known else float("-inf")
                self.unhealthy_since.setdefault((resource, device.id), since)
        self.lists[resource] = listed

    def lose_stream(self, resource: str, now: float) -> None:
        """The stream is gone: to the kubelet all devices of it are Unhealthy, and calls under way have failed."""
        self.chosen = [(at, call) for at, call in self.chosen if call.resource != resource]
        self.in_flight = [call for call in self.in_flight if call.resource != resource]
        self.refused = [call for call in self.refused if call.resource != resource]
        self._sent.pop(resource, None)
        self.streams.discard(resource)
        for device in self.lists[resource].devices if resource in self.lists else ():
            self.unhealthy_since.setdefault((resource, device.id), now)

    def lose_plugin(self, now: float) -> None:
        for resource in self.lists.keys() | self._sent.keys():
            self.lose_stream(resource, now)
        self._request = None
        self.answered.clear()
        self.unrecorded.clear()  # to die and to come back takes longer

    def withdraw(self, resource: str) -> None:
        """The plugin has stopped serving it; the last list that it sent must have been empty."""
        queue = self._sent.get(resource, [])
        last = queue[-1][1] if queue else self.lists.get(resource)
        if resource in self.streams and last is not None:
            assert not last.devices, f"{resource} ends, and to the kubelet it has devices"
        self.lists.pop(resource, None)
        self._sent.pop(resource, None)
        self.streams.discard(resource)

    def stop(self) -> None:
        """It dies: what it has allocated is in its checkpoint, what is under way is not."""
        self.up = False
        self.chosen.clear()
        self.in_flight.clear()
        self.refused.clear()
        self.unrecorded.clear()
        self._sent.clear()
        self.streams.clear()
        self._request = None
        self.lists.clear()
        self.unhealthy_since.clear()

    # -- pods --------------------------------------------------------------------------------------------------------

    @property
    def calls(self) -> Iterator[Grant]:
        yield from (call for _, call in self.chosen)
        yield from self.in_flight
        yield from self.refused

    def find_free(self, resource: str) -> list[str]:
        """What it believes to be free and Healthy."""
        listed = self.lists.get(resource)
        if listed is None or not self.up:
            return []
        used = {key for grant in (*self.pods.values(), *self.calls) for key in grant.keys} | self.unhealthy_since.keys()
        return [device.id for device in listed.devices if device.healthy and (resource, device.id) not in used]

    def choose(self, resource: str, device_ids: list[str], now: float) -> None:
        self.chosen.append((now, Grant(f"pod-{self._next_pod}", resource, tuple(device_ids))))
        self._next_pod += 1

    def choose_again(self, number: int, now: float) -> None:
        """Allocate comes a second time for what a pod has, as for an init container and the next one."""
        busy = {call.pod for call in self.calls} | self.unknowable | self.given_up
        again = [grant for pod, grant in sorted(self.pods.items()) if pod not in busy and self._is_healthy(grant)]
        if again:
            self.chosen.append((now, again[number % len(again)]))

    def _is_healthy(self, grant: Grant) -> bool:
        listed = self.lists[grant.resource].by_id if grant.resource in self.lists else {}
        return self.unhealthy_since.keys().isdisjoint(grant.keys) and all(one in listed for one in grant.device_ids)

    def finish(self, number: int, now: float) -> None:
        """The plugin has answered; the holder is written down at once or a moment later."""
        grant = self.in_flight.pop(number % len(self.in_flight))
        if grant.pod not in self.pods:
            self.pods[grant.pod] = grant
            self.unrecorded[grant.pod] = now
        self.answered.update(dict.fromkeys(grant.keys, now))
        self.answered_by_mps.update(dict.fromkeys(grant.keys, grant.mps))

    def pass_time(self, now: float) -> None:
        self.unrecorded = {pod: at for pod, at in self.unrecorded.items() if now - at < RECORDED_S}
        self._finished = {pod: (at, grant) for pod, (at, grant) in self._finished.items() if now - at < FINISHED_S}

    def end_pod(self, number: int, now: float) -> None:
        busy = {call.pod for call in self.calls}
        ending = sorted(self.pods.keys() - busy)
        if ending:
            ended = ending[number % len(ending)]
            self._finished[ended] = now, self.pods.pop(ended)
            self.unrecorded.pop(ended, None)
            self.unknowable.discard(ended)
            self.given_up.discard(ended)

    def note_known(self, holdings: Iterable[Holding]) -> None:
        """The plugin has planned with these."""
        named = {holding.pod for holding in holdings}
        self.unknowable -= named
        self.given_up -= named

    def traces(self, resource: str) -> dict[str, AllocateTrace]:
        """What the plugin's own trace of Allocate calls says."""
        calls = [
            device_id
            for call in (*self.in_flight, *self.refused)
            if call.resource == resource
            for device_id in call.device_ids
        ]
        traces = {
            device_id: AllocateTrace(calls.count(device_id), at)
            for (name, device_id), at in self.answered.items()
            if name == resource
        }
        return {device_id: AllocateTrace(calls.count(device_id)) for device_id in calls} | traces

    # -- PodResources and the checkpoint -----------------------------------------------------------------------------

    def read_holders(self, now: float) -> Held:
        """Both sources at once, as at the start of a process."""
        source = Source.POD_RESOURCES if self.up else Source.CHECKPOINT
        return Held(source=source, requested_at=now, holdings=self._holdings()) if self.readable else Held()

    def request_holders(self, now: float) -> None:
        if self.up and self._request is None:
            self._request = (now, self._holdings())

    def answer_holders(self, before: Held, now: float, *, late: bool) -> Held:
        """The answer to the request under way, true when it was asked or (``late``) when it is given."""
        if self._request is None:
            return before
        (requested_at, holdings), self._request = self._request, None
        if not self.readable:
            since = before.unreadable_since
            return Held(
                source=before.source,
                requested_at=before.requested_at,
                holdings=before.holdings,
                unreadable_since=now if since is None else since,
            )
        holdings = self._holdings() if late else holdings
        return Held(source=Source.POD_RESOURCES, requested_at=requested_at, holdings=holdings)

    def _holdings(self) -> tuple[Holding, ...]:
        finished = [grant for _, grant in self._finished.values()] if self.names_finished else []
        return tuple(
            sorted(
                Holding(resource=resource, device_id=device_id, namespace="team", pod=grant.pod, container="main")
                for grant in (*self.pods.values(), *finished)
                if grant.pod not in self.unrecorded
                for resource, device_id in grant.keys
            )
        )
