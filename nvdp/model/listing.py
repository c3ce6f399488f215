"""What one resource offers: the list that the kubelet gets, and the facts that Allocate answers from.

``Allocate`` and ``GetPreferredAllocation`` are pure functions of the request and of a ``ResourceList``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import cached_property
from typing import Final

import msgspec

from nvdp.model.reasons import Cause
from nvdp.model.topology import Weights


class SharedPolicy(enum.Enum):
    """How replicas are chosen: fewest used GPU first, one GPU filled first, or most free replicas first."""

    DISTRIBUTED = "distributed"
    PACKED = "packed"
    SPREAD = "spread"


class Strategy(enum.Enum):
    """How a resource's GPUs are shared."""

    NONE = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"


class DeviceListStrategy(enum.Enum):
    """The ways of telling the container runtime which devices a container gets."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"


# By these the runtime is given names that it resolves in the CDI specs on the node.
CDI_STRATEGIES: Final = frozenset({DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI})


class DeviceIDStrategy(enum.Enum):
    """Whether devices are named to the runtime by UUID or by NVML index."""

    UUID = "uuid"
    INDEX = "index"


class DeviceNode(msgspec.Struct, frozen=True, kw_only=True):
    """A device node to hand to a container; always with permissions ``rw``."""

    container_path: str
    host_path: str


class ListedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One ID of a list: a whole GPU or MIG device, or one replica of it, whose UUID ``gpu_uuid`` is.

    ``cause`` and ``text`` say why it is Unhealthy.
    """

    id: str
    gpu_uuid: str
    numa_node: int | None = None
    cause: Cause | None = None
    text: str = ""

    @property
    def healthy(self) -> bool:
        return self.cause is None


class MpsShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one share of a GPU is to an MPS client: part of its threads, and memory where that is known.

    ``all_mib`` is the GPU's own memory, ``most_mib`` what its control daemon lets any client have, None without a
    limit.
    """

    thread_percent: int
    memory_mib: int | None = None
    all_mib: int | None = None
    most_mib: int | None = None


class MpsFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How containers reach the control daemon of a resource: directories of the node, and the one that they see.

    ``most_percent`` is the part of a GPU's threads that the daemon lets any client have, None without a limit.
    ``shares`` are by the UUID of each GPU that is shared with limits. ``one_gpu_key`` is the key of the file by which a
    container may have several shares, of one GPU; empty where it may have one, or whole GPUs.
    """

    host_pipe: str
    host_shm: str
    client_pipe: str
    most_percent: int | None = None
    shares: Mapping[str, MpsShare] = {}
    one_gpu_key: str = ""


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What must be known of one GPU or MIG device of the list: NVML's index as text (``3``, ``3:1``), and device nodes.

    ``parent_uuid`` is the GPU of a MIG device, empty for a GPU.
    """

    uuid: str
    index: str
    parent_uuid: str = ""
    nodes: tuple[DeviceNode, ...] = ()


class AllocationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything besides the list that Allocate, GetPreferredAllocation and PreStartContainer answer from.

    ``weights`` are those of ``gpus``, in their order, if they are whole and unshared. ``control_nodes`` are those that
    exist on this node, before the GPUs' own; ``imex_nodes``, after them, those of the channels; all are handed out only
    with ``pass_device_specs``. ``imex_channels`` are the file's that exist on this node. ``cdi_extras`` are full CDI
    names of what a container gets beside its GPUs, all of which resolve; ``cdi_annotation_prefix`` is what CDI
    annotations begin with, up to the slash. ``replicas`` are the different numbers of them that GPUs have, rising. The
    two keys are those of the file that restrict a request, to one replica and to one of each GPU; empty where it does
    not. ``mps`` is there where containers are clients of MPS. The times at the end are for the check before a container
    starts, and for each call of NVML that it takes.
    """

    gpus: tuple[GpuFacts, ...] = ()
    weights: Weights = ()
    control_nodes: tuple[DeviceNode, ...] = ()
    device_list_strategies: tuple[DeviceListStrategy, ...] = (DeviceListStrategy.ENVVAR,)
    device_id_strategy: DeviceIDStrategy = DeviceIDStrategy.UUID
    pass_device_specs: bool = False
    imex_channels: tuple[int, ...] = ()
    imex_nodes: tuple[DeviceNode, ...] = ()
    cdi_extras: tuple[str, ...] = ()
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    feature_envs: tuple[tuple[str, str], ...] = ()
    strategy: Strategy = Strategy.NONE
    replicas: tuple[int, ...] = (1,)
    shared_policy: SharedPolicy = SharedPolicy.DISTRIBUTED
    single_replica_key: str = ""
    distinct_gpus_key: str = ""
    mps: MpsFacts | None = None
    pre_start_timeout_s: float = 20.0
    call_timeout_s: float = 5.0

    @property
    def is_unshared(self) -> bool:
        """Whether what is given out are devices, not shares of them."""
        return self.strategy is Strategy.NONE or (self.strategy is Strategy.MPS and self.replicas == (1,))

    @property
    def uses_cdi(self) -> bool:
        """Whether containers are given names that resolve in the CDI specs."""
        return not CDI_STRATEGIES.isdisjoint(self.device_list_strategies)


class ResourceList(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The complete list of one resource, in the order in which it is sent, with unique IDs.

    The indexes below are made once per list, at first use (1 to 2 ms at 8,000 devices); equality looks at fields only.
    """

    resource: str
    devices: tuple[ListedDevice, ...] = ()
    facts: AllocationFacts = AllocationFacts()

    @cached_property
    def healthy_count(self) -> int:
        return sum(device.cause is None for device in self.devices)

    @cached_property
    def by_id(self) -> Mapping[str, ListedDevice]:
        """Every device of the list by its ID, in list order."""
        return {device.id: device for device in self.devices}

    @cached_property
    def healthy_by_gpu(self) -> Mapping[str, tuple[str, ...]]:
        """The IDs of the Healthy devices by GPU: GPUs in list order, replicas from the lowest number up."""
        healthy: dict[str, list[str]] = {}
        for device in self.devices:
            ids = healthy.setdefault(device.gpu_uuid, [])
            if device.cause is None:
                ids.append(device.id)
        # IDs of one GPU differ only in the number at their end: shorter is smaller, and nothing need be parsed.
        return {uuid: tuple(sorted(ids, key=lambda text: (len(text), text))) for uuid, ids in healthy.items()}

    def find_index(self, device_id: str) -> str:
        """The NVML index under which Allocate hands out the ID's GPU; empty where by UUID, or if it is not listed."""
        if self.facts.device_id_strategy is DeviceIDStrategy.UUID or device_id not in self.by_id:
            return ""
        gpu_uuid = self.by_id[device_id].gpu_uuid
        return next((gpu.index for gpu in self.facts.gpus if gpu.uuid == gpu_uuid), "")


class AllocateTrace(msgspec.Struct, frozen=True):
    """Allocate calls that name one ID: how many are being answered, and when the last was (monotonic seconds).

    ``index`` is the NVML index under which that one handed the ID's GPU out; empty where by UUID. ``by_cdi`` is whether
    it did so by CDI, alone or among other ways.
    """

    in_flight: int = 0
    answered_at: float | None = None
    index: str = ""
    by_cdi: bool = False
