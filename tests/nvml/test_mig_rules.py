"""How MIG devices are called: the rules, on any card and whatever may be read of it."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.mig import MigProfile
from nvdp.nvml.mig_rules import InstanceProfile, Shape, choose_profile, name_device
from nvdp.nvml.simulated.mig_kinds import FOUR_SLICES, SEVEN_SLICES, build_kinds

GIB = 1 << 30
NEW = MigProfile(slices=5, compute_slices=5, gb=77, attribute="+new")


@st.composite
def devices(draw) -> tuple[MigProfile, Shape, InstanceProfile, list[InstanceProfile], int]:
    """A device of a card with any memory: its true name, what it has, its profile and all of the card's."""
    total_bytes = draw(st.integers(16 * GIB, 400 * GIB))
    kinds = build_kinds(draw(st.sampled_from([SEVEN_SLICES, FOUR_SLICES])), [NEW], total_bytes=total_bytes)
    profiles = [
        InstanceProfile(
            number=kind.number,
            id=kind.id,
            slices=kind.profile.slices,
            memory_mib=kind.memory_mib,
            engines=kind.engines,
            name=f"MIG {kind.profile}",
        )
        for kind in kinds
    ]
    place = draw(st.integers(0, len(kinds) - 1))
    compute_slices = draw(st.integers(1, kinds[place].profile.slices))
    # What the driver keeps for itself differs from one to the next.
    memory_mib = kinds[place].memory_mib - draw(st.integers(0, 64))
    shape = Shape(
        slices=kinds[place].profile.slices,
        compute_slices=compute_slices,
        memory_mib=memory_mib,
        engines=kinds[place].engines,
    )
    name = msgspec.structs.replace(kinds[place].profile, compute_slices=compute_slices)
    return name, shape, profiles[place], profiles, total_bytes


@given(devices())
def test_a_device_whose_profile_is_told_is_called_the_same_whoever_asks(device) -> None:
    name, shape, profile, profiles, total_bytes = device
    for total in (total_bytes, None):
        assert name_device(shape, profile=profile, profiles=profiles, device_name="", total_bytes=total) == name
    nameless = msgspec.structs.replace(profile, name="")
    device_name = f"NVIDIA X MIG {name}"
    assert (
        name_device(shape, profile=nameless, profiles=profiles, device_name=device_name, total_bytes=total_bytes)
        == name
    )


@given(devices(), st.randoms())
def test_a_profile_is_known_by_what_a_device_has_and_its_name_decides_between_equals(device, random) -> None:
    name, shape, profile, profiles, _ = device
    random.shuffle(profiles)
    assert choose_profile(shape, profiles, device_name=f"NVIDIA X MIG {name}") == profile
    blind = choose_profile(shape, profiles, device_name="NVIDIA X")
    assert blind is not None
    assert (blind.slices, blind.memory_mib, blind.engines) == (profile.slices, profile.memory_mib, profile.engines)
    assert blind == profile or blind.number < profile.number
    if profile.attribute != "+gfx":
        assert blind == profile


def test_the_gb_are_estimated_by_the_largest_profile_where_nothing_else_tells() -> None:
    shape = Shape(slices=1, compute_slices=1, memory_mib=16384, engines=(1, 1, 0, 1, 0))
    kind = InstanceProfile(number=0, id=19, slices=1, memory_mib=16384, engines=shape.engines)
    whole = InstanceProfile(number=4, id=0, slices=7, memory_mib=143616, engines=(8, 7, 0, 7, 1))
    named = name_device(shape, profile=kind, profiles=[kind, whole], device_name="", total_bytes=None)
    assert str(named) == "1g.18gb"
    assert name_device(shape, profile=None, profiles=[], device_name="", total_bytes=None) is None
    assert str(name_device(shape, profile=None, profiles=[], device_name="", total_bytes=143771 << 20)) == "1g.18gb"
    assert choose_profile(shape, [whole], device_name="") is None
