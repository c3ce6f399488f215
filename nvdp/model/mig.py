"""MIG profiles, as the driver spells them, and the device nodes by which a container may use an instance."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from nvdp.errors import FormatError, quote

RESOURCE_PREFIX: Final = "mig-"
_PROFILE: Final = re.compile(
    r"(?:(?P<compute>[0-9]{1,2})c\.)?(?P<slices>[0-9]{1,2})g\.(?P<gb>[0-9]{1,5})gb"
    r"(?P<attribute>(?:[+-][A-Za-z0-9]+(?:[._][A-Za-z0-9]+)*)*)"
)
# A name of the driver ends with the profile: of a GPU instance profile "MIG 1g.10gb+me", of a device the product first.
_NAMED: Final = re.compile(rf"(?:.*\b)?MIG (?P<profile>{_PROFILE.pattern})")
_LEGACY: Final = re.compile(r"MIG-GPU-[0-9A-Fa-f-]+/([0-9]+)/([0-9]+)")
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30

# A GPU and a GPU instance of it, and the compute instance there, or None for the GPU instance itself.
Capability: TypeAlias = tuple[int, int, int | None]


class MigProfile(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What an instance has: slices of its GPU, as many or fewer for computing, and memory in the driver's gb.

    ``attribute`` is what its name ends with, as ``+me`` or ``-me``; empty for a plain one. Nobody knows all of them.
    """

    slices: int
    compute_slices: int
    gb: int
    attribute: str = ""

    def __str__(self) -> str:
        compute = f"{self.compute_slices}c." if self.is_partial else ""
        return f"{compute}{self.slices}g.{self.gb}gb{self.attribute}"

    @property
    def is_partial(self) -> bool:
        """Whether it is a compute instance that shares its GPU instance with others."""
        return self.compute_slices != self.slices

    @property
    def resource_part(self) -> str:
        """The resource's name behind the domain: ``mig-1g.10gb.me``, for Kubernetes allows no ``+`` in names."""
        return RESOURCE_PREFIX + str(self).replace("+", ".")


class MigAttributes(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What a MIG device has, as the driver counts it: memory in MiB, multiprocessors, and slices and engines.

    ``slices`` are those of its GPU instance, ``compute_slices`` its own. It shares its engines with the other compute
    instances of its GPU instance.
    """

    memory_mib: int
    multiprocessors: int
    slices: int
    compute_slices: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int


class CapabilityNodes(msgspec.Struct, frozen=True):
    """The minor numbers of the nodes that give access to MIG instances; GPUs are known by the minors of their own."""

    minors: Mapping[Capability, int] = {}

    def find_paths(self, gpu_minor: int, gpu_instance: int, compute_instance: int) -> tuple[str, str] | None:
        """The nodes of GPU instance and compute instance, in this order; None unless both are known."""
        of_gpu_instance = self.minors.get((gpu_minor, gpu_instance, None))
        of_compute_instance = self.minors.get((gpu_minor, gpu_instance, compute_instance))
        if of_gpu_instance is None or of_compute_instance is None:
            return None
        return _build_path(of_gpu_instance), _build_path(of_compute_instance)


def parse_profile(text: str) -> MigProfile:
    """The profile that ``text`` spells. FormatError for what is none."""
    match = _PROFILE.fullmatch(text)
    if match is None:
        raise FormatError(f"{quote(text)} is no MIG profile; one is spelled like 1g.10gb, 1c.3g.40gb or 1g.10gb+me")
    return _build_profile(match)


def find_profile(name: str) -> MigProfile | None:
    """The profile in a name that the driver gives a profile or a device: behind ``MIG``, at its end."""
    match = _NAMED.fullmatch(name)
    return _build_profile(match) if match is not None else None


def parse_legacy_uuid(uuid: str) -> tuple[int, int] | None:
    """GPU and compute instance in the UUIDs of drivers before R470 (``MIG-GPU-…/3/0``); None for all others."""
    match = _LEGACY.fullmatch(uuid)
    return (int(match[1]), int(match[2])) if match is not None else None


def build_gb(memory_mib: int, total_bytes: int) -> int:
    """The memory in a profile's name: eighths of the GPU, rounded up, of its GiB, rounded up; halves count as whole.

    Drivers name profiles so, and NVIDIA's plugin does: 16384 MiB of an H200's 143771 are 18 gb.
    """
    eighths = -(-8 * memory_mib * _MIB // total_bytes)
    return (eighths * -(-total_bytes // _GIB) + 4) // 8


def _build_profile(match: re.Match[str]) -> MigProfile:
    slices = int(match["slices"])
    return MigProfile(
        slices=slices,
        compute_slices=int(match["compute"]) if match["compute"] else slices,
        gb=int(match["gb"]),
        attribute=match["attribute"],
    )


def _build_path(minor: int) -> str:
    return f"/dev/nvidia-caps/nvidia-cap{minor}"
