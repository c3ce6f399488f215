"""How the kubelet admits a pod: hints, choice of devices, the plugin's calls, and what is kept of the answers.

Source: the kubelet contract, A.5 to A.9 and A.12. One admission at a time; only a container restart runs beside it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Collection, Mapping

from nvdp.simulate.kubelet.behaviour import Behaviour
from nvdp.simulate.kubelet.devices import DeviceManager, Endpoint
from nvdp.simulate.kubelet.faults import Faults, HoldPoint
from nvdp.simulate.kubelet.history import History
from nvdp.simulate.kubelet.plugin import PluginError
from nvdp.simulate.kubelet.podtable import Slot
from nvdp.simulate.kubelet.records import AdmissionError, Pod
from nvdp.simulate.kubelet.topology import Alignment, Hint, align, build_hints, is_admitted, merge_hints


class PanicError(Exception):
    """A nil dereference of the kubelet; the text says by what."""


class Admission:
    """Admits pods for one kubelet's life. ``numa_nodes`` are the machine's; ``random`` is Go's map order."""

    def __init__(
        self,
        *,
        devices: DeviceManager,
        history: History,
        behaviour: Behaviour,
        faults: Faults,
        policy: str,
        numa_nodes: tuple[int, ...],
        rng: random.Random,
        stopping: threading.Event,
    ) -> None:
        self._devices = devices
        self._changes = history.changes
        self._behaviour = behaviour
        self._faults = faults
        self._policy = policy
        self._numa_nodes = numa_nodes
        self._rng = rng
        self._stopping = stopping

    def admit(self, pod: Pod, *, running: bool = False) -> None:
        """Give each container its devices. ``running``: the pod runs already, over a kubelet restart.

        A container that runs keeps what it has, whatever became of it; one that does not, or of which the kubelet does
        not know it, is checked like a new one and gets what it had, if that is Healthy. Init containers are over.
        Blocks as long as the plugin does. Raise AdmissionError, or PanicError where a real kubelet would crash.
        """
        reusable: dict[str, set[str]] = {}
        for container, limits in pod.all_containers.items():
            hint = self._hint(pod, container, limits, reusable)
            if not is_admitted(hint, policy=self._policy):
                raise AdmissionError(
                    "Resources cannot be allocated with Topology locality", reason="TopologyAffinityError"
                )
            if not (running and self._is_known_to_run(pod, container)):
                try:
                    self._give_container(pod, container, limits, affinity=hint.nodes, reusable=reusable)
                except PluginError as error:
                    raise AdmissionError(f"Allocate failed due to {error}, which is unexpected") from error
            for resource in limits:
                given = self._devices.table.find(Slot(pod.uid, container, resource))
                if given is None:
                    continue
                if container in pod.init_containers:
                    reusable.setdefault(resource, set()).update(given.ids)
                else:
                    reusable.get(resource, set()).difference_update(given.ids)

    def _is_known_to_run(self, pod: Pod, container: str) -> bool:
        if container in pod.init_containers:
            return False
        return not (self._behaviour.forgets_restarted and container in pod.restarted)

    def start_container(self, pod: Pod, container: str) -> None:
        """Before a container starts, again or for the first time: PreStartContainer where asked for.

        Devices of which nothing is known any more (a damaged checkpoint) are allocated anew, beside whatever admission
        is doing. Raise PluginError or PanicError.
        """
        limits = pod.all_containers[container]
        unknown = False
        for resource, count in limits.items():
            if count == 0 or not self._devices.is_plugin_resource(resource):
                continue
            given = self._devices.table.find(Slot(pod.uid, container, resource))
            with self._changes:
                endpoint = self._devices.find_endpoint(resource)
            if endpoint is not None and endpoint.options is not None and endpoint.options.pre_start_required:
                if given is None:
                    raise PluginError(f"no devices found allocated in local cache for pod {pod.uid} {container}")
                endpoint.require_connection().pre_start(self._shuffled(given.ids))
            unknown = unknown or given is None
        if unknown:
            self._give_container(pod, container, limits, affinity=None, reusable={})

    def _hint(
        self, pod: Pod, container: str, limits: Mapping[str, int], reusable: Mapping[str, Collection[str]]
    ) -> Hint:
        if self._policy == "none":
            return Hint(None, preferred=True)
        self._devices.release_finished_pods()
        with self._changes:
            hints = [
                self._resource_hints(pod, Slot(pod.uid, container, resource), count, reusable.get(resource, ()))
                for resource, count in limits.items()
            ]
        return merge_hints(hints, policy=self._policy, numa_nodes=self._numa_nodes)

    def _resource_hints(self, pod: Pod, slot: Slot, count: int, reusable: Collection[str]) -> list[Hint] | None:
        resource = slot.resource
        if not self._devices.is_topology_aware(resource):
            return None
        numa = self._devices.numa(resource)
        given = self._devices.table.find(slot)
        if given is not None and len(given.ids) != count:
            return []
        usable: Collection[str] = self._free(resource)
        if given is not None:
            usable, reusable = given.ids, ()
        missing = sorted(set(usable) - numa.keys())
        if missing:
            if self._behaviour.panics:
                raise PanicError(
                    f"topology hints: {pod.namespace}/{pod.name} holds {missing[0]} of {resource}, "
                    "which left the plugin's list"
                )
            usable = set(usable) - set(missing)
        return build_hints(numa, usable=usable, reusable=reusable, requested=count, numa_nodes=self._numa_nodes)

    def _give_container(
        self,
        pod: Pod,
        container: str,
        limits: Mapping[str, int],
        *,
        affinity: frozenset[int] | None,
        reusable: Mapping[str, Collection[str]],
    ) -> None:
        known = [resource for resource in limits if self._devices.is_plugin_resource(resource)]
        self._rng.shuffle(known)
        if known:
            self._devices.release_finished_pods()
        for resource in known:
            slot = Slot(pod.uid, container, resource)
            chosen = self._choose(slot, limits[resource], affinity=affinity, reusable=reusable.get(resource, ()))
            if chosen:
                self._allocate(pod, slot, chosen)
        if known:
            self._devices.write_checkpoint()

    def _allocate(self, pod: Pod, slot: Slot, chosen: tuple[str, ...]) -> None:
        resource = slot.resource
        with self._changes:
            endpoint = self._devices.find_endpoint(resource)
        self._faults.pass_by(HoldPoint.REQUEST, self._stopping)
        try:
            response = _require(endpoint, f"unknown Device Plugin {resource}").require_connection().allocate(chosen)
        except PluginError:
            self._devices.forget_unfinished_allocations()
            raise
        self._faults.pass_by(HoldPoint.ANSWER, self._stopping)
        if not response.container_responses:
            raise PluginError("no containers return in allocation response &AllocateResponse{}")
        with self._changes:
            numa = self._devices.numa(resource)
            missing = sorted(set(chosen) - numa.keys())
            if missing and self._behaviour.panics:
                raise PanicError(f"Allocate: {missing[0]} left the list of {resource} while its Allocate was in flight")
            nodes = {device: numa.get(device, ()) for device in chosen}
            given = self._devices.table.insert(slot, nodes, response.container_responses[0])
            pod.allocations[slot.container, resource] = given.allocation
            self._changes.notify_all()

    def _choose(
        self, slot: Slot, required: int, *, affinity: frozenset[int] | None, reusable: Collection[str]
    ) -> tuple[str, ...]:
        """The IDs for one container; empty if it has them already. They count as taken from here on."""
        resource = slot.resource
        with self._changes:
            needed = self._check(slot, required)
            if needed == 0:
                return ()
            chosen = list(self._shuffled(reusable)[:needed])
            taken = self._devices.taken.setdefault(resource, set())
            taken.update(chosen)
            if len(chosen) == needed:
                return tuple(chosen)
            free = self._free(resource)
            if len(free) < needed - len(chosen):
                raise PluginError(
                    f"requested number of devices unavailable for {resource}. "
                    f"Requested: {needed - len(chosen)}, Available: {len(free)}"
                )
            fit = align(self._devices.numa(resource), free, affinity)
            endpoint = self._devices.find_endpoint(resource)
        return self._choose_free(endpoint, resource, required=required, chosen=chosen, free=free, fit=fit)

    def _choose_free(
        self,
        endpoint: Endpoint | None,
        resource: str,
        *,
        required: int,
        chosen: list[str],
        free: Collection[str],
        fit: Alignment,
    ) -> tuple[str, ...]:
        """Complete ``chosen`` out of ``free``; the table of A.7 says when the plugin is asked."""
        if required - len(chosen) < len(fit.aligned):
            stages: list[tuple[Collection[str], bool]] = [(fit.aligned, True), (fit.aligned, False)]
        else:
            stages = [(fit.aligned, False), (free, True), (fit.unaligned, False), (fit.without_node, False)]
        for stage, ask in stages:
            if len(chosen) == required:
                break
            offered = set(stage)
            if ask:
                offered &= self._prefer(endpoint, resource, offered=stage, chosen=chosen, size=required)
            self._take(resource, chosen, offered, required)
        return tuple(self._shuffled(chosen))

    def _take(self, resource: str, chosen: list[str], offered: set[str], required: int) -> None:
        more = self._shuffled(offered - set(chosen))[: required - len(chosen)]
        chosen.extend(more)
        with self._changes:
            self._devices.taken.setdefault(resource, set()).update(more)

    def _prefer(
        self, endpoint: Endpoint | None, resource: str, *, offered: Collection[str], chosen: list[str], size: int
    ) -> set[str]:
        known = _require(endpoint, f'endpoint not found in cache for a registered resource "{resource}"')
        if known.options is None or not known.options.get_preferred_allocation_available:
            return set()
        try:
            answer = known.require_connection().prefer(
                self._shuffled({*offered, *chosen}), self._shuffled(chosen), size
            )
        except PluginError as error:
            raise PluginError(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from error
        return set(answer.container_responses[0].device_ids) if answer.container_responses else set()

    def _check(self, slot: Slot, required: int) -> int:
        """How many devices are needed, after the checks of A.12 in their order."""
        given = self._devices.table.find(slot)
        held = given.ids if given is not None else frozenset[str]()
        if given is not None and len(held) != required:
            raise PluginError(
                f'pod "{slot.pod_uid}" container "{slot.container}" changed request for resource '
                f'"{slot.resource}" from {len(held)} to {required}'
            )
        healthy = self._devices.healthy(slot.resource)
        if healthy is None:
            raise PluginError(f"cannot allocate unregistered device {slot.resource}")
        if not healthy:
            raise PluginError(f"no healthy devices present; cannot allocate unhealthy devices {slot.resource}")
        if not held.issubset(healthy):
            raise PluginError(
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {slot.resource}"
            )
        return required - len(held)

    def _free(self, resource: str) -> set[str]:
        return set(self._devices.healthy(resource) or ()) - self._devices.taken.get(resource, set())

    def _shuffled(self, ids: Collection[str]) -> tuple[str, ...]:
        return tuple(self._rng.sample(sorted(ids), len(ids)))


def _require(endpoint: Endpoint | None, missing: str) -> Endpoint:
    if endpoint is None:
        raise PluginError(missing)
    return endpoint
