"""Reading the GPUs through pynvml, each call guarded: one bad GPU is only itself. Runs in the child."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, NoReturn, TypeAlias

import msgspec
import pynvml

from nvdp.errors import NvmlError
from nvdp.model.inventory import Driver, Fault, Gpu, GpuRef, Inventory, MigMode, UnreadableGpu
from nvdp.nvml.frames import Probed, Scanned
from nvdp.nvml.kinds import NvmlErrorKind, describe_code

# Cards that drive a screen of a DGX station: NVIDIA's plugin leaves them out too.
_NOT_FOR_COMPUTE: Final = frozenset({"DGX Display", "NVIDIA DGX Display"})
# "This GPU, or this driver, has no such fact": not a fault. WSL has no minor numbers, a T4 no MIG mode, an integrated
# GPU no memory of its own, an old library none of the newer calls.
_NO_SUCH_FACT: Final = frozenset({NvmlErrorKind.NOT_SUPPORTED.word, NvmlErrorKind.FUNCTION_NOT_FOUND.word})

Announce: TypeAlias = Callable[[str, GpuRef | None], None]
FindNumaNode: TypeAlias = Callable[[str], int | None]


class GpuReader:
    """Scans and probes. ``announce`` is called before each NVML call with its name and the GPU it is about.

    NVML must be initialised. A call that does not return blocks for ever: the daemon ends the process then.
    """

    def __init__(self, announce: Announce, find_numa_node: FindNumaNode) -> None:
        self._announce = announce
        self._find_numa_node = find_numa_node

    def scan(self, skip: Collection[GpuRef]) -> Scanned:
        """Everything NVML counts, in its order. Raises NvmlError if it does not even count."""
        driver = self._read_driver()
        count = self._count()
        gpus: dict[str, Gpu] = {}
        unreadable: list[UnreadableGpu] = []
        skipped: list[GpuRef] = []

        def is_unwanted(ref: GpuRef) -> bool:
            met = [entry for entry in skip if _recognises(entry, ref)]
            skipped.extend(met)
            return bool(met)

        for index in range(count):
            found = self._read(GpuRef(index=index, count=count), is_unwanted)
            if isinstance(found, Gpu) and found.uuid in gpus:
                text = f"the same UUID as index {gpus[found.uuid].index}: {found.uuid}"
                fault = Fault(call="nvmlDeviceGetUUID", kind=NvmlErrorKind.UNKNOWN.word, text=text)
                found = UnreadableGpu(index=index, pci=found.pci, fault=fault)
            if isinstance(found, Gpu):
                gpus[found.uuid] = found
            elif found is not None:
                unreadable.append(found)
        inventory = Inventory(driver=driver, gpus=tuple(gpus.values()), unreadable=tuple(unreadable))
        return Scanned(inventory=inventory, skipped=tuple(skipped))

    def probe(self, wanted: GpuRef, skip: Collection[GpuRef]) -> Probed:
        """One GPU, read as a scan reads it, so that a clean answer here promises a clean scan."""
        count = self._count()

        def is_unwanted(ref: GpuRef) -> bool:
            return _is_another(wanted, ref) or any(_recognises(entry, ref) for entry in skip)

        for index in range(count):
            found = self._read(GpuRef(index=index, count=count), is_unwanted)
            if isinstance(found, Gpu):
                return Probed(gpu=found, fault=found.fault)
            if found is not None:
                return Probed(fault=found.fault)
        return Probed()

    def _count(self) -> int:
        count: int = self._ask("nvmlDeviceGetCount", pynvml.nvmlDeviceGetCount)
        return count

    def _read_driver(self) -> Driver:
        """Versions are for people: one that cannot be read is empty, and the scan goes on."""
        cuda = self._find_fact("nvmlSystemGetCudaDriverVersion", pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return Driver(
            version=self._find_fact("nvmlSystemGetDriverVersion", pynvml.nvmlSystemGetDriverVersion) or "",
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        )

    def _find_fact(self, call: str, function: Callable[[], Any]) -> Any:
        try:
            return self._ask(call, function)
        except NvmlError:
            return None

    def _read(self, ref: GpuRef, is_unwanted: Callable[[GpuRef], bool]) -> Gpu | UnreadableGpu | None:
        """The GPU at ``ref``; None as soon as enough of it is known to say that it is unwanted."""
        if is_unwanted(ref):
            return None
        facts = _Facts(self._ask, ref)
        pci = None
        try:
            handle = self._ask("nvmlDeviceGetHandleByIndex", pynvml.nvmlDeviceGetHandleByIndex, ref.index, gpu=ref)
            pci = facts.read("nvmlDeviceGetPciInfo", lambda: _read_pci(handle))
            facts.ref = msgspec.structs.replace(ref, pci=pci)
            if pci is not None and is_unwanted(facts.ref):
                return None
            uuid = self._ask("nvmlDeviceGetUUID", _read_uuid, handle, gpu=facts.ref)
        except NvmlError as error:
            return UnreadableGpu(index=ref.index, pci=pci, fault=facts.fault or _build_fault(error))
        facts.ref = msgspec.structs.replace(facts.ref, uuid=uuid)
        return None if is_unwanted(facts.ref) else self._read_facts(handle, facts, uuid)

    def _read_facts(self, handle: object, facts: _Facts, uuid: str) -> Gpu | None:
        product = facts.read("nvmlDeviceGetName", lambda: pynvml.nvmlDeviceGetName(handle))
        if product in _NOT_FOR_COMPUTE:
            return None
        pci = facts.ref.pci
        return Gpu(
            uuid=uuid,
            index=facts.ref.index,
            pci=pci,
            minor=facts.read("nvmlDeviceGetMinorNumber", lambda: pynvml.nvmlDeviceGetMinorNumber(handle)),
            product=product,
            memory_bytes=facts.read("nvmlDeviceGetMemoryInfo", lambda: _read_memory_bytes(handle)),
            compute_capability=facts.read("nvmlDeviceGetCudaComputeCapability", lambda: _read_capability(handle)),
            numa_node=self._find_numa_node(pci) if pci is not None else None,
            mig=facts.read("nvmlDeviceGetMigMode", lambda: _read_mig_mode(handle), otherwise=MigMode.UNSUPPORTED),
            fault=facts.fault,
        )

    def _ask(self, call: str, function: Callable[..., Any], *arguments: object, gpu: GpuRef | None = None) -> Any:
        """One NVML call. Every exception becomes an NvmlError that names the call, the GPU and our own text."""
        self._announce(call, gpu)
        try:
            return function(*arguments)
        except Exception as error:  # noqa: BLE001 - pynvml also raises what it meets in answers, as UnicodeDecodeError
            _translate(error, call=call, gpu=gpu)


class _Facts:
    """Reads the facts of one GPU and keeps the first fault."""

    def __init__(self, ask: Callable[..., Any], ref: GpuRef) -> None:
        self._ask = ask
        self.ref = ref
        self.fault: Fault | None = None

    def read(self, call: str, function: Callable[[], Any], *, otherwise: Any = None) -> Any:
        """The fact; ``otherwise`` if the GPU has no such fact; None after a failure, which is noted."""
        try:
            return self._ask(call, function, gpu=self.ref)
        except NvmlError as error:
            if error.kind in _NO_SUCH_FACT:
                return otherwise
            self.fault = self.fault or _build_fault(error)
            return None


def _recognises(entry: GpuRef, ref: GpuRef) -> bool:
    """Whether ``ref`` is the GPU of a skip entry, judged by what was known when its call did not return.

    A place among as many others is the last resort: it may be another card after a renumbering, which the next call
    that does not return, or the next clean probe, puts right.
    """
    if entry.pci is not None:
        return entry.pci == ref.pci
    if entry.uuid is not None:
        return entry.uuid == ref.uuid
    return (entry.index, entry.count) == (ref.index, ref.count) and ref.pci is None


def _is_another(wanted: GpuRef, ref: GpuRef) -> bool:
    """Whether ``ref``, as far as it is known yet, cannot be the wanted GPU. A new card in the slot is wanted too."""
    if wanted.pci is not None:
        return ref.pci is not None and ref.pci != wanted.pci
    if wanted.uuid is not None:
        return ref.uuid is not None and ref.uuid != wanted.uuid
    return ref.index != wanted.index


def _read_pci(handle: object) -> str | None:
    info = pynvml.nvmlDeviceGetPciInfo(handle)
    return parse_pci(info.busId) or parse_pci(info.busIdLegacy) or build_pci(info.domain, info.bus, info.device)


def parse_pci(text: str) -> str | None:
    """NVML's ``00000000:1B:00.0`` as the host writes it, ``0000:1b:00.0``; None if it is no PCI address."""
    try:
        domain, bus, rest = text.strip().split(":")
        device, function = rest.split(".")
        return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{int(function, 16):x}"
    except ValueError:
        return None


def build_pci(domain: int, bus: int, device: int) -> str | None:
    """The address of function 0; None if the library filled nothing in."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.0" if domain or bus or device else None


def _read_uuid(handle: object) -> str:
    uuid: str = pynvml.nvmlDeviceGetUUID(handle)
    if not uuid:
        raise ValueError("an empty UUID")
    return uuid


def _read_memory_bytes(handle: object) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)


def _read_capability(handle: object) -> str:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return f"{major}.{minor}"


def _read_mig_mode(handle: object) -> MigMode:
    current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    return MigMode.ENABLED if current == pynvml.NVML_DEVICE_MIG_ENABLE else MigMode.DISABLED


def _translate(error: Exception, *, call: str, gpu: GpuRef | None) -> NoReturn:
    if isinstance(error, pynvml.NVMLError):
        word, text = describe_code(error.value)
    elif isinstance(error, pynvml.NVMLLibraryMismatchError):
        word, text = NvmlErrorKind.FUNCTION_NOT_FOUND.word, NvmlErrorKind.FUNCTION_NOT_FOUND.text
    else:
        word, text = NvmlErrorKind.UNKNOWN.word, f"the answer makes no sense: {error}"
    raise NvmlError(f"{call}: {text}", kind=word, call=call, gpu=str(gpu or "")) from error


def _build_fault(error: NvmlError) -> Fault:
    return Fault(call=error.call, kind=error.kind, text=str(error))
