"""A simulated node as values: what the machine consists of, once a node file has been read and found good."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping

import msgspec

from nvdp.model.inventory import ComputeMode
from nvdp.model.mig import MigAttributes, MigProfile
from nvdp.model.platforms import Platform
from nvdp.model.topology import Ancestor
from nvdp.nvml.kinds import NvmlErrorKind


class DriverState(enum.Enum):
    """READY, no library to load, or a library without its kernel module."""

    READY = "ready"
    MISSING = "missing"
    NOT_LOADED = "not-loaded"


class SimulatedDriver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """``kernel`` is the kernel module's version; one that differs from ``version`` makes NVML refuse to start.

    ``mig_monitor``: whether the process has the capability by which a GPU in MIG mode may be asked as a whole, and what
    is inside it. A container without privileges has not.
    """

    version: str = "580.65.06"
    cuda: str = "13.0"
    kernel: str | None = None
    state: DriverState = DriverState.READY
    mig_monitor: bool = False


class Process(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A process on a GPU; it computes, or, with ``graphics``, draws. ``instance`` is the index of its MIG device."""

    pid: int
    memory_bytes: int = 0
    graphics: bool = False
    instance: int | None = None


class InstanceKind(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance profile that a card offers: NVML's number for listing it, and the ID that an instance tells.

    ``engines`` are the counts of those for copying, decoding, encoding, JPEG and optical flow.
    """

    number: int
    id: int
    profile: MigProfile
    memory_mib: int
    engines: tuple[int, int, int, int, int]


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG device: a compute instance, which fills its GPU instance if its profile says so."""

    index: int
    uuid: str
    profile: MigProfile
    kind: InstanceKind
    gpu_instance: int
    compute_instance: int
    memory_bytes: int
    attributes: MigAttributes


class MigState(enum.Enum):
    """The MIG mode, where the card has one."""

    UNSUPPORTED = "unsupported"
    DISABLED = "disabled"
    ENABLED = "enabled"


class Fabric(msgspec.Struct, frozen=True, kw_only=True):
    """A card's place in an NVSwitch fabric, in NVML's numbers. ``cluster`` is empty for none."""

    state: int
    status: int
    health_mask: int
    clique: int
    cluster: bytes


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """How a card fares. None: it has no such thing. ``recovery_action`` is NVML's number.

    The two counts are of uncorrected ECC errors; ``links_down`` are the numbers of NVLinks.
    """

    recovery_action: int | None = 0
    remap_failure: bool | None = None
    retired_pages_pending: bool | None = None
    memory_errors: int = 0
    sram_errors: int | None = None
    links_down: frozenset[int] = frozenset()
    fabric: Fabric | None = None


class SimulatedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One card. ``position`` is its place in the node file, which does not change when cards are lost or removed.

    ``uuid`` is empty for a card that hides it. ``nvswitch_links`` is the number of NVLinks to the node's switches.
    ``mig_pending`` is the mode that a reset would bring, None for the current one. ``compute_mode`` is the one that the
    card has as long as nobody sets another.
    """

    position: int
    uuid: str
    pci: str
    minor: int
    product: str
    memory_bytes: int
    compute_capability: str
    numa: int | None
    mig: MigState
    mig_pending: MigState | None = None
    kinds: tuple[InstanceKind, ...] = ()
    instances: tuple[Instance, ...] = ()
    compute_mode: ComputeMode = ComputeMode.DEFAULT
    nvswitch_links: int = 0
    processes: tuple[Process, ...] = ()
    condition: Condition = Condition()


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """``links`` NVLinks directly between two cards, by position."""

    gpus: tuple[int, int]
    links: int


class FaultRule(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong in calls that match ``call``, on the card at ``position`` or, if None, on any and none.

    With ``instance``, only in calls about the MIG device that has this UUID.
    Exactly one of the three: it returns ``code``, does not return, or crashes the process.
    """

    call: str
    position: int | None
    instance: str | None = None
    code: int | None = None
    hang: bool = False
    crash: bool = False


class EventRule(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happens to the card at ``position``, or to one of its MIG devices, when the file first says so.

    An XID, or where that is None an ECC error of one bit or, if ``double``, of two.
    """

    position: int
    xid: int | None
    double: bool = False
    instance: Instance | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A whole machine. ``lost`` cards are counted but cannot be reached; ``removed`` ones are not there at all.

    On the Tegra platform there are no cards, and no NVML. ``ancestors`` are those of two cards, None for one that NVML
    does not tell, where they are not what ``numa`` and ``pcie_switches`` make them.
    """

    driver: SimulatedDriver
    gpus: tuple[SimulatedGpu, ...]
    platform: Platform = Platform.NVML
    lost: frozenset[int] = frozenset()
    removed: frozenset[int] = frozenset()
    nvlinks: tuple[Link, ...] = ()
    pcie_switches: tuple[frozenset[int], ...] = ()
    ancestors: Mapping[frozenset[int], Ancestor | None] = {}
    faults: tuple[FaultRule, ...] = ()
    events: tuple[EventRule, ...] = ()

    @property
    def present(self) -> tuple[SimulatedGpu, ...]:
        """The cards in the order of their NVML index: those behind a removed one move up."""
        return tuple(gpu for gpu in self.gpus if gpu.position not in self.removed)


def build_uuid(kind: str, seed: str) -> str:
    """A made-up UUID: for the same seed always the same."""
    text = hashlib.sha256(f"{kind}/{seed}".encode()).hexdigest()
    return f"{kind}-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def parse_error_code(text: str) -> int | None:
    """NVML's return code from our word, from NVIDIA's constant or from the number; None if it is none of these."""
    if text.isdecimal():
        return int(text) or None
    for kind in NvmlErrorKind:
        if text in {kind.word, f"NVML_ERROR_{kind.name}"}:
            return kind.code
    return None
