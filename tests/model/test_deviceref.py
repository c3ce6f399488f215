"""References to devices: five spellings, normalised, and which GPU each of them names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.errors import FormatError
from nvdp.model.deviceref import ALL_DEVICES, DeviceSet, RefKind, normalise_pci, parse_device_ref

UUID = "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"


@pytest.mark.parametrize(
    ("text", "kind", "normal"),
    [
        ("0", RefKind.INDEX, "0"),
        ("007", RefKind.INDEX, "7"),
        ("1:0", RefKind.MIG_INDEX, "1:0"),
        ("01:00", RefKind.MIG_INDEX, "1:0"),
        (f"GPU-{UUID}", RefKind.UUID, f"GPU-{UUID}"),
        (f"gpu-{UUID}".upper(), RefKind.UUID, f"GPU-{UUID}"),
        (f"MIG-{UUID}", RefKind.MIG_UUID, f"MIG-{UUID}"),
        (f"MIG-GPU-{UUID}/10/0", RefKind.MIG_UUID, f"MIG-GPU-{UUID}/10/0"),
        ("0000:65:00.0", RefKind.PCI, "0000:65:00.0"),
        ("00000000:65:00.0", RefKind.PCI, "0000:65:00.0"),
        ("0001ABCD:65:00.0", RefKind.PCI, "1abcd:65:00.0"),
        ("0000:AF:00.0", RefKind.PCI, "0000:af:00.0"),
    ],
)
def test_two_spellings_of_one_reference_are_equal(text: str, kind: RefKind, normal: str):
    ref = parse_device_ref(text)
    assert (ref.kind, str(ref)) == (kind, normal)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "1.0",
        "1:",
        ":1",
        "1:2:3",
        "12345",
        "GPU-UUID",
        f"GPU-{UUID}0",
        UUID,
        f"MIG-GPU-{UUID}",
        f"MIG-GPU-{UUID}/a/b",
        "65:00.0",
        "0000:65:00",
        "000:65:00.0",
        "0000:65:00.8",
        "all",
        "0\n",
    ],
)
def test_what_is_no_reference_is_told_the_five_spellings(text: str):
    with pytest.raises(FormatError, match="is not a device; use an index"):
        parse_device_ref(text)


@pytest.mark.parametrize("text", ["MIG-16498cdd", "GPU-662077db", f"GPU-{UUID}"[:-1]])
def test_a_uuid_that_is_cut_short_is_told_to_be_given_in_full(text: str):
    with pytest.raises(FormatError, match="only a part of a UUID; give it in full, as nvdp devices shows it"):
        parse_device_ref(text)


@given(st.text(max_size=50) | st.from_regex(r"[0-9a-fA-F]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", fullmatch=True))
def test_any_text_is_a_reference_that_reads_back_or_refused(text: str):
    try:
        ref = parse_device_ref(text)
    except FormatError:
        return
    assert parse_device_ref(ref.text) == ref


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        (f"GPU-{UUID}", True),
        ("0000:65:00.0", True),
        ("3", True),
        ("GPU-00000000-06c0-7d70-1a51-e59b25b2c16c", False),
        ("0000:66:00.0", False),
        ("4", False),
        ("3:0", False),
        (f"MIG-GPU-{UUID}/1/0", False),
    ],
)
def test_a_reference_matches_the_whole_gpu_that_it_names(text: str, matches):
    assert parse_device_ref(text).matches(gpu_uuid=f"GPU-{UUID}", pci="0000:65:00.0", index=3) is matches


def test_a_gpu_without_a_known_address_matches_no_address():
    assert not parse_device_ref("0000:65:00.0").matches(gpu_uuid=f"GPU-{UUID}", pci=None, index=3)


@pytest.mark.parametrize(
    ("text", "gpu_uuid"),
    [(f"GPU-{UUID}", f"GPU-{UUID}"), (f"MIG-GPU-{UUID}/1/0", f"GPU-{UUID}"), (f"MIG-{UUID}", None), ("0", None)],
)
def test_the_gpu_is_known_where_the_reference_itself_tells_it(text: str, gpu_uuid: str | None):
    assert parse_device_ref(text).gpu_uuid == gpu_uuid


def test_a_set_is_all_devices_unless_it_counts_or_lists_them():
    assert ALL_DEVICES.is_all
    assert not DeviceSet(count=2).is_all
    assert not DeviceSet(refs=(parse_device_ref("0"),)).is_all


def test_what_is_no_address_is_none():
    assert normalise_pci("GPU-0") is None
