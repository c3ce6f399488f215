"""References by index, tied to the GPUs that had these indices when the configuration was applied.

NVML renumbers when a card is lost or added; a reference must not move to the neighbour then. Pins outlive restarts
and reboots, and stay until the entry changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nvdp.config.schema import Config
from nvdp.model.deviceref import DeviceRef, RefKind
from nvdp.model.inventory import Gpu


def references(config: Config) -> Iterator[tuple[str, DeviceRef]]:
    """Every device reference of the file with its path, in the file's order of blocks."""
    for key, refs in (("exclude", config.devices.exclude), ("cordon", config.devices.cordon)):
        yield from ((f"devices.{key}[{number}]", ref) for number, ref in enumerate(refs))
    for block in (config.sharing.time_slicing, config.sharing.mps):
        for entry in block.resources if block is not None else ():
            yield from ((f"{entry.path}.devices[{number}]", ref) for number, ref in enumerate(entry.devices.refs))


def resolve_pins(config: Config, gpus: Sequence[Gpu], before: Mapping[str, str]) -> dict[str, str]:
    """The UUID behind each reference by index, by ``path=index``. What was pinned before stays pinned."""
    by_index = {str(gpu.index): gpu.uuid for gpu in gpus}
    pins = {}
    for path, ref in references(config):
        if ref.kind is not RefKind.INDEX:
            continue
        key = _key(path, ref)
        uuid = before.get(key) or by_index.get(ref.text)
        if uuid is not None:
            pins[key] = uuid
    return pins


def matches(path: str, ref: DeviceRef, gpu: Gpu, pins: Mapping[str, str]) -> bool:
    """Whether the reference at ``path`` concerns this GPU, itself or one of its MIG devices."""
    if ref.kind is RefKind.INDEX:
        return pins.get(_key(path, ref)) == gpu.uuid
    if ref.kind is RefKind.MIG_INDEX:
        return ref.text.partition(":")[0] == str(gpu.index)
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
    return f"{path}={ref.text}"
