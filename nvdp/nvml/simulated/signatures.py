"""C signatures of simulated calls: each argument is taken as C would take it, or the call is refused loudly.

pynvml passes what ctypes would convert: numbers, ``byref`` objects, arrays, pointers. A wrapper that passed by value
what C takes by reference would crash a real process; here it raises TypeError.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

import pynvml

from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.simulated.events import EventSet
from nvdp.nvml.simulated.machine import (
    Device,
    HangError,
    Machine,
    MigDevice,
    NvmlReturn,
    find_position,
    iterate_devices,
)
from nvdp.nvml.simulated.node import SimulatedGpu

_ByRef: Final = type(ctypes.byref(ctypes.c_int()))
# Fills in what the call answers; returns None for NVML_SUCCESS, or what the C function returns instead of a code.
Implementation: TypeAlias = Callable[..., "bytes | None"]


class Parameter(Protocol):
    """One parameter of a C function: its C type, and how an argument becomes what the implementation gets."""

    c_type: Any

    def take(self, argument: Any, machine: Machine) -> Any:
        """Raises TypeError for an argument that C would not survive, NvmlReturn for one that NVML refuses."""
        ...


class Number:
    """A number by value: an unsigned int, or what else C takes."""

    def __init__(self, c_type: Any = ctypes.c_uint) -> None:
        self.c_type = c_type

    def take(self, argument: Any, machine: Machine) -> int:  # noqa: ARG002 - as the Protocol says
        value = getattr(argument, "value", argument)
        if not isinstance(value, int):
            raise TypeError(f"{argument!r} is no number")
        return value


class Text:
    """A ``const char *`` that the library reads."""

    c_type = ctypes.c_char_p

    def take(self, argument: Any, machine: Machine) -> str:  # noqa: ARG002 - as the Protocol says
        value = getattr(argument, "value", argument)
        if not isinstance(value, bytes):
            raise TypeError(f"{argument!r} is no text")
        return value.decode(errors="replace")


class GpuHandle:
    """An nvmlDevice_t of a whole GPU; with ``mig`` also that of a MIG device."""

    c_type = pynvml.c_nvmlDevice_t

    def __init__(self, *, mig: bool = False) -> None:
        self._mig = mig

    def take(self, argument: Any, machine: Machine) -> Device:
        if isinstance(argument, _ByRef):
            raise TypeError("a handle is passed by value")
        handle = ctypes.cast(argument, ctypes.c_void_p).value or 0
        device = machine.find_device(handle)
        if isinstance(device, MigDevice) and not self._mig:
            raise NvmlReturn(NvmlErrorKind.INVALID_ARGUMENT.code)
        return device


class GpuInstanceHandle:
    """An nvmlGpuInstance_t: as the first of the MIG devices in it."""

    c_type = pynvml.c_nvmlGpuInstance_t

    def take(self, argument: Any, machine: Machine) -> MigDevice:
        if isinstance(argument, _ByRef):
            raise TypeError("a GPU instance is passed by value")
        handle = ctypes.cast(argument, ctypes.c_void_p).value or 0
        device = machine.find_device(handle)
        if not isinstance(device, MigDevice):
            raise NvmlReturn(NvmlErrorKind.INVALID_ARGUMENT.code)
        return device


class GpuIndex(Number):
    """A place in NVML's numbering, as the GPU that has it now."""

    def take(self, argument: Any, machine: Machine) -> SimulatedGpu:  # type: ignore[override]
        index = super().take(argument, machine)
        present = machine.node.present
        if index >= len(present):
            raise NvmlReturn(NvmlErrorKind.INVALID_ARGUMENT.code)
        return present[index]


class GpuUuid(Text):
    """A UUID, as the device that has it."""

    def take(self, argument: Any, machine: Machine) -> Device:  # type: ignore[override]
        uuid = super().take(argument, machine)
        for device in iterate_devices(machine.node.present):
            if uuid == (device.instance.uuid if isinstance(device, MigDevice) else device.uuid):
                return device
        raise NvmlReturn(NvmlErrorKind.NOT_FOUND.code)


class GpuPci(Text):
    """A PCI address with a domain of 4 or 8 digits, as the GPU in that slot."""

    def take(self, argument: Any, machine: Machine) -> SimulatedGpu:  # type: ignore[override]
        domain, _, slot = super().take(argument, machine).lower().partition(":")
        for gpu in machine.node.present:
            if gpu.pci == f"{domain[-4:]}:{slot}":
                return gpu
        raise NvmlReturn(NvmlErrorKind.NOT_FOUND.code)


class Out:
    """A pointer to a value that the library fills in."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.c_type = ctypes.POINTER(target)

    def take(self, argument: Any, machine: Machine) -> Any:  # noqa: ARG002 - as the Protocol says
        """The object pointed to."""
        if isinstance(argument, _ByRef):
            pointed = argument._obj  # type: ignore[attr-defined]  # noqa: SLF001 - what byref was given
        elif argument is None or (isinstance(argument, self.c_type) and not argument):
            raise NvmlReturn(NvmlErrorKind.INVALID_ARGUMENT.code)
        elif isinstance(argument, self.c_type):
            pointed = argument.contents
        else:
            raise TypeError(f"{argument!r} is passed by value where C takes a pointer to {self._target.__name__}")
        if not isinstance(pointed, self._target):
            raise TypeError(f"{pointed!r} is no {self._target.__name__}")
        return pointed


class OutArray:
    """A pointer to the first of several values that the library fills in; None for NULL."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.c_type = ctypes.POINTER(target)

    def take(self, argument: Any, machine: Machine) -> Any:  # noqa: ARG002 - as the Protocol says
        """Something that can be indexed."""
        if argument is None or (isinstance(argument, self.c_type) and not argument):
            return None
        if getattr(argument, "_type_", None) is not self._target:
            raise TypeError(f"{argument!r} is no array of {self._target.__name__}")
        return argument


class OutFields:
    """A pointer to the first of several ``nvmlFieldValue_t``: as pynvml gives it, a reference to an array of them."""

    c_type = ctypes.c_void_p

    def take(self, argument: Any, machine: Machine) -> Any:  # noqa: ARG002 - as the Protocol says
        """Something that can be indexed."""
        target = pynvml.c_nvmlFieldValue_t
        if isinstance(argument, _ByRef):
            pointed = argument._obj  # type: ignore[attr-defined]  # noqa: SLF001 - what byref was given
            if getattr(pointed, "_type_", None) is not target:
                raise TypeError(f"{pointed!r} is no array of {target.__name__}")
            return pointed
        if not isinstance(argument, int):
            raise TypeError(f"{argument!r} is passed by value where C takes a pointer to {target.__name__}")
        return ctypes.cast(argument, ctypes.POINTER(target))


class OutVersioned:
    """A pointer to a structure whose first word is its version; ``targets`` are those that the library knows."""

    c_type = ctypes.c_void_p

    def __init__(self, targets: dict[int, Any]) -> None:
        self._targets = targets

    def take(self, argument: Any, machine: Machine) -> Any:  # noqa: ARG002 - as the Protocol says
        """The structure."""
        if isinstance(argument, _ByRef):
            pointed = argument._obj  # type: ignore[attr-defined]  # noqa: SLF001 - what byref was given
            version = getattr(pointed, "version", 0)
        elif isinstance(argument, int):
            version = ctypes.c_uint.from_address(argument).value
        else:
            raise TypeError(f"{argument!r} is passed by value where C takes a pointer")
        if version not in self._targets:
            raise NvmlReturn(NvmlErrorKind.ARGUMENT_VERSION_MISMATCH.code)
        target = self._targets[version]
        if isinstance(argument, int):
            return target.from_address(argument)
        if not isinstance(pointed, target):
            raise TypeError(f"{pointed!r} is no {target.__name__}")
        return pointed


class EventSetHandle:
    """An nvmlEventSet_t that was given out."""

    c_type = pynvml.c_nvmlEventSet_t

    def take(self, argument: Any, machine: Machine) -> EventSet:
        if isinstance(argument, _ByRef):
            raise TypeError("an event set is passed by value")
        event_set = machine.event_sets.find(ctypes.cast(argument, ctypes.c_void_p).value or 0)
        if event_set is None:
            raise NvmlReturn(NvmlErrorKind.INVALID_ARGUMENT.code)
        return event_set


class SimulatedCall:
    """One function of the library, as pynvml gets it: callable, and with attributes that may be set as on ctypes'."""

    def __init__(self, name: str, machine: Machine, parameters: tuple[Parameter, ...], body: Implementation) -> None:
        self.name = name
        self.parameters = parameters
        self._machine = machine
        self._body = body
        self.restype: Any = ctypes.c_int
        self.argtypes: Any = None
        self.errcheck: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """NVML's return code. Raises TypeError where a C function would have been called wrongly."""
        if len(arguments) != len(self.parameters):
            raise TypeError(f"{self.name} takes {len(self.parameters)} arguments, not {len(arguments)}")
        try:
            with self._machine.lock:
                result = self._answer(arguments)
        except NvmlReturn as end:
            return end.code
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from error
        except HangError:
            while True:
                time.sleep(3600)
        return 0 if result is None else result

    def _answer(self, arguments: tuple[Any, ...]) -> bytes | None:
        machine = self._machine
        machine.follow()
        taken = [parameter.take(given, machine) for parameter, given in zip(self.parameters, arguments, strict=True)]
        devices = [value for value in taken if isinstance(value, SimulatedGpu | MigDevice)]
        sets = [machine.find_positions(value.registered) for value in taken if isinstance(value, EventSet)]
        instance = next((device.instance for device in devices if isinstance(device, MigDevice)), None)
        machine.begin(self.name, {*(find_position(device) for device in devices)}.union(*sets), instance)
        for device in devices:
            machine.check(device)
        return self._body(machine, *taken)


def write_handle(pointed: Any, value: int) -> None:
    """Make a handle, which is a pointer that nobody follows, be ``value``."""
    ctypes.cast(ctypes.pointer(pointed), ctypes.POINTER(ctypes.c_void_p)).contents.value = value
