"""The configuration as the rest of nvdp sees it: typed, whole, valid, with every precedence applied.

One struct for each block of the file; ``Setting`` annotations make its fields keys (``keys``). Blocks that were not
given hold their defaults. Sources: NVIDIA's file version v1, and the blocks of our own (docs/configuration.md).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from nvdp.config.flags import Flags, GfdFlags, Imex, MigStrategy, PluginFlags
from nvdp.config.keys import Setting, camel_key
from nvdp.config.sharing import Mps, MpsResource, SharedResource, Sharing, TimeSlicing
from nvdp.errors import Problem
from nvdp.model.deviceref import DeviceRef
from nvdp.model.duration import Duration, build_duration
from nvdp.model.listing import SharedPolicy
from nvdp.model.names import Pattern, ResourceName
from nvdp.model.platforms import DeviceDiscoveryStrategy

__all__ = [
    "DEFAULT",
    "Allocation",
    "Config",
    "DeviceDiscoveryStrategy",
    "Devices",
    "Document",
    "Flags",
    "GfdFlags",
    "HealthProfile",
    "HealthSettings",
    "Imex",
    "MigStrategy",
    "ModeChange",
    "Mps",
    "MpsResource",
    "NamedPattern",
    "Origin",
    "PluginFlags",
    "PreStartCheck",
    "Recovery",
    "Resources",
    "SharedResource",
    "Sharing",
    "TimeSlicing",
    "Version",
    "WithoutRecoveryAction",
    "XidSet",
]


class Version(enum.Enum):
    V1 = "v1"


class ModeChange(enum.Enum):
    """When a GPU's new form is offered: once no pod holds the old one, or at once, as NVIDIA's plugin does."""

    WHEN_FREE = "when-free"
    IMMEDIATE = "immediate"


class PreStartCheck(enum.Enum):
    NONE = "none"
    IDLE = "idle"


class HealthProfile(enum.Enum):
    """Which XIDs are ignored: NVIDIA's list, or what the driver documentation recommends for each."""

    COMPAT = "compat"
    CATALOG = "catalog"


class WithoutRecoveryAction(enum.Enum):
    NEVER = "never"
    PROBES = "probes"


class XidSet(msgspec.Struct, frozen=True):
    """XIDs of a list, or every one. ``numbers`` is empty where ``all`` is written."""

    numbers: tuple[int, ...] = ()
    every: bool = False


class Devices(msgspec.Struct, frozen=True, kw_only=True, rename=camel_key):
    """Which GPUs take part."""

    exclude: Annotated[tuple[DeviceRef, ...], Setting("devices that are none of ours: never offered or touched")] = ()
    cordon: Annotated[tuple[DeviceRef, ...], Setting("devices that take no new pods; running pods are left alone")] = ()
    paused: Annotated[bool, Setting("let go of the driver: all devices Unhealthy, until false again")] = False
    rescan_interval: Annotated[
        Duration,
        Setting(
            "how often NVML is asked for new, lost and changed devices",
            least=build_duration(seconds=1),
            most=build_duration(seconds=60),
        ),
    ] = build_duration(seconds=10)
    remove_after: Annotated[
        Duration, Setting("how long a vanished GPU stays listed Unhealthy, longer while a pod holds it")
    ] = build_duration(seconds=300)


class NamedPattern(msgspec.Struct, frozen=True, kw_only=True, rename=camel_key):
    """A rule that gives devices their resource name."""

    pattern: Annotated[
        Pattern, Setting('of gpus a product name, of mig a profile; * is any text, as in "NVIDIA A100*" or "1g.*"')
    ]
    name: Annotated[ResourceName, Setting("the resource that matching devices are offered as")]


class Resources(msgspec.Struct, frozen=True, kw_only=True, rename=camel_key):
    """Names of resources. The first pattern that matches wins; the defaults come after all of them."""

    gpus: Annotated[tuple[NamedPattern, ...], Setting("names of whole GPUs, by product name")] = ()
    mig: Annotated[tuple[NamedPattern, ...], Setting("names of MIG devices, by profile")] = ()


class Allocation(msgspec.Struct, frozen=True, kw_only=True, rename=camel_key):
    """Which device a container gets. ``shared_policy`` is the effective one, wherever it was given."""

    shared_policy: Annotated[
        SharedPolicy,
        Setting("how replicas are chosen: fewest used GPU first, one GPU filled first, or most free replicas first"),
    ] = SharedPolicy.DISTRIBUTED
    numa_hints: Annotated[bool, Setting("tell the kubelet the NUMA node of each device")] = True
    mode_change: Annotated[ModeChange, Setting("when a GPU that pods hold in one form is offered in another")] = (
        ModeChange.WHEN_FREE
    )
    pre_start_check: Annotated[
        PreStartCheck, Setting("idle: an exclusive GPU must have no foreign process before a container starts")
    ] = PreStartCheck.NONE
    pre_start_timeout: Annotated[
        Duration,
        Setting(
            "how long idle waits before the container is refused",
            least=build_duration(seconds=1),
            most=build_duration(seconds=25),
            too_large="the kubelet gives up after 30s, ",
        ),
    ] = build_duration(seconds=20)


class Recovery(msgspec.Struct, frozen=True, kw_only=True, rename=camel_key):
    """When a device is Healthy again."""

    hold_off: Annotated[Duration, Setting("clean this long before Healthy again; 0s: never by itself")] = (
        build_duration(seconds=60)
    )
    max_hold_off: Annotated[Duration, Setting("each relapse doubles the hold-off, up to this")] = build_duration(
        seconds=3600
    )
    without_recovery_action: Annotated[
        WithoutRecoveryAction, Setting("faults that need a reset, where the driver says nothing: wait, or trust probes")
    ] = WithoutRecoveryAction.NEVER


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True, rename=camel_key):
    """What makes a device Unhealthy, and Healthy again."""

    profile: Annotated[HealthProfile, Setting("which XIDs are ignored")] = HealthProfile.COMPAT
    ignored_xids: Annotated[XidSet, Setting("XIDs to ignore as well: all, or a list of numbers", least=1)] = XidSet()
    fatal_xids: Annotated[XidSet, Setting("XIDs that are never ignored: all, or a list of numbers", least=1)] = XidSet()
    call_timeout: Annotated[
        Duration,
        Setting(
            "an NVML call that takes longer is given up and its GPU marked",
            least=build_duration(seconds=1),
            most=build_duration(seconds=60),
        ),
    ] = build_duration(seconds=5)
    release_for_reset: Annotated[
        bool, Setting("when a GPU asks for a reset and all GPUs are idle, let go of the driver for a while")
    ] = False
    recovery: Annotated[Recovery, Setting("when a device is Healthy again")] = Recovery()


class Document(msgspec.Struct, frozen=True, kw_only=True, rename=camel_key):
    """All that a file can say."""

    version: Annotated[Version, Setting("version of the format")] = Version.V1
    flags: Annotated[Flags, Setting("NVIDIA's general settings")] = Flags()
    devices: Annotated[Devices, Setting("which GPUs take part")] = Devices()
    resources: Annotated[Resources, Setting("names of resources")] = Resources()
    sharing: Annotated[Sharing, Setting("how GPUs are shared")] = Sharing()
    imex: Annotated[Imex, Setting("IMEX channels for containers")] = Imex()
    allocation: Annotated[Allocation, Setting("which device a container gets")] = Allocation()
    health: Annotated[HealthSettings, Setting("what makes a device Unhealthy, and Healthy again")] = HealthSettings()


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a value came from, ready to show: ``flag --x``, ``environment X``, ``file line 4`` or ``default``.

    ``line`` and ``column`` are 0 for a value that is not from the file.
    """

    text: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return self.text


DEFAULT: Final = Origin(text="default")


class Config(Document, frozen=True, kw_only=True, rename=camel_key):
    """One valid configuration.

    ``name`` is its source as shown to people. ``hash`` is ``sha256:`` and 12 hex digits over the bytes of the file: any
    edit changes it, and the same file has the same hash on every node, whatever flags and environment say there.
    ``origins`` has every key that is not a block itself, by its path (``flags.plugin.passDeviceSpecs``), those of the
    entries of ``sharing`` and ``resources`` too.
    """

    name: str = ""
    hash: str = ""
    warnings: tuple[Problem, ...] = ()
    origins: Mapping[str, Origin] = {}
