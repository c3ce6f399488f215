"""References by index, tied to the GPUs that had these indices when the configuration was applied.

NVML renumbers when a card is lost or added; a reference must not move to the neighbour then. Pins outlive restarts
and reboots, and stay until the entry changes: a pin belongs to a list of the file and to an index, so that other
entries may come and go before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from nvdp.config.schema import Config
from nvdp.model.deviceref import DeviceRef, RefKind
from nvdp.model.health import Ailment
from nvdp.model.inventory import Gpu
from nvdp.model.reasons import Cause
from nvdp.planning.entries import list_entries

_BY_INDEX = frozenset({RefKind.INDEX, RefKind.MIG_INDEX})
_OF_MIG = frozenset({RefKind.MIG_UUID, RefKind.MIG_INDEX})


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
    def key(self) -> str:
        """What its pin is kept under."""
        return f"{self.of}={self.ref}"

    def matches(self, gpu: Gpu, pins: Mapping[str, str]) -> bool:
        """Whether it concerns this GPU, itself or one of its MIG devices."""
        if self.ref.kind in _BY_INDEX:
            return pins.get(self.key) == gpu.uuid
        return self.ref.gpu_uuid == gpu.uuid or self.ref.matches(gpu_uuid=gpu.uuid, pci=gpu.pci, index=gpu.index)


def refer(path: str, refs: Sequence[DeviceRef], *, of: str) -> Iterator[Reference]:
    """The references of one list."""
    return (Reference(f"{path}[{number}]", ref, of) for number, ref in enumerate(refs))


def list_references(config: Config) -> Iterator[Reference]:
    """Every device reference of the file, in the file's order of blocks."""
    yield from refer("devices.exclude", config.devices.exclude, of="devices.exclude")
    yield from refer("devices.cordon", config.devices.cordon, of="devices.cordon")
    for entry in list_entries(config):
        yield from refer(f"{entry.path}.devices", entry.setting.devices.refs, of=entry.identity)


def pin_indices(
    config: Config, gpus: Sequence[Gpu], ailments: Mapping[str, Ailment], before: Mapping[str, str]
) -> dict[str, str]:
    """The UUID behind each reference by index. What was pinned before stays pinned.

    A GPU that vanished has no index any more: the one it is shown with may be another's now.
    """
    by_index = {str(gpu.index): gpu.uuid for gpu in gpus if not _is_gone(ailments.get(gpu.uuid))}
    pins = {}
    for reference in list_references(config):
        if reference.ref.kind in _BY_INDEX:
            uuid = before.get(reference.key) or by_index.get(_index(reference.ref))
            if uuid is not None:
                pins[reference.key] = uuid
    return pins


def find_unmatched(config: Config, gpus: Sequence[Gpu], pins: Mapping[str, str]) -> Iterator[str]:
    """A sentence about every reference that names nothing on this node. MIG devices are not looked up."""
    for reference in list_references(config):
        if reference.is_mig or any(reference.matches(gpu, pins) for gpu in gpus):
            continue
        pinned = pins.get(reference.key)
        if pinned is None:
            yield f"{reference.path}: {reference.ref} is not on this node (fine if other nodes share this file)"
        else:
            yield (
                f"{reference.path}: {reference.ref} was {pinned}, which is not on this node any more; "
                "it is not replaced by its neighbour, change the entry to choose another"
            )


def _index(ref: DeviceRef) -> str:
    """The GPU's index, also of a MIG device's ``GPU:INSTANCE``."""
    return ref.text.partition(":")[0]


def _is_gone(ailment: Ailment | None) -> bool:
    return ailment is not None and ailment.cause is Cause.VANISHED
