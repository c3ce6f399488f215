"""Reading the GPUs through pynvml, each call guarded: one bad GPU is only itself. Runs in the child."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import pynvml

from nvdp.errors import NvmlError
from nvdp.model.health import Vitals
from nvdp.model.inventory import ComputeMode, Fault, Gpu, GpuRef, Inventory, MigMode, UnreadableGpu
from nvdp.nvml.asking import NO_SUCH_FACT, NOT_FOR_US, Asker, GpuFacts, build_fault, read_driver, read_uuid
from nvdp.nvml.frames import ComputeModeSet, ComputeProcess, Probed, ProcessesRead, Scanned
from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.mig import NO_INSTANCES, MigReader, list_mig_handles
from nvdp.nvml.modes import find_compute_mode, set_compute_mode
from nvdp.nvml.pci import read_pci
from nvdp.nvml.topology import Connected, TopologyReader
from nvdp.nvml.vitals import VitalsReader, find_clique
from nvdp.nvml.watch import EventWatch

# Cards that drive a screen of a DGX station: NVIDIA's plugin leaves them out too.
_NOT_FOR_COMPUTE: Final = frozenset({"DGX Display", "NVIDIA DGX Display"})

_IsUnwanted: TypeAlias = Callable[[GpuRef], bool]


class _Met(msgspec.Struct, frozen=True):
    """A GPU that was met and recognised: its handle, and its facts so far, with the UUID among them."""

    handle: object
    facts: GpuFacts


class GpuReader:
    """Scans, probes, tells the processes and sets compute modes, for one session of NVML that is open.

    A call that does not return blocks for ever: the daemon ends the process then.
    """

    def __init__(self, asker: Asker, watch: EventWatch, *, complete: Callable[[Gpu], Gpu]) -> None:
        self._asker = asker
        self._watch = watch
        self._complete = complete
        self._mig = MigReader()
        self._vitals = VitalsReader()
        self._topology = TopologyReader()

    def scan(self, skip: Collection[GpuRef], *, ancestors: bool = True) -> Scanned:
        """Everything NVML counts, in its order. Raises NvmlError if it does not even count.

        ``ancestors``: see ``frames.Scan``.
        """
        driver = read_driver(self._asker)
        count = self._count()
        self._watch.prepare()
        gpus: dict[str, Gpu] = {}
        vitals: dict[str, Vitals] = {}
        connected: list[Connected] = []
        unreadable: list[UnreadableGpu] = []
        skipped: list[GpuRef] = []

        def is_unwanted(ref: GpuRef) -> bool:
            met = [entry for entry in skip if _recognises(entry, ref)]
            skipped.extend(msgspec.structs.replace(entry, index=ref.index, count=count) for entry in met)
            return bool(met)

        for index in range(count):
            met = self._meet(GpuRef(index=index, count=count), is_unwanted)
            uuid = met.facts.ref.uuid if isinstance(met, _Met) else None
            if isinstance(met, UnreadableGpu):
                unreadable.append(met)
            elif met is not None and uuid in gpus:
                text = f"the same UUID as index {gpus[uuid].index}: {uuid}"
                fault = Fault(call="nvmlDeviceGetUUID", kind=NvmlErrorKind.UNKNOWN.word, text=text)
                unreadable.append(UnreadableGpu(index=index, pci=met.facts.ref.pci, fault=fault))
            elif met is not None and (found := self._read(met)) is not None:
                gpu, vitals[gpu.uuid] = found
                gpus[gpu.uuid] = gpu
                if gpu.mig is not MigMode.ENABLED:  # its parts exchange no data with other GPUs
                    connected.append(Connected(met.handle, met.facts, vitals[gpu.uuid]))
        inventory = Inventory(
            driver=driver,
            gpus=tuple(gpus.values()),
            unreadable=tuple(unreadable),
            connections=self._topology.connect(connected, ancestors=ancestors),
        )
        return Scanned(
            inventory=inventory,
            count=count,
            skipped=tuple(skipped),
            vitals=vitals,
            unwatched=tuple(uuid for uuid in gpus if not self._watch.has(uuid)),
            watch=self._watch.report(),
        )

    def probe(self, wanted: GpuRef, skip: Collection[GpuRef]) -> Probed:
        """One GPU, asked all that a scan asks, so that a clean answer here promises a clean scan."""
        self._watch.prepare()
        met = self._find(wanted, skip)
        if isinstance(met, UnreadableGpu):
            return Probed(fault=met.fault)
        found = self._read(met) if met is not None else None
        if found is None:
            return Probed()
        gpu, vitals = found
        return Probed(gpu=gpu, fault=gpu.fault, vitals=vitals)

    def read_processes(self, wanted: GpuRef, skip: Collection[GpuRef]) -> ProcessesRead:
        """What computes or draws on one GPU, each process once."""
        met = self._find(wanted, skip)
        if isinstance(met, UnreadableGpu):
            return ProcessesRead(fault=met.fault)
        if met is None:
            return ProcessesRead()
        try:
            found = {one.pid: one for one in _read_running(met)}
        except NvmlError as error:
            return ProcessesRead(fault=build_fault(error))
        return ProcessesRead(
            processes=tuple(ComputeProcess(pid=one.pid, memory_bytes=one.usedGpuMemory) for one in found.values())
        )

    def set_compute_mode(self, wanted: GpuRef, mode: ComputeMode, skip: Collection[GpuRef]) -> ComputeModeSet:
        """Of one GPU, as far as it has another."""
        met = self._find(wanted, skip)
        if isinstance(met, UnreadableGpu):
            return ComputeModeSet(fault=met.fault)
        if met is None:
            return ComputeModeSet()
        try:
            set_compute_mode(met.handle, met.facts, mode)
        except NvmlError as error:
            return ComputeModeSet(fault=build_fault(error))
        return ComputeModeSet(mode=mode)

    def _count(self) -> int:
        count: int = self._asker.ask("nvmlDeviceGetCount", pynvml.nvmlDeviceGetCount)
        return count

    def _find(self, wanted: GpuRef, skip: Collection[GpuRef]) -> _Met | UnreadableGpu | None:
        """The wanted GPU; no other is touched more than is needed to find it.

        One that cannot be read may be it, but only if no other is.
        """
        count = self._count()

        def is_unwanted(ref: GpuRef) -> bool:
            return _is_another(wanted, ref) or any(_recognises(entry, ref) for entry in skip)

        unreadable: UnreadableGpu | None = None
        for index in range(count):
            found = self._meet(GpuRef(index=index, count=count), is_unwanted)
            if isinstance(found, _Met):
                return found
            unreadable = unreadable or found
        return unreadable

    def _meet(self, ref: GpuRef, is_unwanted: _IsUnwanted) -> _Met | UnreadableGpu | None:
        """The GPU at ``ref``; None as soon as enough of it is known to say that it is unwanted."""
        if is_unwanted(ref):
            return None
        facts = GpuFacts(self._asker, ref)
        pci = None
        try:
            handle = facts.ask("nvmlDeviceGetHandleByIndex", pynvml.nvmlDeviceGetHandleByIndex, ref.index)
            pci = facts.read("nvmlDeviceGetPciInfo", lambda: read_pci(pynvml.nvmlDeviceGetPciInfo(handle)))
            facts.ref = msgspec.structs.replace(ref, pci=pci)
            if pci is not None and is_unwanted(facts.ref):
                return None
            uuid = facts.ask("nvmlDeviceGetUUID", read_uuid, handle)
        except NvmlError as error:
            return UnreadableGpu(index=ref.index, pci=pci, fault=facts.fault or build_fault(error))
        facts.ref = msgspec.structs.replace(facts.ref, uuid=uuid)
        return None if is_unwanted(facts.ref) else _Met(handle, facts)

    def _read(self, met: _Met) -> tuple[Gpu, Vitals] | None:
        """All of a GPU; None if it is none for computing. Its events are on before its condition is read."""
        handle, facts = met.handle, met.facts
        product = facts.read("nvmlDeviceGetName", lambda: pynvml.nvmlDeviceGetName(handle))
        if product in _NOT_FOR_COMPUTE:
            return None
        self._watch.register(handle, facts)
        ref = facts.ref
        assert ref.uuid is not None
        mig, pending = facts.read(
            "nvmlDeviceGetMigMode", lambda: _read_mig_modes(handle), otherwise=(MigMode.UNSUPPORTED, None)
        ) or (None, None)
        no_such_fact = NOT_FOR_US if mig is MigMode.ENABLED else NO_SUCH_FACT
        memory_bytes = facts.read(
            "nvmlDeviceGetMemoryInfo",
            lambda: _read_memory_bytes(handle),
            no_such_fact=no_such_fact,
        )
        found = self._mig.read(handle, facts, memory_bytes) if mig is MigMode.ENABLED else NO_INSTANCES
        gpu = Gpu(
            uuid=ref.uuid,
            index=ref.index,
            pci=ref.pci,
            minor=facts.read("nvmlDeviceGetMinorNumber", lambda: pynvml.nvmlDeviceGetMinorNumber(handle)),
            product=product,
            memory_bytes=memory_bytes,
            compute_capability=facts.read("nvmlDeviceGetCudaComputeCapability", lambda: _read_capability(handle)),
            mig=mig,
            mig_pending=pending,
            compute_mode=find_compute_mode(handle, facts),
            instances=found.instances,
            unreadable_instances=found.unreadable,
        )
        vitals = self._vitals.read(handle, facts, no_such_fact=no_such_fact)
        self._topology.read_links(Connected(handle, facts, vitals))
        return self._complete(msgspec.structs.replace(gpu, clique=find_clique(vitals), fault=facts.fault)), vitals


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


def _read_running(met: _Met) -> list[Any]:
    """What computes or draws. Where only the MIG devices of a GPU may be asked, and not the GPU, they are."""
    try:
        return [*_read_computing(met.handle, met.facts), *_read_drawing(met.handle, met.facts)]
    except NvmlError as error:
        if error.kind != NvmlErrorKind.NO_PERMISSION.word:
            raise
        handles = list_mig_handles(met.handle, met.facts)
        if not handles:
            raise
    return [
        process
        for handle in handles
        for process in (*_read_computing(handle, met.facts), *_read_drawing(handle, met.facts))
    ]


def _read_computing(handle: object, facts: GpuFacts) -> Sequence[Any]:
    call, function = "nvmlDeviceGetComputeRunningProcesses", pynvml.nvmlDeviceGetComputeRunningProcesses
    found: Sequence[Any] = facts.ask(call, function, handle)
    return found


def _read_drawing(handle: object, facts: GpuFacts) -> Sequence[Any]:
    """The processes that draw; of a GPU that does not draw, or a library too old to tell, there are none."""
    call, function = "nvmlDeviceGetGraphicsRunningProcesses", pynvml.nvmlDeviceGetGraphicsRunningProcesses
    try:
        found: Sequence[Any] = facts.ask(call, function, handle)
    except NvmlError as error:
        if error.kind in NO_SUCH_FACT:
            return ()
        raise
    return found


def _read_memory_bytes(handle: object) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)


def _read_capability(handle: object) -> str:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return f"{major}.{minor}"


def _read_mig_modes(handle: object) -> tuple[MigMode, MigMode | None]:
    """The current mode, and the pending one where it is another."""
    current, pending = (
        MigMode.ENABLED if mode == pynvml.NVML_DEVICE_MIG_ENABLE else MigMode.DISABLED
        for mode in pynvml.nvmlDeviceGetMigMode(handle)
    )
    return current, pending if pending is not current else None
