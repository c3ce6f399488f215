"""Which GPUs are not on offer because the file says something about them that this version cannot do.

Ignoring such a key would offer a device that the file does not offer. So the devices concerned are withheld, with the
reason; where a key does not tell which devices it concerns, all are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from nvdp.config.schema import Config, MigStrategy
from nvdp.config.unbuilt import Outcome, Unbuilt, find_unbuilt
from nvdp.model.inventory import Gpu, MigMode
from nvdp.planning.assignment import Withheld
from nvdp.planning.pins import list_references
from nvdp.planning.sharing import Claims

Concerns: TypeAlias = Callable[[Gpu], bool]

_REASONS = {"flags.migStrategy": "Unsupported"}


def withhold_unbuilt(
    config: Config, gpus: Sequence[Gpu], claims: Claims, pins: Mapping[str, str]
) -> dict[str, Withheld]:
    """The GPUs to withhold, by UUID, each with the first reason in the order of ``find_unbuilt``."""
    withheld: dict[str, Withheld] = {}
    for unbuilt in find_unbuilt(config):
        if unbuilt.outcome is not Outcome.WITHHOLD:
            continue
        concerns = _concerned(unbuilt, config, claims, pins)
        for gpu in gpus:
            if gpu.uuid not in withheld and concerns(gpu):
                reason = _REASONS.get(unbuilt.path, "NotBuilt")
                withheld[gpu.uuid] = Withheld(reason=reason, path=unbuilt.path, text=f"not built yet ({unbuilt.text})")
    return withheld


def _concerned(unbuilt: Unbuilt, config: Config, claims: Claims, pins: Mapping[str, str]) -> Concerns:
    """Which GPUs an unbuilt key concerns."""
    path = unbuilt.path
    if path == "flags.migStrategy":
        return lambda gpu: config.flags.mig_strategy is not MigStrategy.NONE and gpu.mig is MigMode.ENABLED
    if path.startswith("devices.") or path.endswith(".devices"):
        meant = [one for one in list_references(config) if one.is_mig and one.path.rpartition("[")[0] == path]
        return lambda gpu: any(reference.may_match(gpu, pins) for reference in meant)
    if path.startswith("sharing.mps.resources["):
        taken = {uuid for uuid, entry in claims.takers.items() if entry.path == path}
        meant = [one for one in list_references(config) if one.is_mig and one.path.startswith(f"{path}.devices[")]
        return lambda gpu: gpu.uuid in taken or any(reference.may_match(gpu, pins) for reference in meant)
    return lambda _gpu: True
