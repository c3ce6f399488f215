"""What the plugin and ``nvdp mps`` know of each other: control daemons as they shall be, as they are, and their GPUs.

Two files carry it. ``nvdp mps`` writes an ``MpsReport`` into the MPS root once a second, its heartbeat; the plugin
writes ``MpsGrants`` into its state directory whenever its plan changes. Neither waits for the other to be there.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

DEFAULT_ROOT: Final = "/run/nvidia/mps"
"""The MPS root of the node where ``flags.mpsRoot`` says none: below it a directory ``RESOURCE/pipe`` for each, and
``shm``, the ``/dev/shm`` of the daemons and their clients.
"""
CLIENT_DIR: Final = "/mps"
"""Where containers of pods see the pipe directory of their resource, as NVIDIA's plugin has it: ``/mps/RESOURCE/pipe``.
"""
REPORT_NAME: Final = "nvdp.json"
"""The file of the ``MpsReport``, in the MPS root."""
GRANTS_NAME: Final = "mps.json"
"""The file of the ``MpsGrants``, in the plugin's state directory."""
HEARTBEAT_S: Final = 1.0
"""How often ``nvdp mps`` writes its report, changed or not."""
SILENT_S: Final = 3.5
"""How old a report may be. After that nobody knows whether the daemons answer."""


class DaemonSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the control daemon of one resource is to be.

    ``gpus`` are UUIDs, in list order. ``thread_percent`` is the default and the most that any client gets, None without
    a limit; ``memory_mib`` is the same by UUID, without the GPUs that have no limit.
    """

    resource: str
    gpus: tuple[str, ...]
    thread_percent: int | None = None
    memory_mib: Mapping[str, int] = {}
    multi_user: bool = True


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What the plugin says about one resource. ``wanted`` is its daemon; None while it only leaves.

    ``free`` are the GPUs of it that no pod has in another form any more, and that none is given in another form: only
    these may be taken. ``held`` are the GPUs of which pods hold something under this name through MPS: while there are
    any, the daemon must not be ended or started anew for a change. With ``at_once`` (``allocation.modeChange:
    immediate``) neither is waited for. ``kept`` is as what a daemon that dies is started again while pods hold GPUs
    that ``wanted`` has no more, which may be taken for it: these pods would have none otherwise. None if none do.
    """

    wanted: DaemonSpec | None = None
    kept: DaemonSpec | None = None
    free: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    at_once: bool = False

    def list_takeable(self) -> frozenset[str]:
        """The GPUs, by UUID, that may have the compute mode for the daemon of this resource."""
        kept = self.kept.gpus if self.kept is not None else ()
        wanted = self.wanted.gpus if self.wanted is not None and self.at_once else ()
        return frozenset((*self.free, *self.held, *kept, *wanted))


class MpsGrants(msgspec.Struct, frozen=True, kw_only=True):
    """What the plugin says about all. ``config`` is the hash of its configuration. A resource that is missing here has
    no daemon and is held by nobody. ``leaving`` are GPUs that grants before these let be taken, as long as nobody knows
    whether ``nvdp mps`` has heard that this is over: the plugin's next process must know, and nobody else.
    """

    config: str = ""
    resources: Mapping[str, Grant] = {}
    leaving: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """What tells these grants from all others: 16 hex digits."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    def list_takeable(self) -> frozenset[str]:
        """The GPUs, by UUID, that may have the compute mode for a daemon."""
        return frozenset(gpu for grant in self.resources.values() for gpu in grant.list_takeable())


class Phase(enum.Enum):
    """How one control daemon is. READY: it has all its settings and answered on its pipe a moment ago.

    WAITING: it was not started yet, for its GPUs are not free. FAILED: it died, hangs, or did not start; it is tried
    again. REFUSED: something on this node forbids it, as another control daemon does.
    """

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    REFUSED = "refused"
    STOPPING = "stopping"


class DaemonReport(msgspec.Struct, frozen=True, kw_only=True):
    """One control daemon. ``running`` is what it was started as, None while there is no process; ``text`` says in a
    sentence why it is not READY, or what it waits with (``running`` may differ from what is wanted until its pods end).

    ``pid`` and ``started`` (clock ticks since boot, of /proc/PID/stat) tell its process from any other. ``servers`` are
    the states of its servers by PID (``ACTIVE``, ``FAULT``; the driver's words, lower case). ``exit_code`` and
    ``last_lines`` are of the process that ended last. ``restarts`` counts starts after the first.
    ``waiting_users`` are the user IDs of clients that wait for the server of another user.
    """

    phase: Phase
    text: str = ""
    running: DaemonSpec | None = None
    pid: int | None = None
    started: int | None = None
    restarts: int = 0
    clients: int = 0
    servers: Mapping[str, str] = {}
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()
    waiting_users: tuple[int, ...] = ()


class MpsReport(msgspec.Struct, frozen=True, kw_only=True):
    """All of ``nvdp mps``. ``at`` is monotonic seconds of the node, which all processes of one boot share.

    ``claims`` are the GPUs whose compute mode was changed and not put back, by UUID with the mode that they had before
    (``model.inventory.ComputeMode`` values). Only a GPU that is not in it may be offered in another form. ``heard`` is
    the digest of the grants by which daemons and claims were planned last, empty without grants: nothing that newer
    ones took away is claimed any more unless ``claims`` has it.
    """

    at: float
    boot_id: str = ""
    pid: int = 0
    version: str = ""
    daemons: Mapping[str, DaemonReport] = {}
    claims: Mapping[str, str] = {}
    heard: str = ""


class MpsView(msgspec.Struct, frozen=True, kw_only=True):
    """What the plugin sees: the last report. ``problem`` is a sentence if ``nvdp mps`` is not there or does not answer;
    then no daemon counts as READY, and the claims stand.
    """

    problem: str = ""
    daemons: Mapping[str, DaemonReport] = {}
    claims: Mapping[str, str] = {}
    heard: str = ""
