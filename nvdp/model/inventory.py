"""What a scan of the node's GPUs found. Values only: frozen, comparable, sendable between daemon and NVML child."""

from __future__ import annotations

import enum

import msgspec

from nvdp.model.mig import MigAttributes
from nvdp.model.platforms import Platform
from nvdp.model.topology import Connection


class MigMode(enum.Enum):
    """The *current* MIG mode of a GPU."""

    UNSUPPORTED = "unsupported"
    DISABLED = "disabled"
    ENABLED = "enabled"


class ComputeMode(enum.Enum):
    """Who may compute on a GPU: anybody, one thread, nobody, or one process, as which an MPS server counts."""

    DEFAULT = "Default"
    EXCLUSIVE_THREAD = "ExclusiveThread"
    PROHIBITED = "Prohibited"
    EXCLUSIVE_PROCESS = "ExclusiveProcess"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """The first NVML call of a scan that failed for one GPU: ``nvmlDeviceGetUUID``, ``GpuIsLost``, a sentence."""

    call: str
    kind: str
    text: str


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG device of a GPU in MIG mode: a compute instance, by which a container sees it.

    ``index`` is its place among NVML's MIG devices of the GPU, which may have gaps; ``gpu_instance`` and
    ``compute_instance`` are the driver's numbers, as events and capability nodes have them. ``profile`` is spelled as
    the driver spells it (``1g.10gb+me``; ``1c.3g.40gb`` for one smaller than its GPU instance). What could not be read
    is None, and then ``fault`` says why. ``nodes`` are its capability nodes, as container paths, as far as the host
    tells them. ``attributes`` are for labels alone, and None where the driver does not tell them.
    """

    uuid: str
    index: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    profile: str | None = None
    memory_bytes: int | None = None
    nodes: tuple[str, ...] = ()
    attributes: MigAttributes | None = None
    fault: Fault | None = None


class UnreadableInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A place among a GPU's MIG devices where there is, or may be, one whose UUID cannot be read."""

    index: int
    fault: Fault


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. A field that could not be read is None, and then ``fault`` says why; a clean GPU has no fault.

    ``memory_bytes`` is None without a fault where a process without privileges asks for that of a GPU in MIG mode.
    ``index`` is NVML's and may change when a card is lost; ``minor`` is the number of ``/dev/nvidia<minor>`` (None
    where there is none); ``pci`` is ``dddd:bb:dd.f`` in lower case, with a domain of 4 digits where it fits.
    ``numa_node`` is None where the host does not know one. ``compute_capability`` is ``"9.0"``. ``mig_pending`` is the
    mode that a reset of the GPU would bring, None if that is the current one or is not known. ``compute_mode`` is None
    where the driver does not tell it. ``instances`` are the MIG devices in the order of their index; None unless the
    GPU is in MIG mode and they could be listed.
    ``unreadable_instances`` can be shown, but have no identity to advertise. ``clique`` is for labels alone: those GPUs
    of its NVLink fabric with which it can exchange data (``CLUSTER.CLIQUE``, the first a UUID), empty where it is on no
    fabric, None where that cannot be told now.
    """

    uuid: str
    index: int
    pci: str | None = None
    minor: int | None = None
    product: str | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None
    numa_node: int | None = None
    mig: MigMode | None = None
    mig_pending: MigMode | None = None
    compute_mode: ComputeMode | None = None
    instances: tuple[MigInstance, ...] | None = None
    unreadable_instances: tuple[UnreadableInstance, ...] = ()
    clique: str | None = None
    fault: Fault | None = None


class UnreadableGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that NVML counts but whose UUID cannot be read: it can be shown, but has no identity to advertise."""

    index: int
    pci: str | None = None
    fault: Fault


class GpuRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU as far as it was recognised when a call about it was made: first by place, then by slot, then by name.

    ``index`` is a place among ``count``: it means the same card only while NVML counts as many.
    """

    index: int
    count: int
    pci: str | None = None
    uuid: str | None = None

    def __str__(self) -> str:
        return self.uuid or self.pci or f"index {self.index}"


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """Versions as the driver states them: ``"580.65.06"`` and ``"13.0"``."""

    version: str
    cuda_version: str


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The node's GPUs in the order of their NVML index.

    On WSL2 and Tegra there is one at most, with nothing known of it but its product: ``WSL_UUID``, ``TEGRA_UUID``.
    ``connections`` are those between any two of them that are not in MIG mode, by UUID in rising order.
    """

    driver: Driver
    platform: Platform = Platform.NVML
    gpus: tuple[Gpu, ...] = ()
    unreadable: tuple[UnreadableGpu, ...] = ()
    connections: tuple[Connection, ...] = ()


def drop_label_facts(inventory: Inventory) -> Inventory:
    """All but what is for labels alone: what a plan is made of."""
    gpus = tuple(
        msgspec.structs.replace(
            gpu,
            clique=None,
            instances=gpu.instances
            and tuple(msgspec.structs.replace(instance, attributes=None) for instance in gpu.instances),
        )
        for gpu in inventory.gpus
    )
    return msgspec.structs.replace(inventory, gpus=gpus)
