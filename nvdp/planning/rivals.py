"""Whose IDs stand in the way of offering a device: its own in another form, and those of what it is a part of. Pure.

A GPU is promised as a whole or in MIG devices, never in both ways at once: while a pod has the whole GPU its MIG
devices take no pods, and the other way round, also for MIG devices that are not there any more (invariant 4). The one
device of WSL2 or Tegra is all GPUs: it is promised only while no other is, should they ever be found in both ways.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from nvdp.model.inventory import Gpu
from nvdp.model.platforms import ALL_THERE_IS
from nvdp.planning.assignment import Form
from nvdp.planning.devices import Device, list_instances

_LEGACY = "MIG-GPU-"
_MOST_GONE = 256  # MIG devices that are gone and of which there is no ID: their GPUs are remembered all the same

Known: TypeAlias = Mapping[str, Mapping[Form, Sequence[str]]]
"""All IDs that the kubelet may know, by device and form (``ledger.find_known``)."""


def find_parents(gpus: Iterable[Gpu], known: Collection[str], before: Mapping[str, str]) -> dict[str, str]:
    """The GPU of each MIG device that there is, or that is ``known`` by its UUID; as far as anything tells.

    What is known from ``before`` is kept: of what has an ID, and of the last others, since who holds them may come to
    light only later. Without that only an old UUID tells.
    """
    here = {instance.uuid: gpu.uuid for gpu in gpus for instance in list_instances(gpu)}
    told = {uuid: parent for uuid in sorted(known) if (parent := _parse_parent(uuid)) is not None}
    spare = [uuid for uuid in before if uuid not in here and uuid not in known]
    dropped = set(spare[: max(0, len(spare) - _MOST_GONE)])
    return told | {uuid: parent for uuid, parent in before.items() if uuid not in dropped} | here


class Rivals:
    """The IDs of one moment, and how they hang together."""

    def __init__(self, devices: Sequence[Device], known: Known, parents: Mapping[str, str]) -> None:
        self._known = known
        self._parents = parents
        self._gpus = {device.gpu.uuid for device in devices}
        self._parts: dict[str, list[str]] = {}
        for uuid in sorted(known.keys() & parents.keys()):
            self._parts.setdefault(parents[uuid], []).append(uuid)

    def find_own(self, device: Device, form: Form) -> Sequence[str]:
        """The IDs of the device in this form."""
        return self._known.get(device.uuid, {}).get(form, ())

    def find_foreign(self, device: Device, form: Form) -> Iterator[tuple[Form, Sequence[str]]]:
        """By form the IDs that must be free before the device may be offered in this one."""
        own = self._known.get(device.uuid, {})
        foreign = {old: list(own[old]) for old in sorted(own) if old != form}
        for uuid in self._list_others(device):
            forms = self._known.get(uuid, {})
            for old in sorted(forms):
                foreign.setdefault(old, []).extend(forms[old])
        yield from foreign.items()

    def _list_others(self, device: Device) -> Sequence[str]:
        """The devices that cannot be promised together with this one."""
        if device.is_all_there_is:
            return sorted(self._known.keys() - {device.uuid})
        others = [device.parent_uuid] if device.instance is not None else self._parts.get(device.uuid, ())
        return [*others, *(uuid for uuid in ALL_THERE_IS if uuid in self._known)]

    def are_on_node(self, uuid: str) -> bool:
        """Whether the GPU of this device is on the node, even if the device is not."""
        return self._parents.get(uuid, uuid) in self._gpus


def _parse_parent(uuid: str) -> str | None:
    """The GPU in an old UUID of a MIG device, ``MIG-GPU-…/3/0``."""
    if not uuid.startswith(_LEGACY):
        return None
    return uuid.removeprefix("MIG-").partition("/")[0]
