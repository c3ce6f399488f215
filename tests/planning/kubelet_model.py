"""A model of one kubelet for random histories: what it believes, who holds what, and where a real one would crash.

Times are seconds of the history's own clock, passed in. A broken rule is an ``AssertionError`` with its story.
"""

from __future__ import annotations

import dataclasses

from nvdp.model.held import Held, Holding, Source
from nvdp.model.listing import AllocateTrace, ResourceList

RECORDED_S = 2.0  # after an answered Allocate the holder shows in PodResources within this time
Key = tuple[str, str]  # resource and device ID


@dataclasses.dataclass(frozen=True)
class Grant:
    """The devices that one pod has, or is about to get."""

    pod: str
    resource: str
    device_ids: tuple[str, ...]

    @property
    def keys(self) -> list[Key]:
        return [(self.resource, device_id) for device_id in self.device_ids]


class Kubelet:
    """Devices by resource, pods, and Allocate calls on their way."""

    def __init__(self) -> None:
        self.up = True
        self.readable = True  # PodResources, and the checkpoint
        self.lists: dict[str, ResourceList] = {}
        self.unhealthy_since: dict[Key, float] = {}
        self.pods: dict[str, Grant] = {}
        self.in_flight: list[Grant] = []
        self.answered: dict[Key, float] = {}
        self.unrecorded: dict[str, float] = {}
        self.unknowable: set[str] = set()  # pods that the plugin cannot know of: nothing it could read names them
        self.given_up: set[str] = set()  # pods whose IDs left because nobody could be asked for long enough
        self._request: tuple[float, tuple[Holding, ...]] | None = None
        self._next_pod = 0

    def take(self, resource: str, listed: ResourceList, now: float) -> None:
        """Read a list from its stream. Kubelets of 1.34 to 1.36 crash if it lacks what it must not lack."""
        known = self.lists[resource].by_id if resource in self.lists else {}
        gone = known.keys() - listed.by_id.keys()
        for call in self.in_flight:
            if call.resource == resource:
                assert not gone.intersection(call.device_ids), f"the kubelet crashes: {gone} left during {call}"
        for device in listed.devices:
            if device.healthy:
                self.unhealthy_since.pop((resource, device.id), None)
            else:  # one that comes Unhealthy was never on offer
                since = now if device.id in known else float("-inf")
                self.unhealthy_since.setdefault((resource, device.id), since)
        self.lists[resource] = listed

    def lose_streams(self, now: float) -> None:
        """The plugin is gone: to the kubelet all its devices are Unhealthy, and calls under way have failed."""
        self.in_flight.clear()
        self._request = None
        for resource, listed in self.lists.items():
            for device in listed.devices:
                self.unhealthy_since.setdefault((resource, device.id), now)

    def stop(self) -> None:
        """It dies: what it has allocated is in its checkpoint, what is under way is not."""
        self.up = False
        self.in_flight.clear()
        self.unrecorded.clear()
        self._request = None
        self.lists.clear()
        self.unhealthy_since.clear()

    def find_free(self, resource: str) -> list[str]:
        """What it believes to be free and Healthy."""
        listed = self.lists.get(resource)
        if listed is None or not self.up:
            return []
        used = {key for grant in (*self.pods.values(), *self.in_flight) for key in grant.keys}
        return [device.id for device in listed.devices if device.healthy and (resource, device.id) not in used]

    def begin(self, resource: str, device_ids: list[str]) -> None:
        self.in_flight.append(Grant(f"pod-{self._next_pod}", resource, tuple(device_ids)))
        self._next_pod += 1

    def finish(self, number: int, now: float) -> None:
        """The plugin has answered; the holder is written down at once or a moment later."""
        grant = self.in_flight.pop(number % len(self.in_flight))
        self.pods[grant.pod] = grant
        self.unrecorded[grant.pod] = now
        self.answered.update(dict.fromkeys(grant.keys, now))

    def pass_time(self, now: float) -> None:
        for pod, answered_at in list(self.unrecorded.items()):
            if now - answered_at >= RECORDED_S:
                del self.unrecorded[pod]

    def end_pod(self, number: int) -> None:
        if self.pods:
            ended = sorted(self.pods)[number % len(self.pods)]
            del self.pods[ended]
            self.unrecorded.pop(ended, None)
            self.unknowable.discard(ended)
            self.given_up.discard(ended)

    def traces(self, resource: str) -> dict[str, AllocateTrace]:
        """What the plugin's own trace of Allocate calls says."""
        calls = [device_id for call in self.in_flight if call.resource == resource for device_id in call.device_ids]
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
        return tuple(
            sorted(
                Holding(resource=resource, device_id=device_id, namespace="team", pod=grant.pod, container="main")
                for grant in self.pods.values()
                if grant.pod not in self.unrecorded
                for resource, device_id in grant.keys
            )
        )
