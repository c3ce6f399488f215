"""The file of labels: whole at every moment, never through a link, and nobody else's file."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from nvdp.errors import HostError
from nvdp.host.feature_file import FeatureFile

TIME = "nvidia.com/gfd.timestamp"
LABELS = {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.count": "8", TIME: "1700000000"}
TEXT = "nvidia.com/gfd.timestamp=1700000000\nnvidia.com/gpu.count=8\nnvidia.com/gpu.product=NVIDIA-H200\n"


@pytest.fixture
def path(tmp_path):
    directory = tmp_path / "features.d"
    directory.mkdir()
    return directory / "gfd"


def list_names(path):
    return sorted(entry.name for entry in path.parent.iterdir())


def test_lines_are_sorted_readable_by_all_and_alone_in_the_directory(path):
    old_umask = os.umask(0o077)
    try:
        outcome = FeatureFile(path).write(LABELS)
    finally:
        os.umask(old_umask)
    assert path.read_text() == TEXT
    assert path.stat().st_mode & 0o777 == 0o644
    assert list_names(path) == ["gfd"]
    assert (outcome.is_written, outcome.changed) == (True, tuple(sorted(LABELS)))


def find_writing(path):
    """What a write changes of a file; a look at it changes when it was last accessed."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def test_what_is_there_already_is_not_written_whatever_the_time(path):
    FeatureFile(path).write(LABELS)
    before = find_writing(path)
    outcome = FeatureFile(path).write({**LABELS, TIME: "1800000000"})
    assert (outcome.is_written, outcome.labels[TIME]) == (False, "1700000000")
    assert find_writing(path) == before


def test_a_change_replaces_the_file_with_the_new_time(path):
    FeatureFile(path).write(LABELS)
    before = path.stat()
    outcome = FeatureFile(path).write({**LABELS, "nvidia.com/gpu.count": "7", TIME: "1800000000"})
    assert outcome.changed == (TIME, "nvidia.com/gpu.count")
    assert path.stat().st_ino != before.st_ino
    assert TIME + "=1800000000\n" in path.read_text()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_text(TEXT[:50]),
        lambda path: path.write_text(TEXT.replace("\n", "\n\n")),
        lambda path: path.write_bytes(b"\0" * 4096),
        lambda path: path.write_text("# +expiry-time=2080-07-28T11:22:33Z\n" + TEXT),
        lambda path: path.chmod(0o600),
    ],
    ids=["removed", "cut", "odd", "zeros", "comment", "mode"],
)
def test_what_somebody_or_a_crash_did_to_it_is_put_right(path, damage):
    FeatureFile(path).write(LABELS)
    damage(path)
    assert FeatureFile(path).write(LABELS).is_written
    assert (path.read_text(), path.stat().st_mode & 0o777) == (TEXT, 0o644)


@pytest.mark.parametrize("content", [b"root:x:0:0\n", b"example.com/x=y\n", b"\xff\xfe", b"nvidia.com/a=b\n" * 100_000])
def test_a_file_of_somebody_else_is_left_alone(path, content):
    path.write_bytes(content)
    for action in (lambda file: file.write(LABELS), lambda file: file.remove()):
        with pytest.raises(HostError, match="holds something else than labels about GPUs"):
            action(FeatureFile(path))
    assert path.read_bytes() == content


def test_a_symbolic_link_is_replaced_and_what_it_leads_to_is_not_touched(path, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(TEXT)
    path.symlink_to(elsewhere)
    assert FeatureFile(path).write({}).is_written
    assert not path.is_symlink()
    assert (path.read_text(), elsewhere.read_text()) == ("", TEXT)
    path.unlink()
    path.symlink_to(elsewhere)
    assert FeatureFile(path).remove() == ()
    assert (path.is_symlink(), elsewhere.read_text()) == (False, TEXT)


def test_it_is_removed_and_told_what_it_had(path):
    assert FeatureFile(path).remove() == ()
    FeatureFile(path).write(LABELS)
    assert FeatureFile(path).remove() == tuple(sorted(LABELS))
    assert list_names(path) == []


def test_a_directory_that_is_missing_or_not_mounted_is_said_and_not_made(path, tmp_path):
    file = FeatureFile(path.parent / "sub" / "gfd")
    with pytest.raises(HostError, match=r"there is no directory .*/sub: mount it from the node"):
        file.write(LABELS)
    assert file.remove() == ()
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text("1 1 0:1 / / rw - overlay overlay rw\n")
    with pytest.raises(HostError, match="is of this container alone"):
        FeatureFile(path, in_pod=True, mountinfo=mountinfo).write(LABELS)
    assert list_names(path) == []
    mountinfo.write_text(f"1 1 0:1 / {path.parent} rw - ext4 x rw\n")
    assert FeatureFile(path, in_pod=True, mountinfo=mountinfo).write(LABELS).is_written


def test_what_is_no_file_is_an_error_in_one_line(path):
    path.mkdir()
    for action in (lambda file: file.write(LABELS), lambda file: file.remove()):
        with pytest.raises(HostError, match="is a directory") as failed:
            action(FeatureFile(path))
        assert "\n" not in str(failed.value)


def test_a_directory_that_cannot_be_written_is_said_and_keeps_what_it_has():
    """As another user, since root may write anywhere."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        path = Path(directory) / "gfd"
        FeatureFile(path).write(LABELS)
        found = run_limited(path, "os.setegid(65534); os.seteuid(65534)")
        assert "cannot be written: Permission denied: the directory does not allow it" in found
        assert path.read_text() == TEXT


def test_on_a_full_disk_what_was_there_stays_and_nothing_is_left_behind(path):
    FeatureFile(path).write(LABELS)
    found = run_limited(path, "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))")
    assert "cannot be written: File too large: free some space there" in found
    assert path.read_text() == TEXT
    assert list_names(path) == ["gfd"]


def run_limited(path, limit):
    """What is said when a process under the limit writes other labels."""
    labels = {f"nvidia.com/gpu.{number}": "x" * 60 for number in range(20)}
    code = (
        "import os, resource, pathlib\n"
        "from nvdp.host.feature_file import FeatureFile\nfrom nvdp.errors import HostError\n"
        f"{limit}\n"
        f"try: FeatureFile(pathlib.Path({str(path)!r})).write({labels!r})\n"
        "except HostError as error: print(error)\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30).stdout


def test_what_a_process_left_that_died_is_removed_and_what_is_being_written_is_not(path):
    old, new = path.parent / ".gfd.a.tmp", path.parent / ".gfd.b.tmp"
    for entry in (old, new):
        entry.touch()
    long_ago = time.time() - 120
    os.utime(old, (long_ago, long_ago))
    FeatureFile(path).write(LABELS)
    assert list_names(path) == [".gfd.b.tmp", "gfd"]


def test_a_reader_never_sees_a_part_nor_another_name_than_that_of_the_file(path):
    texts = {"", TEXT, TEXT.replace("=8", "=7")}
    FeatureFile(path).write(LABELS)
    stopping = threading.Event()

    def write():
        while not stopping.is_set():
            for labels in (LABELS, {**LABELS, "nvidia.com/gpu.count": "7", TIME: "1700000000"}, {}):
                FeatureFile(path).write(labels)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            assert path.read_text() in texts
            assert {entry.name for entry in path.parent.iterdir() if not entry.name.startswith(".")} == {"gfd"}
    finally:
        stopping.set()
        writer.join()
