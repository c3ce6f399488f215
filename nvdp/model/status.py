"""The daemon's state as others may see it: one frozen value, replaced after every turn of the event loop.

``/readyz``, ``/metrics`` and the command line read it and nothing else. Times are wall-clock seconds.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from nvdp.model.held import Holding
from nvdp.model.inventory import UnreadableGpu
from nvdp.model.listing import Strategy
from nvdp.model.mps import Phase
from nvdp.model.pause import Pause
from nvdp.model.reasons import Cause

EXCLUDED = "Excluded"
"""Why a GPU that is none of ours is withheld: it is shown, and not watched."""


CORDON_END = "; "
"""What divides the place of a cordon from the fault that a device has as well."""


class DriverState(enum.Enum):
    """Whether NVML as a whole is usable. STARTING is the time before the first answer, PAUSED is by order."""

    STARTING = "Starting"
    READY = "Ready"
    MISSING = "Missing"
    MISMATCH = "Mismatch"
    LOST = "Lost"
    PAUSED = "Paused"


class DriverStatus(msgspec.Struct, frozen=True, kw_only=True):
    """``text`` is what to tell a person while the state is not READY, ``error`` the field's word for it."""

    state: DriverState = DriverState.STARTING
    error: str = ""
    version: str = ""
    cuda_version: str = ""
    text: str = ""


class ConfigStatus(msgspec.Struct, frozen=True, kw_only=True):
    """``valid`` is false while the newest file is refused or missing; ``hash`` is of the configuration in force.

    ``hash`` is ``sha256:`` and 12 hex digits, empty while no configuration was ever good. While there is no driver it
    is of the one that will come into force, and ``applied_at`` is None. ``pending`` is the hash of a valid edit that
    waits for ``pending_until`` (``--apply-jitter``). ``refused`` is the first of ``problems`` things that are wrong.
    Of several configurations ``entry`` is the name of the one in force, ``chosen_by`` says what chose it, ``unknown``
    that the node's label names none, and ``waiting``, a sentence, that nobody knows yet which one it is to be.
    ``paused`` is ``devices.paused``: whether it has the driver let go of, whoever else does.
    """

    valid: bool = False
    hash: str = ""
    source: str = ""
    entry: str = ""
    chosen_by: str = ""
    applied_at: float | None = None
    refused: str | None = None
    problems: int = 0
    missing: bool = False
    unknown: bool = False
    waiting: str = ""
    paused: bool = False
    pending: str = ""
    pending_until: float | None = None


class ResourceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One resource. ``planned`` is what configuration and inventory call for, without IDs that are only leaving.

    ``healthy`` and ``unhealthy`` count the list last given out; ``registered`` means registered and streaming, with the
    first list taken by the kubelet; ``missing`` says what it waits for while it is not. ``replicas`` are the different
    numbers of them that its GPUs have. ``waits``: it is not given out before pods have ended that hold its GPUs as
    something else, as the file wants it.
    """

    name: str
    planned: int
    healthy: int
    unhealthy: int
    registered: bool
    streams: int
    strategy: Strategy
    replicas: tuple[int, ...]
    missing: str | None = None
    waits: bool = False


class DeviceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU that was seen, or one of its MIG devices. ``withheld`` is one word for why it is not on offer.

    A MIG device comes after its GPU, ``parent_uuid``; ``index`` is the GPU's, ``instance`` its own. A GPU that is
    offered in MIG devices is not on offer itself. ``mig_pending`` is the mode that a reset of the GPU would bring,
    ``nameless`` are sentences about MIG devices of it that have no UUID.
    ``resource``, ``replicas`` and ``strategy`` are what it is offered as; without a resource it is offered as nothing.
    ``xid`` and ``action`` (the driver's word for what it asks for) belong to the cause. Of a cordoned device that has a
    fault as well ``fault`` is its cause, to which these belong then, and the end of ``text`` is about it.
    """

    uuid: str
    index: int
    pci: str
    product: str
    mig: str
    memory_bytes: int | None
    healthy: bool
    cause: Cause | None
    text: str
    changed_at: float
    xid: int | None = None
    action: str = ""
    fault: Cause | None = None
    withheld: str = ""
    resource: str = ""
    replicas: int = 1
    strategy: Strategy = Strategy.NONE
    mig_pending: str = ""
    nameless: tuple[str, ...] = ()
    parent_uuid: str = ""
    instance: int | None = None
    profile: str = ""

    @property
    def cordon(self) -> str:
        """Of a cordoned device, the place in the file."""
        return self.text.partition(CORDON_END)[0]

    @property
    def fault_text(self) -> str:
        """Of a cordoned device with a fault, the sentence about that."""
        return self.text.partition(CORDON_END)[2]

    @property
    def place(self) -> str:
        """NVML's index: ``3``, or ``3:1`` for a MIG device."""
        return str(self.index) if self.instance is None else f"{self.index}:{self.instance}"


class Withheld(msgspec.Struct, frozen=True, kw_only=True):
    """Why the file does not let a device be on offer: the place in it, and a sentence. ``reason`` is one word."""

    gpu_uuid: str
    reason: str
    path: str
    text: str


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Something that waits for pods: a GPU that is to be offered in another form, device IDs that are to go, or a GPU
    that takes no new pods for its index; only then there is a ``text``, a sentence that says why.

    ``before`` is what it is given up as; ``after``, empty for a withdrawal, is what the GPU becomes. ``devices`` counts
    the IDs still listed as ``before``. ``holders`` are ``namespace/pod``, empty while the kubelet is only given time.
    """

    gpu_uuid: str
    before: str
    after: str = ""
    devices: int
    holders: tuple[str, ...] = ()
    text: str = ""
    since: float


class MpsServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A server of a control daemon: one for each user whose containers compute. ``state`` is the driver's word."""

    pid: int
    state: str


class MpsMemoryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How much memory of a GPU each client of a control daemon gets at most."""

    gpu_uuid: str
    mib: int


class MpsDaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The MPS control daemon of one resource, as ``nvdp mps`` tells of it (``model.mps.DaemonReport`` has the details).

    ``phase`` is None while nobody tells of it. ``text`` is why it is not READY, or what it waits with; with ``waits``
    that is as the file wants it, or takes a moment. ``gpus`` are the UUIDs that it runs for; ``thread_percent`` and
    ``memory`` what its clients get at most, where there are limits; ``multi_user`` whether it serves several users at a
    time. ``pending`` is what its next start changes, in words, and ``holders`` are the pods, ``namespace/pod``, that
    this waits for.
    """

    resource: str
    phase: Phase | None = None
    text: str = ""
    waits: bool = False
    gpus: tuple[str, ...] = ()
    thread_percent: int | None = None
    memory: tuple[MpsMemoryStatus, ...] = ()
    multi_user: bool = True
    pending: str = ""
    holders: tuple[str, ...] = ()
    pid: int | None = None
    restarts: int = 0
    clients: int = 0
    servers: tuple[MpsServerStatus, ...] = ()
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()
    waiting_users: tuple[int, ...] = ()

    @property
    def is_up(self) -> bool:
        """Whether it answered a moment ago."""
        return self.phase is Phase.READY


class MpsStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The daemons that the plan needs, and those that run all the same, in order of resource.

    ``problem`` says why nothing is known of them, where the plan needs some. ``kept`` are devices that are to be
    offered otherwise, and are not yet for what ``nvdp mps`` has or may take: by UUID, each with a sentence why.
    """

    problem: str = ""
    daemons: tuple[MpsDaemonStatus, ...] = ()
    kept: Mapping[str, str] = {}


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """What does not work as it should, while the rest goes on. ``reason`` is one word of the vocabulary.

    ``remedy`` is what to do about it, where that depends on more than the reason. ``note``: it cannot be otherwise on
    this node.
    """

    reason: str
    text: str
    remedy: str = ""
    since: float | None = None
    note: bool = False


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at once. ``reason`` is one word of ``model.reasons`` or empty when ready.

    ``pause`` is the order by which the driver is let go of. ``holders`` are who holds devices of ours; ``unmatched``
    are sentences about what the file names and this node does not have; ``unreadable`` are GPUs without an identity,
    which are none of ``devices``.
    """

    ready: bool = False
    reason: str = "Starting"
    config: ConfigStatus = ConfigStatus()
    pause: Pause | None = None
    driver: DriverStatus = DriverStatus()
    resources: tuple[ResourceStatus, ...] = ()
    devices: tuple[DeviceStatus, ...] = ()
    holders: tuple[Holding, ...] = ()
    unreadable: tuple[UnreadableGpu, ...] = ()
    waits: tuple[Wait, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    unmatched: tuple[str, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    mps: MpsStatus = MpsStatus()
    podresources_up: bool = False
    scanned_at: float | None = None
    nvml_children_abandoned: int = 0
    queue_length: int = 0
