"""How the MIG devices of a session are called, asked of the driver in the ways that are open. Runs in the child."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import pynvml

from nvdp.errors import NvmlError
from nvdp.model.mig import MigProfile, find_profile
from nvdp.nvml.asking import NOT_FOR_US, GpuFacts
from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.mig_rules import InstanceProfile, Shape, choose_profile, name_device

_NO_VERSION: Final = frozenset({NvmlErrorKind.FUNCTION_NOT_FOUND.word, NvmlErrorKind.ARGUMENT_VERSION_MISMATCH.word})
_NO_PROFILE: Final = frozenset({NvmlErrorKind.NOT_SUPPORTED.word, NvmlErrorKind.INVALID_ARGUMENT.word})
# NVML has given out 18 so far. One that the driver does not know is an invalid argument.
_NUMBERS: Final = range(32)


class SeenDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device whose name is sought: its own handle and that of its GPU, and what could be read.

    ``total_bytes`` is the memory of the whole GPU.
    """

    handle: object
    gpu: object
    gpu_instance: int | None
    shape: Shape | None
    total_bytes: int | None


class Called(msgspec.Struct, frozen=True, kw_only=True):
    """A device's profile, and the name by which the driver knew it then."""

    device_name: str
    profile: str


class DeviceNamer:
    """Names the MIG devices of one session of NVML. Remembers which profiles each GPU offers: that never changes."""

    def __init__(self) -> None:
        self._profiles: dict[str, tuple[InstanceProfile, ...]] = {}
        self._sees_inside = True

    def find_name(self, seen: SeenDevice, known: Called | None, part: GpuFacts) -> Called | None:
        """How a device is called; None if a call fails, which is noted, or if nothing tells, which is a fault too.

        ``known`` is what was found before of a device with this UUID and shape. It stands if a call fails now, or if
        nothing can have changed: but a device that is made anew, as something else, may have the same UUID again.
        """
        asked = part.part()
        name = asked.read("nvmlDeviceGetName", lambda: pynvml.nvmlDeviceGetName(seen.handle), no_such_fact=NOT_FOR_US)
        if known is not None and asked.fault is None and known.device_name == (name or "") and not self._sees_inside:
            return known
        profile = self._choose_profile(seen, name or "", asked) if asked.fault is None else None
        if asked.fault is not None:
            if known is None:
                part.fault = part.fault or asked.fault
            return known
        if profile is None:
            text = "nvmlDeviceGetName: the driver tells nothing by which the profile could be known"
            part.note(NvmlError(text, kind=NvmlErrorKind.NOT_SUPPORTED.word, call="nvmlDeviceGetName"))
            return None
        return Called(device_name=name or "", profile=str(profile))

    def _choose_profile(self, seen: SeenDevice, device_name: str, part: GpuFacts) -> MigProfile | None:
        if seen.shape is None:
            return find_profile(device_name)
        profiles = self._list_profiles(seen.gpu, part)
        own_id = self._find_profile_id(seen, part)
        own = next((one for one in profiles if one.id == own_id), None)
        return name_device(
            seen.shape,
            profile=own or choose_profile(seen.shape, profiles, device_name=device_name),
            profiles=profiles,
            device_name=device_name,
            total_bytes=seen.total_bytes,
        )

    def _list_profiles(self, handle: object, part: GpuFacts) -> tuple[InstanceProfile, ...]:
        """What the GPU offers, which never changes; empty where it may not be asked, or after a failure (noted)."""
        uuid = part.ref.uuid or ""
        if uuid not in self._profiles:
            try:
                self._profiles[uuid] = tuple(_ask_profiles(handle, part))
            except NvmlError as error:
                if error.kind not in NOT_FOR_US:
                    part.note(error)
                    return ()
                self._profiles[uuid] = ()
        return self._profiles[uuid]

    def _find_profile_id(self, seen: SeenDevice, part: GpuFacts) -> int | None:
        """The profile by which the GPU instance was made; None where we may not look, now and in future."""
        if not self._sees_inside or seen.gpu_instance is None:
            return None
        number = seen.gpu_instance
        try:
            inside = part.ask("nvmlDeviceGetGpuInstanceById", pynvml.nvmlDeviceGetGpuInstanceById, seen.gpu, number)
            return int(part.ask("nvmlGpuInstanceGetInfo", pynvml.nvmlGpuInstanceGetInfo, inside).profileId)
        except NvmlError as error:
            if error.kind in NOT_FOR_US:
                self._sees_inside = False
            else:
                part.note(error)
            return None


def _ask_profiles(handle: object, part: GpuFacts) -> Iterator[InstanceProfile]:
    """Each profile that the GPU offers. Raises NvmlError."""
    for number in _NUMBERS:
        try:
            yield _ask_profile(handle, part, number)
        except NvmlError as error:
            if error.kind not in _NO_PROFILE:
                raise


def _ask_profile(handle: object, part: GpuFacts, number: int) -> InstanceProfile:
    """A profile of the GPU. Drivers before R530 know the call alone that tells no name. Raises NvmlError."""
    call, function = "nvmlDeviceGetGpuInstanceProfileInfo", pynvml.nvmlDeviceGetGpuInstanceProfileInfo
    try:
        info = part.ask(call, function, handle, number)
    except NvmlError as error:
        if error.kind not in _NO_VERSION:
            raise
        info = part.ask(call, function, handle, number, 1)
    name = getattr(info, "name", "")
    return InstanceProfile(
        number=number,
        id=info.id,
        slices=info.sliceCount,
        memory_mib=info.memorySizeMB,
        engines=(info.copyEngineCount, info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount),
        name=name.decode(errors="replace") if isinstance(name, bytes) else name,
    )
