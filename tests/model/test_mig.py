"""MIG profiles: how they are spelled, and what memory is called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.errors import FormatError
from nvdp.model.mig import CapabilityNodes, MigProfile, build_gb, find_profile, parse_legacy_uuid, parse_profile
from nvdp.model.names import parse_resource_name

MIB = 1 << 20

# Those of today have at most seven characters; two of the longest here make a name of 61, which may have 63.
attributes = st.lists(
    st.builds(
        "".join,
        st.tuples(st.sampled_from("+-"), st.from_regex(r"[a-z0-9]{1,7}(\.[a-z0-9]{1,7})?", fullmatch=True)),
    ),
    max_size=2,
).map("".join)
profiles = st.builds(
    MigProfile,
    slices=st.integers(1, 16),
    compute_slices=st.integers(1, 16),
    gb=st.integers(1, 2000),
    attribute=attributes,
)


@given(profiles)
def test_a_profile_is_read_as_it_is_written(profile) -> None:
    assert parse_profile(str(profile)) == profile
    assert find_profile(f"NVIDIA H100 MIG 80GB MIG {profile}") == profile


@given(profiles)
def test_every_profile_has_a_name_that_kubernetes_takes(profile) -> None:
    assert parse_resource_name(profile.resource_part) == f"nvidia.com/{profile.resource_part}"


@pytest.mark.parametrize(
    ("text", "profile", "partial", "resource"),
    [
        ("1g.10gb", MigProfile(slices=1, compute_slices=1, gb=10), False, "mig-1g.10gb"),
        ("1g.10gb+me", MigProfile(slices=1, compute_slices=1, gb=10, attribute="+me"), False, "mig-1g.10gb.me"),
        ("1g.24gb-me", MigProfile(slices=1, compute_slices=1, gb=24, attribute="-me"), False, "mig-1g.24gb-me"),
        (
            "1g.24gb+me.all",
            MigProfile(slices=1, compute_slices=1, gb=24, attribute="+me.all"),
            False,
            "mig-1g.24gb.me.all",
        ),
        ("1g.24gb+gfx", MigProfile(slices=1, compute_slices=1, gb=24, attribute="+gfx"), False, "mig-1g.24gb.gfx"),
        ("1c.3g.40gb", MigProfile(slices=3, compute_slices=1, gb=40), True, "mig-1c.3g.40gb"),
        (
            "16g.288gb+new.thing",
            MigProfile(slices=16, compute_slices=16, gb=288, attribute="+new.thing"),
            False,
            "mig-16g.288gb.new.thing",
        ),
    ],
)
def test_profiles_and_the_resources_that_are_named_after_them(text, profile, partial, resource) -> None:
    assert parse_profile(text) == profile
    assert (str(profile), profile.is_partial, profile.resource_part) == (text, partial, resource)


def test_a_profile_that_names_all_of_its_slices_for_computing_is_the_plain_one() -> None:
    assert str(parse_profile("3c.3g.40gb")) == "3g.40gb"


@pytest.mark.parametrize(
    "text", ["", "big", "1g", "1g.10", "g.10gb", "1g.10gb+", "1g.10gb me", "1g.10gb\n", "MIG 1g.5gb"]
)
def test_what_is_no_profile_is_told_how_one_looks(text) -> None:
    with pytest.raises(FormatError, match=r"is no MIG profile; one is spelled like 1g\.10gb"):
        parse_profile(text)


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", "1c.3g.20gb"),
        ("MIG 1g.24gb-me", "1g.24gb-me"),
        ("NVIDIA H200", None),
        ("1g.10gb", None),
        ("NVIDIA H200 MIG 1g.18gb something", None),
        ("XMIG 1g.18gb", None),
    ],
)
def test_a_name_of_the_driver_ends_with_the_profile(name, profile) -> None:
    found = find_profile(name)
    assert (str(found) if found else None) == profile


@pytest.mark.parametrize(
    ("total_mib", "memory_mib", "gb"),
    [
        (40536, 4864, 5),
        (40536, 9856, 10),
        (40536, 20096, 20),
        (40536, 40448, 40),
        (81920, 9728, 10),
        (81559, 9984, 10),
        (143771, 16384, 18),
        (143771, 33280, 35),
        (143771, 71168, 71),
        (143771, 143616, 141),
    ],
)
def test_memory_is_called_what_the_driver_calls_it(total_mib, memory_mib, gb) -> None:
    assert build_gb(memory_mib, total_mib * MIB) == gb


@given(total=st.integers(1 << 30, 1 << 39), part=st.fractions(0, 1))
def test_memory_is_called_a_multiple_of_an_eighth_of_the_gpu(total, part) -> None:
    memory_mib = int(total * part) // MIB
    eighths = [(n * -(-total // 2**30) + 4) // 8 for n in range(9)]
    gb = build_gb(memory_mib, total)
    assert gb in eighths
    assert gb >= memory_mib / 1024 - 0.5


@pytest.mark.parametrize(
    ("uuid", "instances"),
    [
        ("MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/3/0", (3, 0)),
        ("MIG-30d00c09-8a98-59b8-8c1a-1d64b4ec3ad2", None),
        ("GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f", None),
        ("MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/3", None),
        ("MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/a/b", None),
        ("", None),
    ],
)
def test_an_old_uuid_tells_the_instances_itself(uuid, instances) -> None:
    assert parse_legacy_uuid(uuid) == instances


def test_an_instance_is_used_through_two_nodes_or_not_at_all() -> None:
    nodes = CapabilityNodes({(0, 1, None): 12, (0, 1, 0): 13, (0, 2, None): 21, (1, 1, 0): 31})
    assert nodes.find_paths(0, 1, 0) == ("/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13")
    assert nodes.find_paths(0, 2, 0) is nodes.find_paths(1, 1, 0) is nodes.find_paths(0, 1, 1) is None
    assert CapabilityNodes().find_paths(0, 1, 0) is None
