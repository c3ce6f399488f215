"""The list of keys whose feature comes later: what it says of a file, and that it is the truth about the code."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import nvdp
from nvdp.config.keys import find_block, find_item, find_key, list_keys, strip_optional
from nvdp.config.options import parse_options
from nvdp.config.process import ProcessOptions
from nvdp.config.schema import Document
from nvdp.config.unbuilt import LATER, LATER_OPTIONS, find_unbuilt, find_unbuilt_options
from tests.config.reading import read

ROOT = Path(__file__).parents[2]
SOURCES = Path(nvdp.__file__).parent
# What reads a key only in order to show it.
NOT_READERS = ("config/", "commands/config.py", "commands/flags.py")
SHARED = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, %s}]}}"


def test_a_use_of_a_later_key_is_found_with_its_line_and_said():
    (unbuilt,) = find_unbuilt(read("version: v1\nflags: {gfd: {machineTypeFile: /x}}"))
    assert (unbuilt.path, unbuilt.line) == ("flags.gfd.machineTypeFile", 2)
    sentence = "flags.gfd.machineTypeFile: not built yet (the machine's type would be read there); it is ignored"
    assert unbuilt.sentence == sentence


@pytest.mark.parametrize(
    "text",
    [
        "",
        SHARED % "",
        SHARED % "devices: all",
        SHARED % "rename: s, devices: [0, 1]",
        SHARED % "rename: s, devices: 2",
        SHARED.replace("{resources", "{requireDistinctGPUs: true, renameByDefault: true, resources") % "",
        'devices: {exclude: [0, "0000:10:00.0", "1:0"], cordon: [1]}',
        'resources: {gpus: [{pattern: "*A100*", name: a100}]}',
        "flags: {migStrategy: mixed, deviceDiscoveryStrategy: tegra}",
        'resources: {mig: [{pattern: "1g.*", name: small}]}',
        SHARED % 'rename: s, devices: ["1:0", 2]',
        "flags: {plugin: {deviceListStrategy: [volume-mounts, envvar]}}",
        "flags: {plugin: {deviceListStrategy: [envvar, cdi-cri], cdiAnnotationPrefix: a/, nvidiaCTKPath: /ctk}}",
        "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\nflags: {mpsRoot: /run/mps}",
        "imex: {channelIDs: [0], required: true}",
        "allocation: {sharedPolicy: spread, numaHints: false, modeChange: immediate}",
        "allocation: {preStartCheck: idle, preStartTimeout: 5s}",
        "health: {callTimeout: 2s, profile: catalog, ignoredXIDs: [94], recovery: {holdOff: 2m}}",
    ],
)
def test_what_is_built_or_asks_for_nothing_is_not_in_the_list(text: str):
    assert find_unbuilt(read(text)) == ()


def test_an_option_of_a_later_feature_is_found():
    options, _ = parse_options({"node-condition": "Ready", "cdi-disable-hooks": ("all",)}, {})
    assert [unbuilt.path for unbuilt in find_unbuilt_options(options)] == ["--node-condition"]
    assert find_unbuilt_options(ProcessOptions()) == ()


# The list against the code


class _Leaf(msgspec.Struct, frozen=True):
    path: str
    attribute: str
    block: str


def _iterate_leaves(block: type[msgspec.Struct], path: str = "", name: str = "") -> Iterator[_Leaf]:
    for key in list_keys(block):
        inner = find_block(key.type)
        many = "[]" if find_item(strip_optional(key.type)) else ""
        if inner is None:
            yield _Leaf(path + key.name, key.attribute, name)
        else:
            yield from _iterate_leaves(inner, f"{path}{key.name}{many}.", key.attribute)


LEAVES = [*_iterate_leaves(Document)]
LATE = [leaf for leaf in LEAVES if any(f"{leaf.path}.".startswith(f"{it.path}.") for it in LATER)]
BUILT = [leaf for leaf in LEAVES if leaf not in LATE and not leaf.path.startswith(("version", "resources"))]
# Attributes whose names other things have too: what they are read from decides.
COMMON = {"required", "profile", "exclude", "cordon", "devices", "rename", "name", "replicas", "pattern"}
COMMON |= {"rename_by_default", "fail_requests_greater_than_one"}


@functools.cache
def _list_reads() -> frozenset[tuple[str, str]]:
    """Every attribute that the code reads, with the name of what it is read from, and with none."""
    found: set[tuple[str, str]] = set()
    for source in SOURCES.rglob("*.py"):
        place = str(source.relative_to(SOURCES))
        if place.startswith(NOT_READERS) and place != "config/load.py":  # it settles what follows from what
            continue
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Attribute):
                holder = node.value
                name = holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")
                found |= {(name, node.attr), ("", node.attr)}
    return frozenset(found)


@pytest.mark.parametrize("leaf", LATE, ids=lambda leaf: leaf.path)
def test_nothing_reads_a_key_that_is_said_to_come_later(leaf: _Leaf):
    holder = leaf.block if leaf.attribute in COMMON else ""
    assert (holder, leaf.attribute) not in _list_reads(), f"{leaf.path} is read: take it out of LATER"


@pytest.mark.parametrize("leaf", BUILT, ids=lambda leaf: leaf.path)
def test_a_key_that_is_not_said_to_come_later_is_read(leaf: _Leaf):
    assert ("", leaf.attribute) in _list_reads(), f"nothing reads {leaf.path}: put it into LATER"


def test_every_option_is_read_or_said_to_come_later():
    late = {find_key(ProcessOptions, later.path).attribute for later in LATER_OPTIONS}
    late.add("kubelet_root")  # only moves the two sockets, where it is parsed
    reads = _list_reads()
    read_ones = {
        key.attribute
        for key in list_keys(ProcessOptions)
        if not reads.isdisjoint({("options", key.attribute), ("_options", key.attribute)})
    }
    assert read_ones == {key.attribute for key in list_keys(ProcessOptions)} - late


def test_the_list_of_later_keys_names_keys_that_exist():
    assert {later.path for later in LATER if not any(leaf.path.startswith(later.path) for leaf in LEAVES)} == set()
