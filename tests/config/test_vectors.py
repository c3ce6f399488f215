"""What NVIDIA's own tests pin down of its configuration (vectors A1 and A3 to A9), with the differences that are meant.

Whole files stand for the fragments that those tests decode. JSON is given as JSON.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from nvdp.config.schema import Config
from nvdp.model.deviceref import DeviceRef, DeviceSet, RefKind, parse_device_ref
from nvdp.model.duration import Duration
from nvdp.model.listing import DeviceListStrategy
from nvdp.model.names import Pattern
from tests.config.reading import errors_of, read

UUID = "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"


def _flags(flags: object) -> Config:
    return read(json.dumps({"version": "v1", "flags": flags}))


# A1


def test_a1_flags_without_keys_are_all_defaults():
    assert _flags({}).flags == read("").flags


@pytest.mark.parametrize(
    ("interval", "nanoseconds"),
    [
        (0, 0),
        ("0s", 0),
        (5, 5_000_000_000),  # NVIDIA: 5 ns; here a bare number is seconds
        ("5s", 5_000_000_000),
        ("infinite", 9223372036854775807),
    ],
)
def test_a1_the_sleep_interval_is_a_number_a_duration_or_infinite(interval: object, nanoseconds: int):
    assert _flags({"gfd": {"sleepInterval": interval}}).flags.gfd.sleep_interval == Duration(nanoseconds)


def test_a1_an_empty_gfd_block_is_all_defaults():
    assert _flags({"gfd": {}}).flags.gfd == read("").flags.gfd


@pytest.mark.parametrize(
    ("written", "strategies"),
    [
        ("envvar", (DeviceListStrategy.ENVVAR,)),
        (["envvar"], (DeviceListStrategy.ENVVAR,)),
        (["envvar", "cdi-annotations"], (DeviceListStrategy.ENVVAR, DeviceListStrategy.CDI_ANNOTATIONS)),
        (["envvar", "envvar"], (DeviceListStrategy.ENVVAR,)),
    ],
)
def test_a1_the_device_list_strategy_is_one_or_a_list(written: object, strategies: tuple[DeviceListStrategy, ...]):
    assert _flags({"plugin": {"deviceListStrategy": written}}).flags.plugin.device_list_strategy == strategies


# A3


@pytest.mark.parametrize(("written", "refuses"), [({}, True), ({"failRequestsGreaterThanOne": False}, False)])
def test_a3_mps_refuses_more_than_one_unless_told_otherwise(written: dict[str, Any], refuses):
    mps = {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}], **written}
    config = read(json.dumps({"sharing": {"mps": mps}}))
    assert config.sharing.mps is not None
    assert config.sharing.mps.fail_requests_greater_than_one is refuses


# A4


@pytest.mark.parametrize(
    ("imex", "channels"), [({}, ()), ({"channelIDs": None}, ()), ({"channelIDs": []}, ()), ({"channelIDs": [0]}, (0,))]
)
def test_a4_imex_channels_are_none_or_channel_0(imex: dict[str, Any], channels: tuple[int, ...]):
    assert read(json.dumps({"imex": imex})).imex.channel_ids == channels


def test_a4_another_imex_channel_is_refused():
    assert errors_of('{"imex": {"channelIDs": [2]}}')


# A5


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("0", RefKind.INDEX),
        ("0:0", RefKind.MIG_INDEX),
        (f"GPU-{UUID}", RefKind.UUID),
        ("MIG-3eb87630-93d5-b2b6-b8ff-9b359caf4ee2", RefKind.MIG_UUID),
        ("MIG-GPU-662077db-fa3f-0d8f-9502-21ab0ef058a2/10/0", RefKind.MIG_UUID),
    ],
)
def test_a5_a_device_reference_is_of_exactly_one_kind(text: str, kind: RefKind):
    assert parse_device_ref(text).kind is kind


# A6


def _shared(devices: object) -> str:
    """``rename``, so that no rule about names speaks of a list of devices."""
    entry = {"name": "valid", "rename": "valid-shared", "devices": devices, "replicas": 2}
    return json.dumps({"sharing": {"timeSlicing": {"resources": [entry]}}})


@pytest.mark.parametrize(
    "devices",
    [
        "not-all",
        -2,
        2.0,
        [-1],
        ["-1"],
        ["invalid-UUID"],
        ["GPU-UUID"],
        ["MIG-UUID"],
        [f"MIG-GPU-{UUID}"],
        None,
        [],
    ],
)
def test_a6_devices_that_are_not_all_a_count_or_references_are_refused(devices: object):
    assert errors_of(_shared(devices))


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("all", "all"),
        (2, 2),
        ([0], ["0"]),
        (["0"], ["0"]),
        (["0:0"], ["0:0"]),
        ([f"GPU-{UUID}"], [f"GPU-{UUID}"]),
        ([f"MIG-{UUID}"], [f"MIG-{UUID}"]),
        ([f"MIG-GPU-{UUID}/0/0"], [f"MIG-GPU-{UUID}/0/0"]),
        ([0, "0:0", f"GPU-{UUID}"], ["0", "0:0", f"GPU-{UUID}"]),
        (["0", "0:0", f"GPU-{UUID}"], ["0", "0:0", f"GPU-{UUID}"]),
    ],
)
def test_a6_devices_are_all_a_count_or_references(devices: object, expected: Any):
    sharing = read(_shared(devices)).sharing.time_slicing
    assert sharing is not None
    found = sharing.resources[0].devices
    if isinstance(expected, list):
        assert [str(ref) for ref in found.refs] == expected
    else:
        assert found == (DeviceSet(count=expected) if isinstance(expected, int) else DeviceSet())
        assert found.is_all is (expected == "all")


# A7


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"name": "valid"},
        {"name": "valid", "devices": "all"},
        {"name": "valid", "devices": "all", "rename": "valid-shared"},
        {"name": "valid", "devices": "all", "replicas": -1},
        {"name": "valid", "devices": "all", "replicas": 0},
        {"name": "$invalid$", "devices": "all", "replicas": 2},
        {"name": "valid", "rename": "$invalid$", "devices": "all", "replicas": 2},
    ],
)
def test_a7_a_sharing_entry_needs_valid_names_and_replicas(entry: dict[str, Any]):
    assert errors_of(json.dumps({"sharing": {"timeSlicing": {"resources": [entry]}}}))


@pytest.mark.parametrize("devices", [{"devices": "all"}, {}])
@pytest.mark.parametrize("rename", [{"rename": "valid-shared"}, {}])
def test_a7_a_sharing_entry_is_for_all_devices_unless_it_says_otherwise(
    devices: dict[str, Any], rename: dict[str, Any]
):
    entry = {"name": "valid", "replicas": 2, **devices, **rename}
    sharing = read(json.dumps({"sharing": {"timeSlicing": {"resources": [entry]}}})).sharing.time_slicing
    assert sharing is not None
    (found,) = sharing.resources
    assert (found.name, found.replicas, found.devices.is_all) == ("nvidia.com/valid", 2, True)
    assert found.rename == ("nvidia.com/valid-shared" if rename else None)


# A8


@pytest.mark.parametrize("block", [{}, {"resources": []}, {"resources": [{"name": "$invalid$", "replicas": 2}]}, None])
def test_a8_a_sharing_block_needs_an_entry(block: object):
    assert errors_of(json.dumps({"sharing": {"timeSlicing": block}}))


def test_a8_entries_keep_their_order_and_the_switches_are_off():
    entries = [{"name": "zebra", "replicas": 2}, {"name": "ant", "replicas": 3}]
    sharing = read(json.dumps({"sharing": {"timeSlicing": {"resources": entries}}})).sharing.time_slicing
    assert sharing is not None
    assert [(entry.name, entry.replicas) for entry in sharing.resources] == [
        ("nvidia.com/zebra", 2),
        ("nvidia.com/ant", 3),
    ]
    assert not sharing.rename_by_default
    assert not sharing.fail_requests_greater_than_one


# A9


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("1g.24gb", "1g.24gb", True),
        ("1g.24gb", "2g.48gb", False),
        ("1g.24gb", "1g.24gb-me", False),
        ("1g.24gb", "1g.24gb+me.all", False),
        ("1g.24gb", "x1g.24gb", False),
        ("1g.24gb-me", "1g.24gb-me", True),
        ("1g.24gb+me.all", "1g.24gb+me.all", True),
        ("*", "1g.24gb-me", True),
        ("1g.*", "1g.24gb", True),
        ("1g.*", "2g.48gb", False),
        ("1g.24gb+gfx", "1g.24gb+gfx", True),
        ("1g.24gb", "1g.24gb+gfx", False),
        ("1g.24gb+gfx", "1g.24gb", False),
        ("1g.24gb+gfx", "1g.24gb-me", False),
        ("2g.48gb+gfx", "2g.48gb+gfx", True),
        ("2g.48gb", "2g.48gb+gfx", False),
        ("*gb", "1g.24gb", True),
        ("*gb", "1g.24gb-me", False),
    ],
)
def test_a9_a_pattern_matches_the_whole_text(pattern: str, text: str, matches):
    assert Pattern(pattern).matches(text) is matches


def test_a_reference_in_a_list_is_the_same_as_in_text():
    assert read("devices: {exclude: [0]}").devices.exclude == (DeviceRef(RefKind.INDEX, "0"),)
