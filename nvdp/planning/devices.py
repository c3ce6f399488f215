"""What of a node can be offered: whole GPUs, and in place of GPUs in MIG mode their MIG devices. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from nvdp.config.schema import Config, MigStrategy
from nvdp.errors import FormatError
from nvdp.model.inventory import Gpu, MigInstance, MigMode
from nvdp.model.mig import MigProfile, parse_profile
from nvdp.model.platforms import ALL_THERE_IS, WSL_UUID
from nvdp.planning.assignment import order_gpus


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as a whole, or one MIG device of it (``instance``). What is not said of the MIG device is of its GPU."""

    gpu: Gpu
    instance: MigInstance | None = None

    @property
    def uuid(self) -> str:
        return self.gpu.uuid if self.instance is None else self.instance.uuid

    @property
    def index(self) -> str:
        """NVML's: ``3``, or ``3:1`` for a MIG device; ``all`` where one device is all GPUs of WSL2 (NVIDIA's word)."""
        if self.uuid == WSL_UUID:
            return WSL_UUID
        return str(self.gpu.index) if self.instance is None else build_place(self.gpu, self.instance)

    @property
    def is_all_there_is(self) -> bool:
        """Whether it is the one device of WSL2 or of a Tegra system, where the driver has no control nodes."""
        return self.uuid in ALL_THERE_IS

    @property
    def pci(self) -> str | None:
        return self.gpu.pci

    @property
    def minor(self) -> int | None:
        return self.gpu.minor

    @property
    def product(self) -> str | None:
        return self.gpu.product

    @property
    def numa_node(self) -> int | None:
        return self.gpu.numa_node

    @property
    def compute_capability(self) -> str | None:
        return self.gpu.compute_capability

    @property
    def memory_bytes(self) -> int | None:
        return self.gpu.memory_bytes if self.instance is None else self.instance.memory_bytes

    @property
    def is_in_mig_mode(self) -> bool:
        """Whether it is a MIG device, or a whole GPU in MIG mode."""
        return self.gpu.mig is MigMode.ENABLED

    @property
    def parent_uuid(self) -> str:
        """The UUID of a MIG device's GPU; empty for a GPU."""
        return self.gpu.uuid if self.instance is not None else ""

    @property
    def profile(self) -> MigProfile | None:
        """None for a GPU, and while the driver does not tell it, or tells something else."""
        return find_profile(self.instance.profile) if self.instance is not None else None


def split_gpus(config: Config, gpus: Sequence[Gpu]) -> tuple[Device, ...]:
    """Every device of which something is to be decided, by PCI address, those of one GPU by their places in it.

    A GPU in MIG mode is in it as such where ``flags.migStrategy`` says so, and where it has no MIG devices.
    """
    return tuple(device for gpu in order_gpus(gpus) for device in _split(config, gpu))


def list_instances(gpu: Gpu) -> tuple[MigInstance, ...]:
    """The MIG devices that a GPU has now, as far as is known, in an order that others coming or going do not change."""
    if gpu.mig is not MigMode.ENABLED or not gpu.instances:
        return ()
    return tuple(sorted(gpu.instances, key=_order))


def list_known(devices: Iterable[Device]) -> set[str]:
    """The UUIDs of all GPUs and MIG devices there are, also of those that are no devices of their own."""
    gpus = {device.gpu.uuid: device.gpu for device in devices}
    return gpus.keys() | {instance.uuid for gpu in gpus.values() for instance in list_instances(gpu)}


def build_place(gpu: Gpu, instance: MigInstance) -> str:
    """NVML's index of a MIG device: ``GPU:INSTANCE``."""
    return f"{gpu.index}:{instance.index}"


@functools.lru_cache(maxsize=256)
def find_profile(text: str | None) -> MigProfile | None:
    """The profile that the text spells, if it spells one."""
    if text is None:
        return None
    try:
        return parse_profile(text)
    except FormatError:
        return None


def _split(config: Config, gpu: Gpu) -> Iterator[Device]:
    instances = list_instances(gpu) if config.flags.mig_strategy is not MigStrategy.NONE else ()
    if not instances:
        yield Device(gpu=gpu)
    for instance in instances:
        yield Device(gpu=gpu, instance=instance)


def _order(instance: MigInstance) -> tuple[int, int, int, str]:
    """The driver's numbers stay as long as the instance does, which NVML's index need not."""
    last = 1 << 31
    gpu_instance, compute_instance = instance.gpu_instance, instance.compute_instance
    return (
        last if gpu_instance is None else gpu_instance,
        last if compute_instance is None else compute_instance,
        instance.index,
        instance.uuid,
    )
