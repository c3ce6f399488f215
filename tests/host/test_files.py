"""Files under watch: what a fingerprint tells apart, what is read and what is refused, and mounts that never change."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from nvdp.errors import HostError
from nvdp.host.files import (
    config_directories,
    config_fingerprint,
    config_settle_s,
    find_static_mount,
    is_mounted,
    load_text,
)
from tests.host.changes import CHANGES, configmap


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_way_to_change_a_configuration_gives_another_fingerprint(tmp_path, change):
    path = configmap(tmp_path / "config")
    before = config_fingerprint(path)
    assert before == config_fingerprint(path)
    change(path)
    assert config_fingerprint(path) != before


def test_a_write_that_keeps_size_and_modification_time_gives_another_fingerprint(tmp_path):
    path = tmp_path / "file"
    path.write_text("one")
    before, times = config_fingerprint(path), path.stat()
    while config_fingerprint(path) == before:  # the kernel's clock ticks in milliseconds
        path.write_text("two")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert config_fingerprint(path).mtime_ns == before.mtime_ns


def test_only_a_swapped_link_is_whole_at_once(tmp_path):
    path = configmap(tmp_path / "config")
    before = config_fingerprint(path)
    configmap(tmp_path / "config", "swapped")
    swapped = config_fingerprint(path)
    assert config_settle_s(before, swapped) == 0
    path.write_text("written in place")
    assert 0 < config_settle_s(swapped, config_fingerprint(path)) <= 0.2
    assert config_settle_s(swapped, None) == config_settle_s(None, swapped) > 0


def test_an_emptied_file_must_stand_still_longer_but_less_than_a_second(tmp_path):
    path = tmp_path / "file"
    path.write_text("something")
    before = config_fingerprint(path)
    path.write_text("")
    assert 0.5 <= config_settle_s(before, config_fingerprint(path)) < 0.8


def test_changes_happen_in_the_directory_of_the_file_and_of_each_link_on_the_way(tmp_path):
    path = configmap(tmp_path / "config")
    data = (tmp_path / "config" / "..data").resolve()
    assert config_directories(path) == (tmp_path / "config", data)
    link = tmp_path / "links" / "deep" / "link"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../config/mixed")
    assert config_directories(link) == (link.parent, tmp_path / "config", data)


def test_links_in_a_circle_and_missing_files_have_directories_too(tmp_path):
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    assert config_directories(circle) == (tmp_path,)
    assert config_fingerprint(circle) is None
    assert config_directories(tmp_path / "no" / "file") == (tmp_path / "no",)


def test_a_link_that_goes_while_it_is_looked_at_is_no_error(tmp_path):
    (tmp_path / "file").write_text("x")
    link, path = tmp_path / "a", tmp_path.joinpath(*["a"] * 30, "file")
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            link.symlink_to(".")
            link.unlink()

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(300):
            config_fingerprint(path)
            assert config_directories(path)
            find_static_mount(path)
    finally:
        stop.set()
        swapper.join()


def test_a_file_is_read_up_to_its_limit_and_one_byte_more(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert load_text(path, limit_bytes=5) == b"12345"
    assert load_text(path, limit_bytes=3) == b"1234"


def test_a_missing_file_is_none_also_in_a_directory_that_is_none(tmp_path):
    (tmp_path / "file").touch()
    assert load_text(tmp_path / "nothing", limit_bytes=1) is None
    assert load_text(tmp_path / "file" / "below", limit_bytes=1) is None


def test_what_is_no_file_is_refused_in_words_and_never_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    for name, kind in (("pipe", "a named pipe"), ("socket", "a socket"), (".", "a directory")):
        with pytest.raises(HostError, match=f"is {kind}; a file is needed"):
            load_text(tmp_path / name, limit_bytes=1)
    with pytest.raises(HostError, match="/dev/zero: is a device; a file is needed"):
        load_text(Path("/dev/zero"), limit_bytes=1)


def test_a_link_is_followed_unless_told_not_to(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    assert load_text(tmp_path / "link", limit_bytes=9) == b"x"
    with pytest.raises(HostError, match="is a symbolic link"):
        load_text(tmp_path / "link", limit_bytes=9, follow_symlinks=False)


def test_what_cannot_be_read_is_refused_with_the_systems_reason(tmp_path):
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(HostError, match="circle: cannot be read: Too many levels of symbolic links"):
        load_text(circle, limit_bytes=1)
    with pytest.raises(HostError, match="cannot be read: File name too long"):
        load_text(tmp_path / ("x" * 300), limit_bytes=1)
    with pytest.raises(HostError, match="/proc/self/mem: cannot be read: Input/output error"):
        load_text(Path("/proc/self/mem"), limit_bytes=1)  # opens, and then fails as a bad disk does


SUBPATH = (
    b"36 35 98:0 / / rw,noatime master:1 - ext4 /dev/root rw\n"
    b"41 36 0:55 /pods/1/volumes/kubernetes.io~configmap/c/..2026/mixed /etc/nvdp/my\\040file rw - ext4 /dev/root rw\n"
    b"broken line\n"
)


def test_a_file_that_is_a_mount_point_itself_is_static(tmp_path):
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_bytes(SUBPATH)
    assert find_static_mount(Path("/etc/nvdp/my file"), mountinfo=mountinfo)
    assert not find_static_mount(Path("/etc/nvdp/other"), mountinfo=mountinfo)


def test_a_file_in_a_mounted_directory_is_not_static(tmp_path):
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_bytes(b"41 36 0:55 / /config ro,relatime - tmpfs tmpfs rw\n")
    assert not find_static_mount(Path("/config/mixed"), mountinfo=mountinfo)
    assert not find_static_mount(Path("/config/mixed"), mountinfo=tmp_path / "missing")


def test_this_machines_own_mounts_are_understood():
    assert find_static_mount(Path("/proc"))
    assert not find_static_mount(Path("/proc/self/status"))


@pytest.mark.parametrize(
    ("mounts", "is_there"),
    [(["/"], False), (["/", "/run/cdi"], True), (["/", "/run"], True), (["/", "/run/cdi/below", "/ru"], False)],
)
def test_a_directory_is_mounted_if_it_or_one_above_it_short_of_the_root_is(tmp_path, mounts, is_there):
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text("".join(f"41 36 0:55 / {place} rw - tmpfs tmpfs rw\n" for place in mounts))
    assert is_mounted(Path("/run/cdi"), mountinfo=mountinfo) is is_there


def test_where_mounts_cannot_be_read_a_directory_counts_as_mounted(tmp_path):
    assert is_mounted(Path("/run/cdi"), mountinfo=tmp_path / "missing")
