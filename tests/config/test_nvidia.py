"""What a file means to NVIDIA's plugin: every row of the table of differences, and that the table is whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from nvdp.config.keys import find_block, find_item, list_keys, strip_optional
from nvdp.config.nvidia import LATE_MERGE, OTHER_VERSION
from nvdp.config.nvidia_rows import ROWS, Effect, Row
from nvdp.config.schema import Document
from tests.config.judged import PLUGIN, differences_of, lines_of
from tests.config.mistakes import MISTAKES
from tests.config.nvidia_examples import EXAMPLES, Example, mps, sliced
from tests.config.reading import errors_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "from-nvidia.md").read_text()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.place)
def test_a_difference_is_said_with_its_place_and_its_meaning(example: Example):
    assert f"f:{example.place}: {PLUGIN}{example.meaning}" in lines_of(example.text)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.paths[0]}: {row.meaning}")
def test_every_row_has_an_example(row: Row):
    shown = [
        example
        for example in EXAMPLES
        if example.meaning.startswith(row.meaning) and f": {row.effect.value}: " in example.place
    ]
    assert shown, row.meaning


ALIKE = (
    "",
    "version: v1",
    "devices: {exclude: [], cordon: [], paused: false, rescanInterval: }",
    'resources: {gpus: [{pattern: "NVIDIA A100*", name: gpu}, {pattern: "*", name: nvidia.com/gpu}], mig: []}',
    'flags: {migStrategy: single}\nresources: {mig: [{pattern: "*", name: nvidia.com/gpu}]}',
    "flags: {migStrategy: mixed}\nresources: {mig: [{pattern: 1g.10gb+me, name: mig-1g.10gb.me}]}",
    sliced("name: gpu, replicas: 2"),
    sliced("name: gpu, devices: all, replicas: 200"),
    sliced("name: gpu, rename: nvidia.com/gpu, replicas: 2"),
    sliced("name: gpu, rename: gpu.shared, replicas: 2", block="    renameByDefault: true"),
    sliced("name: gpu, replicas: 2", block="    requireDistinctGPUs: false"),
    "sharing: {mps: , timeSlicing: {resources: [{name: gpu, replicas: 2}]}}",
    mps("name: gpu, replicas: 48", block="    failRequestsGreaterThanOne: true"),
    mps("name: gpu, replicas: 3, defaultActiveThreadPercentage: 33, memoryOvercommitPercentage: 100, multiUser: false"),
    mps("name: gpu, replicas: 2") + "flags: {migStrategy: none, mpsRoot: /run/nvidia/mps}",
    "flags: {failOnInitError: no, gdsEnabled: yes, plugin: {deviceListStrategy: envvar}}",
    "flags: {failOnInitError: false, plugin: {deviceListStrategy: [volume-mounts, envvar, envvar]}}",
    "flags: {plugin: {deviceListStrategy: [cdi-cri]}}",
    "flags: {gfd: {sleepInterval: 0, outputFile: /x}}",
    'flags: {gfd: {sleepInterval: "0"}}',
    "flags: {gfd: {sleepInterval: infinite}}",
    "flags: {gfd: {sleepInterval: 1m30s, machineTypeFile: 12}}",
    'flags: {mpsRoot: "/no", gfd: {outputFile: true, machineTypeFile: "010"}}',
    "imex: {channelIDs: [0], required: false}",
    "imex: {required: true}",
    "imex: {channelIDs: [], required: false}",
    "allocation: {sharedPolicy: distributed, numaHints: true, modeChange: immediate, preStartCheck: none}",
    "allocation: {preStartTimeout: 5s}",
    "allocation: {sharedPolicy: packed}\nflags: {plugin: {sharedDevicesAllocationPolicy: packed}}",
    "health: {profile: compat, ignoredXIDs: [13, 109], fatalXIDs: [48, 79], releaseForReset: false}",
    "health: {ignoredXIDs: [], fatalXIDs: []}",
    "health: {recovery: {holdOff: 0s, maxHoldOff: 1h, withoutRecoveryAction: never}}",
    "health: {recovery: }",
)


@pytest.mark.parametrize("text", ALIKE)
def test_what_means_the_same_to_both_is_not_mentioned(text: str):
    assert lines_of(text) == []


@pytest.mark.parametrize("file", ["time-slicing.yaml", "nvidia-compatible.yaml", "renamed.yaml"])
def test_an_example_file_for_both_plugins_is_not_dangerous(file: str):
    found = differences_of((ROOT / "config" / file).read_text())
    assert [difference for difference in found if difference.effect is Effect.DANGEROUS] == []


def test_the_commented_example_shows_what_is_dangerous_about_going_back():
    found = differences_of((ROOT / "config" / "mixed-node.yaml").read_text())
    assert [(it.line, it.path) for it in found if it.effect is Effect.DANGEROUS] == [
        (10, "devices.exclude"),
        (11, "devices.cordon"),
        (20, "sharing.timeSlicing"),
        (24, "sharing.timeSlicing.resources[0].devices[0]"),
        (24, "sharing.timeSlicing.resources[0].devices[1]"),
        (29, "sharing.mps.resources[0].rename"),
        (30, "sharing.mps.resources[0].devices"),
        (30, "sharing.mps.resources[0].devices[0]"),
    ]


def test_what_mps_overrules_is_said_once_and_not_again_for_every_entry():
    text = sliced("name: gpu, rename: gpu.shared, devices: [1], replicas: 4") + (
        "  mps: {resources: [{name: gpu, rename: gpu.mps, devices: [0], replicas: 2}]}"
    )
    assert [it.path for it in differences_of(text) if it.path.startswith("sharing.timeSlicing")] == [
        "sharing.timeSlicing"
    ]


@pytest.mark.parametrize("text", sorted({mistake.text for mistake in MISTAKES if errors_of(mistake.text) == []}))
def test_every_accepted_file_is_judged(text: str):
    for difference in differences_of(text):
        assert difference.line >= 1
        assert difference.path == "" or difference.path.partition(".")[0].partition("[")[0] in {
            key.name for key in list_keys(Document)
        }


# The table is whole

# Every key that NVIDIA's plugin has. The others are nvdp's own, and ignored there.
NVIDIA = {
    "version",
    *(f"flags.{key}" for key in ("migStrategy", "failOnInitError", "mpsRoot", "nvidiaDriverRoot", "nvidiaDevRoot")),
    *(f"flags.{key}" for key in ("gdrcopyEnabled", "gdsEnabled", "mofedEnabled", "useNodeFeatureAPI")),
    "flags.deviceDiscoveryStrategy",
    *(f"flags.plugin.{key}" for key in ("passDeviceSpecs", "deviceListStrategy", "deviceIDStrategy")),
    *(f"flags.plugin.{key}" for key in ("cdiAnnotationPrefix", "nvidiaCTKPath", "containerDriverRoot")),
    "flags.plugin.sharedDevicesAllocationPolicy",
    *(f"flags.gfd.{key}" for key in ("oneshot", "noTimestamp", "sleepInterval", "outputFile", "machineTypeFile")),
    *(f"resources.{block}[].{key}" for block in ("gpus", "mig") for key in ("pattern", "name")),
    *(
        f"sharing.{block}.{key}"
        for block in ("timeSlicing", "mps")
        for key in ("renameByDefault", "failRequestsGreaterThanOne")
    ),
    *(
        f"sharing.{block}.resources[].{key}"
        for block in ("timeSlicing", "mps")
        for key in ("name", "rename", "devices", "replicas")
    ),
    "imex.channelIDs",
    "imex.required",
}


class Leaf(NamedTuple):
    path: str
    default: Any


def _iterate_leaves(block: type[msgspec.Struct], path: str = "") -> Iterator[Leaf]:
    for key in list_keys(block):
        inner = find_block(key.type)
        many = "[]" if find_item(strip_optional(key.type)) else ""
        if inner is None:
            yield Leaf(path + key.name, key.default)
        else:
            yield from _iterate_leaves(inner, f"{path}{key.name}{many}.")


LEAVES = [*_iterate_leaves(Document)]
BLOCKS = {leaf.path[: match.start()] for leaf in LEAVES for match in re.finditer(r"\.", leaf.path)}


def test_nvidias_keys_are_all_read_here():
    assert NVIDIA - {leaf.path for leaf in LEAVES} == set()


@pytest.mark.parametrize("leaf", [leaf for leaf in LEAVES if leaf.path not in NVIDIA], ids=lambda leaf: leaf.path)
def test_a_key_that_only_nvdp_has_is_in_a_row(leaf: Leaf):
    assert any(row.matches(leaf.path) for row in ROWS), f"{leaf.path}: say what NVIDIA's plugin does without it"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.paths[0]}: {row.meaning}")
def test_the_paths_of_a_row_exist(row: Row):
    known = [*(leaf.path for leaf in LEAVES), *BLOCKS, *(f"{leaf.path}[]" for leaf in LEAVES)]
    known += [block.removesuffix("[]") for block in BLOCKS]
    for path in row.paths:
        assert any(row.__class__((path,), row.effect, "", row.differs).matches(it) for it in known), path


def test_the_page_about_going_back_has_the_same_table():
    section = PAGE.partition("\n## The way back\n")[2].partition("\n## ")[0]
    rows = [line for line in re.findall(r"^\|.*\|$", section, re.MULTILINE) if not re.match(r"\|( you use|--)", line)]
    whole = [([], Effect.DANGEROUS, OTHER_VERSION), (["<<"], Effect.DANGEROUS, LATE_MERGE)]
    assert rows == [
        f"| {', '.join(f'`{path}`' for path in paths) or 'a line `%YAML 1.2`'} | {effect.value} | {meaning} |"
        for paths, effect, meaning in (*((row.paths, row.effect, row.meaning) for row in ROWS), *whole)
    ]
