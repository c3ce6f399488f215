"""What a write of labels changes: the time stays if nothing else differs, and nothing odd is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.config.cluster import LabelTarget
from nvdp.planning.label_catalog import is_catalogued
from nvdp.planning.label_changes import (
    OWNED,
    TIMESTAMP,
    LabelWrite,
    NodeSeen,
    find_changes,
    keep_timestamp,
    parse_node,
    read_texts,
)
from nvdp.planning.label_wish import LabelWish, build_wish
from tests.config.reading import read

labels = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["1", "2"]))


@pytest.mark.parametrize(
    ("wanted", "there", "expected"),
    [
        ({"a": "1", TIMESTAMP: "20"}, {"a": "1", TIMESTAMP: "10"}, "10"),
        ({"a": "2", TIMESTAMP: "20"}, {"a": "1", TIMESTAMP: "10"}, "20"),
        ({"a": "1", TIMESTAMP: "20"}, {"a": "1", "b": "2", TIMESTAMP: "10"}, "20"),
        ({"a": "1", TIMESTAMP: "20"}, {"a": "1"}, "20"),
        ({"a": "1", TIMESTAMP: "20"}, {"a": "1", TIMESTAMP: "yesterday"}, "20"),
        ({"a": "1"}, {"a": "1", TIMESTAMP: "10"}, None),
    ],
    ids=["same", "changed", "one gone", "none there", "none at all", "left out"],
)
def test_the_time_tells_when_labels_last_changed(wanted, there, expected):
    assert keep_timestamp(wanted, there).get(TIMESTAMP) == expected


@given(labels, labels)
def test_changes_are_what_differs(before, after):
    changed = find_changes(before, after)
    assert list(changed) == sorted(changed)
    patched = {key: after.get(key) for key in changed}
    merged = {key: value for key, value in {**before, **patched}.items() if value is not None}
    assert merged == after


@pytest.mark.parametrize("whole", [None, 3, {}, {"metadata": []}, {"metadata": {"labels": None}}, {"metadata": "x"}])
def test_what_has_not_the_form_of_an_object_has_no_labels(whole):
    assert read_texts(whole, "metadata", "labels") == {}


def test_of_a_mapping_only_texts_are_read():
    assert read_texts({"a": {"b": "c", "d": 4, 5: "e", "f": None}}, "a") == {"b": "c"}


def test_a_node_is_read_with_what_is_ours():
    metadata = {"labels": {"x": "y"}, "annotations": {OWNED: "gpu.count,,gpu.mode"}, "resourceVersion": "12"}
    assert parse_node({"metadata": metadata}) == NodeSeen(
        labels={"x": "y"},
        owned=frozenset({"nvidia.com/gpu.count", "nvidia.com/gpu.mode"}),
        annotation="gpu.count,,gpu.mode",
        version="12",
    )


@pytest.mark.parametrize(
    ("version", "other", "is_older"),
    [
        ("9", "10", True),
        ("10", "9", False),
        ("10", "10", False),
        ("", "10", False),
        ("a", "b", False),
        ("9", "x", False),
    ],
)
def test_versions_are_compared_as_numbers_where_they_are_any(version, other, is_older):
    seen = NodeSeen(labels={}, owned=frozenset(), version=version)
    assert seen.is_older_than(NodeSeen(labels={}, owned=frozenset(), version=other)) is is_older


def test_a_write_says_how_many_there_are_and_what_changed():
    some = dict.fromkeys("abcdef", "1")
    assert str(LabelWrite(labels=some, changed=("a", "b"))) == "6 labels; a, b changed"
    assert str(LabelWrite(labels=some, changed=tuple(some))) == "6 labels; a, b, c, d and 2 more changed"
    assert str(LabelWrite(labels={"a": "1"})) == "1 label, the same as before"


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [
        ("gfd.timestamp", True),
        ("gpu.product", True),
        ("gpu.product.NVIDIA-H200.count", True),
        ("gpu.memory.total", True),
        ("gpu.slices.gi", True),
        ("mig-1g.18gb.count", True),
        ("mig-1c.3g.20gb.me.engines.ofa", True),
        ("cuda.driver-version.revision", True),
        ("nvdp.config-valid", True),
        ("vgpu.host-driver-branch", True),
        ("device-plugin.config", False),
        ("mig.config", False),
        ("mig.config.state", False),
        ("mig-1g.18gb.count.x", False),
        ("gpu.deploy.device-plugin", False),
        ("gpu.present", False),
        ("gpu.count\n", False),
        ("nvdp.labels", False),
    ],
)
def test_what_is_ours_is_what_the_catalogue_has_and_never_what_steers_somebody(name, is_ours):
    assert is_catalogued(f"nvidia.com/{name}") is is_ours
    assert not is_catalogued(name)
    assert not is_catalogued(f"example.com/{name}")


GFD = "flags: {useNodeFeatureAPI: %s, gfd: {outputFile: /f/gfd, sleepInterval: %s, oneshot: true}}"


@pytest.mark.parametrize(
    ("target", "api", "expected"),
    [
        (LabelTarget.NONE, "true", None),
        (LabelTarget.AUTO, "true", LabelTarget.NODE_FEATURE),
        (LabelTarget.AUTO, "false", LabelTarget.FILE),
        (LabelTarget.NODE, "false", LabelTarget.NODE),
        (LabelTarget.NODE_FEATURE, "false", LabelTarget.NODE_FEATURE),
        (LabelTarget.FILE, "true", LabelTarget.FILE),
    ],
)
def test_the_place_is_what_was_chosen_and_auto_leaves_it_to_the_configuration(target, api, expected):
    wish = build_wish({"a": "1"}, config=read(GFD % (api, "2m")), target=target)
    assert (wish and wish.target) is expected
    if expected is LabelTarget.FILE:
        assert wish == LabelWish(labels={"a": "1"}, target=expected, file="/f/gfd", is_once=True, look_s=120.0)
    elif expected is not None:
        assert wish == LabelWish(labels={"a": "1"}, target=expected, is_once=True)


@pytest.mark.parametrize(("interval", "look_s"), [("infinite", float("inf")), ("0s", 1.0), ("60s", 60.0)])
def test_a_file_is_looked_at_as_often_as_the_configuration_says(interval, look_s):
    assert build_wish({}, config=read(GFD % ("false", interval)), target=LabelTarget.AUTO).look_s == look_s
