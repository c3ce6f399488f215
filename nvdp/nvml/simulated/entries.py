"""The structure of node files: what may be written, before it is known whether it makes a machine."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import msgspec
from msgspec import inspect

from nvdp.model.inventory import ComputeMode
from nvdp.model.platforms import Platform
from nvdp.model.topology import Ancestor
from nvdp.nvml.conditions import FABRIC_SUCCESS
from nvdp.nvml.simulated.node import MigState, Process, SimulatedDriver

# What two cards may have in common, and how the file says that NVML does not tell.
ANCESTOR_WORDS: Final[Mapping[str, Ancestor | None]] = {**{each.value: each for each in Ancestor}, "unknown": None}


class MistakeError(Exception):
    """Something that is of the right type and still makes no machine; its text starts with the place."""


class EccKind(enum.Enum):
    """Whether the error could be corrected: a single bit can."""

    SINGLE = "single"
    DOUBLE = "double"


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of all structures: camelCase keys, no unknown ones."""


class AttributesEntry(Entry, frozen=True, kw_only=True):
    """What the driver counts of a MIG device, where that is not what its profile makes of it."""

    memory_mib: int | None = None
    multiprocessors: int | None = None
    copy_engines: int | None = None
    decoders: int | None = None
    encoders: int | None = None
    jpeg_engines: int | None = None
    ofa_engines: int | None = None


class InstanceEntry(Entry, frozen=True, kw_only=True):
    """A MIG device; where only the profile matters, that alone may be written."""

    profile: str
    uuid: str | None = None
    gpu_instance: int | None = None
    compute_instance: int = 0
    memory_bytes: int | None = None
    attributes: AttributesEntry = AttributesEntry()


# The place in the list is the device's index; ``null`` is an index that no device has.
InstanceEntries: TypeAlias = tuple[InstanceEntry | str, ...]


class GpuEntry(Entry, frozen=True, kw_only=True):
    """``count`` cards. A fact is one value for all of them, or a list with one value for each."""

    model: str | None = None
    count: int = 1
    product: str | None = None
    uuid: str | tuple[str, ...] | None = None
    pci: str | tuple[str, ...] | None = None
    minor: int | tuple[int, ...] | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None
    numa: int | tuple[int | None, ...] | None = None
    mig: MigState | None = None
    mig_pending: MigState | None = None
    instances: InstanceEntries = ()
    compute_mode: ComputeMode | tuple[ComputeMode, ...] = ComputeMode.DEFAULT
    nvswitch_links: int = 0
    processes: tuple[Process, ...] = ()


class LayoutEntry(Entry, frozen=True, kw_only=True):
    """What one card's MIG mode and devices are, where it is not what its entry among the cards says."""

    gpu: str
    mig: MigState | None = None
    mig_pending: MigState | None = None
    instances: InstanceEntries | None = None


class LinkEntry(Entry, frozen=True, kw_only=True):
    gpus: tuple[str, str]
    links: int


class FaultEntry(Entry, frozen=True, kw_only=True):
    call: str
    gpu: str | None = None
    instance: str | None = None
    error: str | None = None
    hang: bool = False
    crash: bool = False


class EccEntry(Entry, frozen=True, kw_only=True):
    """How many uncorrected errors there were since the driver was loaded."""

    memory: int = 0
    sram: int = 0


class FabricEntry(Entry, frozen=True, kw_only=True):
    """Words of ``model.health.Vitals``; ``cluster`` is a UUID. Cards that are in a clique are in some cluster."""

    state: str = "Completed"
    status: str = FABRIC_SUCCESS
    faults: tuple[str, ...] = ()
    clique: int = 0
    cluster: str | None = None


class ConditionEntry(Entry, frozen=True, kw_only=True):
    """How one card fares, where it is not as a card of its kind is that is well."""

    gpu: str
    recovery_action: str | None = None
    remap_failure: bool | None = None
    retired_pages_pending: bool | None = None
    ecc: EccEntry = EccEntry()
    links_down: tuple[int, ...] = ()
    fabric: FabricEntry | None = None


class EventEntry(Entry, frozen=True, kw_only=True):
    """One of ``xid`` and ``ecc``. ``instance`` is a MIG device of the card, by its index or its UUID."""

    gpu: str
    xid: int | None = None
    ecc: EccKind | None = None
    instance: str | None = None


class NodeFile(Entry, frozen=True, kw_only=True):
    platform: Platform = Platform.NVML
    driver: SimulatedDriver = SimulatedDriver()
    gpus: tuple[GpuEntry, ...] = ()
    layouts: tuple[LayoutEntry, ...] = ()
    lost: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    nvlinks: tuple[LinkEntry, ...] = ()
    pcie_switches: tuple[tuple[str, ...], ...] = ()
    ancestors: dict[str, tuple[tuple[str, ...], ...]] = {}
    faults: tuple[FaultEntry, ...] = ()
    conditions: tuple[ConditionEntry, ...] = ()
    events: tuple[EventEntry, ...] = ()


def find_choices(path: str) -> tuple[str, ...]:
    """The words that may stand at ``path`` of a node file (``gpus[0].mig``); none where no word is needed."""
    found: list[inspect.Type] = [inspect.type_info(NodeFile)]
    for part in path.split("."):
        name = part.partition("[")[0]
        structs = [one for one in found if isinstance(one, inspect.StructType)]
        fields = [field.type for one in structs for field in one.fields if field.encode_name == name]
        found = [one for field in fields for one in _unfold(field)]
    return tuple(each.value for one in found if isinstance(one, inspect.EnumType) for each in one.cls)


def _unfold(field: inspect.Type) -> Iterator[inspect.Type]:
    """What may stand there: the members of a union, the items of a list."""
    if isinstance(field, inspect.UnionType):
        for one in field.types:
            yield from _unfold(one)
    elif isinstance(field, inspect.VarTupleType):
        yield from _unfold(field.item_type)
    else:
        yield field
