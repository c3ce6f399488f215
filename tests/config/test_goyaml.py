"""Where Go's reader of YAML, and so NVIDIA's plugin, reads a file otherwise: words, versions and merges."""

from __future__ import annotations

import pytest

from nvdp.config.goyaml import find_kind, is_respelt
from nvdp.config.nodes import Mark, Scalar
from nvdp.config.nvidia import LATE_MERGE, OTHER_VERSION
from tests.config.judged import PLUGIN, differences_of, lines_of


@pytest.mark.parametrize(
    ("text", "kind", "respelt"),
    [
        *((word, "a boolean", word not in {"true", "false"}) for word in ("y", "N", "yes", "No", "ON", "off", "true")),
        *((word, "a number", False) for word in ("0", "12", "-3")),
        *(
            (word, "a number", True)
            for word in ("010", "0x1F", "0o17", "0b11", "1_000", "1.5", ".5", "1e3", "+4", ".inf")
        ),
        *(
            (word, "text", False)
            for word in ("", "yEs", "1:0", "0000:17:00.0", "1g.10gb", "/0", "_1", "1.2.3", "0xg", ".")
        ),
    ],
)
def test_an_unquoted_word_may_be_a_number_or_a_boolean_to_a_program_in_go(text: str, kind: str, *, respelt: bool):
    assert find_kind(Scalar(Mark(1, 1), text)) == kind
    assert is_respelt(Scalar(Mark(1, 1), text)) is respelt
    assert find_kind(Scalar(Mark(1, 1), text, quoted=True)) == "text"
    assert not is_respelt(Scalar(Mark(1, 1), text, quoted=True))


@pytest.mark.parametrize(
    ("head", "line"), [("%YAML 1.2\n---\n", 1), ("# a\n\n%TAG ! !\n%YAML 1.2\n---\n", 4), ("\ufeff%YAML 1.2\n---\n", 1)]
)
def test_a_file_that_declares_yaml_1_2_does_not_load_there(head: str, line: int):
    assert lines_of(f"{head}version: v1\n") == [f"f:{line}:1: dangerous: {PLUGIN}{OTHER_VERSION}"]


@pytest.mark.parametrize("text", ["%YAML 1.1\n---\nversion: v1\n", "version: v1 # %YAML 1.2\n", "# %YAML 1.2\n{}\n"])
def test_a_file_that_declares_no_other_version_loads(text: str):
    assert lines_of(text) == []


LATE = """
sharing:
  timeSlicing:
    resources:
    - &base {name: gpu, replicas: 4}
    - name: mig-1g.10gb
      <<: *base
"""


def test_a_merge_below_a_key_replaces_it_there():
    (found,) = lines_of(LATE)
    assert found == f"f:7:7: dangerous: sharing.timeSlicing.resources[1].name: {PLUGIN}{LATE_MERGE}"


def test_of_two_merges_the_later_one_wins_there():
    text = "flags: {gfd: &a {oneshot: true}, plugin: {}}\nimex: {<<: &b {required: true}, <<: {required: false}}\n"
    assert [it.path for it in differences_of(text)] == ["imex.required"]


@pytest.mark.parametrize(
    "text",
    [
        LATE.replace("    - name: mig-1g.10gb\n      <<: *base\n", "    - {<<: *base, name: mig-1g.10gb}\n"),
        LATE.replace("<<: *base", "replicas: 2"),
        "allocation: &a {numaHints: true}\nimex: {required: true, <<: {channelIDs: []}}\n",
        "imex: {<<: [{required: true}, {required: false}]}",
        'flags: {gfd: {outputFile: "<<"}}',
    ],
)
def test_a_merge_above_all_keys_that_it_has_means_the_same_to_both(text: str):
    assert lines_of(text) == []


def test_a_block_that_stands_in_several_places_is_judged_in_each():
    text = (
        "sharing:\n  timeSlicing:\n    resources:\n    - &a {name: gpu, rename: a, devices: &some [0], replicas: 2}\n"
        "    - {<<: *a, rename: b, devices: [1]}\ndevices:\n  exclude: *some\n"
    )
    assert [it.path for it in differences_of(text) if it.line == 4] == [
        "sharing.timeSlicing.resources[0].rename",
        "sharing.timeSlicing.resources[0].devices",
        "devices.exclude",
    ]
