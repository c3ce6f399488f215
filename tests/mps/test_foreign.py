"""Control daemons of others, from trees that look like /proc and from the real one."""

from __future__ import annotations

import contextlib

import pytest

from nvdp.mps.foreign import Foreign, find_foreign
from nvdp.simulate.mps.install import REAL_NAME
from tests.mps.conftest import Bench

OURS = 500
GPU = "GPU-9a1b77c0-0000-0000-0000-000000000001"
DAEMON = ("/usr/bin/nvidia-cuda-mps-control", "-d")


@pytest.fixture
def proc(directory):
    path = directory / "proc"
    path.mkdir()
    (path / "meminfo").touch()
    return path


@pytest.fixture
def pipe_dir(directory):
    path = directory / "mps" / "pipe"
    path.mkdir(parents=True)
    return path


def add(proc, pid: int, argv, environment: dict[str, str] | None = None, *, session: int = 1, state: str = "S") -> None:
    place = proc / str(pid)
    place.mkdir()
    (place / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
    if environment is not None:
        (place / "environ").write_bytes(b"".join(f"{name}={value}\0".encode() for name, value in environment.items()))
    (place / "stat").write_text(f"{pid} (a) b) {state} 1 {session} {session} 0 -1 {' 0' * 13} 4711 0 0\n")
    (place / "root").symlink_to("/")


@pytest.mark.parametrize("visible", [None, GPU, "GPU-9a1b", f"GPU-other, {GPU}", "0", "7,3"])
def test_a_daemon_that_serves_one_of_our_gpus_or_may_do_so_is_in_the_way(proc, pipe_dir, visible):
    add(proc, 7, DAEMON, {"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {})
    assert find_foreign({OURS}, pipe_dir, [GPU], proc) == Foreign(7, "/tmp/nvidia-mps")


@pytest.mark.parametrize("visible", ["GPU-other", "GPU-9a1b77c0-0000-0000-0000-000000000002", "", "-1", "MIG-9a1b"])
def test_a_daemon_of_other_gpus_is_not(proc, pipe_dir, visible):
    add(proc, 7, DAEMON, {"CUDA_VISIBLE_DEVICES": visible})
    assert find_foreign({OURS}, pipe_dir, [GPU], proc) is None


def test_a_daemon_that_has_our_pipe_directory_is_in_the_way_whatever_its_gpus_and_its_name_for_it(
    proc, pipe_dir, directory
):
    (directory / "also").symlink_to(directory / "mps")
    theirs = str(directory / "also" / "pipe")
    add(proc, 7, DAEMON, {"CUDA_VISIBLE_DEVICES": "GPU-x", "CUDA_MPS_PIPE_DIRECTORY": theirs})
    assert find_foreign({OURS}, pipe_dir, [GPU], proc) == Foreign(7, theirs)


def test_the_same_path_in_another_container_is_another_directory(proc, pipe_dir, directory):
    add(proc, 7, DAEMON, {"CUDA_VISIBLE_DEVICES": "GPU-x", "CUDA_MPS_PIPE_DIRECTORY": str(pipe_dir)})
    container = directory / "container"
    (container / str(pipe_dir).lstrip("/")).mkdir(parents=True)
    (proc / "7" / "root").unlink()
    (proc / "7" / "root").symlink_to(container)
    assert find_foreign({OURS}, pipe_dir, [GPU], proc) is None
    (proc / "7" / "root").unlink()  # it cannot be looked at: the path decides
    assert find_foreign({OURS}, pipe_dir, [GPU], proc) == Foreign(7, str(pipe_dir))


def test_a_daemon_whose_environment_is_hidden_is_in_the_way(proc, pipe_dir):
    add(proc, 7, DAEMON)
    found = find_foreign({OURS}, pipe_dir, [GPU], proc)
    assert found == Foreign(7, "")
    assert str(found) == "another MPS control daemon, PID 7"


def test_it_is_told_with_its_pid_and_its_pipe_directory():
    assert str(Foreign(7, "/x")) == "another MPS control daemon, PID 7 with the pipe directory /x"


@pytest.mark.parametrize(
    "argv",
    [
        ("nvidia-cuda-mps-control",),  # asks
        ("nvidia-cuda-mps-server", "-f"),
        ("vim", "/usr/bin/nvidia-cuda-mps-control"),
        ("/bin/sh", "-c", "exec nvidia-cuda-mps-control -d"),
        (),
    ],
)
def test_what_is_no_daemon_is_not_in_the_way(proc, pipe_dir, argv):
    add(proc, 7, argv, {})
    assert find_foreign({OURS}, pipe_dir, [GPU], proc) is None


def test_our_own_daemons_and_what_they_start_are_not_in_the_way(proc, pipe_dir):
    add(proc, OURS, DAEMON, {}, session=OURS)
    add(proc, 501, DAEMON, {}, session=OURS)  # a server before its program is loaded
    add(proc, 7, DAEMON, {}, state="Z")
    assert find_foreign({OURS}, pipe_dir, [GPU], proc) is None


def test_a_daemon_that_is_a_script_is_found_as_the_kernel_tells_of_it(directory, proc):
    with contextlib.closing(Bench(directory, name=REAL_NAME)) as bench:
        daemon = bench.start("GPU-a")
        (proc / str(daemon.pid)).symlink_to(f"/proc/{daemon.pid}")  # alone: other tests have daemons, too
        found = Foreign(daemon.pid, str(bench.places.pipe_dir))
        assert find_foreign({daemon.pid}, bench.places.pipe_dir, ["GPU-a"], proc) is None
        assert find_foreign((), bench.mps_dir, ["GPU-a"], proc) == found
        assert find_foreign((), bench.places.pipe_dir, ["GPU-b"], proc) == found
        assert find_foreign((), bench.mps_dir, ["GPU-b"], proc) is None
