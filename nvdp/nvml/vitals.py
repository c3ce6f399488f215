"""Reading the condition of a GPU: what NVML does not offer says nothing, and an error is only noted. In the child."""

from __future__ import annotations

from collections.abc import Callable, Collection
from ctypes import byref
from typing import Any, Final, NamedTuple

import pynvml

from nvdp.errors import NvmlError
from nvdp.model.health import NvLink, Vitals
from nvdp.nvml.asking import GpuFacts
from nvdp.nvml.conditions import (
    FABRIC_COMPLETED,
    FABRIC_STATES,
    FABRIC_SUCCESS,
    RECOVERY_ACTION_FIELD,
    RECOVERY_ACTIONS,
    UNKNOWN_ACTION,
    find_fabric_faults,
)
from nvdp.nvml.kinds import NvmlErrorKind, find_kind
from nvdp.nvml.pci import read_pci

_FABRIC_CALL: Final = "nvmlDeviceGetGpuFabricInfo"
_UNCORRECTED: Final = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_VOLATILE: Final = pynvml.NVML_VOLATILE_ECC
_DRAM: Final = pynvml.NVML_MEMORY_LOCATION_DRAM
_SRAM: Final = pynvml.NVML_MEMORY_LOCATION_SRAM
# A driver that has never heard of a field may call it an invalid argument.
_NO_SUCH_FIELD: Final = frozenset({pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND})
_NO_SUCH_VERSION: Final = frozenset({pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH})


class _Fabric(NamedTuple):
    """A GPU's place in a fabric, as ``Vitals`` has it."""

    state: str | None = None
    status: str | None = None
    faults: tuple[str, ...] = ()
    clique: str = ""


_NO_FABRIC: Final = _Fabric()


class VitalsReader:
    """Reads the vitals of all GPUs of one session; remembers what is at the other ends of their links."""

    def __init__(self) -> None:
        self._peers: dict[tuple[str, int], str | None] = {}

    def read(self, handle: object, facts: GpuFacts, *, no_such_fact: Collection[str]) -> Vitals:
        """The vitals of a GPU of which the UUID is known. A GPU that is found lost on the way has that as its fault.

        ``no_such_fact``: kinds of failures that only say that there is no such reading.
        """
        readings = _Readings(facts, no_such_fact)
        read = readings.read
        memory = read("nvmlDeviceGetMemoryErrorCounter", lambda: _count_errors(handle, _DRAM))
        if memory is None and not readings.errors:
            memory = read("nvmlDeviceGetTotalEccErrors", lambda: _count_all_errors(handle))
        fabric = read(_FABRIC_CALL, lambda: _read_fabric(handle)) or _NO_FABRIC
        return Vitals(
            recovery_action=read("nvmlDeviceGetFieldValues", lambda: _read_recovery_action(handle)),
            row_remap_failure=read("nvmlDeviceGetRemappedRows", lambda: _has_remap_failed(handle)),
            retired_pages_pending=read("nvmlDeviceGetRetiredPagesPendingStatus", lambda: _are_pages_pending(handle)),
            uncorrected_memory=memory,
            uncorrected_sram=read("nvmlDeviceGetMemoryErrorCounter", lambda: _count_errors(handle, _SRAM)),
            nvlinks=self._read_links(handle, facts, readings),
            fabric_state=fabric.state,
            fabric_status=fabric.status,
            fabric_faults=fabric.faults,
            fabric_clique=fabric.clique,
            errors=tuple(readings.errors),
        )

    def _read_links(self, handle: object, facts: GpuFacts, readings: _Readings) -> tuple[NvLink, ...] | None:
        states = readings.read("nvmlDeviceGetNvLinkState", lambda: _read_link_states(handle))
        if not states:
            return None
        uuid = facts.ref.uuid or ""
        fresh = [number for number, up in enumerate(states) if up and (uuid, number) not in self._peers]
        if fresh:  # the wires do not change: asked once, it is known while links go up and down
            peers = readings.read("nvmlDeviceGetNvLinkRemotePciInfo", lambda: [_find_peer(handle, n) for n in fresh])
            self._peers |= {(uuid, number): peer for number, peer in zip(fresh, peers or (), strict=False)}
        return tuple(
            NvLink(number=number, up=up, peer=self._peers.get((uuid, number))) for number, up in enumerate(states)
        )


def find_clique(vitals: Vitals) -> str | None:
    """The clique of a GPU as ``Gpu`` has it. While a fabric is set up, or has failed, the driver does not tell."""
    if vitals.fabric_state is None:
        return None if _FABRIC_CALL in vitals.errors else ""
    if vitals.fabric_state != FABRIC_COMPLETED or vitals.fabric_status != FABRIC_SUCCESS:
        return None
    cluster, _, clique = vitals.fabric_clique.partition("/")
    if not cluster:
        return ""
    return f"{cluster[:8]}-{cluster[8:12]}-{cluster[12:16]}-{cluster[16:20]}-{cluster[20:]}.{clique}"


class _Readings:
    """Takes one reading after the other of one GPU, and notes which calls failed."""

    def __init__(self, facts: GpuFacts, no_such_fact: Collection[str]) -> None:
        self._facts = facts
        self._no_such_fact = no_such_fact
        self.errors: list[str] = []

    def read(self, call: str, function: Callable[[], Any]) -> Any:
        """The reading; None where there is none."""
        try:
            return self._facts.ask(call, function)
        except NvmlError as error:
            if error.kind in self._no_such_fact:
                return None
            if call not in self.errors:
                self.errors.append(call)
            if error.kind == NvmlErrorKind.GPU_IS_LOST.word:
                self._facts.note(error)
            return None


def _read_recovery_action(handle: object) -> str | None:
    (field,) = pynvml.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION_FIELD])
    if field.nvmlReturn in _NO_SUCH_FIELD:
        return None
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(field.nvmlReturn)
    if field.valueType != pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        raise ValueError(f"a recovery action of type {field.valueType}")
    return RECOVERY_ACTIONS.get(field.value.uiVal, UNKNOWN_ACTION)


def _has_remap_failed(handle: object) -> bool:
    _corrected, _uncorrected, _pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return bool(failed)


def _are_pages_pending(handle: object) -> bool:
    return bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))


def _count_errors(handle: object, location: int) -> int | None:
    """None where GPU or driver know no such location."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryErrorCounter(handle, _UNCORRECTED, _VOLATILE, location))
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:
            return None
        raise


def _count_all_errors(handle: object) -> int:
    return int(pynvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _VOLATILE))


def _read_link_states(handle: object) -> list[bool]:
    """Whether each link is up. A GPU has as many links as it answers for; the others are an invalid argument."""
    states = []
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            states.append(bool(pynvml.nvmlDeviceGetNvLinkState(handle, number)))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_INVALID_ARGUMENT and not (states and _is_unsupported(error)):
                raise
            break
    return states


def _find_peer(handle: object, number: int) -> str | None:
    try:
        return read_pci(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number))
    except pynvml.NVMLError as error:
        if _is_unsupported(error):
            return None
        raise


def _read_fabric(handle: object) -> _Fabric:
    """Drivers before 545 know the older call alone, which has no word on the health."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    mask = 0
    try:
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
        mask = info.healthMask
    except pynvml.NVMLError as error:
        if error.value not in _NO_SUCH_VERSION:
            raise
        info = pynvml.c_nvmlGpuFabricInfo_t()
        pynvml.nvmlDeviceGetGpuFabricInfo(handle, byref(info))
    state = FABRIC_STATES.get(info.state)
    if state is None:
        return _NO_FABRIC
    kind = find_kind(code=info.status)
    failed = kind.word if kind is not None else NvmlErrorKind.UNKNOWN.word
    cluster = bytes(info.clusterUuid)
    clique = f"{cluster.hex()}/{info.cliqueId}" if any(cluster) else ""
    return _Fabric(state, failed if info.status else FABRIC_SUCCESS, find_fabric_faults(mask), clique)


def _is_unsupported(error: pynvml.NVMLError) -> bool:
    return error.value in {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
