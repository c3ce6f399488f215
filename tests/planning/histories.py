"""One node for random histories: the real planning functions between a model of the kubelet and of the hardware.

Pods, streams, answers, edits, losses and restarts come in any order and at any time. ``check`` follows every step.
"""

from __future__ import annotations

import msgspec

from nvdp.config.schema import Config, Devices, SharedResource, Sharing, TimeSlicing
from nvdp.model.duration import build_duration
from nvdp.model.health import Ailment
from nvdp.model.held import Held, Source
from nvdp.model.inventory import Driver, Gpu, Inventory
from nvdp.model.listing import ResourceList
from nvdp.model.names import ResourceName
from nvdp.model.reasons import Cause
from nvdp.model.replica import parse_replica_id
from nvdp.planning.ledger import Given, give, note_taken, restore
from nvdp.planning.plan import Inputs, Plan, build_plan
from tests.planning.kubelet_model import Kubelet

UNHEALTHY_S, QUIET_S, REMOVE_AFTER_S = 5.0, 2.0, 12.0
MOST_TURNS = 8  # plans at one time; more would mean that planning does not come to rest


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
        devices=Devices(remove_after=build_duration(seconds=REMOVE_AFTER_S)),
        hash=f"sha256:{replicas}{rename}",
        name="test",
    )


class Node:
    """The node. All times are seconds of ``now``."""

    def __init__(self, *, gpus: int = 2, replicas: int = 1) -> None:
        self.now = 1000.0
        self.config = make_config(replicas)
        self.gpus = {uuid(number): make_gpu(number) for number in range(gpus)}
        self.ailments: dict[str, Ailment] = {}
        self.kubelet = Kubelet()
        self.unreadable_from: float | None = None
        self.held = Held(source=Source.POD_RESOURCES, requested_at=self.now)
        self.given: dict[str, Given] = {}
        self.names: frozenset[str] = frozenset()
        self.plan: Plan | None = None
        self.plans = 0
        self.turn()

    # -- the plugin -------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Plan and give out until nothing more can be done at once, as the supervisor does."""
        for _ in range(MOST_TURNS):
            inputs = self.build_inputs()
            self.plan = build_plan(inputs)
            self.plans += 1
            assert list(self.plan.lists) == sorted(self.plan.lists)
            if self.plans % 16 == 0:
                assert build_plan(_reorder(inputs)) == self.plan, "the plan depends on the order of a mapping"
            before = {resource: given.listed for resource, given in self.given.items()}
            self._give(self.plan)
            self._check_withdrawals(before)
            self._check_order(before)
            if self.plan.check_at is None or self.plan.check_at > self.now:
                return
        raise AssertionError("planning does not come to rest")

    def build_inputs(self) -> Inputs:
        return Inputs(
            config=self.config,
            inventory=Inventory(driver=Driver(version="1", cuda_version="1"), gpus=tuple(self.gpus.values())),
            ailments=self.ailments,
            held=self.held,
            given={
                resource: msgspec.structs.replace(given, allocations=self.kubelet.traces(resource))
                for resource, given in self.given.items()
            },
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
                if not self.kubelet.up:  # no stream is open
                    self.given[resource] = note_taken(self.given[resource], version=version, now=self.now)
        for resource in [resource for resource in self.given if resource not in plan.lists]:
            del self.given[resource]
            self.kubelet.lists.pop(resource, None)
        self.names |= set(plan.lists)

    def restart_plugin(self) -> None:
        """The process dies and another begins, with what pods hold; without anything to read it cannot know of them."""
        self.kubelet.lose_streams(self.now)
        self.kubelet.answered.clear()
        self.kubelet.unrecorded.clear()
        self.given.clear()
        self.plan = None
        self.held = self.kubelet.read_holders(self.now)
        if not self.kubelet.readable:
            self.kubelet.unknowable.update(self.kubelet.pods)
        self.given.update(restore(self.held, names=self.names, now=self.now))
        self.turn()

    # -- the kubelet ------------------------------------------------------------------------------------------------

    def take_lists(self) -> None:
        """The kubelet reads what is in its streams."""
        if self.kubelet.up:
            for resource, given in list(self.given.items()):
                self.kubelet.take(resource, given.listed, self.now)
                self.given[resource] = note_taken(given, version=given.version, now=self.now)
            self.turn()

    def begin_allocate(self, resource: str, number: int, size: int) -> None:
        """The kubelet picks devices that it believes free; the plugin looks at its newest list."""
        free = self.kubelet.find_free(resource)
        if len(free) < size or resource not in self.given:
            return
        chosen = [free[(number + step) % len(free)] for step in range(size)]
        listed = self.given[resource].listed.by_id
        if all(device_id in listed and listed[device_id].healthy for device_id in chosen):
            self.kubelet.begin(resource, chosen)  # otherwise it is refused: the pod fails, nothing is held

    def end_allocate(self, number: int) -> None:
        if self.kubelet.in_flight:
            self.kubelet.finish(number, self.now)
            self.turn()

    def answer_holders(self, *, late: bool) -> None:
        self.held = self.kubelet.answer_holders(self.held, self.now, late=late)
        self.turn()

    def set_readable(self, *, readable: bool) -> None:
        self.kubelet.readable = readable
        self._watch_sources()

    def set_kubelet_up(self, *, up: bool) -> None:
        """Stop or start it. While it is down no stream is open, and whatever is listed is offered by nobody."""
        if up == self.kubelet.up:
            return
        if up:
            self.kubelet.up = True
        else:
            self.kubelet.stop()
            self.held = msgspec.structs.replace(self.held, unreadable_since=None)
            for resource, given in list(self.given.items()):
                self.given[resource] = note_taken(given, version=given.version, now=self.now)
        self._watch_sources()
        self.turn()

    def _watch_sources(self) -> None:
        unreadable = self.kubelet.up and not self.kubelet.readable
        self.unreadable_from = (self.unreadable_from or self.now) if unreadable else None

    # -- time, hardware, edits --------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.kubelet.pass_time(self.now)
        self.turn()

    def edit(self, replicas: int, *, rename: bool) -> None:
        self.config = make_config(replicas, rename=rename)
        self.turn()

    def lose(self, number: int) -> None:
        if self.gpus:
            gone = list(self.gpus)[number % len(self.gpus)]
            self.ailments[gone] = Ailment(cause=Cause.VANISHED, text="gone", since=0.0)
            self.turn()

    def forget(self) -> None:
        """GPUs that vanished have been away for ``removeAfter``: the inventory is without them."""
        if len(self.ailments) < len(self.gpus):
            self.gpus = {gpu: facts for gpu, facts in self.gpus.items() if gpu not in self.ailments}
            self.ailments.clear()
            self.turn()

    def plug_in(self, number: int) -> None:
        self.gpus = dict(sorted({**self.gpus, uuid(number): make_gpu(number)}.items()))
        self.ailments.pop(uuid(number), None)
        self.turn()

    def find_again(self) -> None:
        self.ailments.clear()
        self.turn()

    def end_everything(self) -> None:
        """Pods end, the kubelet, its sources and all GPUs are there, and all is quiet for a while."""
        self.set_kubelet_up(up=True)
        self.set_readable(readable=True)
        self.find_again()
        while self.kubelet.in_flight:
            self.end_allocate(0)
        while self.kubelet.pods:
            self.kubelet.end_pod(0)
        for _ in range(6):
            self.take_lists()
            self.pass_time(3.0)
            self.kubelet.request_holders(self.now)
            self.answer_holders(late=False)
        self.take_lists()

    # -- what must hold ---------------------------------------------------------------------------------------------

    def _check_withdrawals(self, before: dict[str, ResourceList]) -> None:
        """What a list lost was Unhealthy for 5 s, quiet for 2 s, and free: or nobody could be asked for long enough."""
        kubelet = self.kubelet
        holders = {key: pod for pod, grant in kubelet.pods.items() for key in grant.keys}
        flying = {key for call in kubelet.in_flight for key in call.keys}
        for resource, listed in before.items():
            now_listed = self.given[resource].listed.by_id if resource in self.given else {}
            for device_id in listed.by_id.keys() - now_listed.keys():
                key = (resource, device_id)
                assert key not in flying, f"{device_id} left during its Allocate"
                assert self.now - kubelet.answered.get(key, float("-inf")) >= QUIET_S
                if resource in kubelet.lists and device_id in kubelet.lists[resource].by_id:
                    since = kubelet.unhealthy_since.get(key)
                    assert since is not None, f"{device_id} left while the kubelet believes it Healthy"
                    assert self.now - since >= UNHEALTHY_S
                pod = holders.get(key)
                if pod is not None and pod not in kubelet.unknowable:
                    assert self.unreadable_from is not None, f"{device_id} left while {pod} holds it"
                    assert self.now - self.unreadable_from >= REMOVE_AFTER_S
                    kubelet.given_up.add(pod)
                    if listed.by_id[device_id].gpu_uuid not in self.gpus:
                        kubelet.unknowable.add(pod)

    def _check_order(self, before: dict[str, ResourceList]) -> None:
        """What is on offer before and after is so in the same order."""
        for resource, listed in before.items():
            if resource in self.given:
                now_healthy = {device.id for device in self.given[resource].listed.devices if device.healthy}
                stayed = [device.id for device in listed.devices if device.healthy and device.id in now_healthy]
                known = set(stayed)
                assert [device.id for device in self.given[resource].listed.devices if device.id in known] == stayed

    def check(self) -> None:
        """One GPU, one promise; what is on offer is offered in the form in which it is held; held IDs are listed."""
        promised: dict[str, set[tuple[str, bool]]] = {}
        for grant in (*self.kubelet.pods.values(), *self.kubelet.in_flight):
            if grant.pod not in self.kubelet.unknowable:
                listed = self.given[grant.resource].listed.by_id if grant.resource in self.given else {}
                for device_id in grant.device_ids:
                    assert device_id in listed or grant.pod in self.kubelet.given_up, (
                        f"{device_id} is missing from the list while {grant.pod} holds it"
                    )
                    _note_form(promised, grant.resource, device_id)
        for gpu, forms in promised.items():
            assert len(forms) == 1, f"{gpu} is promised twice: {forms}"
        for resource, given in self.given.items():
            assert len(given.listed.by_id) == len(given.listed.devices)
            for device in given.listed.devices:
                if device.healthy:
                    _note_form(promised, resource, device.id)
        for gpu, forms in promised.items():
            assert len(forms) == 1, f"{gpu} is offered in another form than it is held: {forms}"

    def check_settled(self) -> None:
        """Once all is quiet and no pod runs, exactly what the file says is offered, and nothing else is listed."""
        time_slicing = self.config.sharing.time_slicing
        assert time_slicing is not None
        replicas = time_slicing.resources[0].replicas
        name = "nvidia.com/gpu.shared" if replicas > 1 and time_slicing.rename_by_default else "nvidia.com/gpu"
        assert self.plan is not None
        assert not self.plan.waiting
        assert set(self.given) == {name}
        listed = self.given[name].listed
        assert all(device.healthy for device in listed.devices)
        counts = [sum(device.gpu_uuid == gpu for device in listed.devices) for gpu in self.gpus]
        assert counts == [replicas] * len(self.gpus)
        assert len(listed.devices) == sum(counts)


def _note_form(forms: dict[str, set[tuple[str, bool]]], resource: str, device_id: str) -> None:
    replica = parse_replica_id(device_id)
    assert replica is not None
    forms.setdefault(replica.device, set()).add((resource, replica.number is not None))


def _reorder(inputs: Inputs) -> Inputs:
    """The same inputs, every mapping and every set of equals in another order."""
    return msgspec.structs.replace(
        inputs,
        given=dict(reversed(inputs.given.items())),
        ailments=dict(reversed(inputs.ailments.items())),
        inventory=msgspec.structs.replace(inputs.inventory, gpus=tuple(reversed(inputs.inventory.gpus))),
        held=msgspec.structs.replace(inputs.held, holdings=tuple(reversed(inputs.held.holdings))),
    )
