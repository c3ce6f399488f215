"""What is to be written for container runtimes that read CDI specs, what was written, and how its parts are named.

Names stay the same over restarts and reboots, since the kubelet hands a container the name that it was given once
(kubelet contract A.5). Vendor, classes and file names are those of NVIDIA's plugin, so that either takes over from the
other.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from nvdp.model.platforms import Platform

VENDOR: Final = "k8s.device-plugin.nvidia.com"
ALL: Final = "all"

# The words of --cdi-disable-hooks and --cdi-feature-flags, as NVIDIA's generator has them. Not all have an effect here:
# what they would switch off is never done.
NO_HOOKS: Final = "all"
HOOKS: Final = (
    "create-symlinks",
    "enable-cuda-compat",
    "update-ldcache",
    "disable-device-node-modification",
    "update-application-profile",
    "chmod",
)
FEATURE_FLAGS: Final = (
    "enable-explicit-driver-libraries",
    "disable-nvsandboxutils",
    "enable-coherent-annotations",
    "disable-multiple-csv-devices",
    "no-additional-gids-for-device-nodes",
    "disable-ipc-discoverer",
)


class CdiClass(enum.Enum):
    """One class of devices, with a spec file of its own."""

    GPU = "gpu"
    IMEX_CHANNEL = "imex-channel"
    GDRCOPY = "gdrcopy"
    GDS = "gds"
    MOFED = "mofed"

    @property
    def kind(self) -> str:
        return f"{VENDOR}/{self.value}"

    @property
    def file_name(self) -> str:
        return f"{VENDOR}-{self.value}.json"


def build_device_name(device: str) -> str:
    """The CDI device name for a UUID or index: the old UUIDs of MIG devices have slashes, which no name may have."""
    return device.replace("/", "_")


def qualify(cdi_class: CdiClass, device: str) -> str:
    """The full name by which a container gets the device: ``vendor/class=name``."""
    return f"{cdi_class.kind}={build_device_name(device)}"


class CdiDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU or MIG device to be written, under each of ``names``: its UUID, and its index where pods know that.

    ``nodes`` are the paths of its device nodes as containers see them (``/dev/nvidia0``, ``/dev/nvidia-caps/…``), none
    on a Tegra system, whose own lists have them.
    ``pci`` is where its display nodes are looked for, None where a container must not have them.
    """

    names: tuple[str, ...]
    nodes: tuple[str, ...]
    pci: str | None = None


class CdiWish(msgspec.Struct, frozen=True, kw_only=True):
    """What shall be in the specs. ``enabled`` is False where no strategy uses them: then ours go once none is kept.

    ``is_leftover``: no strategy uses them any more, and these are what pods hold that they got by them before. ``keep``
    are device names of class gpu that pods may still start with: they stay as they were last written, though their
    devices are no longer among ``devices``. ``keep_classes`` are the other classes of which the same is true,
    with all that their files have. Roots are as the flags say: ``driver_root`` and ``dev_root`` on the host,
    ``container_driver_root`` where this process sees the first. ``hook_path`` is of the host. ``features`` are those of
    gdrcopy, gds and mofed that are on.
    """

    enabled: bool = True
    is_leftover: bool = False
    platform: Platform = Platform.NVML
    devices: tuple[CdiDevice, ...] = ()
    keep: frozenset[str] = frozenset()
    keep_classes: frozenset[CdiClass] = frozenset()
    features: tuple[CdiClass, ...] = ()
    imex_channels: tuple[int, ...] = ()
    driver_version: str = ""
    driver_root: str = "/"
    dev_root: str = "/"
    container_driver_root: str = "/driver-root"
    hook_path: str = "/usr/bin/nvidia-ctk"
    feature_flags: tuple[str, ...] = ()
    disabled_hooks: tuple[str, ...] = ()

    @property
    def asked(self) -> dict[str, frozenset[str]]:
        """The full names of what devices need, and the device nodes behind each; of channels, whose nodes say, none."""
        gpus = {
            qualify(CdiClass.GPU, name): frozenset(device.nodes) for device in self.devices for name in device.names
        }
        return gpus | {qualify(CdiClass.IMEX_CHANNEL, str(channel)): frozenset() for channel in self.imex_channels}


class CdiState(msgspec.Struct, frozen=True, kw_only=True):
    """What the specs on disk hold: the full names that resolve there. ``problem`` says why some that should do not.

    ``nodes`` are the device nodes behind the names of class gpu, as container paths: an index may stand for another GPU
    than it does by now. ``asked`` is what the wish that this answers asked for: of anything else ``problem`` says
    nothing. ``answered`` is False until the first wish was carried out, or could not be.
    """

    names: frozenset[str] = frozenset()
    nodes: Mapping[str, frozenset[str]] = {}
    asked: Mapping[str, frozenset[str]] = {}
    problem: str = ""
    answered: bool = False
