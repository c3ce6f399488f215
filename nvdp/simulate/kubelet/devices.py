"""The kubelet's device manager: what each resource has, who serves it, and what of it is taken.

Source: the kubelet contract, A.3 (lists), A.4 (endpoints), A.12 (restart). No calls to plugins are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.simulate.kubelet.behaviour import Behaviour
from nvdp.simulate.kubelet.checkpoint import Checkpoint, write_checkpoint
from nvdp.simulate.kubelet.history import History
from nvdp.simulate.kubelet.plugin import PluginConnection, PluginError
from nvdp.simulate.kubelet.podtable import PodTable
from nvdp.simulate.kubelet.records import HEALTHY, DeviceState, ListMessage, NodeAmount

GRACE_S = 5 * 60.0


@dataclass
class Endpoint:
    """Who serves a resource. After a kubelet restart nobody does, until it registers: no connection, stopped."""

    resource: str
    connection: PluginConnection | None = None
    options: deviceplugin.DevicePluginOptions | None = None
    stopped_at: float | None = None

    def require_connection(self) -> PluginConnection:
        """The connection to call. Raise PluginError if the endpoint is stopped."""
        if self.stopped_at is not None or self.connection is None:
            raise PluginError(f"endpoint {self.resource} has been stopped")
        return self.connection


class DeviceManager:
    """One kubelet's life: a restart makes a new one from the checkpoint. All state is guarded by ``history.changes``.

    ``clock`` is the kubelet's own, for the grace period of stopped endpoints. ``active_pods`` gives the UIDs of pods
    that are not over, None while nobody knows them.
    """

    def __init__(
        self,
        *,
        history: History,
        behaviour: Behaviour,
        clock: Callable[[], float],
        active_pods: Callable[[], Collection[str] | None],
        checkpoint: Checkpoint | None,
        checkpoint_path: Path,
    ) -> None:
        self._history = history
        self._changes = history.changes
        self._behaviour = behaviour
        self._clock = clock
        self._active_pods = active_pods
        self._checkpoint_path = checkpoint_path
        self.table = PodTable() if checkpoint is None else checkpoint.pods
        self.taken = self.table.taken()
        self._numa: dict[str, dict[str, tuple[int, ...]]] = {}
        self._healthy: dict[str, set[str]] = {}
        self._unhealthy: dict[str, set[str]] = {}
        self._endpoints: dict[str, list[Endpoint]] = {}
        self._listed: set[str] = set()
        for resource in checkpoint.registered if checkpoint is not None else ():
            self._healthy[resource] = set()
            self._unhealthy[resource] = set()
            self._endpoints[resource] = [Endpoint(resource, stopped_at=clock())]

    # --- what plugins do

    def connected(self, connection: PluginConnection, options: deviceplugin.DevicePluginOptions) -> None:
        """The plugin answered: it serves the resource from now on."""
        endpoint = Endpoint(connection.resource, connection, options)
        with self._changes:
            others = self._endpoints.get(connection.resource, [])
            keep_others = not self._behaviour.one_client_per_name
            alive = [other for other in others if keep_others and other.stopped_at is None]
            self._endpoints[connection.resource] = [*alive, endpoint]
            self._changes.notify_all()

    def received(self, message: ListMessage) -> None:
        """A list replaces the one before, whoever sent it; an ID with two healths is counted in both sets."""
        with self._changes:
            resource = message.resource
            self._numa[resource] = {device.id: device.numa for device in message.devices}
            self._healthy[resource] = {device.id for device in message.devices if device.health == HEALTHY}
            self._unhealthy[resource] = {device.id for device in message.devices if device.health != HEALTHY}
            self._listed.add(resource)
            self.write_checkpoint()
            self._changes.notify_all()

    def disconnected(self, connection: PluginConnection) -> None:
        """A plugin's stream is over. Up to 1.36 this stops whoever serves the resource now, even another plugin."""
        resource = connection.resource
        with self._changes:
            endpoints = self._endpoints.get(resource, [])
            stopped = [
                endpoint
                for endpoint in endpoints
                if self._behaviour.one_client_per_name or endpoint.connection is connection
            ]
            for endpoint in stopped:
                endpoint.stopped_at = self._clock()
            alive = [endpoint for endpoint in endpoints if endpoint.stopped_at is None]
            if alive:
                self._endpoints[resource] = alive
            elif endpoints:
                self._endpoints[resource] = endpoints[-1:]
                self._unhealthy.setdefault(resource, set()).update(self._healthy.get(resource, ()))
                self._healthy[resource] = set()
            self._history.note(f"disconnected {resource}")

    # --- what the node offers

    def node_amounts(self) -> tuple[Mapping[str, NodeAmount], Collection[str]]:
        """Capacity and allocatable for a node-status update, and the resources that this very update drops.

        The 5 minutes of a stopped endpoint are looked at here and only here.
        """
        with self._changes:
            now = self._clock()
            dropped = [resource for resource in self._healthy if self._is_expired(resource, now)]
            for resource in dropped:
                for table in (self._endpoints, self._healthy, self._unhealthy):
                    table.pop(resource, None)
            if dropped:
                self.write_checkpoint()
            amounts = {
                resource: NodeAmount(len(healthy) + len(self._unhealthy.get(resource, ())), len(healthy))
                for resource, healthy in self._healthy.items()
            }
            return amounts, dropped

    def resources(self) -> Collection[str]:
        """All that are known, also while nobody serves them."""
        with self._changes:
            return tuple(self._healthy)

    def states(self, resource: str) -> Mapping[str, DeviceState]:
        """Each device of the newest list as it counts now."""
        with self._changes:
            healthy = self._healthy.get(resource, set())
            return {
                device: DeviceState(HEALTHY if device in healthy else "Unhealthy", numa)
                for device, numa in self._numa.get(resource, {}).items()
            }

    # --- what admission needs; the caller holds ``history.changes``

    def find_endpoint(self, resource: str) -> Endpoint | None:
        endpoints = self._endpoints.get(resource)
        return endpoints[-1] if endpoints else None

    def is_plugin_resource(self, resource: str) -> bool:
        """A resource of which the kubelet never heard is none of its business: the pod gets nothing, and runs."""
        return resource in self._healthy or resource in self.taken

    def is_listed(self, resource: str) -> bool:
        """Whether a list came since this kubelet started."""
        return resource in self._listed

    def healthy(self, resource: str) -> Collection[str] | None:
        """None if nobody registered the resource."""
        return self._healthy.get(resource)

    def numa(self, resource: str) -> Mapping[str, tuple[int, ...]]:
        """NUMA nodes of each listed device."""
        return self._numa.get(resource, {})

    def is_topology_aware(self, resource: str) -> bool:
        return any(self.numa(resource).values())

    def release_finished_pods(self) -> None:
        """The lazy return of devices: nothing else ever frees one."""
        with self._changes:
            active = self._active_pods()
            if active is not None and self.table.keep_only(active):
                self.taken = self.table.taken()
                self._changes.notify_all()

    def forget_unfinished_allocations(self) -> None:
        """After a failed allocation what is taken is again what containers were given."""
        with self._changes:
            self.taken = self.table.taken()
            self._changes.notify_all()

    def write_checkpoint(self) -> None:
        with self._changes:
            registered = {resource: tuple(healthy) for resource, healthy in self._healthy.items()}
            try:
                write_checkpoint(self._checkpoint_path, Checkpoint(self.table, registered))
            except OSError as error:
                self._history.note(f"checkpoint not written: {error}")

    def _is_expired(self, resource: str, now: float) -> bool:
        endpoint = self.find_endpoint(resource)
        return endpoint is None or (endpoint.stopped_at is not None and now - endpoint.stopped_at > GRACE_S)
