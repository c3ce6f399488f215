"""Paths below a driver root: its links mean what they mean over there, and none leads out of it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdp.host.driver_root import DriverRoot, Found
from tests.host.layouts import build_tree

_OPENAT2 = 437
_RESOLVE_IN_ROOT = 0x10


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def ask_kernel(root: Path, path: str) -> str | None:
    """Where the kernel ends up with ``root`` as its root directory for one path; None if nowhere."""
    start = os.open(root, os.O_PATH)
    how = _How(os.O_PATH, 0, _RESOLVE_IN_ROOT)
    try:
        end = ctypes.CDLL(None).syscall(_OPENAT2, start, path.encode(), ctypes.byref(how), ctypes.sizeof(how))
        if end < 0:
            return None
        try:
            return str(Path(f"/proc/self/fd/{end}").readlink()).removeprefix(str(root)) or "/"
        finally:
            os.close(end)
    finally:
        os.close(start)


PARTS = st.sampled_from(["a", "b", "c", "..", ".", ""])
PATHS = st.builds("".join, st.tuples(st.sampled_from(["", "/"]), st.lists(PARTS, min_size=1, max_size=4).map("/".join)))
PLACES = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map("/".join)
TREES = st.lists(st.tuples(PLACES, st.none() | PATHS.filter(bool)), max_size=8)


@pytest.mark.skipif(ask_kernel(Path("/"), "/") is None, reason="needs a kernel that knows openat2")
@settings(max_examples=40, deadline=None)
@given(tree=TREES, paths=st.lists(PATHS, min_size=1, max_size=6))
def test_every_path_leads_to_where_the_kernel_would_go_with_that_root(tree, paths):
    with TemporaryDirectory(prefix="nv", dir="/tmp") as directory:
        root = Path(directory)
        for place, target in tree:
            path = root / place
            try:
                if target is None:
                    path.mkdir(parents=True)
                elif (root / path.parent).resolve().is_relative_to(root):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.symlink_to(target)
            except (OSError, RuntimeError):
                continue  # taken, or below a link to nowhere
        looked = DriverRoot(root)
        for path in (f"/{path}" for path in paths):
            found = looked.find(path)
            assert (None if found is None else found.source) == ask_kernel(root, path)


def test_a_chain_of_links_is_followed_as_far_as_the_kernel_does(tmp_path):
    build_tree(tmp_path, "l0/\n" + "".join(f"l{n} -> l{n - 1}\n" for n in range(1, 42)))
    looked = DriverRoot(tmp_path)
    assert looked.find("/l40").source == ask_kernel(tmp_path, "/l40") == "/l0"
    assert looked.problems == ()
    assert looked.find("/l41") is ask_kernel(tmp_path, "/l41") is None
    assert looked.problems == ("/l41: leads through more than 40 symbolic links",)


def test_the_root_of_this_system_is_a_root_like_any_other(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert DriverRoot(Path("/")).find(str(file)) == Found(str(file.resolve()), file.stat().st_mode)
    assert DriverRoot(Path("/")).find("/..").source == "/"


def test_a_root_that_is_itself_a_link_is_followed(tmp_path):
    build_tree(tmp_path, "real/file\nlink -> real\n")
    assert DriverRoot(tmp_path / "link").find("/file").source == "/file"


def test_kinds_of_files_are_told_apart(tmp_path):
    build_tree(tmp_path, "program*\ntext\ndirectory/\nsocket=\nlink -> program\n")
    looked = DriverRoot(tmp_path)
    found = {name: looked.find(f"/{name}") for name in ("program", "text", "directory", "socket", "link")}
    assert [name for name, one in found.items() if one.is_program] == ["program", "link"]
    assert [name for name, one in found.items() if one.is_file] == ["program", "text", "link"]
    assert [name for name, one in found.items() if one.is_directory] == ["directory"]


@pytest.mark.parametrize("name", ["line\nbreak", "bell\a", os.fsdecode(b"latin\xe4")])
def test_names_that_no_spec_could_have_are_passed_over(tmp_path, name):
    try:
        (tmp_path / name).touch()
    except OSError as error:
        pytest.skip(f"no such name here: {error}")
    (tmp_path / "plain name").symlink_to(name)
    looked = DriverRoot(tmp_path)
    assert looked.list_names("/") == ("plain name",)
    assert looked.find(f"/{name}") is looked.find("/plain name") is None
    assert looked.problems == ()


@pytest.mark.parametrize("path", ["/a\0b", "/" + "x" * 300, "/" + "y/" * 3000])
def test_a_path_that_no_system_would_take_leads_nowhere(tmp_path, path):
    looked = DriverRoot(tmp_path)
    assert looked.find(path) is None
    assert looked.list_names(path) == ()
    assert looked.load_start(path, limit_bytes=10) is None


def test_the_start_of_a_file_is_read_and_of_nothing_else(tmp_path):
    build_tree(tmp_path, "file := 0123456789\nempty\nlink -> /file\ndirectory/\n")
    (tmp_path / "empty").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    looked = DriverRoot(tmp_path)
    assert looked.load_start("/link", limit_bytes=4) == b"0123"
    assert looked.load_start("/file", limit_bytes=99) == b"0123456789\n"
    assert looked.load_start("/empty", limit_bytes=4) == b""
    assert looked.load_start("/gone", limit_bytes=4) is None
    assert looked.problems == ()
    assert looked.load_start("/directory", limit_bytes=4) is looked.load_start("/pipe", limit_bytes=4) is None
    assert looked.problems == (
        f"{tmp_path}/directory: is a directory; a file is needed",
        f"{tmp_path}/pipe: is a named pipe; a file is needed",
    )


def test_a_gigantic_directory_is_looked_at_in_part_and_that_is_said(tmp_path):
    build_tree(tmp_path, "a\nb\nc\n")
    looked = DriverRoot(tmp_path, max_entries=3)
    assert looked.list_names("/") == ("a", "b", "c")
    assert looked.problems == ()
    looked = DriverRoot(tmp_path, max_entries=2)
    assert len(looked.list_names("/")) == 2
    assert looked.problems == ("/: only 2 of its entries were looked at",)
