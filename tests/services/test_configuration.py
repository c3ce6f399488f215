"""The configuration file: each reading is one event, whatever is wrong with the file."""

from __future__ import annotations

import queue
import tempfile
from pathlib import Path

import pytest

from nvdp.config.document import SIZE_LIMIT_BYTES
from nvdp.config.overrides import NO_OVERRIDES
from nvdp.host.watch import Watcher
from nvdp.services.configuration import ConfigurationFile

pytestmark = pytest.mark.invariant(9)


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(prefix="nv", dir="/tmp") as directory:
        yield Path(directory, "config.yaml")


def read(path, overrides=NO_OVERRIDES):
    events = queue.SimpleQueue()
    ConfigurationFile(path, overrides, events.put, clock=lambda: 7.0).read()
    event = events.get_nowait()
    assert events.empty()
    assert event.at == 7.0
    return event


def test_a_valid_file_comes_with_the_text_that_it_was_read_from(path):
    path.write_text("version: v1\n")
    event = read(path)
    assert (event.source, event.text, event.problems, event.missing) == (str(path), b"version: v1\n", (), False)
    assert event.config.name == str(path)


def test_a_file_that_is_not_valid_comes_with_every_problem_the_first_one_first(path):
    path.write_text("migStrategy: none\nversion: v2\n")
    event = read(path)
    assert event.config is None
    assert not event.missing
    assert [problem.partition(": ")[0] for problem in event.problems] == [f"{path}:1:1", f"{path}:2:10"]


def test_a_file_that_is_not_there_is_missing_and_says_that_it_is_waited_for(path):
    event = read(path)
    assert (event.config, event.missing) == (None, True)
    assert event.problems == (f"{path}: there is no such file; nvdp goes on by itself once it is there",)


def test_what_is_no_file_is_refused_in_words(path):
    path.mkdir()
    event = read(path)
    assert (event.config, event.missing) == (None, False)
    assert event.problems == (f"{path}: is a directory; a file is needed",)


def test_a_file_that_cannot_be_read_is_refused_in_words(path):
    path.symlink_to(path)
    event = read(path)
    assert (event.config, event.missing) == (None, False)
    assert event.problems == (f"{path}: cannot be read: Too many levels of symbolic links",)


def test_a_file_that_is_too_large_is_refused_without_being_read_whole(path):
    path.write_bytes(b"#" * (SIZE_LIMIT_BYTES + 100))
    assert "larger than 1 MiB" in read(path).problems[0]


def test_a_defect_that_a_file_brings_to_light_is_that_files_refusal(path):
    path.write_text("version: v1\n")
    event = read(path, overrides=None)
    assert event.config is None
    assert event.problems[0].startswith(f"{path}: reading it failed, which is a defect of nvdp: AttributeError: ")


def test_without_a_file_the_configuration_is_what_flags_and_environment_say():
    event = read(None)
    assert (event.source, event.text) == ("flags and environment", b"")
    assert event.config is not None
    assert ConfigurationFile(None, NO_OVERRIDES, lambda _event: None).build_watch() is None


def test_the_file_is_read_at_once_and_after_each_change(path):
    events = queue.SimpleQueue()
    path.write_text("version: v1\n")
    watcher = Watcher([ConfigurationFile(path, NO_OVERRIDES, events.put).build_watch()], log=lambda *_, **__: None)
    watcher.start()
    try:
        assert events.get(timeout=5).text == b"version: v1\n"
        fresh = path.with_name("fresh")
        fresh.write_text("version: v1\nhealth: {}\n")
        fresh.replace(path)
        assert events.get(timeout=5).text == b"version: v1\nhealth: {}\n"
        path.unlink()
        assert events.get(timeout=5).missing
    finally:
        watcher.stop()
