"""What the options make of the choice by node label."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest

from nvdp.app.past import build_past
from nvdp.app.selection import build_selection, find_config_map
from nvdp.config.cluster_rules import is_by_label
from nvdp.config.options import parse_options
from nvdp.config.overrides import NO_OVERRIDES
from nvdp.config.process import ProcessOptions
from nvdp.host.state import AppliedConfig, State
from nvdp.model.cluster import ObjectSeen, build_config_map_path
from tests.host.test_config_directory import mount

LABEL = "example.com/gpus"


def parse(**flags):
    return parse_options({name.replace("_", "-"): value for name, value in flags.items()}, {})[0]


def test_the_label_chooses_where_there_is_a_config_map_or_a_directory():
    assert not is_by_label(ProcessOptions())
    assert not is_by_label(parse(config_file="/c", node_name="n"))
    assert is_by_label(parse(config_map="a", node_name="n"))
    assert is_by_label(parse(config_dir="/c", node_name="n"))


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("", None),
        ("configs", build_config_map_path("nvdp", "configs")),
        ("other/configs", build_config_map_path("other", "configs")),
    ],
)
def test_a_config_map_is_of_the_pods_namespace_unless_it_says_another(name, path):
    assert find_config_map(parse(config_map=name, node_name="n"), namespace="nvdp") == path


def test_the_options_are_those_by_which_it_is_chosen():
    options = parse(
        config_map="configs", node_name="n", node_label=LABEL, default_config="", fallback_strategies="empty,single"
    )
    posted = queue.SimpleQueue()
    service = build_selection(
        options, NO_OVERRIDES, post=posted.put, namespace="nvdp", first_delay_s=0.0, keeps_one=False
    )
    service.start()
    service.see_config_map(ObjectSeen(object={"metadata": {"name": "configs"}, "data": {"a": "", "b": ""}}, at=1.0))
    service.see_node(ObjectSeen(object={"metadata": {"name": "n", "labels": {LABEL: "b"}}}, at=1.0))
    assert posted.get(timeout=5).source == "configmap nvdp/configs:b"
    service.see_node(ObjectSeen(object={"metadata": {"name": "n"}}, at=1.0))
    assert posted.get(timeout=5).chosen.by == f"no label {LABEL}: fallback empty"


# whether the driver may be touched before the configuration is known


def is_held(options: ProcessOptions, *, last: str | None = None, left: str | None = None) -> bool:
    config, candidate = (text and AppliedConfig(text=text, source="x", hash="y") for text in (last, left))
    state = State(config=config or None, candidate=candidate or None)
    return build_past(state, boot_id="b", options=options, log=lambda *_, **__: None).is_held


def test_the_driver_waits_where_a_configuration_that_may_be_chosen_may_pause(tmp_path):
    options = parse(config_dir=str(tmp_path), node_name="n")
    mount(tmp_path, {"a": "", "b": ""}, version="one")
    assert not is_held(options)
    mount(tmp_path, {"a": "", "b": "devices: {paused: true}"}, version="two")
    assert is_held(options)
    assert not is_held(parse(config_dir=str(tmp_path / "nowhere"), node_name="n"))


def test_of_a_config_map_it_is_the_one_that_was_applied_last():
    options = parse(config_map="a", node_name="n")
    assert is_held(options), "nobody knows what the first one says"
    assert not is_held(options, last="version: v1")
    assert is_held(options, last="devices: {paused: true}")


def test_without_any_file_nothing_can_pause():
    assert not is_held(ProcessOptions(), last="devices: {paused: true}")
    assert is_held(ProcessOptions(config_file=Path("/nowhere")), last="devices: {paused: true}")


@pytest.mark.invariant(9)
@pytest.mark.parametrize("kept", ["last", "left"])
def test_where_nothing_is_left_of_the_files_it_is_what_a_predecessor_kept(tmp_path, kept):
    for options in (
        parse(config_file=str(tmp_path / "gone")),
        parse(config_dir=str(tmp_path / "gone"), node_name="n"),
        parse(config_map="a", node_name="n"),
    ):
        assert is_held(options, **{kept: "devices: {paused: true}"}), options
        assert not is_held(options, **{"last": "version: v1", kept: "version: v1"}), options
