"""A directory of configurations under watch: what is in it, what is another state of it, and when that counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvdp.host.config_directory import directory_fingerprint, directory_settle_s, list_watched


def mount(directory: Path, texts: dict[str, str], *, version: str) -> None:
    """Put these entries there as the kubelet does: a directory of its own, a link to it that is swapped, and links."""
    target = directory / f"..{version}"
    target.mkdir(parents=True)
    for name, text in texts.items():
        (target / name).write_text(text)
    fresh = directory / "..data_tmp"
    fresh.symlink_to(target.name)
    fresh.replace(directory / "..data")
    for name in texts:
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")


def test_the_files_of_a_mounted_config_map_are_its_entries(tmp_path):
    mount(tmp_path, {"a": "1", "b": "2"}, version="one")
    (tmp_path / "inner").mkdir()
    found = directory_fingerprint(tmp_path)
    assert (set(found.files), found.problem, found.missing) == ({"a", "b"}, "", False)
    assert found == directory_fingerprint(tmp_path)


def test_a_swap_of_the_link_changes_every_file_and_is_whole_at_once(tmp_path):
    mount(tmp_path, {"a": "1", "b": "2"}, version="one")
    before = directory_fingerprint(tmp_path)
    mount(tmp_path, {"a": "1", "b": "2"}, version="two")
    after = directory_fingerprint(tmp_path)
    assert all(before.files[name] != after.files[name] for name in ("a", "b"))
    assert directory_settle_s(before, after) == 0.0


def test_a_write_in_place_changes_that_file_alone_and_waits_until_it_stands_still(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text("1")
    before = directory_fingerprint(tmp_path)
    (tmp_path / "a").write_text("12")
    after = directory_fingerprint(tmp_path)
    assert before.files["a"] != after.files["a"]
    assert before.files["b"] == after.files["b"]
    assert 0 < directory_settle_s(before, after) < 1
    (tmp_path / "a").write_text("")
    assert directory_settle_s(after, directory_fingerprint(tmp_path)) > directory_settle_s(before, after)


def test_a_directory_that_is_not_there_is_missing(tmp_path):
    found = directory_fingerprint(tmp_path / "configs")
    assert (found.missing, found.files) == (True, {})
    assert found.problem.endswith("configs: there is no such directory; nvdp goes on by itself once it is there")


def test_what_is_no_directory_is_said_to_be_none(tmp_path):
    (tmp_path / "file").write_text("")
    found = directory_fingerprint(tmp_path / "file")
    assert (found.missing, found.problem) == (False, f"{tmp_path}/file: cannot be read: Not a directory")


def test_a_directory_of_too_many_files_is_not_followed(tmp_path):
    for number in range(600):
        (tmp_path / str(number)).touch()
    assert "has more than 512 files" in directory_fingerprint(tmp_path).problem


@pytest.mark.parametrize("leads_to", ["nowhere", "odd", "file/x", "x" * 300])
def test_a_link_that_leads_nowhere_is_no_file_and_spoils_no_other(tmp_path, leads_to):
    (tmp_path / "file").write_text("1")
    (tmp_path / "odd").symlink_to(leads_to)
    found = directory_fingerprint(tmp_path)
    assert (set(found.files), found.problem) == ({"file"}, "")


def test_the_directory_of_the_swapped_link_is_watched_through_links_to_it(tmp_path):
    mount(tmp_path / "configs", {"a": "1"}, version="one")
    (tmp_path / "link").symlink_to("configs")
    watched = list_watched(tmp_path / "link")
    assert Path(os.path.realpath(tmp_path / "configs")) in watched
