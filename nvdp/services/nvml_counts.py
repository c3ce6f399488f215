"""Counting what becomes of NVML calls, for the metrics."""

from __future__ import annotations

from typing import Protocol

from nvdp.nvml.frames import Refused, Scanned
from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.outcomes import Died, Hung, Outcome
from nvdp.services.health import HealthObserver


class GpuObserver(HealthObserver, Protocol):
    """Counts (metrics/). Called from the threads of the service that knows the GPUs."""

    def scan_took(self, seconds: float) -> None: ...

    def nvml_failed(self, call: str, kind: str) -> None:
        """``kind`` is the word of an ``NvmlErrorKind``; a crash of the library counts as Unknown."""
        ...

    def nvml_timed_out(self, uuid: str) -> None:
        """``uuid`` is empty where no GPU that has a name can be blamed."""
        ...


def count_outcome(outcome: Outcome, observer: GpuObserver) -> None:
    """Count the failures in the outcome of a scan or probe; of each GPU the first failing call.

    A wait for events that fails is counted when it does (``services/watching``).
    """
    match outcome:
        case Hung(gpu=gpu):
            observer.nvml_timed_out((gpu.uuid or "") if gpu is not None else "")
        case Refused(call=call, kind=kind):
            observer.nvml_failed(call, kind)
        case Died(call=call, at_fault=True):
            observer.nvml_failed(call, NvmlErrorKind.UNKNOWN.word)
        case Scanned(inventory=inventory, watch=watch):
            if watch.kind not in {"", NvmlErrorKind.FUNCTION_NOT_FOUND.word} and not watch.failed:
                observer.nvml_failed("nvmlEventSetCreate", watch.kind)
            faults = [gpu.fault for gpu in inventory.gpus if gpu.fault is not None]
            for fault in (*faults, *(gpu.fault for gpu in inventory.unreadable)):
                observer.nvml_failed(fault.call, fault.kind)
