"""How a MIG device is called, from what a process may read of it: pure rules, without a table of all profiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from nvdp.model.mig import MigAttributes, MigProfile, build_gb, find_profile

# By NVML's number of a GPU instance profile, which is one for all models: REV1 has media extensions, GFX draws, NO_ME
# has no media engines, ALL_ME has all of them. A number beyond these is of a driver that tells the name itself.
_ATTRIBUTES: Final = {
    **dict.fromkeys(range(18), ""),
    **dict.fromkeys((7, 8), "+me"),
    **dict.fromkeys((10, 11, 12, 17), "+gfx"),
    **dict.fromkeys((13, 14), "-me"),
    **dict.fromkeys((15, 16), "+me.all"),
}


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a MIG device has: ``engines`` are the counts of those for copying, decoding, encoding, JPEG and flow."""

    slices: int
    compute_slices: int
    memory_mib: int
    engines: tuple[int, ...]


def build_shape(found: MigAttributes) -> Shape:
    """What of a device its name depends on."""
    return Shape(
        slices=found.slices,
        compute_slices=found.compute_slices,
        memory_mib=found.memory_mib,
        engines=(found.copy_engines, found.decoders, found.encoders, found.jpeg_engines, found.ofa_engines),
    )


class InstanceProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of GPU instance that a GPU offers.

    NVML lists it by ``number``, an existing instance names it by ``id``. ``name`` is empty where the driver tells none.
    """

    number: int
    id: int
    slices: int
    memory_mib: int
    engines: tuple[int, ...]
    name: str = ""

    @property
    def attribute(self) -> str:
        """What the names of its instances end with."""
        named = find_profile(self.name)
        return _ATTRIBUTES.get(self.number, named.attribute if named is not None else "")

    @property
    def is_known(self) -> bool:
        """Whether its number alone tells the attribute."""
        return self.number in _ATTRIBUTES


def choose_profile(shape: Shape, profiles: Iterable[InstanceProfile], *, device_name: str) -> InstanceProfile | None:
    """The profile that a device of this shape was made by, where the driver does not let us see which.

    As many slices, the nearest memory (what is left of it depends on the driver), the same engines where a profile has
    them. Profiles that differ in nothing of that, as with and without graphics, are told apart by the device's name;
    if that does not tell, the plainest counts.
    """
    alike = [profile for profile in profiles if profile.slices == shape.slices]
    nearest = min((abs(profile.memory_mib - shape.memory_mib) for profile in alike), default=0)
    alike = [profile for profile in alike if abs(profile.memory_mib - shape.memory_mib) == nearest]
    alike = [profile for profile in alike if profile.engines == shape.engines] or alike
    named = find_profile(device_name)
    if named is not None:
        alike = [profile for profile in alike if profile.attribute == named.attribute] or alike
    return min(alike, key=lambda profile: profile.number, default=None)


def name_device(
    shape: Shape,
    *,
    profile: InstanceProfile | None,
    profiles: Sequence[InstanceProfile],
    device_name: str,
    total_bytes: int | None,
) -> MigProfile | None:
    """The name of a device of this shape, made by ``profile``, one of the ``profiles`` of its GPU.

    The gb follow from the memory of the whole GPU, as in NVIDIA's plugin. Where that may not be read, or the profile is
    none that we know, the driver's own name of the profile tells them, else its name of the device. None if nothing
    tells.
    """
    told = (find_profile(profile.name) if profile is not None else None) or find_profile(device_name)
    is_known = profile is not None and profile.is_known
    if told is not None and (total_bytes is None or not is_known):
        gb, attribute = told.gb, told.attribute
    elif total := total_bytes or _estimate_total_bytes(profiles):
        gb, attribute = build_gb(shape.memory_mib, total), ""
    else:
        return None
    if profile is not None and is_known:
        attribute = profile.attribute
    return MigProfile(slices=shape.slices, compute_slices=shape.compute_slices, gb=gb, attribute=attribute)


def _estimate_total_bytes(profiles: Iterable[InstanceProfile]) -> int:
    """The largest instance has all but a little of its GPU's memory."""
    return max((profile.memory_mib for profile in profiles), default=0) << 20
