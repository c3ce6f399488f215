"""The choice among several configurations as it is posted: once for each outcome, and by what came when."""

from __future__ import annotations

import os
import queue
import threading
import time

import pytest

from nvdp.config.cluster import Fallback
from nvdp.config.overrides import NO_OVERRIDES
from nvdp.host.watch import Watcher
from nvdp.model.chosen import Chosen
from nvdp.model.cluster import ObjectSeen, build_config_map_path, build_node_path
from nvdp.planning.selection import Rules
from nvdp.services.selection import SelectionService
from tests.daemon.process import wait_until
from tests.host.test_config_directory import mount

KEY = "nvidia.com/device-plugin.config"
NODE, MAP = build_node_path("gpu-a3"), build_config_map_path("nvdp", "configs")
TEXTS = {"base": "version: v1\n", "mixed": "version: v1\nhealth: {}\n", "broken": "nonsense: 1\n"}
PLACE = "configmap nvdp/configs"
RULES = Rules(default="base")


class Scene:
    """A service, what is shown to it, and what it posts."""

    def __init__(self, *, directory=None, config_map=MAP, keeps_one=False, limit_s=60.0, rules=RULES):
        self.posted = queue.SimpleQueue()
        self.service = SelectionService(
            self.posted.put,
            rules=rules,
            overrides=NO_OVERRIDES,
            node=NODE,
            config_map=config_map,
            directory=directory,
            keeps_one=keeps_one,
            decide_at=time.monotonic() + limit_s,
        )
        watch = self.service.build_watch()
        self.watcher = None if watch is None else Watcher([watch], log=lambda *_, **__: None)
        if self.watcher is not None:
            self.watcher.start()
        self.service.start()

    def label(self, value, at=1.0, **metadata):
        labels = {} if value is None else {KEY: value}
        found = {"metadata": {"name": "gpu-a3", "labels": labels, **metadata}}
        self.service.see_node(ObjectSeen(object=found, at=at))

    def fill(self, texts, at=1.0, **content):
        found = {"metadata": {"name": "configs"}, "data": texts, **content}
        self.service.see_config_map(ObjectSeen(object=found, at=at))

    def next(self):
        return self.posted.get(timeout=5)

    def check_nothing_comes(self):
        """What is known is decided on, and nothing was posted by the time that something else was."""
        self.fill({"marker": ""}, at=99.0)
        self.label("marker", at=99.0)
        found = self.next()
        while found.unknown:  # between the two, the label may name nothing
            assert found.at == 99.0
            found = self.next()
        assert (found.source, found.at) == (f"{PLACE}:marker", 99.0)

    def stop(self):
        if self.watcher is not None:
            self.watcher.stop()


@pytest.fixture
def start():
    scenes = []

    def make(**options):
        scenes.append(Scene(**options))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.stop()


def test_the_entry_that_the_label_names_is_posted_with_its_text_and_what_chose_it(start):
    scene = start()
    scene.label("mixed", at=3.0)
    scene.fill(TEXTS, at=7.0)
    found = scene.next()
    assert (found.source, found.config.name, found.at) == (f"{PLACE}:mixed", f"{PLACE}:mixed", 7.0)
    assert found.text == TEXTS["mixed"].encode()
    assert found.chosen == Chosen("mixed", f"label {KEY}=mixed")


def test_a_label_that_changes_or_goes_and_an_entry_that_is_edited_are_followed(start):
    scene = start()
    scene.label("mixed")
    scene.fill(TEXTS)
    assert scene.next().chosen.entry == "mixed"
    scene.label("base")
    assert scene.next().chosen == Chosen("base", f"label {KEY}=base")
    scene.label(None)
    assert scene.next().chosen == Chosen("base", f"no label {KEY}: --default-config")
    scene.fill(TEXTS | {"base": "version: v1\ndevices: {}\n"})
    assert scene.next().text == b"version: v1\ndevices: {}\n"


def test_neither_a_heartbeat_of_the_node_nor_an_edit_of_another_entry_nor_a_lost_server_is_posted(start):
    scene = start()
    scene.label("mixed")
    scene.fill(TEXTS)
    scene.next()
    for number in range(20):
        scene.label("mixed", resourceVersion=str(number), annotations={"a": str(number)})
        scene.fill(TEXTS | {"base": f"# {number}\n"})
        scene.service.see_node(ObjectSeen(problem=f"lost {number}", at=2.0))
        scene.service.see_config_map(ObjectSeen(problem=f"lost {number}", at=2.0))
    scene.service.see_node(ObjectSeen(at=2.0))
    scene.check_nothing_comes()


def test_an_entry_that_is_not_valid_comes_with_its_lines(start):
    scene = start()
    scene.label("broken")
    scene.fill(TEXTS)
    found = scene.next()
    assert (found.config, found.unknown, found.missing) == (None, False, False)
    assert found.problems[0].startswith(f"{PLACE}:broken:1:1: nonsense: unknown key")


def test_an_entry_of_binary_data_is_refused_by_name(start):
    scene = start()
    scene.label("blob")
    scene.fill(TEXTS, binaryData={"blob": "AA=="})
    found = scene.next()
    assert found.problems == (f"{PLACE}:blob: is binary data; a configuration is a text, under data",)


def test_a_label_that_names_nothing_is_unknown_until_the_name_appears(start):
    scene = start()
    scene.label("late")
    scene.fill(TEXTS)
    found = scene.next()
    assert (found.unknown, found.config) == (True, None)
    assert found.problems == (f"{PLACE}: label {KEY}=late names no configuration; there are base, broken, mixed",)
    scene.fill(TEXTS | {"late": "version: v1\n"}, at=9.0)
    found = scene.next()
    assert (found.chosen.entry, found.at) == ("late", 9.0)


def test_a_config_map_that_is_deleted_is_missing_and_comes_back(start):
    scene = start()
    scene.label("mixed")
    scene.fill(TEXTS)
    scene.next()
    scene.service.see_config_map(ObjectSeen(at=2.0))
    found = scene.next()
    assert (found.missing, found.unknown) == (True, False)
    assert found.problems == (f"{PLACE}: there is no such ConfigMap; nvdp goes on by itself once it is there",)
    scene.fill(TEXTS)
    assert scene.next().chosen.entry == "mixed"


def test_an_edit_that_is_too_large_to_be_followed_is_told(start):
    scene = start()
    scene.label("mixed")
    scene.fill(TEXTS)
    scene.next()
    scene.fill({str(number): "" for number in range(5000)})
    found = scene.next()
    assert (found.config, found.problems) == (None, (f"{PLACE}: has 5000 entries; 4096 are allowed",))


@pytest.mark.parametrize("garbage", [{}, {"metadata": {"name": "gpu-a3", "labels": 7}}, {"kind": "Status"}])
def test_garbage_is_no_node_without_a_label(start, garbage):
    scene = start()
    scene.label("mixed")
    scene.fill(TEXTS)
    scene.next()
    scene.service.see_node(ObjectSeen(object=garbage, at=2.0))
    scene.service.see_config_map(ObjectSeen(object=garbage, at=2.0))
    scene.check_nothing_comes()


def test_without_an_answer_in_time_it_waits_with_what_was_applied_last_and_follows_late_answers(start):
    scene = start(keeps_one=True, limit_s=0.1)
    found = scene.next()
    assert (found.waiting, found.config, found.unknown, found.missing) == (True, None, False, False)
    assert "(the API server has not answered yet)" in found.problems[0]
    scene.service.see_node(ObjectSeen(problem="watch node gpu-a3: refused", at=2.0))
    assert "(watch node gpu-a3: refused)" in scene.next().problems[0]
    scene.label("mixed")
    assert scene.next().problems[0].startswith(f"{PLACE} is not known yet")
    scene.fill(TEXTS)
    assert scene.next().chosen.entry == "mixed"


def test_a_node_that_is_not_there_is_said_to_be_none(start):
    scene = start(limit_s=0.0)
    scene.next()
    scene.service.see_node(ObjectSeen(at=2.0))
    assert "(there is no such Node; is it called so? see --node-name)" in scene.next().problems[0]


def test_a_slow_server_does_not_bring_the_default_of_the_directory(start, tmp_path):
    mount(tmp_path, TEXTS, version="one")
    scene = start(directory=tmp_path, config_map=None)
    scene.service.see_node(ObjectSeen(problem="slow", at=2.0))
    wait_until(lambda: scene.service._sight.directory is not None, what="a look at the directory")
    scene.label("mixed")
    found = scene.next()
    assert (found.source, found.chosen.entry, found.text) == (f"{tmp_path}/mixed", "mixed", TEXTS["mixed"].encode())


def test_without_an_answer_and_without_a_last_one_it_is_the_default_of_the_directory(start, tmp_path):
    mount(tmp_path, TEXTS, version="one")
    scene = start(directory=tmp_path, limit_s=0.2)
    while (found := scene.next()).chosen is None:
        assert "is not known yet" in found.problems[0]  # the directory was not looked at before the time was up
    assert found.chosen == Chosen("base", f"label {KEY} not known yet: --default-config")
    scene.label("mixed")
    assert scene.next().source == f"{tmp_path}/mixed"
    scene.fill({"mixed": "version: v1\n"})
    assert scene.next().source == f"{PLACE}:mixed"


@pytest.mark.parametrize("news", ["label", "directory"])
def test_after_a_last_one_the_directory_stands_in_for_the_config_map_from_a_change_on(start, tmp_path, news):
    mount(tmp_path, TEXTS, version="one")
    scene = start(directory=tmp_path, keeps_one=True, limit_s=0.0)
    scene.next()
    wait_until(lambda: scene.service._sight.directory is not None, what="a look at the directory")
    scene.label("base")
    assert scene.next().problems[0].startswith(f"{PLACE} is not known yet")
    if news == "label":
        scene.label("mixed")
    else:
        mount(tmp_path, TEXTS | {"base": "version: v1\ndevices: {}\n"}, version="two")
    assert scene.next().source == str(tmp_path / ("mixed" if news == "label" else "base"))


def test_a_directory_is_followed_through_swaps_writes_and_its_absence(start, tmp_path):
    configs = tmp_path / "configs"
    mount(configs, TEXTS, version="one")
    scene = start(directory=configs, config_map=None)
    scene.label("mixed")
    assert scene.next().text == TEXTS["mixed"].encode()
    mount(configs, TEXTS | {"mixed": "version: v1\ndevices: {}\n"}, version="two")
    assert scene.next().text == b"version: v1\ndevices: {}\n"
    (configs / "mixed").unlink()
    assert scene.next().unknown
    (configs / "mixed").write_text("version: v1\nhealth: {}\n")
    assert scene.next().text == b"version: v1\nhealth: {}\n"
    configs.rename(tmp_path / "elsewhere")
    found = scene.next()
    assert (found.missing, found.source) == (True, str(configs))


def test_a_file_that_is_none_is_refused_in_words(start, tmp_path):
    os.mkfifo(tmp_path / "mixed")
    scene = start(directory=tmp_path, config_map=None)
    scene.label("mixed")
    assert scene.next().problems == (f"{tmp_path}/mixed: is a named pipe; a file is needed",)


def test_the_configuration_without_a_file_is_what_flags_and_environment_say(start):
    scene = start(rules=Rules(fallbacks=(Fallback.EMPTY,)))
    scene.label(None)
    scene.fill(TEXTS)
    found = scene.next()
    assert (found.source, found.text, found.chosen.entry) == ("flags and environment", b"", "")


def test_started_anew_after_a_crash_it_goes_on_with_what_it_knows(start, monkeypatch):
    crashes = queue.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", crashes.put)
    scene = start()
    post = scene.service._post
    scene.service._post = None
    scene.label("mixed")
    scene.fill(TEXTS)
    assert crashes.get(timeout=5).thread.name == scene.service.THREAD
    scene.service._post = post
    scene.service.start()
    assert scene.next().chosen.entry == "mixed"
    scene.label("base")
    assert scene.next().chosen.entry == "base"
