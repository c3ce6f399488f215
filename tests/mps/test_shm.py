"""The shared memory of daemons and clients, mounted in a mount namespace of a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from nvdp.errors import HostError
from nvdp.mps.shm import SharedMemory

_ALONE = """
import ctypes, os, stat, sys
from pathlib import Path
from nvdp.errors import HostError
from nvdp.mps.shm import SharedMemory

libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, ctypes.c_ulong((1 << 18) | (1 << 14)), None):
    sys.exit(77)
mps, own = Path(sys.argv[1]) / "mps", Path(sys.argv[1]) / "own"
own.mkdir()
shm = mps / "shm"

def is_mounted(path):
    return os.path.ismount(path)
"""


@pytest.fixture
def run_alone(directory):
    """Run lines in a process whose mounts nobody else sees."""

    def run(code: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", _ALONE + textwrap.dedent(code), str(directory)],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode == 77:
            pytest.skip("this machine permits no mount namespace of one's own")
        assert (done.returncode, done.stderr) == (0, "")

    return run


def test_it_is_mounted_with_its_size_for_all_users_and_is_this_containers_own(run_alone):
    run_alone("""
        memory = SharedMemory(mps, own=own, size_kib=2048)
        memory.mount()
        assert is_mounted(shm) and is_mounted(own)
        found = os.statvfs(shm)
        assert found.f_blocks * found.f_frsize == 2048 * 1024
        flags = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC
        assert found.f_flag & flags == flags
        assert stat.S_IMODE(shm.stat().st_mode) == 0o1777
        assert stat.S_IMODE(mps.stat().st_mode) == 0o755
        (shm / "mps.shm.0.1").touch()
        assert (own / "mps.shm.0.1").exists()
        memory.unmount()
        assert not is_mounted(own)
        assert list(mps.iterdir()) == []
        memory.unmount()
    """)


def test_what_a_killed_predecessor_left_is_used_on_and_goes_in_the_end(run_alone):
    run_alone("""
        SharedMemory(mps, own=None, size_kib=1024).mount()
        (shm / "of a pod").touch()
        memory = SharedMemory(mps, own=own)
        memory.mount()
        assert (own / "of a pod").exists()
        SharedMemory(mps, own=own).mount()  # all is there already
        assert Path("/proc/self/mountinfo").read_text().count(str(own)) == 1
        memory.unmount()
        assert not is_mounted(own) and not shm.exists()
    """)


def test_what_somebody_else_mounted_there_is_used_and_stays(run_alone):
    run_alone("""
        shm.mkdir(parents=True)
        assert libc.mount(b"theirs", os.fsencode(shm), b"tmpfs", ctypes.c_ulong(0), None) == 0
        memory = SharedMemory(mps, own=own)
        memory.mount()
        assert is_mounted(own)
        memory.unmount()
        assert is_mounted(shm) and not is_mounted(own)
    """)


def test_a_mount_that_pods_do_not_see_is_told_and_what_came_from_the_node_is_not(run_alone):
    run_alone("""
        def bind(propagation):
            mps.mkdir(exist_ok=True)
            assert libc.mount(os.fsencode(mps), os.fsencode(mps), None, ctypes.c_ulong(1 << 12), None) == 0
            assert libc.mount(None, os.fsencode(mps), None, ctypes.c_ulong(propagation), None) == 0

        memory = SharedMemory(mps, own=None, size_kib=1024)
        assert memory.find_unseen() == ""  # nothing is mounted yet
        bind(1 << 18)
        memory.mount()
        start = f"pods do not see the shared memory in {shm}, and cannot use MPS: {mps} is mounted without"
        assert memory.find_unseen().startswith(start)
        found = SharedMemory(mps, own=None)
        found.mount()
        assert found.find_unseen() == ""
        memory.unmount()
        bind(1 << 20)
        memory.mount()
        assert memory.find_unseen() == ""
    """)


def test_it_has_half_of_the_nodes_memory_unless_told_otherwise(run_alone):
    run_alone("""
        SharedMemory(mps, own=None).mount()
        found = os.statvfs(shm)
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert abs(found.f_blocks * found.f_frsize / total - 0.5) < 0.01
    """)


def test_where_nothing_may_be_mounted_the_error_says_what_is_needed(run_alone):
    run_alone("""
        os.chown(sys.argv[1], 65534, 65534)
        os.setuid(65534)
        try:
            SharedMemory(mps, own=None, size_kib=1024).mount()
        except HostError as error:
            text = f"{shm}: shared memory cannot be mounted there: Operation not permitted; the container"
            assert str(error).startswith(text), error
        else:
            raise AssertionError("it was mounted")
    """)


def test_without_a_list_of_mounts_it_is_an_error_in_one_line(directory):
    with pytest.raises(HostError, match="self/mountinfo: cannot be read"):
        SharedMemory(directory, proc=directory).mount()
