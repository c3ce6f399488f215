"""Control daemons of others, from trees that look like /proc and from the real one."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess

import pytest

from nvdp.mps.foreign import Foreign, find_foreign
from nvdp.mps.procfs import find_argv
from nvdp.simulate.mps.install import REAL_NAME
from tests.mps.conftest import Bench, wait_until

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


def add(
    proc,
    pid: int,
    argv,
    environment: dict[str, str] | None = None,
    *,
    session: int = 1,
    state: str = "S",
    program: str = DAEMON[0],
) -> None:
    place = proc / str(pid)
    place.mkdir()
    (place / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
    if environment is not None:
        (place / "environ").write_bytes(b"".join(f"{name}={value}\0".encode() for name, value in environment.items()))
    (place / "stat").write_text(f"{pid} (a) b) {state} 1 {session} {session} 0 -1 {' 0' * 13} 4711 0 0\n")
    (place / "exe").symlink_to(program)
    (place / "root").symlink_to("/")


def give_nodes(proc, process: str, *minors: int) -> None:
    """A root of its own with the nodes of these GPUs."""
    devices = proc.parent / f"root of {process}" / "dev"
    devices.mkdir(parents=True)
    for minor in minors:
        os.mknod(devices / f"nvidia{minor}", stat.S_IFCHR | 0o600, os.makedev(195, minor))
    place = proc / process
    place.mkdir(exist_ok=True)
    (place / "root").unlink(missing_ok=True)
    (place / "root").symlink_to(devices.parent)


@pytest.mark.parametrize("visible", [None, GPU, "GPU-9a1b", f"GPU-other, {GPU}", "0", "7,3"])
def test_a_daemon_that_serves_one_of_our_gpus_or_may_do_so_is_in_the_way(proc, pipe_dir, visible):
    add(proc, 7, DAEMON, {"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {})
    assert find_foreign({OURS}, pipe_dir, [GPU], proc) == Foreign(7, "/tmp/nvidia-mps")


@pytest.mark.parametrize("visible", ["GPU-other", "GPU-9a1b77c0-0000-0000-0000-000000000002", "", "-1", "MIG-9a1b"])
def test_a_daemon_of_other_gpus_is_not(proc, pipe_dir, visible):
    add(proc, 7, DAEMON, {"CUDA_VISIBLE_DEVICES": visible})
    assert find_foreign({OURS}, pipe_dir, [GPU], proc) is None


@pytest.mark.parametrize(
    ("container", "in_the_way"),
    [
        ("GPU-other", False),  # a user's own daemon in a pod with a GPU of its own
        (f"GPU-other,{GPU}", True),
        ("all", True),
        ("void", True),
        ("0", True),
    ],
)
def test_a_daemon_without_a_list_of_devices_has_those_of_its_container(proc, pipe_dir, container, in_the_way):
    for pid, visible in enumerate(({}, {"CUDA_VISIBLE_DEVICES": "0"}), start=7):
        add(proc, pid, DAEMON, {"NVIDIA_VISIBLE_DEVICES": container, **visible})
    found = find_foreign({OURS}, pipe_dir, [GPU], proc)
    assert found == (Foreign(7, "/tmp/nvidia-mps") if in_the_way else None)


@pytest.mark.parametrize(
    ("nodes", "environment", "in_the_way"),
    [
        ((), {}, False),
        ((4,), {"CUDA_VISIBLE_DEVICES": GPU}, False),  # that it says so gives it nothing
        ((4,), {"CUDA_VISIBLE_DEVICES": "0"}, False),
        ((3,), {"CUDA_VISIBLE_DEVICES": "0"}, True),
        ((3, 4), {}, True),
        ((3, 4), {"NVIDIA_VISIBLE_DEVICES": "GPU-other"}, True),  # a privileged container has all
        ((3, 4), {"CUDA_VISIBLE_DEVICES": "GPU-other"}, False),
    ],
)
def test_who_has_not_the_node_of_a_gpu_cannot_use_it(proc, pipe_dir, nodes, environment, in_the_way):
    add(proc, 7, DAEMON, environment)
    give_nodes(proc, "7", *nodes)
    give_nodes(proc, "self", 3, 4)
    found = find_foreign({OURS}, pipe_dir, [GPU], proc, minors={GPU: 3})
    assert (found is not None) == in_the_way


def test_a_file_or_a_link_in_the_place_of_a_node_is_none(proc, pipe_dir):
    give_nodes(proc, "self", 3, 4)
    for pid in (7, 8):
        add(proc, pid, DAEMON, {})
        give_nodes(proc, str(pid))
    (proc / "7" / "root" / "dev" / "nvidia3").touch()
    (proc / "8" / "root" / "dev" / "nvidia3").symlink_to(proc / "self" / "root" / "dev" / "nvidia3")
    assert find_foreign({OURS}, pipe_dir, [GPU], proc, minors={GPU: 3}) is None


def test_where_the_nodes_cannot_be_known_they_say_nothing(proc, pipe_dir):
    add(proc, 7, DAEMON, {})
    give_nodes(proc, "7")
    assert find_foreign({OURS}, pipe_dir, [GPU], proc, minors={GPU: 3}) is not None  # we have no nodes either
    give_nodes(proc, "self", 3)
    assert find_foreign({OURS}, pipe_dir, [GPU], proc) is not None
    assert find_foreign({OURS}, pipe_dir, [GPU, "GPU-b"], proc, minors={GPU: 3}) is not None
    (proc / "7" / "root" / "dev").rmdir()
    assert find_foreign({OURS}, pipe_dir, [GPU], proc, minors={GPU: 3}) is not None


@pytest.mark.parametrize(
    ("program", "in_the_way"),
    [
        ("/opt/nvidia-cuda-mps-control", True),
        ("/usr/bin/nvidia-cuda-mps-control (deleted)", True),
        ("/usr/bin/sleep", False),
    ],
)
def test_what_only_calls_itself_a_daemon_is_not_in_the_way(proc, pipe_dir, program, in_the_way):
    add(proc, 7, DAEMON, {}, program=program)
    assert (find_foreign({OURS}, pipe_dir, [GPU], proc) is not None) == in_the_way


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
    (container / "link").symlink_to(pipe_dir)  # from here it leads to ours, from there to its own
    add(proc, 8, DAEMON, {"CUDA_VISIBLE_DEVICES": "GPU-x", "CUDA_MPS_PIPE_DIRECTORY": "/link"})
    add(proc, 9, DAEMON, {"CUDA_VISIBLE_DEVICES": "GPU-x", "CUDA_MPS_PIPE_DIRECTORY": f"/../..{pipe_dir}"})
    for pid in (8, 9):
        (proc / str(pid) / "root").unlink()
        (proc / str(pid) / "root").symlink_to(container)
    assert find_foreign({OURS}, pipe_dir, [GPU], proc) is None
    (proc / "7" / "root").unlink()  # it cannot be looked at: the path decides
    assert find_foreign({OURS}, pipe_dir, [GPU], proc) == Foreign(7, str(pipe_dir))


def test_a_daemon_in_a_container_that_has_our_pipe_directory_mounted_is_in_the_way(proc, directory):
    container = directory / "container"
    mounted = container / "mps" / "gpu" / "pipe"
    mounted.mkdir(parents=True)
    add(proc, 7, DAEMON, {"CUDA_VISIBLE_DEVICES": "GPU-x", "CUDA_MPS_PIPE_DIRECTORY": "/mps/gpu/pipe"})
    (proc / "7" / "root").unlink()
    (proc / "7" / "root").symlink_to(container)
    assert find_foreign({OURS}, mounted, [GPU], proc) == Foreign(7, "/mps/gpu/pipe")


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


def test_a_script_that_only_calls_itself_a_daemon_is_not_in_the_way(directory, proc):
    program = directory / REAL_NAME
    program.write_text("#!/bin/sh\nread -r end\n")
    program.chmod(0o755)
    with subprocess.Popen([program, "-f"], stdin=subprocess.PIPE) as script:
        (proc / str(script.pid)).symlink_to(f"/proc/{script.pid}")
        wait_until(lambda: find_argv(script.pid)[1:] == (str(program), "-f"), "the script")
        assert find_foreign((), directory, ["GPU-a"], proc) is None
