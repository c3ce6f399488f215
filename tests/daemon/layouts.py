"""How the cards of a machine are cut into MIG devices, and cut otherwise while the daemon runs: for either library."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from nvdp.simulate.kubelet import Kubelet, Pod
from tests.daemon.compiled import CompiledMachine
from tests.daemon.node import GPU, Machine, build_config, gpu_uuid
from tests.daemon.process import LIMIT_S

MOST = 7  # MIG devices of a card
SHORTEST_S = 3.0  # that an ID is Unhealthy before it leaves: 5, but lists may reach a busy kubelet late
Finder: TypeAlias = Callable[[Kubelet], dict[str, set[str]]]

A100S = {"models": ["a100-sxm4-80gb"] * 4}


def build_mig(strategy: str = "mixed", **blocks: Any) -> dict[str, Any]:
    """A configuration with this ``flags.migStrategy``."""
    flags = {"migStrategy": strategy, **blocks.pop("flags", {})}
    return build_config(flags=flags, **blocks)


def name_resource(profile: str) -> str:
    """What MIG devices of a profile are under ``mixed``."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


class Slice(NamedTuple):
    """A MIG device of a card."""

    card: int
    uuid: str
    profile: str
    gpu_instance: int


class Layouts:
    """The MIG devices of each card by NVML's index; None where MIG mode is off. Each change is one rename.

    As the driver does, a new device takes the first free index and the first free number of a GPU instance, and has a
    UUID that no other ever had. ``slices`` are all that there ever were.
    """

    def __init__(self, machine: Machine | CompiledMachine) -> None:
        self._machine = machine
        self.cards: list[dict[int, Slice] | None] = [None for _ in machine.uuids]
        self.slices: dict[str, Slice] = {}
        self._pending: dict[int, bool] = {}

    def cut(self, card: int, *profiles: str) -> list[str]:
        """MIG mode with these devices and no others; their UUIDs."""
        self.cards[card] = {}
        made = [self._make(card, profile) for profile in profiles]
        self._write()
        return made

    def uncut(self, card: int) -> None:
        """MIG mode off."""
        self.cards[card] = None
        self._write()

    def make(self, card: int, profile: str) -> str:
        """One device more; its UUID."""
        made = self._make(card, profile)
        self._write()
        return made

    def destroy(self, *uuids: str) -> None:
        for uuid in uuids:
            parts = self._of(self.slices[uuid].card)
            del parts[self.find_index(uuid)]
        self._write()

    def expect_mode(self, card: int, *, on: bool) -> None:
        """MIG mode as it will be after a reset of the card."""
        self._pending[card] = on
        self._write()

    def find_index(self, uuid: str) -> int:
        return next(index for index, part in self._of(self.slices[uuid].card).items() if part.uuid == uuid)

    def build_offers(self) -> dict[str, set[str]]:
        """What ``mixed`` offers on a node where nobody holds anything: UUIDs by resource."""
        offers: dict[str, set[str]] = {}
        for card, parts in enumerate(self.cards):
            if parts is None:
                offers.setdefault(GPU, set()).add(gpu_uuid(card))
            for part in (parts or {}).values():
                if "c." not in part.profile:
                    offers.setdefault(name_resource(part.profile), set()).add(part.uuid)
        return offers

    def find_rivals(self, uuid: str) -> Iterator[str]:
        """What must not be on offer while a pod holds this: its card as a whole, or all parts that there ever were."""
        if uuid in self.slices:
            yield gpu_uuid(self.slices[uuid].card)
        else:
            yield from (part.uuid for part in self.slices.values() if gpu_uuid(part.card) == uuid)

    def _of(self, card: int) -> dict[int, Slice]:
        parts = self.cards[card]
        assert parts is not None, f"card {card} is not in MIG mode"
        return parts

    def _make(self, card: int, profile: str) -> str:
        parts = self._of(card)
        index = next(index for index in range(MOST) if index not in parts)
        taken = {part.gpu_instance for part in parts.values()}
        number = next(number for number in range(1, MOST + 2) if number not in taken)
        uuid = f"MIG-{card:08d}-0000-4000-8000-{len(self.slices):012d}"
        parts[index] = self.slices[uuid] = Slice(card, uuid, profile, number)
        return uuid

    def _write(self) -> None:
        self._machine.change(layouts=[self._describe(card) for card in range(len(self.cards))])

    def _describe(self, card: int) -> dict[str, Any]:
        parts = self.cards[card]
        described: dict[str, Any] = {"gpu": card, "mig": "disabled" if parts is None else "enabled"}
        if card in self._pending:
            described["migPending"] = "enabled" if self._pending[card] else "disabled"
        if parts:
            instances = (parts.get(index) for index in range(max(parts) + 1))
            described["instances"] = [None if part is None else _describe_slice(part) for part in instances]
        return described


class Hold(NamedTuple):
    """A pod that has a device. Times are monotonic; ``until`` is infinity while it runs."""

    pod: Pod
    resource: str
    device: str
    since: float
    until: float = float("inf")


def find_resources(kubelet: Kubelet) -> list[str]:
    """All that were ever registered."""
    return sorted({found.resource for found in kubelet.registrations})


def find_offers(kubelet: Kubelet, health: frozenset[str] = frozenset({"Healthy"})) -> dict[str, set[str]]:
    """What the kubelet may give to pods now: IDs by resource."""
    found = {
        name: {device for device, state in kubelet.devices(name).items() if state.health in health}
        for name in find_resources(kubelet)
    }
    return {name: ids for name, ids in found.items() if ids}


def find_listed(kubelet: Kubelet) -> dict[str, set[str]]:
    """What is listed, Healthy or not."""
    return find_offers(kubelet, frozenset({"Healthy", "Unhealthy"}))


def wait_offers(
    kubelet: Kubelet, wanted: Mapping[str, set[str]], *, perhaps: Collection[str] = (), find: Finder = find_offers
) -> None:
    """Wait until the kubelet has this and nothing else, ``perhaps`` without these; an error shows what differs."""

    def is_there() -> bool:
        found = find(kubelet)
        return all(
            found.get(name, set()) <= wanted.get(name, set()) <= found.get(name, set()).union(perhaps)
            for name in found.keys() | wanted.keys()
        )

    try:
        kubelet.wait_until(is_there, LIMIT_S)
    except TimeoutError as error:
        found = find(kubelet)
        wrong = {
            name: (sorted(found.get(name, ())), sorted(wanted.get(name, ())))
            for name in sorted(found.keys() | wanted.keys())
            if found.get(name) != wanted.get(name)
        }
        raise AssertionError(f"by resource, what is there and what is wanted: {wrong}") from error


def hold(kubelet: Kubelet, name: str, resource: str) -> Hold:
    """A pod of this name gets one device of the resource."""
    pod = kubelet.admit(f"team/{name}", {"main": {resource: 1}})
    (device,) = pod.ids(resource)
    return Hold(pod, resource, device, time.monotonic())


def check_promises(kubelet: Kubelet, layouts: Layouts, holds: list[Hold]) -> None:
    """No list was ever without an ID held then, and none offered a card whole while a pod held a part, or reversed."""
    for resource in find_resources(kubelet):
        for message in kubelet.messages(resource):
            present = [one for one in holds if one.since <= message.at < one.until]
            missing = {one.device for one in present if one.resource == resource} - set(message.ids)
            assert not missing, f"{missing} left {resource} at {message.at:.3f} though pods hold them"
            rivals = {rival for one in present for rival in layouts.find_rivals(one.device)}
            twice = rivals.intersection(message.healthy)
            assert not twice, f"{twice} of {resource} were on offer at {message.at:.3f}; held then: {present}"


def check_streams(kubelet: Kubelet) -> None:
    """A resource got a new stream only after an empty list had ended the one before, and no list came twice.

    An ID that left had been Unhealthy for long.
    """
    for resource in find_resources(kubelet):
        unhealthy_since: dict[str, float] = {}
        for before, after in itertools.pairwise(kubelet.messages(resource)):
            if before.stream != after.stream:
                assert not before.devices, f"{resource} lost its stream at {after.at:.3f}"
            else:
                assert before.devices != after.devices, f"{resource} was sent anew at {after.at:.3f}"
            unhealthy = set(before.ids) - set(before.healthy)
            unhealthy_since = {device: unhealthy_since.get(device, before.at) for device in unhealthy}
            for device in set(before.ids) - set(after.ids):
                left_after_s = after.at - unhealthy_since.get(device, after.at)
                assert left_after_s > SHORTEST_S, f"{device} left {resource} at {after.at:.3f}: {left_after_s:.3f} s"


def _describe_slice(part: Slice) -> dict[str, Any]:
    return {"profile": part.profile, "uuid": part.uuid, "gpuInstance": part.gpu_instance}
