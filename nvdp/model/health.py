"""Why a GPU is not fit for new pods, and what a probe reads of its condition."""

from __future__ import annotations

import msgspec

from nvdp.model.reasons import Cause


class Ailment(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU without an ailment is Healthy. ``since`` is wall-clock seconds; ``text`` is a sentence for people.

    ``xid`` is the driver's number of the fault, where there is one. ``action`` is the driver's word for what it asks
    for (``Vitals.recovery_action``, or ``Unsupported``); empty where it was not asked since.
    """

    cause: Cause
    text: str
    since: float
    xid: int | None = None
    action: str = ""


class InstanceRef(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A MIG instance as NVML's events name it. ``compute`` is None where all of the GPU instance is meant."""

    gpu: int
    compute: int | None = None


class NvLink(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One NVLink of a GPU. ``peer`` is the PCI address of its other end (as ``Gpu.pci``), None if NVML does not say."""

    number: int
    up: bool
    peer: str | None = None


class Vitals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What NVML offers about the condition of one GPU. None: this GPU or driver has no such reading, or it failed.

    ``errors`` names the NVML calls that failed (``nvmlDeviceGetRemappedRows``): a call that is not supported did not.
    ``recovery_action`` is the driver's word: ``None`` (as text: it asks for nothing), ``GPUReset``, ``NodeReboot``,
    ``DrainP2P``, ``DrainAndReset``, ``RecoverIMEXDomain``, ``BusReset``, ``SystemReboot``, or ``Unknown`` for a number
    that has no name yet. The two counts are of uncorrected ECC errors since the driver was loaded (NVML's *volatile*
    counters) in device memory and in SRAM; a GPU that tells a total alone has it as that of the memory.
    ``nvlinks`` are in the order of their numbers. ``fabric_state`` is ``NotStarted``, ``InProgress`` or ``Completed``,
    None where the GPU is on no NVSwitch fabric; ``fabric_status`` is ``Success`` or the word of an ``NvmlErrorKind``;
    ``fabric_faults`` are the parts of the fabric's health that NVML says are bad, empty where it says nothing:
    ``DegradedBandwidth``, ``RouteRecovery``, ``RouteUnhealthy``, ``AccessTimeoutRecovery``, or ``Misconfigured``.
    ``fabric_clique`` names those of the fabric's GPUs with which this one can exchange data (``CLUSTER/CLIQUE``), empty
    where the driver names none.
    """

    recovery_action: str | None = None
    row_remap_failure: bool | None = None
    retired_pages_pending: bool | None = None
    uncorrected_memory: int | None = None
    uncorrected_sram: int | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    fabric_state: str | None = None
    fabric_status: str | None = None
    fabric_faults: tuple[str, ...] = ()
    fabric_clique: str = ""
    errors: tuple[str, ...] = ()
