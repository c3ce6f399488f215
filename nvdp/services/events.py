"""What can happen, as values on the supervisor's one queue.

Posted from any thread (``queue.SimpleQueue.put``), read by the main thread only. Times named ``at`` are monotonic
seconds, those named ``wall`` are seconds since the epoch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from nvdp.config.schema import Config
from nvdp.kubelet.sockets import SocketIdentity
from nvdp.model.cdi import CdiState
from nvdp.model.chosen import Chosen
from nvdp.model.health import Ailment
from nvdp.model.held import Held
from nvdp.model.inventory import Inventory
from nvdp.model.mps import MpsGrants, MpsView
from nvdp.model.pause import Pause
from nvdp.model.status import DriverStatus, Trouble
from nvdp.planning.course import Record


class ConfigRead(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration was read: ``config`` if it is whole and valid, else ``problems`` (full lines, first one first).

    ``text`` is what was read, to be remembered; ``chosen`` by what it was, where there are several. ``missing`` is true
    if there is no file, ``unknown`` if what the node's label names is none, and ``waiting`` if nobody knows yet which
    one it is: then nothing is wrong. ``at`` is when the change was seen.
    """

    source: str
    config: Config | None = None
    text: bytes = b""
    chosen: Chosen | None = None
    problems: tuple[str, ...] = ()
    missing: bool = False
    unknown: bool = False
    waiting: bool = False
    at: float


class GpusScanned(msgspec.Struct, frozen=True, kw_only=True):
    """What services/gpus knows now: the merged inventory (None before the first answer) and who is ailing, by UUID.

    GPUs that vanished stay in the inventory, with an ailment, for ``devices.removeAfter``. ``control_nodes`` are the
    driver's own device nodes that exist on this node, as container paths; ``missing_nodes`` those of GPUs and MIG
    devices that do not, as far as the host's can be seen; ``imex_channels`` the channels that have one. ``scanned_at``
    is the wall time of the last complete scan, which may be long before this event. ``records`` are what must outlive
    the process about faults; ``recoveries`` say why GPUs are Healthy again that were not at the event before. ``busy``
    are the GPUs on which processes compute; None where it was not asked, which is only done while a GPU asks for a
    reset. Excluded GPUs are not asked, and ask in vain. ``trouble`` is set while the driver's events are not heard.
    """

    driver: DriverStatus
    inventory: Inventory | None
    ailments: Mapping[str, Ailment]
    records: Mapping[str, Record] = {}
    recoveries: Mapping[str, str] = {}
    busy: tuple[str, ...] | None = None
    trouble: Trouble | None = None
    control_nodes: tuple[str, ...] = ()
    missing_nodes: tuple[str, ...] = ()
    imex_channels: tuple[int, ...] = ()
    children_abandoned: int = 0
    scanned_at: float | None = None
    at: float
    wall: float


class HeldRead(msgspec.Struct, frozen=True, kw_only=True):
    """A new answer about holders, also when nothing changed: its age is what withdrawals wait for.

    ``podresources_up``: the last question to PodResources was answered, whatever the answer came from that stands.
    """

    held: Held
    podresources_up: bool = False


class CheckpointDoubted(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet's checkpoint names holders that the kubelet does not: is it of today?"""


class OfferedRead(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of which the kubelet has Healthy devices, by its own word."""

    resources: frozenset[str]
    requested_at: float


class SocketDirectoryChanged(msgspec.Struct, frozen=True, kw_only=True):
    """Something in the device-plugin directory changed. ``kubelet`` is its socket's identity, None if there is none."""

    kubelet: SocketIdentity | None
    at: float


class ResourceReport(msgspec.Struct, frozen=True, kw_only=True):
    """An actor's state changed: it registered, a stream opened or ended, a list was taken, a try failed.

    ``kubelet`` is the one that was asked to register it last, and says something only where ``registered``.
    ``doubtful``: it cannot tell whether the kubelet still offers what it took; the kubelet can.
    """

    resource: str
    registered: bool
    streams: int
    taken_version: int
    kubelet: SocketIdentity | None = None
    missing: str | None = None
    doubtful: bool = False
    stopped: bool = False


class AllocateAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """An Allocate of this resource was answered: held counts are about to change."""

    resource: str


class CdiWritten(msgspec.Struct, frozen=True, kw_only=True):
    """The CDI specs are as wished for the first time, or could not be made so, or what they hold has changed."""

    state: CdiState
    at: float


class MpsSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What is seen of the MPS control daemons has changed, heartbeats apart."""

    view: MpsView
    at: float


class GrantsWritten(msgspec.Struct, frozen=True, kw_only=True):
    """The file by which ``nvdp mps`` is told what it may do has these: the very value that was wanted."""

    grants: MpsGrants
    at: float


class PauseOrdered(msgspec.Struct, frozen=True, kw_only=True):
    """An operator orders a pause, or (None) its end."""

    pause: Pause | None


class SignalReceived(msgspec.Struct, frozen=True, kw_only=True):
    number: int


class ServiceCrashed(msgspec.Struct, frozen=True, kw_only=True):
    """A named thread died of an exception that nobody expected."""

    thread: str
    error: str
    trace: str


class Ping(msgspec.Struct, frozen=True, kw_only=True):
    """Asks whether the event loop turns: it sets the event."""

    answered: threading.Event


Event: TypeAlias = (
    ConfigRead
    | GpusScanned
    | HeldRead
    | CheckpointDoubted
    | OfferedRead
    | SocketDirectoryChanged
    | ResourceReport
    | AllocateAnswered
    | CdiWritten
    | MpsSeen
    | GrantsWritten
    | PauseOrdered
    | SignalReceived
    | ServiceCrashed
    | Ping
)
Post: TypeAlias = Callable[[Event], None]
