"""What can happen in ``nvdp mps`` besides what can happen in the plugin too, and what an actor is told to do.

Posted from any thread, read by the main thread only, on one queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from nvdp.model.mps import DaemonReport, DaemonSpec, MpsGrants
from nvdp.planning.daemon_course import Stage
from nvdp.services.events import Event


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the actor of a resource shall do from now on; a newer order takes the place of an older one.

    ``number`` rises with each order of one actor. ``by_force``: an end need not wait for clients. ``watches_clients``:
    it matters just now when the last client ends. ``is_in_use``: pods depend on the daemon that runs, or may do so.
    """

    number: int = 0
    stage: Stage = Stage.NOTHING
    target: DaemonSpec | None = None
    by_force: bool = False
    watches_clients: bool = False
    is_in_use: bool = False

    @property
    def is_end(self) -> bool:
        """Whether what runs is to end."""
        return self.stage in {Stage.END, Stage.NOTHING}


class DaemonSeen(msgspec.Struct, frozen=True, kw_only=True):
    """How it is with one daemon, whenever that changed. ``order`` is the number of the last order that was taken.

    ``cleared`` are the GPUs for which nothing was found to be in the way, ``refused`` is what was found.
    ``are_clients_known``: the daemon was asked for them since it was started or found. ``is_gone``: there is no
    process, and nothing of the resource is left.
    """

    resource: str
    order: int = 0
    daemon: DaemonReport
    cleared: frozenset[str] = frozenset()
    refused: str = ""
    lacks_multi_user: bool = False
    are_clients_known: bool = False
    is_gone: bool = False


class ModesSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Which GPUs have the compute mode by us; which cannot get it just now, and which not their own back, with why.

    ``claims`` are all whose mode was changed, or is about to be, with the modes that they had before. ``followed`` is
    the number of the last word on what is wanted that was taken: nothing that it leaves out is claimed from then on.
    """

    claimed: frozenset[str] = frozenset()
    unclaimable: Mapping[str, str] = {}
    unreleasable: Mapping[str, str] = {}
    claims: Mapping[str, str] = {}
    followed: int = 0


class GrantsRead(msgspec.Struct, frozen=True, kw_only=True):
    """The plugin's word was read: None if there is no file; ``problem`` if there is one that cannot be used."""

    grants: MpsGrants | None = None
    problem: str = ""


class SharedMemorySeen(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the shared memory of the daemons is there; ``problem`` says why it is not."""

    problem: str = ""


class GpusOccupied(msgspec.Struct, frozen=True, kw_only=True):
    """Who computes on the GPUs that were looked at, by UUID: why it is not free, or empty if nobody does."""

    by: Mapping[str, str]


MpsEvent: TypeAlias = Event | DaemonSeen | ModesSeen | GrantsRead | SharedMemorySeen | GpusOccupied
MpsPost: TypeAlias = Callable[[MpsEvent], None]
