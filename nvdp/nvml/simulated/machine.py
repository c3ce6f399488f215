"""The simulated machine as it is now: the node file, followed as it is edited, with handles and faults."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from typing import TypeAlias

import msgspec
import pynvml

from nvdp.errors import HostError
from nvdp.model.inventory import ComputeMode
from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.simulated.edits import Edits
from nvdp.nvml.simulated.events import EventSets, Happening, find_new
from nvdp.nvml.simulated.kept_modes import KeptModes
from nvdp.nvml.simulated.names import matches_call
from nvdp.nvml.simulated.node import DriverState, EventRule, FaultRule, Instance, MigState, Node, SimulatedGpu
from nvdp.nvml.simulated.nodefile import find_node_file, load_node

# Handles look like pointers and are none: a call that follows one would crash at once.
_FIRST_HANDLE = 0x1000
_HANDLE_STEP = 0x100
_UNINITIALISED_CALLS = frozenset({"nvmlInitWithFlags", "nvmlErrorString"})


class NvmlReturn(Exception):  # noqa: N818 - a return code, not an error of ours
    """Ends a simulated call with NVML's return code, which need not be in our table."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class HangError(Exception):
    """Ends nothing: the call must never return."""


class MigDevice(msgspec.Struct, frozen=True):
    """A MIG instance together with its card."""

    parent: SimulatedGpu
    instance: Instance


Device: TypeAlias = SimulatedGpu | MigDevice


class Machine:
    """Answers for one process. Before each call the node file is looked at, and read again if it changed.

    A file that is no longer good leaves the machine as it was, and says so once on standard error. Several threads may
    call at once: each call holds ``lock``, so that it sees one machine from its beginning to its end, and only a call
    that waits or hangs lets go of it.
    """

    def __init__(self, path_or_name: str) -> None:
        """Raises HostError if the node file is not good."""
        self._path = find_node_file(path_or_name)
        self._seen = self._look()
        self.node: Node = load_node(str(self._path))
        self._kept_modes = KeptModes(str(self._path))
        self._note_driver()
        self.sessions = 0
        self.lock = threading.Lock()
        self.event_sets = EventSets()
        self._edits: Edits | None = None
        self._handles: dict[str, int] = {}
        self._keys: dict[int, str] = {}
        self._devices = _map_devices(self.node)

    def begin(self, call: str, positions: Collection[int], instance: Instance | None = None) -> None:
        """What happens before a call about these cards does its work: faults strike. Raises NvmlReturn or HangError.

        ``instance`` is the MIG device that it is about, if it is about one.
        """
        for fault in self.node.faults:
            is_near = fault.position is None or fault.position in positions
            is_meant = fault.instance is None or (instance is not None and fault.instance == instance.uuid)
            if is_near and is_meant and matches_call(fault.call, call):
                _strike(fault)
        if not self.sessions and call not in _UNINITIALISED_CALLS:
            raise NvmlReturn(NvmlErrorKind.UNINITIALIZED.code)
        if self.node.driver.state is not DriverState.READY and call != "nvmlErrorString":
            raise NvmlReturn(NvmlErrorKind.DRIVER_NOT_LOADED.code)

    def check(self, device: Device) -> None:
        """Whether the card of a device can be reached. Raises NvmlReturn if not."""
        if find_position(device) in self.node.lost | self.node.removed:
            raise NvmlReturn(NvmlErrorKind.GPU_IS_LOST.code)

    def follow(self) -> None:
        """Read the node file again if it changed; what has happened is told to the event sets."""
        seen = self._look()
        if seen == self._seen or seen is None:
            return
        self._seen, before = seen, self.node
        try:
            self.node = load_node(str(self._path))
        except HostError as error:
            sys.stderr.write(f"{error}; the simulated machine stays as it was\n")
        self._note_driver()
        self._devices = _map_devices(self.node)
        self.event_sets.deliver(find_new(self._list_events(before), self._list_events(self.node)))

    def _note_driver(self) -> None:
        if self.node.driver.state is not DriverState.READY:
            self._kept_modes.forget()

    def find_compute_mode(self, gpu: SimulatedGpu) -> ComputeMode:
        """The mode that was set last, by whichever process, else that of the node file."""
        return self._kept_modes.find(_name(gpu), gpu.compute_mode)

    def set_compute_mode(self, gpu: SimulatedGpu, mode: ComputeMode) -> None:
        """Until the driver is unloaded, or the node file says something new. Raises NvmlReturn."""
        try:
            self._kept_modes.set(_name(gpu), mode, gpu.compute_mode)
        except OSError as error:
            sys.stderr.write(f"{self._kept_modes.path}: the compute mode cannot be kept: {error}\n")
            raise NvmlReturn(NvmlErrorKind.OPERATING_SYSTEM.code) from error

    def find_positions(self, handles: Collection[int]) -> set[int]:
        """Where the cards with these handles are now."""
        return {gpu.position for gpu in self.node.gpus if self._handles.get(_name(gpu)) in handles}

    def _list_events(self, node: Node) -> list[Happening]:
        return [
            Happening(
                type=_classify(rule),
                handle=self.get_handle(node.gpus[rule.position]),
                data=rule.xid or 0,
                instance=rule.instance,
            )
            for rule in node.events
        ]

    def wait_edit(self, limit_s: float) -> None:
        """Let other calls go on until the node file may have changed, for at most ``limit_s``; then follow it."""
        if self._edits is None:
            self._edits = Edits(str(self._path))  # what was edited before it has not noticed: follow first
        else:
            self.lock.release()
            try:
                self._edits.wait(limit_s)
            finally:
                self.lock.acquire()
        self.follow()

    def get_handle(self, device: Device) -> int:
        """The same device has the same handle for the life of the process."""
        key = _name(device)
        if key not in self._handles:
            self._handles[key] = _FIRST_HANDLE + _HANDLE_STEP * len(self._handles)
            self._keys[self._handles[key]] = key
        return self._handles[key]

    def find_device(self, handle: int) -> Device:
        """The device of a handle that was given out. Raises NvmlReturn for any other, and for a device that is gone."""
        key = self._keys.get(handle)
        if key is None:
            raise NvmlReturn(NvmlErrorKind.INVALID_ARGUMENT.code)
        if key not in self._devices:
            is_mig = key.startswith("MIG-")
            raise NvmlReturn((NvmlErrorKind.INVALID_ARGUMENT if is_mig else NvmlErrorKind.GPU_IS_LOST).code)
        return self._devices[key]

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - before every call
        except OSError:
            return None  # between the two halves of an editor's rename
        return found.st_mtime_ns, found.st_size, found.st_ino


def iterate_devices(gpus: Iterable[SimulatedGpu]) -> Iterator[Device]:
    """Each card, followed by its MIG devices."""
    for gpu in gpus:
        yield gpu
        yield from (MigDevice(gpu, instance) for instance in list_instances(gpu))


def list_instances(gpu: SimulatedGpu) -> tuple[Instance, ...]:
    """The MIG devices that there are: none unless the card is in MIG mode."""
    return gpu.instances if gpu.mig is MigState.ENABLED else ()


def find_position(device: Device) -> int:
    """The place of the device's card in the node file."""
    return device.parent.position if isinstance(device, MigDevice) else device.position


def _map_devices(node: Node) -> dict[str, Device]:
    return {_name(device): device for device in iterate_devices(node.gpus)}


def _name(device: Device) -> str:
    if isinstance(device, MigDevice):
        return device.instance.uuid
    return device.uuid or device.pci


def _classify(rule: EventRule) -> int:
    if rule.xid is not None:
        return int(pynvml.nvmlEventTypeXidCriticalError)
    return int(pynvml.nvmlEventTypeDoubleBitEccError if rule.double else pynvml.nvmlEventTypeSingleBitEccError)


def _strike(fault: FaultRule) -> None:
    if fault.hang:
        raise HangError
    if fault.crash:
        os.abort()
    raise NvmlReturn(fault.code or NvmlErrorKind.UNKNOWN.code)
