"""Which resource each GPU belongs to, in which form, or why it is not on offer at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from nvdp.config.schema import Config, SharedResource
from nvdp.model.inventory import Gpu
from nvdp.model.listing import Strategy
from nvdp.model.names import GPU_RESOURCE, ResourceName


class Form(msgspec.Struct, frozen=True, order=True):
    """How a GPU is offered: under one name, whole or in replicas. One GPU has one form at a time."""

    resource: str
    shared: bool

    def __str__(self) -> str:
        return f"{self.resource} ({'shared' if self.shared else 'whole'})"


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU's form and its number of replicas; ``rule`` is the place in the file that says so."""

    form: Form
    replicas: int = 1
    strategy: Strategy = Strategy.NONE
    rule: str = ""


def order_gpus(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The order of every list: by PCI address, which does not change when NVML renumbers."""
    return tuple(sorted(gpus, key=lambda gpu: (gpu.pci or "~", gpu.uuid)))


def assign(config: Config, gpus: Sequence[Gpu], withheld: Mapping[str, object]) -> dict[str, Assignment]:
    """The assignment of every GPU that is not withheld, by UUID, in list order."""
    entry = find_entry(config, GPU_RESOURCE)
    assignment = _share(config, entry) if entry is not None else Assignment(form=Form(str(GPU_RESOURCE), shared=False))
    return {gpu.uuid: assignment for gpu in order_gpus(gpus) if gpu.uuid not in withheld}


def find_entry(config: Config, resource: ResourceName) -> SharedResource | None:
    """The time-slicing entry for all devices of ``resource``; what withholds devices is no matter of this."""
    if config.sharing.time_slicing is None:
        return None
    entries = config.sharing.time_slicing.resources
    return next((entry for entry in entries if entry.name == resource and entry.devices.is_all), None)


def _share(config: Config, entry: SharedResource) -> Assignment:
    time_slicing = config.sharing.time_slicing
    renamed = time_slicing is not None and time_slicing.rename_by_default
    return Assignment(
        form=Form(str(entry.build_final_name(rename_by_default=renamed)), entry.is_shared),
        replicas=entry.replicas,
        strategy=Strategy.TIME_SLICING if entry.is_shared else Strategy.NONE,
        rule=entry.path,
    )
