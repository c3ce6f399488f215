"""The control daemon's twin: how it serves users, obeys orders, and answers who asks it."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from nvdp.mps.control import ControlFailedError
from nvdp.simulate.mps.clients import MpsClient, end_server
from nvdp.simulate.mps.serving import Client, Serving
from tests.daemon.node import at_length
from tests.mps.conftest import LIMIT_S, Bench, wait_until


class Scene:
    """A daemon without its socket: what clients were told, what the log says, which servers there were."""

    def __init__(self, *, multi_user: bool) -> None:
        self.log, self.servers, self.told = [], [], {}
        self.serving = Serving(multi_user=multi_user, log=self.log.append, on_server=self.servers.append)

    def join(self, pid: int, user: int) -> Client:
        words = self.told[pid] = []
        client = Client(pid, user, tell=words.append, cut=lambda: words.append(b"cut"))
        self.serving.join(client)
        return client


def test_one_server_serves_one_user_and_others_wait_until_it_has_no_clients():
    scene = Scene(multi_user=False)
    first, second = scene.join(1, 1000), scene.join(2, 1000)
    scene.join(3, 0)
    assert scene.told == {1: [b"served"], 2: [b"served"], 3: [b"waiting"]}
    scene.serving.leave(first)
    assert scene.told[3] == [b"waiting"]
    scene.serving.leave(second)
    assert scene.told[3] == [b"waiting", b"served"]
    assert [server.user for server in scene.servers] == [1000, 0]
    assert scene.log == [
        "NEW CLIENT 1 from user 1000: Server is not ready, push client to pending list",
        "Starting new server 5000000 for user 1000",
        "NEW SERVER 5000000: Ready",
        "NEW CLIENT 2 from user 1000: Server already exists",
        "NEW CLIENT 3 from user 0: Server is not ready, push client to pending list",
        "Server 5000000 exited with status 0",
        "Starting new server 5000001 for user 0",
        "NEW SERVER 5000001: Ready",
    ]


def test_a_server_without_clients_stays_for_its_user_and_gives_way_to_another():
    scene = Scene(multi_user=False)
    scene.serving.leave(scene.join(1, 1000))
    scene.serving.leave(scene.join(2, 1000))
    assert len(scene.servers) == 1
    scene.join(3, 0)
    assert scene.told[3] == [b"served"]
    assert len(scene.servers) == 2


def test_one_server_of_root_serves_all_users_if_it_was_told_so():
    scene = Scene(multi_user=True)
    scene.join(1, 1000)
    scene.join(2, 0)
    assert scene.told == {1: [b"served"], 2: [b"served"]}
    assert [server.user for server in scene.servers] == [0]


def test_limits_stay_those_of_the_servers_start():
    scene = Scene(multi_user=False)
    assert scene.serving.answer("set_default_active_thread_percentage 25") == (0, "25.0")
    scene.serving.leave(scene.join(1, 1000))
    scene.serving.answer("set_default_active_thread_percentage 50")
    scene.serving.answer("set_default_device_pinned_mem_limit GPU-a 3G")
    assert scene.serving.answer("get_default_device_pinned_mem_limit GPU-a") == (0, "3G")
    scene.join(2, 0)
    assert [(server.thread_percent, server.memory) for server in scene.servers] == [(25.0, {}), (50.0, {"GPU-a": "3G"})]


@pytest.mark.parametrize(
    "command",
    [
        "dance",
        "get_server_status 7",
        "get_server_status x",
        "set_default_active_thread_percentage 0",
        "set_default_active_thread_percentage 101",
        "set_default_device_pinned_mem_limit GPU-a 3T",
        "set_default_device_pinned_mem_limit GPU-a",
        "get_default_device_pinned_mem_limit 0",
        "start_server -user 0",
    ],
)
def test_a_command_that_makes_no_sense_is_refused(command):
    code, text = Scene(multi_user=True).serving.answer(command)
    assert code == 1
    assert command in text


def test_a_server_that_dies_takes_its_clients_along_and_the_next_one_serves_who_waits(bench):
    bench.start("GPU-a", multi_user=False)
    pipe = bench.places.pipe_dir
    with MpsClient(pipe, user=7) as served, MpsClient(pipe, user=8) as waiting:
        assert not waiting.is_served
        end_server(pipe, 1)
        assert waiting.wait_served(LIMIT_S)
        assert served.is_cut
    assert "Server 5000000 exited with status 1" in (bench.places.log_dir / "daemon.log").read_text()


def test_nobody_joins_a_daemon_that_is_to_quit(bench):
    daemon = bench.start("GPU-a")
    with MpsClient(bench.places.pipe_dir):
        bench.pipe.quit()
        with MpsClient(bench.places.pipe_dir) as late:
            assert late.is_refused
            assert not late.wait_served(0.0)
    assert daemon.wait(LIMIT_S)


def test_a_client_is_cut_when_its_daemon_is_killed(bench):
    daemon = bench.start("GPU-a")
    with MpsClient(bench.places.pipe_dir) as client:
        daemon.kill()
        wait_until(lambda: client.is_cut, "the end of the connection")
        assert not client.wait_served(LIMIT_S)


@pytest.mark.campaign
@at_length
def test_a_daemon_dies_at_start_as_often_as_it_was_told(bench):
    bench.orders.die_at_start(2, code=3, text="No such GPU", pipe_dir=bench.places.pipe_dir)
    for _ in range(2):
        daemon = bench.start("GPU-a", answers=False)
        assert daemon.wait(LIMIT_S)
        assert daemon.exit_code == 3
    assert "No such GPU" in bench.places.read_last_lines(1)[0]
    assert bench.start("GPU-a").is_alive
    assert len(bench.journal.list_starts()) == 3


@pytest.mark.campaign
@at_length
def test_a_daemon_that_refuses_to_quit_and_to_be_terminated_ends_by_force(bench):
    bench.orders.refuse_quit()
    bench.orders.ignore_term()
    daemon = bench.start("GPU-a")
    bench.pipe.quit()
    daemon.terminate()
    assert not daemon.wait(0.2)
    daemon.kill()
    assert daemon.wait(LIMIT_S)
    assert daemon.exit_code == -signal.SIGKILL


@pytest.mark.campaign
@at_length
def test_orders_for_one_pipe_directory_are_not_for_another(bench):
    bench.start("GPU-a")
    bench.orders.fail("get_server_list", times=1, pipe_dir=bench.mps_dir)
    assert bench.pipe.list_servers() == {}
    bench.orders.fail("get_server_list", times=1, pipe_dir=bench.places.pipe_dir)
    with pytest.raises(ControlFailedError):
        bench.pipe.list_servers()


@pytest.mark.campaign
@at_length
def test_a_slow_daemon_answers_later(bench):
    bench.start("GPU-a")
    bench.orders.slow_down(0.2)
    asked = subprocess.Popen(
        [bench.program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"CUDA_MPS_PIPE_DIRECTORY": bench.places.pipe_dir},
    )
    with asked:
        with pytest.raises(subprocess.TimeoutExpired):
            asked.communicate(b"get_default_active_thread_percentage", timeout=0.1)
        assert asked.communicate(timeout=LIMIT_S) == (b"100.0\n", None)


def test_who_asks_may_say_several_lines_and_the_first_failure_is_the_exit_code(bench):
    bench.start("GPU-a")
    done = subprocess.run(
        [bench.program],
        input="get_default_active_thread_percentage\n\ndance\nget_server_list",
        env={"CUDA_MPS_PIPE_DIRECTORY": str(bench.places.pipe_dir)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "100.0\nUnknown command: dance\n", "")


@pytest.mark.parametrize("options", [["-x"], ["-multiuser-server"]])
def test_options_that_the_program_does_not_know_are_refused(bench, options):
    done = subprocess.run([bench.program, *options], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, f"Unknown option {options[0]}\n")


@pytest.mark.campaign
@at_length
def test_a_dead_daemons_socket_is_taken_over_and_its_pid_file_is_gone_after_quit(bench):
    killed = bench.start("GPU-a")
    killed.kill()
    assert killed.wait(LIMIT_S)
    daemon = bench.start("GPU-a")
    pid_file = bench.places.pipe_dir / "nvidia-cuda-mps-control.pid"
    assert int(pid_file.read_text()) == daemon.pid
    bench.pipe.quit()
    assert daemon.wait(LIMIT_S)
    assert not pid_file.exists()
    assert (bench.places.pipe_dir / "control").exists()


def test_a_daemon_without_its_directory_says_so_and_ends(directory):
    bench = Bench(directory)
    bench.places.remove()
    done = subprocess.run(
        [bench.program, "-f"],
        env={"CUDA_MPS_PIPE_DIRECTORY": str(bench.places.pipe_dir), "PATH": os.environ["PATH"]},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"Cannot use {bench.places.pipe_dir}: No such file or directory" in done.stdout
