"""References by index, tied to the GPUs that had these indices when the configuration was applied.

NVML renumbers when a card is lost or added; a reference must not move to the neighbour then. Pins outlive restarts
and reboots, and stay until the entry changes: a pin belongs to a list of the file and to an index, so that other
entries may come and go before it.

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
from nvdp.model.inventory import Gpu, MigMode
from nvdp.model.reasons import Cause
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
    def index(self) -> str:
        """NVML's index of the GPU, also of a MIG device's ``GPU:INSTANCE``."""
        return self.ref.text.partition(":")[0]

    @property
    def key(self) -> str:
        """What its pin is kept under."""
        return f"{self.of}={self.ref}"

    def build_bar(self, uuid: str) -> str:
        """What is kept to tell that it cannot mean this GPU, which was there when no GPU had the index."""
        return f"{self.of}={self.index}{_BAR}{uuid}"

    def find_uuid(self, pins: Mapping[str, str]) -> str | None:
        """The GPU concerned, on this node or not, as far as text and pins tell it: a slot does not."""
        return pins.get(self.key) if self.is_by_index else self.ref.gpu_uuid

    def matches(self, gpu: Gpu, pins: Mapping[str, str]) -> bool:
        """Whether it concerns this GPU, itself or one of its MIG devices."""
        if self.find_uuid(pins) == gpu.uuid:
            return True
        return not self.is_by_index and self.ref.matches(gpu_uuid=gpu.uuid, pci=gpu.pci, index=gpu.index)

    def may_match(self, gpu: Gpu, pins: Mapping[str, str]) -> bool:
        """The same, where a MIG device's UUID, which does not tell its GPU, may be of any GPU in MIG mode."""
        if self.is_mig and not self.is_by_index and self.ref.gpu_uuid is None:
            return gpu.mig is MigMode.ENABLED
        return self.matches(gpu, pins)

    def introduce(self, gpu: Gpu) -> str:
        """The beginning of a sentence about a GPU that it names, so that it is found in the file and on the node."""
        return gpu.uuid if self.ref.text == gpu.uuid else f"{self.ref} is {gpu.uuid}, which"


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


def pin_indices(
    config: Config, gpus: Sequence[Gpu], ailments: Mapping[str, Ailment], before: Mapping[str, str]
) -> dict[str, str]:
    """The UUID behind each reference by index. What was pinned before stays pinned."""
    by_index = {str(gpu.index): gpu.uuid for gpu in find_present(gpus, ailments)}
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
        pinned, found = before.get(reference.key), by_index.get(reference.index)
        if pinned is None and found not in barred.values():
            pinned = found
        if pinned is not None:
            pins[reference.key] = pinned
        elif int(reference.index) < _MOST_GPUS:
            pins |= barred | {reference.build_bar(uuid): uuid for uuid in sorted({*by_index.values(), *counted})}
    return pins


def build_place(identity: str, place: int) -> str:
    """What one of the GPUs of an entry by count is kept under."""
    return f"{identity}[{place}]"


def list_pinned(identity: str, pins: Mapping[str, str]) -> list[str]:
    """The GPUs of an entry by count."""
    pinned: list[str] = []
    while (uuid := pins.get(build_place(identity, len(pinned)))) is not None:
        pinned.append(uuid)
    return pinned


def find_unmatched(config: Config, gpus: Sequence[Gpu], pins: Mapping[str, str]) -> Iterator[str]:
    """A sentence about every reference that names nothing on this node. MIG devices are not looked up."""
    for reference in list_references(config):
        if reference.is_mig or any(reference.matches(gpu, pins) for gpu in gpus):
            continue
        pinned = pins.get(reference.key)
        if pinned is not None:
            yield (
                f"{reference.path}: {reference.ref} was {pinned}, which is not on this node any more; "
                "it is not replaced by its neighbour, change the entry to choose another"
            )
        elif any(str(gpu.index) == reference.index and reference.build_bar(gpu.uuid) in pins for gpu in gpus):
            yield (
                f"{reference.path}: no GPU had index {reference.ref} when this was applied, and none that was there "
                "then is taken for it now; write a UUID or a slot"
            )
        else:
            yield f"{reference.path}: {reference.ref} is not on this node (fine if other nodes share this file)"
