"""A model of one node for random histories: what the kubelet has promised, against what plans give out.

It drives the real planning functions with a clock of its own; pods, streams, answers and restarts come in any order
and at any time. ``check`` is called after every step.
"""

from __future__ import annotations

import dataclasses

import msgspec

from nvdp.config.schema import Config, SharedResource, Sharing, TimeSlicing
from nvdp.model.health import Ailment
from nvdp.model.held import Held, Holding, Source
from nvdp.model.inventory import Driver, Gpu, Inventory
from nvdp.model.listing import AllocateTrace, ResourceList
from nvdp.model.names import ResourceName
from nvdp.model.reasons import Cause
from nvdp.model.replica import parse_replica_id
from nvdp.planning.ledger import Given, give, note_taken, restore
from nvdp.planning.plan import Inputs, Plan, build_plan

UNHEALTHY_S, QUIET_S = 5.0, 2.0


def uuid(number: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


def make_gpu(number: int) -> Gpu:
    return Gpu(uuid=uuid(number), index=number, pci=f"0000:{number + 16:02x}:00.0", minor=number, product="NVIDIA A10")


def make_config(replicas: int, *, rename: bool = False) -> Config:
    entry = SharedResource(
        name=ResourceName("nvidia.com/gpu"), replicas=replicas, path="sharing.timeSlicing.resources[0]", line=1
    )
    return Config(
        sharing=Sharing(time_slicing=TimeSlicing(rename_by_default=rename, resources=(entry,))),
        hash=f"sha256:{replicas}{rename}",
        name="test",
    )


@dataclasses.dataclass
class Call:
    """An Allocate on its way: ``refused`` is known once the plugin has looked at its list."""

    resource: str
    device_id: str
    pod: str


class Node:
    """The node. All times are seconds of ``now``."""

    def __init__(self, *, gpus: int = 2, replicas: int = 1) -> None:
        self.now = 1000.0
        self.config = make_config(replicas)
        self.gpus = {uuid(number): make_gpu(number) for number in range(gpus)}
        self.ailments: dict[str, Ailment] = {}
        self.pods: dict[str, tuple[str, str]] = {}
        self.unrecorded: dict[str, float] = {}
        self.next_pod = 0
        self.in_flight: list[Call] = []
        self.answered: dict[tuple[str, str], float] = {}
        self.kubelet: dict[str, ResourceList] = {}
        self.kubelet_unhealthy_since: dict[tuple[str, str], float] = {}
        self.kubelet_up = True
        self.held = Held(source=Source.POD_RESOURCES, requested_at=self.now)
        self.given: dict[str, Given] = {}
        self.names: frozenset[str] = frozenset()
        self.plan: Plan | None = None
        self.turn()

    # -- the plugin -------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Plan and give out until nothing more can be done at once, as the supervisor does."""
        for _ in range(8):
            plan = build_plan(self._inputs())
            before = {resource: given.listed for resource, given in self.given.items()}
            self._give(plan)
            self._check_withdrawals(before)
            self.plan = plan
            if plan.check_at is None or plan.check_at > self.now:
                return
        raise AssertionError("planning does not come to rest")

    def _inputs(self) -> Inputs:
        given = {}
        for resource, record in self.given.items():
            traces = {}
            for (name, device_id), at in self.answered.items():
                if name == resource:
                    traces[device_id] = AllocateTrace(0, at)
            for call in self.in_flight:
                if call.resource == resource:
                    traces[call.device_id] = AllocateTrace(1, self.answered.get((resource, call.device_id)))
            given[resource] = msgspec.structs.replace(record, allocations=traces)
        return Inputs(
            config=self.config,
            inventory=Inventory(driver=Driver(version="1", cuda_version="1"), gpus=tuple(self.gpus.values())),
            ailments=self.ailments,
            held=self.held,
            given=given,
            names=self.names,
            pins={},
            control_nodes=(),
            now=self.now,
        )

    def _give(self, plan: Plan) -> None:
        for resource, listed in plan.lists.items():
            before = self.given.get(resource)
            if before is None or before.listed != listed:
                version = before.version + 1 if before is not None else 1
                self.given[resource] = give(before, listed, version=version, now=self.now)
        for resource in [resource for resource in self.given if resource not in plan.lists]:
            del self.given[resource]
            self.kubelet.pop(resource, None)
        self.names |= set(plan.lists)

    # -- the kubelet ------------------------------------------------------------------------------------------------

    def take_lists(self) -> None:
        """The kubelet reads what is in its streams."""
        for resource, given in list(self.given.items()):
            known = {device.id: device for device in self.kubelet[resource].devices} if resource in self.kubelet else {}
            listed = {device.id: device for device in given.listed.devices}
            for device_id in known.keys() - listed.keys():
                assert not any(call.resource == resource and call.device_id == device_id for call in self.in_flight), (
                    f"the kubelet crashes: {device_id} left during its Allocate"
                )
            for device in given.listed.devices:
                key = (resource, device.id)
                if device.healthy:
                    self.kubelet_unhealthy_since.pop(key, None)
                else:
                    self.kubelet_unhealthy_since.setdefault(key, self.now)
            self.kubelet[resource] = given.listed
            self.given[resource] = note_taken(given, version=given.version, now=self.now)
        self.turn()

    def begin_allocate(self, resource: str, number: int) -> None:
        """The kubelet picks a device that it believes free and Healthy; the plugin looks at its newest list."""
        listed = self.kubelet.get(resource)
        if listed is None or not self.kubelet_up or resource not in self.given:
            return
        used = {device_id for name, device_id in self.pods.values() if name == resource}
        used |= {call.device_id for call in self.in_flight}
        free = [device.id for device in listed.devices if device.healthy and device.id not in used]
        if not free:
            return
        device_id = free[number % len(free)]
        current = self.given[resource].listed.by_id.get(device_id)
        if current is None or not current.healthy:
            return  # refused: the pod fails, nothing is held
        pod = f"pod-{self.next_pod}"
        self.next_pod += 1
        self.in_flight.append(Call(resource, device_id, pod))

    def end_allocate(self, number: int) -> None:
        """The plugin answers; the kubelet notes the holder at once or a moment later, but within 2 s."""
        if self.in_flight:
            call = self.in_flight.pop(number % len(self.in_flight))
            self.answered[call.resource, call.device_id] = self.now
            self.pods[call.pod] = (call.resource, call.device_id)
            self.unrecorded[call.pod] = self.now
            self.turn()

    def record(self) -> None:
        """The kubelet has written down who holds what."""
        self.unrecorded.clear()

    def end_pod(self, number: int) -> None:
        if self.pods:
            ended = sorted(self.pods)[number % len(self.pods)]
            del self.pods[ended]
            self.unrecorded.pop(ended, None)

    def answer_holders(self) -> None:
        """An answer of PodResources, requested now and true now."""
        if self.kubelet_up:
            self.held = self._answer()
            self.turn()

    def _answer(self) -> Held:
        holdings = sorted(
            Holding(resource=resource, device_id=device_id, namespace="team", pod=pod, container="main")
            for pod, (resource, device_id) in self.pods.items()
            if pod not in self.unrecorded
        )
        return Held(source=Source.POD_RESOURCES, requested_at=self.now, holdings=tuple(holdings))

    def restart_plugin(self) -> None:
        """The process dies and another begins: Allocate calls fail, lists are given out from what pods hold."""
        self.in_flight.clear()
        self.answered.clear()
        self.given.clear()
        for resource, listed in self.kubelet.items():  # its streams end: to the kubelet everything is Unhealthy
            for device in listed.devices:
                self.kubelet_unhealthy_since.setdefault((resource, device.id), self.now)
        self.plan = None
        self.record()
        self.held = self._answer() if self.kubelet_up else Held()
        self.given.update(restore(self.held, names=self.names, now=self.now))
        self.turn()

    # -- time, hardware, edits --------------------------------------------------------------------------------------

    def edit(self, replicas: int, *, rename: bool) -> None:
        self.config = make_config(replicas, rename=rename)
        self.turn()

    def lose(self, number: int) -> None:
        gpu = uuid(number % len(self.gpus))
        self.ailments[gpu] = Ailment(cause=Cause.VANISHED, text="gone", since=0.0)
        self.turn()

    def find_again(self) -> None:
        self.ailments.clear()
        self.turn()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for pod, answered_at in list(self.unrecorded.items()):
            if self.now - answered_at >= QUIET_S:
                del self.unrecorded[pod]
        self.turn()

    def set_kubelet_up(self, *, up: bool) -> None:
        self.kubelet_up = up

    def end_everything(self) -> None:
        """Pods end, the kubelet and all GPUs are there, and all is quiet for a while."""
        self.kubelet_up = True
        while self.in_flight:
            self.end_allocate(0)
        self.pods.clear()
        self.unrecorded.clear()
        self.find_again()
        for _ in range(6):
            self.take_lists()
            self.pass_time(3.0)
            self.answer_holders()
        self.take_lists()

    # -- what must hold ---------------------------------------------------------------------------------------------

    def _check_withdrawals(self, before: dict[str, ResourceList]) -> None:
        held = set(self.pods.values())
        for resource, listed in before.items():
            now_listed = self.given[resource].listed.by_id if resource in self.given else {}
            for device_id in listed.by_id.keys() - now_listed.keys():
                key = (resource, device_id)
                assert key not in held, f"{device_id} left while a pod holds it"
                assert not any((call.resource, call.device_id) == key for call in self.in_flight)
                assert self.now - self.answered.get(key, float("-inf")) >= QUIET_S
                since = self.kubelet_unhealthy_since.get(key)
                if resource in self.kubelet and device_id in self.kubelet[resource].by_id:
                    assert since is not None, f"{device_id} left while the kubelet believes it Healthy"
                    assert self.now - since >= UNHEALTHY_S

    def check(self) -> None:
        """One GPU, one promise; unique IDs; held IDs are listed."""
        forms: dict[str, set[tuple[str, bool]]] = {}
        for resource, device_id in self.pods.values():
            replica = parse_replica_id(device_id)
            assert replica is not None
            forms.setdefault(replica.device, set()).add((resource, replica.number is not None))
        for gpu, held_as in forms.items():
            assert len(held_as) == 1, f"{gpu} is promised twice: {held_as}"
        offered: dict[str, set[tuple[str, bool]]] = {}
        seen: set[tuple[str, str]] = set()
        for resource, given in self.given.items():
            assert len(given.listed.by_id) == len(given.listed.devices)
            for device in given.listed.devices:
                assert (resource, device.id) not in seen
                seen.add((resource, device.id))
                if device.healthy:
                    replica = parse_replica_id(device.id)
                    assert replica is not None
                    offered.setdefault(replica.device, set()).add((resource, replica.number is not None))
        for gpu, offered_as in offered.items():
            assert len(offered_as) == 1, f"{gpu} is offered twice: {offered_as}"

    def check_settled(self) -> None:
        """Once all is quiet and no pod runs, exactly what the file says is offered, and nothing else is listed."""
        replicas = self.config.sharing.time_slicing.resources[0].replicas
        shared = replicas > 1
        renamed = shared and self.config.sharing.time_slicing.rename_by_default
        name = "nvidia.com/gpu.shared" if renamed else "nvidia.com/gpu"
        listed = {resource: given.listed for resource, given in self.given.items() if given.listed.devices}
        assert set(listed) == {name}
        assert len(listed[name].devices) == replicas * len(self.gpus)
        assert all(device.healthy for device in listed[name].devices)
