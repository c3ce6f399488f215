"""The order to let go of the driver: it outlives the process and not the boot, and is never lost to a damaged file."""

from __future__ import annotations

import stat

import pytest

from nvdp.errors import HostError
from nvdp.host.pause_file import PauseFile
from nvdp.model.pause import Pause

PAUSE = Pause(by="nvdp pause", note="new driver", since=1700000000.0)


def open_file(directory, boot_id="this boot"):
    return PauseFile(directory, boot_id=boot_id)


@pytest.fixture
def file(tmp_path):
    return open_file(tmp_path / "run")


def write(file, content):
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(content)


def test_without_a_file_or_a_directory_there_is_no_order(file):
    assert file.load() is None
    file.path.parent.mkdir()
    assert file.load() is None
    file.remove()


def test_an_order_stands_over_restarts_until_another_takes_its_place_or_it_is_removed(file, tmp_path):
    file.save(PAUSE)
    assert open_file(tmp_path / "run").load() == PAUSE
    other = Pause(by="nvdp pause", since=1700000001.0)
    file.save(other)
    assert file.load() == other
    file.remove()
    assert open_file(tmp_path / "run").load() is None


@pytest.mark.parametrize(
    ("saved_in", "loaded_in", "stands"),
    [
        ("this boot", "this boot", True),
        ("this boot", "another boot", False),
        ("this boot", "", True),
        ("", "another boot", True),
        ("", "", True),
    ],
)
def test_an_order_of_another_boot_is_over_and_stands_where_boots_cannot_be_told_apart(
    tmp_path, saved_in, loaded_in, stands
):
    open_file(tmp_path, saved_in).save(PAUSE)
    assert open_file(tmp_path, loaded_in).load() == (PAUSE if stands else None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"boot_id":"this boot"}',
        b'{"boot_id":"this boot","pause":{"by":"nvdp pause","since":"now"}}',
        b'{"boot_id":"another boot","pause":null}',
        b"\xff\xfe",
        b"[" * 60000,
        b" " * 65537,
    ],
    ids=["empty", "cut off", "half", "of another type", "without an order", "no text", "deep", "too large"],
)
def test_a_file_that_is_damaged_is_an_order_too_and_says_so_in_one_line(file, content):
    write(file, content)
    pause = file.load()
    assert pause is not None
    assert str(pause).startswith(f"paused by {file.path} (which is damaged: ")
    assert str(pause).count(str(file.path)) == 1
    assert "\n" not in str(pause)
    file.remove()
    assert file.load() is None, "it can be resumed from"


def test_what_is_no_file_or_leads_elsewhere_is_an_order_too(file, tmp_path):
    file.path.mkdir(parents=True)
    assert "a directory" in file.load().note
    assert str(file.load()).count(str(file.path)) == 1
    file.path.rmdir()
    elsewhere = tmp_path / "elsewhere"
    file.path.symlink_to(elsewhere)
    assert "damaged" in file.load().note
    file.save(PAUSE)
    assert file.load() == PAUSE
    assert not elsewhere.exists(), "the link itself was replaced"


def test_only_root_can_read_what_is_saved_and_nothing_else_is_left_behind(file):
    file.save(PAUSE)
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert [*file.path.parent.iterdir()] == [file.path]


def test_an_order_that_cannot_be_kept_or_removed_is_told_and_leaves_nothing_behind(file, tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(HostError, match=rf"^{file.path}: cannot be written: File exists$"):
        file.save(PAUSE)
    (tmp_path / "run").unlink()
    file.path.mkdir(parents=True)
    with pytest.raises(HostError, match=rf"^{file.path}: cannot be written: Is a directory$"):
        file.save(PAUSE)
    with pytest.raises(HostError, match=rf"^{file.path}: cannot be removed: .+$"):
        file.remove()
    assert [*file.path.parent.iterdir()] == [file.path]
