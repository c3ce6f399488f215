"""Sockets of the device-plugin directory: how they come, whom they belong to, and how they go."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from nvdp.errors import HostError
from nvdp.kubelet.server import choose_socket_path, probe_socket, remove_stale_sockets
from tests.kubelet.lists import build_list, gpu_uuid, replica
from tests.kubelet.plugin_client import PluginClient, stalled_reader, visible_devices

LIMIT_S = 10


def sockets_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def dead_socket(path: Path) -> Path:
    """A socket file as a killed process leaves it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
    return path


def wait_until(condition) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


# Names


@pytest.mark.requirement(2)
@pytest.mark.requirement(8)
@pytest.mark.invariant(6)
def test_names_are_unique_say_the_resource_and_start_alike():
    names = {choose_socket_path(Path("/d"), "nvidia.com/GPU_x.shared").name for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("nvdp-gpu-x.shared-") and name.endswith(".sock") for name in names)


@pytest.mark.requirement(7)
def test_a_deep_directory_costs_the_readable_part_of_the_name():
    shortest = len("/nvdp-0123456789ab.sock")
    for depth in range(1, 107 - shortest):
        path = choose_socket_path(Path("/" + "d" * depth), "nvidia.com/gpu.shared")
        assert len(os.fsencode(path)) <= 107
        assert path.name.startswith("nvdp-")


@pytest.mark.requirement(7)
def test_a_directory_without_room_for_any_name_is_one_clear_error():
    with pytest.raises(HostError, match=r"107 bytes.*--kubelet-root"):
        choose_socket_path(Path("/" + "d" * 90), "nvidia.com/gpu.shared")


def test_a_directory_with_odd_characters_is_served(served, short_dir):
    odd = short_dir / "a%20b ü#?"
    odd.mkdir()
    plugin = served(build_list(), directory=odd)
    assert plugin.client.options().get_preferred_allocation_available
    plugin.server.stop(grace_s=0)
    assert sockets_in(odd) == []


# Being there


@pytest.mark.requirement(21)
def test_there_is_one_socket_for_the_kubelet_alone_and_no_other_file(served, short_dir):
    path = served(build_list()).server.path
    assert sockets_in(short_dir) == [path.name]
    mode = path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


@pytest.mark.parametrize("directory", ["/tmp/nvdp-is-not-here", "/proc/self/fdinfo"])
def test_a_directory_without_a_place_for_a_socket_is_an_error_in_words(served, directory):
    with pytest.raises(HostError, match=directory):
        served(build_list(), directory=Path(directory))


@pytest.mark.invariant(6)
def test_a_socket_is_ours_until_its_file_is_gone_or_another(served):
    server = served(build_list()).server
    assert server.is_ours()
    server.path.chmod(0o660)  # a relabelling changes the ctime, and nothing else
    assert server.is_ours()
    server.path.unlink()
    assert not server.is_ours()
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(server.path))
        assert not server.is_ours()


def test_the_probe_tells_whether_the_socket_answers(served, short_dir):
    server = served(build_list()).server
    assert server.probe(5)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(short_dir / "silent"))
        silent.listen()
        assert not probe_socket(short_dir / "silent", 0.2)
    server.path.unlink()
    assert not server.probe(5)


# Going


@pytest.mark.requirement(8)
@pytest.mark.requirement(22)
@pytest.mark.invariant(6)
def test_stopping_removes_the_own_socket_and_leaves_everybody_elses(served, short_dir):
    first, second = served(build_list()), served(build_list())
    first.server.stop(grace_s=0)
    assert sockets_in(short_dir) == [second.server.path.name]
    assert visible_devices(second.client.allocate([replica(0, 0)])) == [gpu_uuid(0)]


@pytest.mark.requirement(8)
@pytest.mark.invariant(6)
def test_a_foreign_socket_at_our_path_survives_our_stop(served):
    server = served(build_list()).server
    server.path.unlink()
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(server.path))
        server.stop(grace_s=0)
        assert server.path.exists()


def test_stopping_ends_streams_at_once_even_those_of_peers_that_stopped_reading(served):
    plugin = served(build_list(gpus=8, replicas=500))
    with stalled_reader(plugin.server.path):
        plugin.notes.wait_for("opened")
        stream = plugin.client.watch()
        next(stream)
        started_at = time.monotonic()
        plugin.server.stop(grace_s=0.5)
        assert time.monotonic() - started_at < 2
        assert list(stream) == []
        plugin.notes.wait_for("ended", 2)
    assert plugin.server.streams.count == 0


def test_a_stopped_server_leaves_no_thread_and_no_file_behind(served, short_dir):
    plugin = served(build_list())
    process = psutil.Process()

    def cycle():
        server = plugin.plugin.serve(probe_s=5)
        with PluginClient(server.path) as client:
            stream = client.watch()
            next(stream)
            client.allocate([replica(0, 0)])
            server.stop(grace_s=1)
            list(stream)

    cycle()
    threads, files = process.num_threads(), process.num_fds()
    for _ in range(20):
        cycle()
    # A few more are grpc's own pool, which grows to the number of cores.
    assert wait_until(lambda: process.num_threads() <= threads + 6 and process.num_fds() <= files + 6)
    assert len(sockets_in(short_dir)) == 1


# What others left


@pytest.mark.invariant(6)
def test_only_our_dead_sockets_are_removed(served, short_dir):
    alive = served(build_list()).server.path
    dead = dead_socket(short_dir / "nvdp-gpu-0123456789ab.sock")
    foreign = dead_socket(short_dir / "other-gpu.sock")
    (short_dir / "nvdp-notes").write_text("no socket")
    unborn = dead_socket(short_dir / "nvdp-gpu-fedcba987654.new")
    assert remove_stale_sockets(short_dir) == (dead,)
    assert sockets_in(short_dir) == sorted(["nvdp-notes", alive.name, foreign.name, unborn.name])
    assert remove_stale_sockets(short_dir, clock=lambda: time.time() + 61) == (unborn,)


@pytest.mark.invariant(6)
def test_a_socket_whose_backlog_is_full_is_not_dead(short_dir):
    path = short_dir / "nvdp-busy.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(path))
        listener.listen(0)
        first.connect(str(path))
        assert remove_stale_sockets(short_dir) == ()


def test_a_directory_that_cannot_be_read_is_left_alone(short_dir):
    assert remove_stale_sockets(short_dir / "away") == ()


@pytest.mark.requirement(8)
def test_a_killed_process_leaves_a_socket_that_the_next_one_removes(short_dir):
    program = (
        "import sys; sys.path.insert(0, '.')\n"
        "from pathlib import Path\n"
        "from tests.kubelet.conftest import Served\n"
        "from tests.kubelet.lists import build_list\n"
        "served = Served(Path(sys.argv[1]), build_list())\n"
        "print(served.server.path, flush=True)\n"
        "sys.stdin.read()\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program, str(short_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    ) as child:
        path = Path(child.stdout.readline().strip())
        assert remove_stale_sockets(short_dir) == ()
        child.kill()
    assert path.exists()
    assert remove_stale_sockets(short_dir) == (path,)
