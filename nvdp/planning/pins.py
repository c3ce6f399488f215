"""References by index, tied to the devices that had these indices when the configuration was applied.

NVML renumbers when a card is lost or added; a reference must not move to the neighbour then. Pins outlive restarts
and reboots, and stay until the entry changes: a pin belongs to a list of the file and to an index, so that other
entries may come and go before it. What is said of GPUs here goes for MIG devices too, by their own UUIDs.

An index that no GPU had is pinned once one comes that has it. To a GPU that has its place already, by having been there
or by a count, it is not, whatever index that has by then: this would take a card away from where it is. So for such a
reference the GPUs that it cannot mean are kept among the pins as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from nvdp.config.schema import Config
from nvdp.config.sharing import MpsResource
from nvdp.config.suggest import show_key
from nvdp.model.deviceref import DeviceRef, RefKind
from nvdp.model.health import Ailment
from nvdp.model.inventory import Gpu, MigInstance
from nvdp.model.reasons import Cause
from nvdp.planning.devices import Device, build_place, list_instances
from nvdp.planning.entries import Entry, list_entries

_BY_INDEX = frozenset({RefKind.INDEX, RefKind.MIG_INDEX})
_OF_MIG = frozenset({RefKind.MIG_UUID, RefKind.MIG_INDEX})
_BAR = "≠"
_MOST_GPUS = 255  # device nodes of a node end with /dev/nvidia254: nothing need be kept for an index beyond


class Reference(msgspec.Struct, frozen=True):
    """One reference of the file: where it stands, and the list to which a pin of it belongs."""

    path: str
    ref: DeviceRef
    of: str

    @property
    def is_mig(self) -> bool:
        """Whether it names a MIG device, not a whole GPU."""
        return self.ref.kind in _OF_MIG

    @property
    def is_by_index(self) -> bool:
        """Whether NVML's numbering decides what it names, and therefore a pin."""
        return self.ref.kind in _BY_INDEX

    @property
    def key(self) -> str:
        """What its pin is kept under."""
        return f"{self.of}={self.ref}"

    def build_bar(self, uuid: str) -> str:
        """What is kept to tell that it cannot mean this device, which was there when none had the index."""
        return f"{self.key}{_BAR}{uuid}"

    def find_uuid(self, pins: Mapping[str, str]) -> str | None:
        """The GPU or MIG device named, on this node or not, as far as text and pins tell it: a slot does not."""
        if self.is_by_index:
            return pins.get(self.key)
        return None if self.ref.kind is RefKind.PCI else self.ref.text

    def matches(self, device: Device, pins: Mapping[str, str]) -> bool:
        """Whether it names this device, or the GPU of this MIG device."""
        if self.is_mig:
            return device.instance is not None and self._names(device.gpu, device.instance, pins)
        if self.find_uuid(pins) == device.gpu.uuid:
            return True
        return self.ref.kind is RefKind.PCI and self.ref.text == device.pci

    def concerns(self, device: Device, pins: Mapping[str, str]) -> bool:
        """The same, or it names a MIG device of a GPU that is one device as a whole."""
        if self.is_mig and device.instance is None:
            return any(self._names(device.gpu, instance, pins) for instance in list_instances(device.gpu))
        return self.matches(device, pins)

    def _names(self, gpu: Gpu, instance: MigInstance, pins: Mapping[str, str]) -> bool:
        """An old UUID tells the driver's numbers, by which a newer driver knows the device as well."""
        if self.find_uuid(pins) == instance.uuid:
            return True
        return (
            self.ref.gpu_uuid == gpu.uuid
            and self.ref.text == f"MIG-{gpu.uuid}/{instance.gpu_instance}/{instance.compute_instance}"
        )

    def introduce(self, device: Device) -> str:
        """The beginning of a sentence about a device that it names, so that it is found in the file and on the node."""
        return device.uuid if self.ref.text == device.uuid else f"{self.ref} is {device.uuid}, which"


def refer(path: str, refs: Sequence[DeviceRef], *, of: str) -> Iterator[Reference]:
    """The references of one list."""
    return (Reference(f"{path}[{number}]", ref, of) for number, ref in enumerate(refs))


def list_devices(entry: Entry) -> tuple[Reference, ...]:
    """The references of an entry with a list."""
    return tuple(refer(f"{entry.path}.devices", entry.setting.devices.refs, of=entry.identity))


def list_limited(entry: Entry) -> tuple[Reference, ...]:
    """The references that an MPS entry has memory limits for; an index means the same card as in its list."""
    if not isinstance(entry.setting, MpsResource):
        return ()
    path, refs = f"{entry.path}.defaultPerDevicePinnedMemoryLimit", entry.setting.default_per_device_pinned_memory_limit
    return tuple(Reference(f"{path}.{show_key(str(ref))}", ref, entry.identity) for ref in refs)


def list_references(config: Config) -> Iterator[Reference]:
    """Every device reference of the file, in the file's order of blocks."""
    yield from refer("devices.exclude", config.devices.exclude, of="devices.exclude")
    yield from refer("devices.cordon", config.devices.cordon, of="devices.cordon")
    for entry in list_entries(config):
        yield from list_devices(entry)
        yield from list_limited(entry)


def find_present(gpus: Sequence[Gpu], ailments: Mapping[str, Ailment]) -> list[Gpu]:
    """The GPUs that NVML counts. One that vanished has no index: the one it is shown with may be another's now."""
    return [gpu for gpu in gpus if gpu.uuid not in ailments or ailments[gpu.uuid].cause is not Cause.VANISHED]


def list_places(gpus: Sequence[Gpu]) -> dict[str, str]:
    """What each index means now: UUIDs of GPUs, and of MIG devices, whatever is offered of both."""
    places = {str(gpu.index): gpu.uuid for gpu in gpus}
    return places | {build_place(gpu, one): one.uuid for gpu in gpus for one in list_instances(gpu)}


def pin_indices(
    config: Config, gpus: Sequence[Gpu], ailments: Mapping[str, Ailment], before: Mapping[str, str]
) -> dict[str, str]:
    """The UUID behind each reference by index. What was pinned before stays pinned."""
    places = list_places(find_present(gpus, ailments))
    counted = {uuid for entry in list_entries(config) for uuid in list_pinned(entry.identity, before)}
    bars: dict[str, dict[str, str]] = {}
    for key, uuid in before.items():
        start, mark, _ = key.rpartition(_BAR)
        if mark:
            bars.setdefault(start + mark, {})[key] = uuid
    pins: dict[str, str] = {}
    for reference in list_references(config):
        if not reference.is_by_index:
            continue
        barred = bars.get(reference.build_bar(""), {})
        if reference.is_mig:  # MIG devices that are gone are made anew under other names, again and again
            barred = {key: uuid for key, uuid in barred.items() if uuid in places.values() or uuid in counted}
        pinned, found = before.get(reference.key), places.get(reference.ref.text)
        if pinned is None and found not in barred.values():
            pinned = found
        if pinned is not None:
            pins[reference.key] = pinned
        elif int(reference.ref.text.partition(":")[0]) < _MOST_GPUS:
            alike = {uuid for place, uuid in places.items() if (":" in place) is reference.is_mig}
            pins |= barred | {reference.build_bar(uuid): uuid for uuid in sorted({*alike, *counted})}
    return pins


def build_slot(identity: str, place: int) -> str:
    """What one of the GPUs of an entry by count is kept under."""
    return f"{identity}[{place}]"


def list_pinned(identity: str, pins: Mapping[str, str]) -> list[str]:
    """The GPUs of an entry by count."""
    pinned: list[str] = []
    while (uuid := pins.get(build_slot(identity, len(pinned)))) is not None:
        pinned.append(uuid)
    return pinned


def find_unmatched(config: Config, devices: Sequence[Device], pins: Mapping[str, str]) -> Iterator[str]:
    """A sentence about every reference that names nothing on this node."""
    places = list_places([device.gpu for device in devices])
    for reference in list_references(config):
        if any(reference.concerns(device, pins) for device in devices):
            continue
        pinned, now = pins.get(reference.key), places.get(reference.ref.text)
        if any(device.is_all_there_is for device in devices):
            more = "; what it means is handed out all the same" if reference.of == "devices.exclude" else ""
            yield (
                f"{reference.path}: {reference.ref} names no device here: all GPUs of this system are one device, with "
                f"index 0{more} (fine if other nodes share this file)"
            )
        elif pinned is not None:
            yield (
                f"{reference.path}: {reference.ref} was {pinned}, which is not on this node any more; "
                "it is not replaced by its neighbour, change the entry to choose another"
            )
        elif now is not None and reference.build_bar(now) in pins:
            yield (
                f"{reference.path}: no {'MIG device' if reference.is_mig else 'GPU'} had index {reference.ref} when "
                "this was applied, and none that was there then is taken for it now; write a UUID or a slot"
            )
        else:
            yield f"{reference.path}: {reference.ref} is not on this node (fine if other nodes share this file)"
