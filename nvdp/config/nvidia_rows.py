"""The table of what means something else to NVIDIA's plugin (v0.20.0): one row for each difference.

A key that is in no row means the same to both, whatever its value. docs/from-nvidia.md holds the same table.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Final

import msgspec

from nvdp.config import nvidia_facts as facts
from nvdp.config.schema import HealthProfile, MigStrategy, ModeChange, PreStartCheck, WithoutRecoveryAction
from nvdp.config.written import Written


class Effect(enum.Enum):
    """Dangerous: pods get devices otherwise than the file says, or none at all. A note: anything else."""

    DANGEROUS = "dangerous"
    NOTE = "note"


class Row(msgspec.Struct, frozen=True):
    """One difference.

    ``paths`` are the keys, or entries (``[]``), that may make it; ``*`` is any one name. ``meaning`` goes on after
    "NVIDIA's plugin"; ``detail`` adds what is particular to a place, and what to do about it. ``null`` is for a key
    with nothing after it, which all other rows take for absent.
    """

    paths: tuple[str, ...]
    effect: Effect
    meaning: str
    differs: Callable[[Written], bool]
    detail: Callable[[Written], str] | None = None
    null: bool = False

    def matches(self, pattern: str) -> bool:
        """Whether ``pattern`` is one of the paths."""
        return any(re.fullmatch(re.escape(path).replace(r"\*", r"\w+"), pattern) for path in self.paths)

    def tell(self, written: Written) -> str:
        """What to say about one place."""
        detail = self.detail(written) if self.detail is not None else ""
        return f"{self.meaning}; {detail}" if detail else self.meaning


_D, _N = Effect.DANGEROUS, Effect.NOTE
_ENTRY: Final = "sharing.*.resources[]"
_MPS: Final = "sharing.mps.resources[]"
_NAMES: Final = ("resources.*[].name", f"{_ENTRY}.name", f"{_ENTRY}.rename")
_TEXTS: Final = (
    "flags.gfd.outputFile",
    "flags.gfd.machineTypeFile",
)
_LISTS_OF_XIDS: Final = "ignores it and takes XIDs from its environment only"

ROWS: Final = (
    # Which devices take part
    Row(("devices.exclude",), _D, "ignores it and hands these devices out", facts.is_on),
    Row(("devices.cordon",), _D, "ignores it and gives these devices to new pods", facts.is_on),
    Row(("devices.paused",), _D, "ignores it, opens the driver and hands all devices out", facts.is_on),
    Row(("devices.rescanInterval",), _N, "ignores it and looks for devices only at its start", facts.is_written),
    Row(("devices.removeAfter",), _N, "ignores it and lists a vanished GPU until its next start", facts.is_written),
    # What they are called
    Row(_NAMES, _D, "does not start: a name there is nvidia.com/ and lower-case letters, digits, - or .",
        facts.is_no_name, facts.tell_value),
    Row(("resources.*[].pattern", *_NAMES), _D, "does not start: an unquoted number or boolean is no text there",
        facts.is_no_text, facts.tell_kind),
    Row(("resources.gpus[].name",), _D, "throws it away and offers these GPUs as nvidia.com/gpu", facts.renames_gpus),
    Row(("resources.mig[].name",), _D, "throws it away and offers these MIG devices under their default names",
        facts.renames_mig),
    Row(("resources.mig[].name",), _N, "throws it away, which matters once it offers MIG devices", facts.has_no_mig),
    # How they are shared
    Row(("sharing.timeSlicing",), _D, "ignores all of it, because sharing.mps is there as well", facts.is_beside_mps),
    Row(("sharing.mps.resources",), _D,
        "offers nothing: it waits for an MPS daemon for nvidia.com/gpu, for which there is no entry",
        facts.lacks_gpu_entry),
    Row((f"{_ENTRY}.name",), _D, "has no resource of this name, so that the entry shares nothing", facts.is_own_name),
    Row((f"{_ENTRY}.rename",), _D, "throws it away", facts.is_renamed, facts.tell_shared_name),
    Row((f"{_ENTRY}.rename",), _D, "does not start: with nothing after it, the key is an error there; remove it",
        facts.is_written, null=True),
    Row((f"{_ENTRY}.devices",), _D, "throws it away and shares all devices of this name", facts.is_part),
    Row((f"{_ENTRY}.devices[]",), _D,
        'does not start: a device there is an index, "GPU:INSTANCE", or a UUID that begins with GPU- or MIG-',
        facts.is_no_device, facts.tell_value),
    Row((f"{_ENTRY}.replicas",), _D, "does not start: 2 replicas are the least; leave the entry out",
        facts.is_value(1)),
    Row((f"{_MPS}.replicas",), _D,
        f"offers nothing: its MPS daemon does not start for more than {facts.MPS_CLIENTS} replicas",
        facts.has_too_many_clients),
    Row(("sharing.timeSlicing.requireDistinctGPUs",), _N,
        "ignores it: a container that asks for several may get one GPU several times", facts.may_repeat_gpus),
    Row(("sharing.mps.failRequestsGreaterThanOne",), _N, "gives a container replicas of several GPUs as well",
        facts.is_off),
    Row((f"{_MPS}.defaultActiveThreadPercentage",), _N, "ignores it: each client gets 100 / replicas percent",
        facts.is_other_percentage),
    Row((f"{_MPS}.defaultPinnedDeviceMemoryLimit", f"{_MPS}.defaultPerDevicePinnedMemoryLimit",
         f"{_MPS}.memoryOvercommitPercentage"), _N, "ignores it: each client gets the GPU's memory / replicas",
        facts.is_other_memory),
    Row((f"{_MPS}.multiUser",), _N, "ignores it: pods of another user wait until those of the first are gone",
        facts.is_on),
    # Flags
    Row(("flags.migStrategy",), _D, "does not start: mixed and MPS exclude each other there",
        facts.is_strategy_beside_mps(MigStrategy.MIXED)),
    Row(("flags.migStrategy",), _D, "does not start on a node with MIG devices, which it cannot share through MPS",
        facts.is_strategy_beside_mps(MigStrategy.SINGLE)),
    Row(("flags.failOnInitError",), _N, "exits while NVML cannot be used, where nvdp waits and is not ready",
        facts.is_on),
    Row(("flags.failOnInitError",), _N,
        "exits all the same where NVML is missing, because deviceListStrategy asks for CDI", facts.needs_nvml_anyway),
    Row(("flags.plugin.deviceListStrategy",), _N, "sends both kinds of CDI, so that devices are injected twice",
        facts.names_devices_twice),
    Row(("flags.gfd.sleepInterval",), _N, "reads a bare number as nanoseconds",
        facts.is_nanoseconds, facts.tell_duration),
    Row(("flags.gfd.sleepInterval",), _D, "does not start: a quoted number lacks its unit there",
        facts.lacks_unit, facts.tell_duration),
    Row(_TEXTS, _N, "reads an unquoted number or boolean as such and spells it anew",
        facts.becomes_other_text, facts.tell_kind),
    Row(("imex.channelIDs",), _D, "does not start: it takes [] or [0]", facts.has_several),
    Row(("imex.required",), _N, "exits while the channel is missing, where nvdp lists its devices Unhealthy",
        facts.needs_channel),
    # Who gets which
    Row(("allocation.sharedPolicy",), _N, "ignores it and distributes", facts.is_other_policy, facts.tell_policy_key),
    Row(("allocation.numaHints",), _N, "ignores it and tells the kubelet NUMA nodes", facts.is_off),
    Row(("allocation.modeChange",), _N, "ignores it: an edit counts from its next start, whatever pods hold",
        facts.is_value(ModeChange.WHEN_FREE)),
    Row(("allocation.preStartCheck",), _N, "ignores it and lets containers start beside foreign processes",
        facts.is_value(PreStartCheck.IDLE)),
    Row(("allocation.preStartTimeout",), _N, "ignores it, as it does the check before a start",
        facts.checks_before_start),
    # What is Unhealthy
    Row(("health.profile",), _N,
        f"ignores it: every XID but {', '.join(map(str, sorted(facts.IGNORED_XIDS)))} makes a device Unhealthy",
        facts.is_value(HealthProfile.CATALOG)),
    Row(("health.ignoredXIDs",), _N, _LISTS_OF_XIDS, facts.ignores_more,
        facts.tell_variable("DP_DISABLE_HEALTHCHECKS")),
    Row(("health.fatalXIDs",), _N, _LISTS_OF_XIDS, facts.ignores_less, facts.tell_variable("DP_ENABLE_HEALTHCHECKS")),
    Row(("health.callTimeout",), _N, "ignores it: a call that hangs holds everything up", facts.is_written),
    Row(("health.releaseForReset",), _N, "ignores it and never lets go of the driver", facts.is_on),
    Row(("health.recovery.holdOff", "health.recovery.maxHoldOff"), _N,
        "ignores it: what is Unhealthy stays so until its next start", facts.recovers),
    Row(("health.recovery.withoutRecoveryAction",), _N, "ignores it: what is Unhealthy stays so until its next start",
        facts.is_value(WithoutRecoveryAction.PROBES)),
)  # fmt: skip
