"""The simulated machine as it is now: the node file, followed as it is edited, with handles and faults."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from nvdp.errors import HostError
from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.simulated.names import matches_call
from nvdp.nvml.simulated.node import DriverState, FaultRule, Instance, Node, SimulatedGpu
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


class MigDevice(msgspec.Struct, frozen=True):
    """A MIG instance together with its card."""

    parent: SimulatedGpu
    instance: Instance


Device: TypeAlias = SimulatedGpu | MigDevice


class Machine:
    """Answers for one process. Before each call the node file is looked at, and read again if it changed.

    A file that is no longer good leaves the machine as it was, and says so once on standard error.
    """

    def __init__(self, path_or_name: str) -> None:
        """Raises HostError if the node file is not good."""
        self._path = find_node_file(path_or_name)
        self._seen = self._look()
        self.node: Node = load_node(str(self._path))
        self.sessions = 0
        self._handles: dict[str, int] = {}

    def begin(self, call: str, device: Device | None) -> None:
        """What happens before a call does its work: the machine changes, faults strike. Raises NvmlReturn."""
        gpu = device.parent if isinstance(device, MigDevice) else device
        for fault in self.node.faults:
            if fault.position in {None, gpu.position if gpu else None} and matches_call(fault.call, call):
                _strike(fault)
        if not self.sessions and call not in _UNINITIALISED_CALLS:
            raise NvmlReturn(NvmlErrorKind.UNINITIALIZED.code)
        if self.node.driver.state is not DriverState.READY and call != "nvmlErrorString":
            raise NvmlReturn(NvmlErrorKind.DRIVER_NOT_LOADED.code)
        if gpu is not None and (gpu.position in self.node.lost or gpu.position in self.node.removed):
            raise NvmlReturn(NvmlErrorKind.GPU_IS_LOST.code)

    def follow(self) -> None:
        """Read the node file again if it changed."""
        seen = self._look()
        if seen == self._seen or seen is None:
            return
        self._seen = seen
        try:
            self.node = load_node(str(self._path))
        except HostError as error:
            sys.stderr.write(f"{error}; the simulated machine stays as it was\n")

    def get_handle(self, device: Device) -> int:
        """The same device has the same handle for the life of the process."""
        key = _name(device)
        return self._handles.setdefault(key, _FIRST_HANDLE + _HANDLE_STEP * len(self._handles))

    def find_device(self, handle: int) -> Device:
        """The device of a handle that was given out. Raises NvmlReturn for any other, and for a device that is gone."""
        key = next((key for key, value in self._handles.items() if value == handle), None)
        if key is None:
            raise NvmlReturn(NvmlErrorKind.INVALID_ARGUMENT.code)
        for device in iterate_devices(self.node.gpus):
            if _name(device) == key:
                return device
        raise NvmlReturn(NvmlErrorKind.GPU_IS_LOST.code)

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
        yield from (MigDevice(gpu, instance) for instance in gpu.instances)


def _name(device: Device) -> str:
    if isinstance(device, MigDevice):
        return device.instance.uuid
    return device.uuid or device.pci


def _strike(fault: FaultRule) -> None:
    while fault.hang:
        time.sleep(3600)
    if fault.crash:
        os.abort()
    raise NvmlReturn(fault.code or NvmlErrorKind.UNKNOWN.code)
