"""Which GPUs are not on offer because the file says something about them that this version cannot do.

Ignoring such a key would offer a device that the file does not offer. So the devices concerned are withheld, with the
reason; where a key does not tell which devices it concerns, all of its resource are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from nvdp.config.schema import Config, MigStrategy
from nvdp.config.sharing import SharedResource
from nvdp.config.unbuilt import Outcome, Unbuilt, find_unbuilt
from nvdp.model.deviceref import DeviceRef, RefKind
from nvdp.model.inventory import Gpu, MigMode
from nvdp.model.names import GPU_RESOURCE
from nvdp.planning.pins import matches


class Withheld(msgspec.Struct, frozen=True, kw_only=True):
    """Why a GPU is not on offer: one word for labels, the place in the file, a sentence."""

    reason: str
    path: str
    text: str


Concerns: TypeAlias = Callable[[Gpu], bool]


def withhold(config: Config, gpus: Sequence[Gpu], pins: Mapping[str, str]) -> dict[str, Withheld]:
    """The GPUs to withhold, by UUID, each with the first reason in the order of ``find_unbuilt``."""
    withheld: dict[str, Withheld] = {}
    for unbuilt in find_unbuilt(config):
        if unbuilt.outcome is not Outcome.WITHHOLD:
            continue
        concerns = _concerned(unbuilt, config, pins)
        for gpu in gpus:
            if gpu.uuid not in withheld and concerns(gpu):
                reason = _REASONS.get(unbuilt.path.partition("[")[0], "NotBuilt")
                withheld[gpu.uuid] = Withheld(reason=reason, path=unbuilt.path, text=f"not built yet ({unbuilt.text})")
    return withheld


_REASONS = {"devices.exclude": "Excluded", "devices.cordon": "Cordoned", "flags.migStrategy": "Unsupported"}


def _concerned(unbuilt: Unbuilt, config: Config, pins: Mapping[str, str]) -> Concerns:
    """Which GPUs an unbuilt key concerns."""
    path = unbuilt.path
    if path.startswith(("devices.exclude", "devices.cordon")):
        key = path.removeprefix("devices.").partition("[")[0]
        return _any_of(f"devices.{key}", getattr(config.devices, key), pins)
    if path == "flags.migStrategy":
        return lambda gpu: config.flags.mig_strategy is not MigStrategy.NONE and gpu.mig is MigMode.ENABLED
    if path.startswith("resources.gpus"):
        return lambda gpu: _named_otherwise(config, gpu)
    if path.startswith("sharing."):
        return _shared_by(path, config, pins)
    return lambda _gpu: True


def _any_of(path: str, refs: Sequence[DeviceRef], pins: Mapping[str, str]) -> Concerns:
    def concerns(gpu: Gpu) -> bool:
        for number, ref in enumerate(refs):
            if matches(f"{path}[{number}]", ref, gpu, pins):
                return True
            # A MIG device's UUID does not tell its GPU: every GPU that has MIG devices may be meant.
            if ref.kind is RefKind.MIG_UUID and ref.gpu_uuid is None and gpu.mig is MigMode.ENABLED:
                return True
        return False

    return concerns


def _named_otherwise(config: Config, gpu: Gpu) -> bool:
    """Whether the first pattern that matches the GPU gives it a name other than the default one."""
    for rule in config.resources.gpus:
        if gpu.product is None or rule.pattern.matches(gpu.product):
            return rule.name != GPU_RESOURCE
    return False


def _shared_by(path: str, config: Config, pins: Mapping[str, str]) -> Concerns:
    """The GPUs of the entry at ``path``: those of its list, or all of its resource; all for a key of the block."""
    for entry in _entries(config):
        if path.startswith(entry.path):
            if entry.name != GPU_RESOURCE:
                return lambda _gpu: False  # no GPU has that name in this version
            if entry.devices.refs:
                return _any_of(f"{entry.path}.devices", entry.devices.refs, pins)
            listed = [
                _any_of(f"{other.path}.devices", other.devices.refs, pins)
                for other in _entries(config)
                if other is not entry and entry.devices.is_all and other.devices.refs
            ]
            return lambda gpu: not any(concerns(gpu) for concerns in listed)
    return lambda _gpu: True


def _entries(config: Config) -> list[SharedResource]:
    blocks = (config.sharing.time_slicing, config.sharing.mps)
    return [entry for block in blocks if block is not None for entry in block.resources]
