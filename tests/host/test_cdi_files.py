"""The directory of CDI specs: whoever reads it, at any moment, whatever happens to us, finds whole files or none."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest

from nvdp.errors import HostError
from nvdp.host.cdi_files import CdiFiles
from nvdp.model.cdi import CdiClass
from tests.cdi.validator import SpecError, load_spec
from tests.daemon.kernel import mount

GPU = CdiClass.GPU.file_name
OTHERS = ("nvidia.com-gpu.yaml", "k8s.device-plugin.nvidia.com-other.json", "vendor.com-net.json", "notes.tmp")


def build_spec(number: int) -> bytes:
    """A whole spec, of another length for each number."""
    devices = [{"name": f"GPU-{n}", "containerEdits": {"env": [f"N={n}"]}} for n in range(number % 7 + 1)]
    return json.dumps({"cdiVersion": "0.3.0", "kind": CdiClass.GPU.kind, "devices": devices}).encode()


PRELUDE = """
import sys
from pathlib import Path
from nvdp.errors import HostError
from nvdp.host.cdi_files import CdiFiles

def attempt(action, *arguments):
    try:
        action(*arguments)
    except HostError as error:
        print(error)
    else:
        print("done")
"""


def build_command(script: str, *arguments: str | Path) -> list[str]:
    """A process with our code; ``attempt`` prints the text of a HostError."""
    return [sys.executable, "-c", PRELUDE + textwrap.dedent(script), *map(str, arguments)]


def test_what_is_written_is_there_whole_and_readable_by_all_in_a_directory_that_is_made(tmp_path):
    files = CdiFiles(tmp_path / "run" / "cdi")
    assert files.load() == {}
    before = os.umask(0o077)
    try:
        files.write(GPU, b"one")
        files.write(CdiClass.GDS.file_name, b"two")
    finally:
        os.umask(before)
    assert files.load() == {GPU: b"one", CdiClass.GDS.file_name: b"two"}
    assert stat.S_IMODE(files.directory.stat().st_mode) == 0o755
    assert stat.S_IMODE((files.directory / GPU).stat().st_mode) == 0o644
    assert len([*files.directory.iterdir()]) == 2, "nothing half done is left"
    files.remove(GPU)
    files.remove(GPU)
    assert files.load() == {CdiClass.GDS.file_name: b"two"}


def test_files_of_others_are_neither_read_nor_touched(tmp_path):
    for name in OTHERS:
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (0, 0))
    files = CdiFiles(tmp_path)
    before = files.fingerprint()
    (tmp_path / OTHERS[0]).write_text("changed")
    assert files.fingerprint() == before
    files.write(GPU, b"ours")
    files.remove(GPU)
    files.remove_abandoned()
    assert files.load() == {}
    assert {path.name for path in tmp_path.iterdir()} == set(OTHERS)


def test_a_link_in_the_way_is_replaced_and_never_followed(tmp_path):
    aside = tmp_path / "aside"
    aside.write_text("not ours")
    files = CdiFiles(tmp_path / "cdi")
    files.directory.mkdir()
    (files.directory / GPU).symlink_to(aside)
    assert files.load() == {GPU: b""}, "damaged, so it is written anew"
    files.write(GPU, b"ours")
    assert (files.load(), aside.read_text()) == ({GPU: b"ours"}, "not ours")
    assert not (files.directory / GPU).is_symlink()


def test_what_is_no_file_or_far_too_large_counts_as_damaged_and_is_replaced(tmp_path):
    files = CdiFiles(tmp_path)
    os.mkfifo(tmp_path / GPU)
    with (tmp_path / CdiClass.GDS.file_name).open("wb") as large:
        large.truncate(9 << 20)
    assert files.load() == {GPU: b"", CdiClass.GDS.file_name: b""}
    files.write(GPU, b"ours")
    assert files.load()[GPU] == b"ours"


def test_every_change_of_our_files_gives_another_fingerprint(tmp_path):
    files = CdiFiles(tmp_path / "cdi")
    seen = [files.fingerprint()]
    changes = [
        lambda: files.write(GPU, b"one"),
        lambda: files.write(GPU, b"one"),
        lambda: (files.directory / GPU).write_bytes(b"o"),
        lambda: files.remove(GPU),
        lambda: (files.directory / GPU).symlink_to("nowhere"),
        lambda: (shutil.rmtree(files.directory), files.directory.mkdir()),
    ]
    for change in changes:
        change()
        assert files.fingerprint() == files.fingerprint()
        seen.append(files.fingerprint())
        assert seen[-1] != seen[-2]


def test_what_a_killed_predecessor_left_goes_once_it_is_sure_that_nobody_writes_it(tmp_path):
    files = CdiFiles(tmp_path)
    old, fresh = tmp_path / f"{GPU}.a.tmp", tmp_path / f"{GPU}.b.tmp"
    for path in (old, fresh):
        path.write_text("half")
    os.utime(old, (0, 0))
    files.write(GPU, b"whole")
    assert {path.name for path in tmp_path.iterdir()} == {GPU, fresh.name}


def test_a_process_that_is_killed_while_it_writes_leaves_the_file_as_it_was_or_as_it_should_be(tmp_path):
    script = """
        files, size = CdiFiles(Path(sys.argv[1])), 4 << 20
        while True:
            for letter in (b"a", b"b"):
                files.write("k8s.device-plugin.nvidia.com-gpu.json", letter * size)
    """
    whole = {b"a" * (4 << 20), b"b" * (4 << 20)}
    files = CdiFiles(tmp_path)
    deadline = time.monotonic() + 30
    caught = False
    while not caught:
        assert time.monotonic() < deadline, "never caught in the middle"
        command = build_command(script, tmp_path)
        with subprocess.Popen(command) as process:
            while not ((tmp_path / GPU).exists() and any(tmp_path.glob("*.tmp"))):
                assert time.monotonic() < deadline
            process.send_signal(signal.SIGKILL)
        assert files.load()[GPU] in whole
        caught = any(tmp_path.glob("*.tmp"))
    for left in tmp_path.glob("*.tmp"):
        os.utime(left, (0, 0))
    files.remove_abandoned()
    assert [path.name for path in tmp_path.iterdir()] == [GPU]


def test_who_reads_during_a_thousand_rewrites_never_sees_half_a_file():
    directory = Path(tempfile.mkdtemp(prefix="nv", dir="/dev/shm" if Path("/dev/shm").is_dir() else "/tmp"))
    files, stopping, seen, refused = CdiFiles(directory), threading.Event(), 0, []
    files.write(GPU, build_spec(0))

    def read() -> None:
        nonlocal seen
        while not stopping.is_set():
            for path in directory.glob("*.json"):
                try:
                    load_spec(path)
                except SpecError as error:
                    refused.append(error)
                seen += 1

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(1000):
            files.write(GPU, build_spec(number))
    finally:
        stopping.set()
        reader.join()
        shutil.rmtree(directory)
    assert seen > 10
    assert refused == []


def test_a_disk_that_is_full_read_only_or_gone_is_told_with_what_to_do_and_the_file_stays(tmp_path):
    full, sealed, seen, node = (tmp_path / name for name in ("full", "sealed", "seen", "node"))
    for directory in (full, sealed, seen, node):
        directory.mkdir()
    (sealed / GPU).write_text("before")
    launcher = mount(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", full],
        ["mount", "--bind", sealed, sealed],
        ["mount", "-o", "remount,bind,ro", sealed],
        ["mount", "--bind", node, seen],
        ["rmdir", node],
    )
    script = f"""
        full, sealed, seen = (CdiFiles(Path(path)) for path in sys.argv[1:])
        full.write("{GPU}", b"before")
        attempt(full.write, "{GPU}", b"x" * 100_000)
        print(full.load(), len(list(full.directory.iterdir())))
        attempt(full.check_writable, "{GPU}")
        attempt((full.directory / "of others").write_bytes, b"x" * 60_000)
        attempt(full.check_writable, "{GPU}")
        attempt(sealed.check_writable, "{GPU}")
        attempt(sealed.write, "{GPU}", b"after")
        attempt(sealed.remove, "{GPU}")
        print(sealed.load())
        attempt(seen.check_writable, "{GPU}")
        attempt(seen.write, "{GPU}", b"after")
    """
    command = [*launcher, *build_command(script, full, sealed, seen)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    remedy = f"mount hostPath {sealed} (type DirectoryOrCreate) into nvdp's container, not readOnly"
    gone = "the directory was deleted on the node: delete this pod, and its successor gets the new one"
    assert told == [
        f"{full}/{GPU}: cannot be written: No space left on device; free some space there",
        f"{{'{GPU}': b'before'}} 1",
        *("done", "done"),
        f"{full}/{GPU}: cannot be written: No space left on device; free some space there",
        *[f"{sealed}/{GPU}: cannot be written: Read-only file system; {remedy}"] * 2,
        f"{sealed}/{GPU}: cannot be removed: Read-only file system; {remedy}",
        f"{{'{GPU}': b'before'}}",
        *[f"{seen}/{GPU}: cannot be written: No such file or directory; {gone}"] * 2,
    ]


def test_a_directory_that_cannot_be_one_is_told_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    files = CdiFiles(tmp_path / "file" / "cdi")
    with pytest.raises(HostError, match=r"^\S+/file/cdi: cannot be read: Not a directory$"):
        files.load()
    with pytest.raises(
        HostError, match=r"^\S+/cdi/\S+: cannot be written: Not a directory; mount hostPath \S+/cdi \(type"
    ):
        files.write(GPU, b"")
    with pytest.raises(HostError, match="cannot be written: Not a directory"):
        files.check_writable(GPU)
    assert files.fingerprint() == ()
    files.remove_abandoned()


def test_in_a_pod_nothing_is_written_where_the_node_would_not_see_it(tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text("1 0 0:50 / / rw - overlay overlay rw\n")
    files = CdiFiles(tmp_path / "run" / "cdi", in_pod=True, mountinfo=mounts)
    with pytest.raises(HostError, match=r"the directory is not mounted; mount hostPath \S+/run/cdi "):
        files.write(GPU, b"")
    with pytest.raises(HostError, match="the directory is not mounted"):
        files.check_writable(GPU)
    assert not files.directory.exists()
    mounts.write_text(f"1 0 0:50 / / rw - overlay overlay rw\n2 1 0:60 / {tmp_path}/run rw - tmpfs tmpfs rw\n")
    files.check_writable(GPU)
    assert not files.directory.exists()
    files.write(GPU, b"")
    assert files.load() == {GPU: b""}
