"""The labels about the GPUs and MIG devices of a node: how many of which model, and how they are shared. Pure.

The rules are those of NVIDIA's GPU Feature Discovery wherever that has one (docs/labels.md). Where a node has several
models, or GPUs of one model that are shared in several ways, those of which most are speak for the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from nvdp.config.schema import Config, MigStrategy
from nvdp.model.inventory import Gpu, MigMode
from nvdp.model.listing import Strategy
from nvdp.model.reasons import Reason
from nvdp.model.status import EXCLUDED
from nvdp.planning.allotment import Allotment
from nvdp.planning.devices import Device
from nvdp.planning.label_text import (
    LENGTH_LIMIT,
    PREFIX,
    build_bool,
    build_part,
    build_value,
    find_family,
    sanitise,
)
from nvdp.planning.label_ways import NOT_OFFERED, Way, choose_way, find_ways
from nvdp.planning.layout import is_unknown

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_MIB: Final = 1 << 20
_GPU: Final = f"{PREFIX}gpu"
_LONGEST_FACT: Final = len(".sharing-strategy")
_ATTRIBUTES: Final = {
    "multiprocessors": "multiprocessors",
    "slices.gi": "slices",
    "slices.ci": "compute_slices",
    "engines.copy": "copy_engines",
    "engines.decoder": "decoders",
    "engines.encoder": "encoders",
    "engines.jpeg": "jpeg_engines",
    "engines.ofa": "ofa_engines",
}


class _Node(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be labelled: ``devices`` are those that are not excluded, in list order, ``gpus`` theirs.

    ``unfit`` are the devices that no resource can have for the way in which their GPU is cut, ``ways`` is by UUID.
    """

    strategy: MigStrategy
    devices: tuple[Device, ...]
    gpus: tuple[Gpu, ...]
    unfit: frozenset[str]
    ways: Mapping[str, Way]
    is_configured: bool

    @property
    def cut(self) -> tuple[Gpu, ...]:
        """Those in MIG mode."""
        return tuple(gpu for gpu in self.gpus if _is_cut(gpu))


def find_labelled(allotment: Allotment) -> tuple[Gpu, ...]:
    """The GPUs that labels are about, those that ail too: each of which something is not excluded."""
    return tuple({device.gpu.uuid: device.gpu for device in _list_ours(allotment)}.values())


def build_gpu_labels(config: Config, allotment: Allotment, *, is_configured: bool) -> dict[str, str]:
    """The labels of a node with GPUs. Without ``is_configured`` those that no configuration could change."""
    node = _Node(
        strategy=config.flags.mig_strategy,
        devices=_list_ours(allotment),
        gpus=find_labelled(allotment),
        unfit=frozenset(uuid for uuid, why in allotment.withheld.items() if why.reason == Reason.MIG_INVALID.word),
        ways=find_ways(config, allotment),
        is_configured=is_configured,
    )
    labels = {
        f"{PREFIX}mig.capable": build_bool(any(gpu.mig in {MigMode.ENABLED, MigMode.DISABLED} for gpu in node.gpus)),
        **_count_models(node.gpus),
    }
    if is_configured:
        by_mps = any(way.strategy is Strategy.MPS for way in node.ways.values())
        labels[f"{PREFIX}mps.capable"] = build_bool(by_mps and not node.cut)
        if node.strategy is not MigStrategy.NONE:
            labels[f"{PREFIX}mig.strategy"] = node.strategy.value
    if node.strategy is MigStrategy.SINGLE and node.cut:
        return labels | _label_single(node)
    labels |= _label_whole(node)
    return labels | _label_mixed(node) if node.strategy is MigStrategy.MIXED else labels


def _list_ours(allotment: Allotment) -> tuple[Device, ...]:
    withheld = allotment.withheld
    return tuple(
        device
        for device in allotment.devices
        if device.uuid not in withheld or withheld[device.uuid].reason != EXCLUDED
    )


def _count_models(gpus: Sequence[Gpu]) -> dict[str, str]:
    """The GPUs of each model, cut or not: what ``gpu.count`` tells of one model only."""
    names = Counter(filter(None, map(_name_model, gpus)))
    room = LENGTH_LIMIT - len("gpu.product..count")
    return {f"{_GPU}.product.{build_part(name, room=room)}.count": str(count) for name, count in names.items()}


def _label_whole(node: _Node) -> dict[str, str]:
    """The GPUs as such. Those in MIG mode count, but have no share in how the others are offered."""
    models = _group(node.gpus, _name_model)
    name = min(models, key=lambda each: (not each, all(map(_is_cut, models[each])), -len(models[each]), each))
    gpus = models[name]
    offered = [node.ways[gpu.uuid] for gpu in gpus if not _is_cut(gpu)]
    way = choose_way(offered) if offered else NOT_OFFERED
    return {
        **_label_resource(node, _GPU, name, count=len(gpus), way=way),
        **_label_memory(_GPU, _find_commonest(_to_mib(gpu.memory_bytes) for gpu in gpus)),
        **_label_total(_to_mib(gpu.memory_bytes) for gpu in node.gpus),
        **_label_architecture(gpus),
    }


def _label_single(node: _Node) -> dict[str, str]:
    """MIG devices in place of GPUs, of a node with GPUs in MIG mode; or that it is none that ``single`` can be used on.

    A GPU or a MIG device that does not answer, so that nobody knows what it is, has no voice.
    """
    devices = [device for device in node.devices if device.instance is not None and device.profile is not None]
    profiles = {device.profile for device in devices}
    is_odd = any(not _is_cut(gpu) and not is_unknown(gpu) for gpu in node.gpus)
    is_empty = any(gpu.instances == () and not gpu.unreadable_instances for gpu in node.cut)
    profile = next(iter(profiles)) if len(profiles) == 1 else None
    if profile is None or profile.is_partial or is_odd or is_empty:
        return _label_invalid(node)
    models = _group(devices, lambda device: _name_model(device.gpu))
    name = _choose_model(models)
    return {
        **_label_instances(node, _GPU, name, models[name]),
        **_label_total(map(_find_memory_mib, devices)),
        **_label_architecture([device.gpu for device in models[name]]),
    }


def _label_invalid(node: _Node) -> dict[str, str]:
    """As NVIDIA's plugin says that nothing is offered there. The generation is that of a whole GPU, if there is one."""
    models = _group(node.gpus, _name_model)
    name = _choose_model(models)
    return {
        f"{_GPU}.product": build_value(name, "-MIG-INVALID"),
        f"{_GPU}.count": "0",
        f"{_GPU}.replicas": "0",
        f"{_GPU}.sharing-strategy": "",
        f"{_GPU}.memory": "0",
        **_label_architecture(models[name]),
    }


def _label_mixed(node: _Node) -> dict[str, str]:
    """A group of labels for each profile that is offered."""
    offered = [device for device in node.devices if device.instance is not None and device.uuid not in node.unfit]
    labels: dict[str, str] = {}
    for profile, devices in _group(offered, lambda device: device.profile).items():
        assert profile is not None  # such a device is unfit
        prefix = PREFIX + build_part(profile.resource_part, room=LENGTH_LIMIT - _LONGEST_FACT)
        models = _group(devices, lambda device: _name_model(device.gpu))
        name = _choose_model(models)
        labels |= _label_instances(node, prefix, name, models[name])
    return labels


def _label_instances(node: _Node, prefix: str, model: str, devices: Sequence[Device]) -> dict[str, str]:
    """MIG devices of one profile and one model."""
    profile = sanitise(str(devices[0].profile))
    way = choose_way([node.ways[device.uuid] for device in devices])
    attributes = _find_commonest(device.instance.attributes for device in devices if device.instance is not None)
    labels = {
        **_label_resource(node, prefix, model, count=len(devices), way=way, suffix=f"-MIG-{profile}"),
        **_label_memory(prefix, _find_commonest(map(_find_memory_mib, devices))),
    }
    if attributes is not None:
        labels |= {f"{prefix}.{fact}": str(getattr(attributes, name)) for fact, name in _ATTRIBUTES.items()}
    return labels


def _label_resource(node: _Node, prefix: str, model: str, *, count: int, way: Way, suffix: str = "") -> dict[str, str]:
    """Product, number and sharing. Without a configuration in force nobody knows how they are shared."""
    shared = way.suffix if node.is_configured else ""
    labels = {f"{prefix}.count": str(count)}
    if model:
        labels[f"{prefix}.product"] = build_value(model, suffix + shared)
    if node.is_configured:
        labels[f"{prefix}.replicas"] = str(way.replicas)
        labels[f"{prefix}.sharing-strategy"] = way.strategy.value
    return labels


def _label_memory(prefix: str, memory_mib: int | None) -> dict[str, str]:
    return {f"{prefix}.memory": str(memory_mib)} if memory_mib else {}


def _label_total(memory_mib: Iterable[int | None]) -> dict[str, str]:
    """All of it together, only if that of each is known."""
    each = list(memory_mib)
    total = sum(filter(None, each)) if None not in each else 0
    return {f"{_GPU}.memory.total": str(total)} if total else {}


def _label_architecture(gpus: Sequence[Gpu]) -> dict[str, str]:
    """The generation; before that of GPUs in MIG mode that of whole ones."""
    whole = [gpu for gpu in gpus if not _is_cut(gpu)]
    found = _find_commonest(map(_find_capability, whole)) or _find_commonest(map(_find_capability, gpus))
    if found is None:
        return {}
    return {
        f"{_GPU}.family": find_family(found),
        f"{_GPU}.compute.major": str(found[0]),
        f"{_GPU}.compute.minor": str(found[1]),
    }


def _find_capability(gpu: Gpu) -> tuple[int, int] | None:
    """None also for 0.0, which says nothing."""
    major, _, minor = (gpu.compute_capability or "").partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() and int(major) else None


def _find_memory_mib(device: Device) -> int | None:
    """Of a MIG device the memory that the driver counts among what it has."""
    attributes = device.instance.attributes if device.instance is not None else None
    return attributes.memory_mib if attributes is not None else _to_mib(device.memory_bytes)


def _to_mib(memory_bytes: int | None) -> int | None:
    return memory_bytes // _MIB if memory_bytes is not None else None


def _is_cut(gpu: Gpu) -> bool:
    return gpu.mig is MigMode.ENABLED


def _name_model(gpu: Gpu) -> str:
    """The model as labels spell it; empty where it is not known."""
    return sanitise(gpu.product or "")


def _choose_model(models: Mapping[str, Sequence[object]]) -> str:
    """That of which most are; of as many the first by name. One that is not known only if none is."""
    return min(models, key=lambda name: (not name, -len(models[name]), name))


def _find_commonest(values: Iterable[T | None]) -> T | None:
    """The value of most, of as many the lowest; None if none is known."""
    counts = Counter(value for value in values if value is not None)
    return min(counts, key=lambda value: (-counts[value], value), default=None)


def _group(items: Iterable[T], find_key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(find_key(item), []).append(item)
    return groups
