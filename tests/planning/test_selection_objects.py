"""What is read out of a Node and a ConfigMap, and what is not taken for one."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.config.document import SIZE_LIMIT_BYTES
from nvdp.errors import FormatError
from nvdp.model.cluster import build_config_map_path, build_node_path
from nvdp.planning.selection_objects import Entries, parse_entries, parse_label

NODE = build_node_path("gpu-a3")
MAP = build_config_map_path("nvdp", "nvdp-configs")
KEY = "nvidia.com/device-plugin.config"


def node(**metadata):
    return {"metadata": {"name": "gpu-a3", **metadata}}


def config_map(**content):
    return {"metadata": {"name": "nvdp-configs", "namespace": "nvdp"}, **content}


@pytest.mark.parametrize(
    ("found", "label"),
    [
        (node(labels={KEY: "mixed", "a": "b"}), "mixed"),
        (node(labels={KEY: ""}), ""),
        (node(labels={"a": "b"}), ""),
        (node(labels=None), ""),
        (node(), ""),
    ],
)
def test_the_label_is_that_of_the_node_and_empty_without_one(found, label):
    assert parse_label(found, NODE, key=KEY) == label


def test_entries_are_texts_by_name():
    found = config_map(data={"a": "version: v1\n", "b": "ü", "..data": "x"}, binaryData=None)
    assert parse_entries(found, MAP) == Entries({"a": b"version: v1\n", "b": "ü".encode()}, {})
    assert parse_entries(config_map(), MAP) == Entries()


def test_what_is_no_text_is_an_entry_that_is_refused():
    entries = parse_entries(config_map(data={"a": 5, "b": "\ud800"}, binaryData={"c": "AA==", "..d": ""}), MAP)
    assert entries.names == {"a", "b", "c"}
    assert entries.refused == {"a": "is no text", "c": "is binary data; a configuration is a text, under data"}


def test_of_a_text_that_is_too_large_no_more_is_kept_than_shows_it():
    entries = parse_entries(config_map(data={"a": "#" * (2 * SIZE_LIMIT_BYTES)}), MAP)
    assert len(entries.texts["a"]) == SIZE_LIMIT_BYTES + 1


GARBAGE = {
    "nothing": {},
    "no metadata": {"metadata": None},
    "another object": {"metadata": {"name": "other", "labels": {}}},
    "an error": {"kind": "Status", "metadata": {}, "code": 500},
}


@pytest.mark.parametrize("found", GARBAGE.values(), ids=GARBAGE)
def test_something_else_is_neither_a_node_without_a_label_nor_a_config_map_without_entries(found):
    with pytest.raises(FormatError, match=r"^node gpu-a3: the API server sent something else$"):
        parse_label(found, NODE, key=KEY)
    with pytest.raises(FormatError, match=r"^configmap nvdp/nvdp-configs: the API server sent something else$"):
        parse_entries(found, MAP)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON, JSON)
def test_whatever_stands_where_labels_and_entries_should_is_read_or_refused(labels, data, binary):
    with contextlib.suppress(FormatError):
        assert isinstance(parse_label(node(labels=labels), NODE, key=KEY), str)
    with contextlib.suppress(FormatError):
        entries = parse_entries(config_map(data=data, binaryData=binary), MAP)
        assert all(isinstance(text, bytes) for text in entries.texts.values())


@pytest.mark.parametrize("labels", [["a"], {KEY: 5}, "a", {KEY: None}])
def test_labels_that_are_none_are_not_taken_for_no_label(labels):
    with pytest.raises(FormatError, match=r"^node gpu-a3: the API server sent labels that are none$"):
        parse_label(node(labels=labels), NODE, key=KEY)


@pytest.mark.parametrize("data", [["a"], "a", 7])
def test_data_that_is_none_is_not_taken_for_an_empty_config_map(data):
    with pytest.raises(FormatError, match=r"^configmap nvdp/nvdp-configs: the API server sent entries that are none$"):
        parse_entries(config_map(data=data), MAP)


def test_more_entries_than_make_sense_are_a_problem_that_somebody_has_to_be_told():
    entries = parse_entries(config_map(data={str(number): "" for number in range(5000)}), MAP)
    assert entries == Entries(problem="configmap nvdp/nvdp-configs: has 5000 entries; 4096 are allowed")
