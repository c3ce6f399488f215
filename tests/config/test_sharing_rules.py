"""One device is shared in one way, and one name is one promise: what is allowed and what is not."""

from __future__ import annotations

import pytest

from tests.config.reading import errors_of, read


def _file(time_slicing: str = "", mps: str = "", *, rename_by_default: bool = False, resources: str = "") -> str:
    blocks = [("timeSlicing", time_slicing), ("mps", mps)]
    text = "".join(
        f"  {name}:\n    renameByDefault: {str(rename_by_default).lower()}\n    resources:\n{_entries(entries)}"
        for name, entries in blocks
        if entries
    )
    return f"{resources}\nsharing:\n{text}"


def _entries(entries: str) -> str:
    return "".join(f"    - {{{entry.strip()}}}\n" for entry in entries.split(";"))


ALLOWED = {
    "all cards shared under the plain name": _file("name: gpu, replicas: 4"),
    "all cards shared under a name of their own": _file("name: gpu, rename: gpu.shared, replicas: 4"),
    "some cards shared under a name of their own": _file("name: gpu, rename: gpu.shared, devices: [0], replicas: 4"),
    "some cards shared, renamed by default": _file("name: gpu, devices: [0], replicas: 4", rename_by_default=True),
    "some cards apart from the rest, all shared under one name": _file(
        "name: gpu, devices: [0], replicas: 2; name: gpu, replicas: 4"
    ),
    "different replicas under one name": _file(
        "name: gpu, rename: s, devices: [0], replicas: 2; name: gpu, rename: s, devices: [1], replicas: 4"
    ),
    "one replica of some cards is no sharing": _file("name: gpu, devices: [0], replicas: 1"),
    "time-slicing and MPS for different cards and names": _file(
        "name: gpu, rename: s, devices: [0], replicas: 2", "name: gpu, rename: m, devices: [1], replicas: 2"
    ),
    "time-slicing for the rest and MPS for some": _file(
        "name: gpu, replicas: 2", "name: gpu, rename: m, devices: [1], replicas: 2"
    ),
    "one replica of all cards under MPS": _file(mps="name: gpu, replicas: 1"),
    "one replica of some cards under MPS, renamed": _file(
        mps="name: gpu, rename: m, devices: [0], replicas: 1; name: gpu, rename: m, devices: [1], replicas: 1"
    ),
    "MPS for pods of one user, and for pods of several, under two names": _file(
        mps="name: gpu, rename: m, devices: [0], replicas: 2, multiUser: false; "
        "name: gpu, rename: n, devices: [1], replicas: 2"
    ),
    "MPS for pods of one user under one name": _file(
        mps="name: gpu, rename: m, devices: [0], replicas: 2, multiUser: false; "
        "name: gpu, rename: m, devices: [1], replicas: 4, multiUser: false"
    ),
    "a domain that is a file's name in the MPS root, without MPS": _file("name: gpu, rename: shm/gpu, replicas: 2"),
    "all of one resource and all of another": _file("name: a, replicas: 2; name: b, replicas: 2"),
}
REFUSED = {
    "a count of cards under the plain name": (
        _file("name: gpu, devices: 1, replicas: 3"),
        "nvidia.com/gpu would be a whole GPU on some devices and a third on 1 other; add rename",
    ),
    "a list of cards under the plain name, written out": (
        _file("name: gpu, rename: nvidia.com/gpu, devices: [0, 1, 2], replicas: 7"),
        "nvidia.com/gpu would be a whole GPU on some devices and 1/7 on 3 others; add rename",
    ),
    "all cards of one name shared under the plain name of others": (
        _file("name: a100, rename: gpu, replicas: 2"),
        "nvidia.com/gpu would be a whole GPU on some devices and half on others; add rename: nvidia.com/a100.shared",
    ),
    "shared cards under a name that resources gives to whole ones": (
        _file(
            "name: gpu, rename: big, devices: [0], replicas: 2",
            resources='resources: {gpus: [{pattern: "NVIDIA H*", name: big}]}',
        ),
        "nvidia.com/big would be a whole GPU on some devices and half on 1 other",
    ),
    "whole and shared cards under one other name": (
        _file("name: gpu, rename: s, devices: [0], replicas: 1; name: gpu, rename: s, devices: [1], replicas: 2"),
        "nvidia.com/s would be a whole GPU on some devices and half on 1 other",
    ),
    "some cards whole and the rest shared under the plain name": (
        _file("name: gpu, devices: [0], replicas: 1; name: gpu, replicas: 2"),
        "nvidia.com/gpu would be a whole GPU on some devices and half on others",
    ),
    "all of a resource twice in one block": (
        _file("name: gpu, replicas: 2; name: nvidia.com/gpu, replicas: 4"),
        (
            "sharing.timeSlicing.resources[1].devices: all of nvidia.com/gpu are already shared by "
            "sharing.timeSlicing.resources[0] (line 6); list the devices in one of them"
        ),
    ),
    "MPS under the plain name beside time-slicing of the rest": (
        _file("name: gpu, replicas: 2", "name: gpu, devices: [6], replicas: 4"),
        "sharing.mps.resources[0].rename: nvidia.com/gpu is time-sliced at line 6; choose another name",
    ),
    "some cards under MPS with one replica, and the rest whole": (
        _file(mps="name: gpu, devices: [0], replicas: 1"),
        "nvidia.com/gpu would be a whole GPU on some devices and under MPS on 1 other; add rename: nvidia.com/gpu.mps",
    ),
    "a card under MPS with one replica, and one whole by an entry, under one name": (
        _file("name: gpu, rename: s, devices: [1], replicas: 1", "name: gpu, rename: s, devices: [0], replicas: 1"),
        "nvidia.com/s would be a whole GPU on some devices and under MPS on 1 other",
    ),
    "one control daemon for one user and for several": (
        _file(
            mps="name: gpu, rename: m, devices: [0], replicas: 2; "
            "name: gpu, rename: m, devices: [1], replicas: 4, multiUser: false"
        ),
        (
            "f:7:68: sharing.mps.resources[1].multiUser: nvidia.com/m has one control daemon, and "
            "sharing.mps.resources[0] (line 6) says true; say the same in both, or rename one"
        ),
    ),
    "a directory of a resource under MPS in the place of the memory that its pods share": (
        _file(mps="name: shm/gpu, replicas: 2"),
        "f:6:14: sharing.mps.resources[0].name: shm/gpu would be in the way of shm, which nvdp keeps in the MPS root; ",
    ),
    "a directory of a resource under MPS in the place of the report, beside another of its domain": (
        _file(
            mps="name: gpu, rename: nvdp.json.eu/a, devices: [0], replicas: 2; "
            "name: gpu, rename: nvdp.json/a, replicas: 2"
        ),
        "sharing.mps.resources[1].rename: nvdp.json/a would be in the way of nvdp.json",
    ),
    "a card in two entries of one block": (
        _file("name: gpu, rename: s, devices: [0, 1], replicas: 2; name: gpu, rename: t, devices: [1], replicas: 2"),
        "sharing.timeSlicing.resources[1].devices[0]: 1 is already shared by sharing.timeSlicing.resources[0] (line 6)",
    ),
    "a suffix by default that makes the name too long": (
        _file(f"name: {'x' * 50}, replicas: 2", rename_by_default=True),
        "characters; 63 are allowed",
    ),
}


@pytest.mark.parametrize("text", ALLOWED.values(), ids=ALLOWED.keys())
def test_one_promise_per_name_is_allowed(text: str):
    assert errors_of(text) == []


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_two_promises_under_one_name_are_one_error(text: str, said: str):
    (line,) = errors_of(text)
    assert said in line


@pytest.mark.parametrize(
    ("rename", "rename_by_default", "replicas", "name"),
    [
        ("", False, 4, "nvidia.com/gpu"),
        ("", True, 4, "nvidia.com/gpu.shared"),
        ("", True, 1, "nvidia.com/gpu"),
        ("rename: slice, ", True, 4, "nvidia.com/slice"),
        ("rename: slice, ", False, 1, "nvidia.com/slice"),
    ],
)
def test_a_rename_wins_over_the_default_suffix_which_only_shared_devices_get(rename, rename_by_default, replicas, name):
    text = _file(f"name: gpu, {rename}replicas: {replicas}", rename_by_default=rename_by_default)
    sharing = read(text).sharing.time_slicing
    assert sharing is not None
    assert sharing.resources[0].build_final_name(rename_by_default=rename_by_default) == name


def test_an_entry_knows_its_place_in_the_file():
    sharing = read(_file("name: a, replicas: 2; name: b, replicas: 2")).sharing.time_slicing
    assert sharing is not None
    assert [(entry.path, entry.line) for entry in sharing.resources] == [
        ("sharing.timeSlicing.resources[0]", 6),
        ("sharing.timeSlicing.resources[1]", 7),
    ]


def test_patterns_are_compared_within_their_list_only():
    assert errors_of('resources: {gpus: [{pattern: "*", name: a}], mig: [{pattern: "*", name: b}]}') == []


def test_a_pattern_behind_a_wider_one_is_never_reached():
    (line,) = errors_of(
        'resources: {mig: [{pattern: "1g.*", name: a}, {pattern: "2g.*", name: b}, {pattern: "1g.10gb*", name: c}]}'
    )
    assert 'resources.mig[2].pattern: never reached, resources.mig[0] "1g.*" (line 1) matches all that' in line


def test_all_xids_in_both_lists_is_a_warning():
    (warning,) = read("health: {ignoredXIDs: all, fatalXIDs: all}").warnings
    assert warning.message == "all is also in ignoredXIDs (line 1); fatal wins"
    assert read("health: {ignoredXIDs: all, fatalXIDs: [48, 79]}").warnings == ()
