"""References by index, tied to the GPUs that had these indices when the configuration was applied.

NVML renumbers when a card is lost or added; a reference must not move to the neighbour then. Pins outlive restarts
and reboots, and stay until the entry changes: a pin belongs to a list of the file and an index, so that other entries
may come and go before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nvdp.config.schema import Config
from nvdp.model.deviceref import DeviceRef, RefKind
from nvdp.model.health import Ailment
from nvdp.model.inventory import Gpu
from nvdp.model.reasons import Cause

_BY_INDEX = frozenset({RefKind.INDEX, RefKind.MIG_INDEX})


def references(config: Config) -> Iterator[tuple[str, DeviceRef]]:
    """Every device reference of the file with its path, in the file's order of blocks."""
    for key, refs in (("exclude", config.devices.exclude), ("cordon", config.devices.cordon)):
        yield from ((f"devices.{key}[{number}]", ref) for number, ref in enumerate(refs))
    for block in (config.sharing.time_slicing, config.sharing.mps):
        for entry in block.resources if block is not None else ():
            yield from ((f"{entry.path}.devices[{number}]", ref) for number, ref in enumerate(entry.devices.refs))


def resolve_pins(
    config: Config, gpus: Sequence[Gpu], ailments: Mapping[str, Ailment], before: Mapping[str, str]
) -> dict[str, str]:
    """The UUID behind each reference by index, by ``list=index``. What was pinned before stays pinned.

    A GPU that vanished has no index any more: the one it is shown with may be another's now.
    """
    by_index = {str(gpu.index): gpu.uuid for gpu in gpus if not _is_gone(ailments.get(gpu.uuid))}
    pins = {}
    for path, ref in references(config):
        if ref.kind in _BY_INDEX:
            key = _key(path, ref)
            uuid = before.get(key) or by_index.get(_index(ref))
            if uuid is not None:
                pins[key] = uuid
    return pins


def matches(path: str, ref: DeviceRef, gpu: Gpu, pins: Mapping[str, str]) -> bool:
    """Whether the reference at ``path`` concerns this GPU, itself or one of its MIG devices."""
    if ref.kind in _BY_INDEX:
        return pins.get(_key(path, ref)) == gpu.uuid
    return ref.gpu_uuid == gpu.uuid or ref.matches(gpu_uuid=gpu.uuid, pci=gpu.pci, index=gpu.index)


def find_unmatched(config: Config, gpus: Sequence[Gpu], pins: Mapping[str, str]) -> tuple[str, ...]:
    """``path: value`` of every reference that names nothing on this node. MIG devices are not looked up."""
    return tuple(
        f"{path}: {ref}"
        for path, ref in references(config)
        if ref.kind not in (RefKind.MIG_UUID, RefKind.MIG_INDEX)
        and not any(matches(path, ref, gpu, pins) for gpu in gpus)
    )


def _key(path: str, ref: DeviceRef) -> str:
    return f"{path.rpartition('[')[0]}={ref.text}"


def _index(ref: DeviceRef) -> str:
    """The GPU's index, also of a MIG device's ``GPU:INSTANCE``."""
    return ref.text.partition(":")[0]


def _is_gone(ailment: Ailment | None) -> bool:
    return ailment is not None and ailment.cause is Cause.VANISHED
