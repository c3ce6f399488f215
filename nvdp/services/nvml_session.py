"""One NVML session after another: the child that answers scans, replaced when it is spent or a fresh look is due."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import msgspec

from nvdp.errors import HostError
from nvdp.host.mig_capabilities import MigCapabilities
from nvdp.host.sysfs import Sysfs
from nvdp.model.inventory import Gpu, GpuRef, Inventory, MigInstance
from nvdp.model.mig import CapabilityNodes
from nvdp.nvml.children import NvmlChildren
from nvdp.nvml.client import INIT_LIMIT_S, NvmlClient, OnNotice
from nvdp.nvml.frames import Refused, Scan, Scanned
from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.outcomes import Closed, Died, Hung, Outcome, is_gpus_fault

# After a card was plugged in, it may take a while until a new session counts it.
_SESSIONS_AFTER_PLUG: Final = 3
# While a session holds the GPUs they are awake, and a moment after one hung too: only the interpreter has to start.
AWAKE_INIT_LIMIT_S: Final = 2.0
# What happened to a GPU before the new session watched it, the old one has told by then, on however busy a node.
_OVERLAP_S: Final = 0.5


class NvmlSession:
    """Used by one thread. Sessions are opened by the first scan that needs one.

    A session counts the GPUs that were there when it was opened, and may never get a lost one back. ``renew`` makes the
    next scan look through a new session; the old one is kept until the new one has answered, since without any open
    session the driver lets its GPUs go, and may take seconds to wake them up, and for half a second more, so that no
    event is missed between the two: call ``end_former`` at ``former_ends_at`` (by ``clock``). Both tell of the same
    events meanwhile. ``sysfs`` is None on a simulated node; ``on_notice``: see ``NvmlClient``.
    """

    def __init__(
        self,
        children: NvmlChildren,
        *,
        sysfs: Sysfs | None,
        on_notice: OnNotice,
        clock: Callable[[], float],
        capabilities: MigCapabilities | None = None,
    ) -> None:
        self._children = children
        self._sysfs = sysfs
        self._capabilities = capabilities or MigCapabilities()
        self._on_notice = on_notice
        self._clock = clock
        self._former: NvmlClient | None = None
        self.former_ends_at: float | None = None
        self._child: NvmlClient | None = None
        self._renewals = 0
        self.children_failed = 0
        self._bound: frozenset[str] | None = None

    @property
    def pid(self) -> int | None:
        """Which session it is: the child that answers the scans. None before the first one, and after a failure."""
        return self._child.pid if self._child is not None else None

    def renew(self) -> None:
        """The next scan looks through a new session."""
        self._renewals = max(self._renewals, 1)

    def scan(
        self,
        skip: Collection[GpuRef],
        *,
        limit_s: float,
        init_limit_s: float = INIT_LIMIT_S,
        ancestors: bool = True,
    ) -> Outcome:
        """Scan all GPUs but those in ``skip``; blocks as long as NVML may, see ``NvmlClient.call``.

        ``ancestors``: see ``Scan``.

        Afterwards ``children_failed`` is how many children failed in it; two, where the session has none to go back to.
        NUMA nodes are filled in from sysfs, and the nodes of MIG devices from procfs, which know them; NVML does not. A
        card that the kernel driver has taken since the last scan and that is not counted makes this scan and the next
        ones look through new sessions.
        """
        command = Scan(skip=tuple(skip), ancestors=ancestors)
        self.children_failed = 0
        outcome = self._look(command, limit_s, init_limit_s)
        if self._sysfs is None or not isinstance(outcome, Scanned):
            return outcome
        if self._has_new_card(self._sysfs, outcome.inventory):
            self._renewals = _SESSIONS_AFTER_PLUG
            outcome = self._look(command, limit_s, init_limit_s)
            if not isinstance(outcome, Scanned):
                return outcome
        return msgspec.structs.replace(outcome, inventory=self._complete(outcome.inventory, self._sysfs))

    def end_former(self) -> None:
        """End the session that was replaced, if it is time; blocks for a second at most."""
        if self.former_ends_at is not None and self.former_ends_at <= self._clock():
            self._replace_former(None)

    def close(self) -> None:
        """End the session; blocks for a second or two at most."""
        self._replace_former(None)
        self._end_child()

    def _look(self, command: Scan, limit_s: float, init_limit_s: float) -> Outcome:
        if self._renewals and self._child is not None:
            self._renewals -= 1
            try:
                candidate = self._children.spawn(self._on_notice)
            except HostError:
                return self._ask(command, limit_s, init_limit_s)
            outcome = candidate.call(command, limit_s=limit_s, init_limit_s=AWAKE_INIT_LIMIT_S)
            if isinstance(outcome, Scanned):
                self._replace_former(self._child)
                self._child = candidate
                return outcome
            self._children.end(candidate)
            self.children_failed += 1
            if is_gpus_fault(outcome):
                return outcome
            # The old session still knows more than nothing.
        return self._ask(command, limit_s, init_limit_s)

    def _ask(self, command: Scan, limit_s: float, init_limit_s: float) -> Outcome:
        if self._child is None:
            try:
                self._child = self._children.spawn(self._on_notice)
            except HostError as error:
                self.children_failed += 1
                return Refused(call="spawn", kind=NvmlErrorKind.UNKNOWN.word, text=str(error))
        outcome = self._child.call(command, limit_s=limit_s, init_limit_s=init_limit_s)
        if isinstance(outcome, Refused | Hung | Died | Closed):
            self.children_failed += 1
            self._end_child()
        return outcome

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            self._children.end(child)

    def _replace_former(self, child: NvmlClient | None) -> None:
        former, self._former = self._former, child
        self.former_ends_at = self._clock() + _OVERLAP_S if child is not None else None
        if former is not None:
            self._children.end(former)

    def _complete(self, inventory: Inventory, sysfs: Sysfs) -> Inventory:
        capabilities = CapabilityNodes()
        if any(gpu.instances for gpu in inventory.gpus):
            capabilities = self._capabilities.load()
        gpus = []
        for gpu in inventory.gpus:
            node = sysfs.find_numa_node(gpu.pci) if gpu.pci is not None else gpu.numa_node
            instances = _equip(gpu, capabilities) if gpu.instances else gpu.instances
            gpus.append(msgspec.structs.replace(gpu, numa_node=node, instances=instances))
        return msgspec.structs.replace(inventory, gpus=tuple(gpus))

    def _has_new_card(self, sysfs: Sysfs, inventory: Inventory) -> bool:
        bound, before = sysfs.find_bound_gpus(), self._bound
        self._bound = bound
        counted = {gpu.pci for gpu in inventory.gpus} | {gpu.pci for gpu in inventory.unreadable}
        return before is not None and bool(bound - before - counted)


def _equip(gpu: Gpu, capabilities: CapabilityNodes) -> tuple[MigInstance, ...]:
    """The MIG devices of a GPU with the nodes by which a container may use them."""
    return tuple(msgspec.structs.replace(one, nodes=_find_nodes(gpu, one, capabilities)) for one in gpu.instances or ())


def _find_nodes(gpu: Gpu, instance: MigInstance, capabilities: CapabilityNodes) -> tuple[str, ...]:
    if gpu.minor is None or instance.gpu_instance is None or instance.compute_instance is None:
        return ()
    return capabilities.find_paths(gpu.minor, instance.gpu_instance, instance.compute_instance) or ()
