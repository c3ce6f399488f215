"""Control daemons as processes: how they are started, found again and ended."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys

import pytest

from nvdp.errors import HostError
from nvdp.model.mps import DaemonSpec
from nvdp.mps.places import Places
from nvdp.mps.process import adopt_daemon, start_daemon
from nvdp.simulate.mps.clients import MpsClient
from tests.daemon.node import at_length
from tests.mps.conftest import LIMIT_S, wait_until


def test_a_daemon_is_started_with_its_gpus_and_directories_and_nothing_else_of_ours(bench, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PROTOCOL_VERSION", "3")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    daemon = bench.start("GPU-a", "GPU-b")
    (start,) = bench.journal.list_starts()
    assert start["pid"] == daemon.pid
    assert start["argv"] == [bench.program, "-f", "-multiuser-server"]
    kept = {name: value for name, value in start["env"].items() if name != "LC_CTYPE"}  # Python's own
    assert kept == {
        "PATH": os.environ["PATH"],
        "CUDA_MPS_PIPE_DIRECTORY": str(bench.places.pipe_dir),
        "CUDA_MPS_LOG_DIRECTORY": str(bench.places.log_dir),
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
    }


def test_a_daemon_has_a_session_of_its_own_and_as_many_files_as_it_may(bench):
    daemon = bench.start("GPU-a", multi_user=False)
    assert os.getsid(daemon.pid) == daemon.pid
    soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    assert soft == hard
    assert bench.journal.list_starts()[0]["argv"] == [bench.program, "-f"]


def test_a_daemon_ends_in_order_after_quit_and_its_exit_code_is_known(bench):
    daemon = bench.start("GPU-a")
    assert daemon.is_alive
    assert daemon.exit_code is None
    bench.pipe.quit()
    assert daemon.wait(LIMIT_S)
    assert not daemon.is_alive
    assert daemon.exit_code == 0


def test_a_daemon_that_is_told_to_quit_waits_for_its_clients(bench):
    daemon = bench.start("GPU-a")
    with MpsClient(bench.places.pipe_dir) as client:
        bench.pipe.quit()
        assert not daemon.wait(0.1)
        assert not client.is_cut
    assert daemon.wait(LIMIT_S)


@pytest.mark.parametrize(("order", "code"), [("terminate", -signal.SIGTERM), ("kill", -signal.SIGKILL)])
def test_a_daemon_can_be_ended_by_a_signal(bench, order, code):
    daemon = bench.start("GPU-a")
    getattr(daemon, order)()
    assert daemon.wait(LIMIT_S)
    assert daemon.exit_code == code
    daemon.terminate()  # of one that has ended nothing is asked


def test_a_daemon_that_dies_leaves_its_exit_code_and_its_last_words(bench):
    daemon = bench.start("GPU-a")
    bench.orders.die(daemon.pid, code=7, text="Something is broken")
    assert daemon.wait(LIMIT_S)
    assert daemon.exit_code == 7
    assert bench.places.read_last_lines(1)[0].endswith("] Something is broken")


def test_a_second_daemon_on_the_same_pipe_ends_at_once_and_the_first_one_goes_on(bench):
    first = bench.start("GPU-a")
    second = bench.start("GPU-a", answers=False)
    assert second.wait(LIMIT_S)
    assert second.exit_code == 1
    assert first.is_alive
    assert "already running" in bench.places.read_last_lines(1)[0]


@pytest.mark.campaign
@at_length
def test_a_daemon_that_lacks_the_option_for_all_users_says_so_and_comes_up_without(bench):
    bench.orders.lack_multi_user()
    refused = bench.start("GPU-a", answers=False)
    assert refused.wait(LIMIT_S)
    assert refused.exit_code == 1
    assert bench.start("GPU-a", multi_user=False).is_alive


def test_a_daemon_is_found_again_by_its_pid_the_time_of_its_start_and_its_pipe(bench):
    daemon = bench.start("GPU-a")
    with MpsClient(bench.places.pipe_dir) as client:
        found = adopt_daemon(daemon.pid, daemon.started, bench.places)
        assert found is not None
        assert found.is_alive
        assert not client.is_cut
    assert adopt_daemon(daemon.pid, daemon.started + 1, bench.places) is None
    assert adopt_daemon(daemon.pid, daemon.started, Places(bench.mps_dir, "nvidia.com/other")) is None
    found.terminate()
    assert found.wait(LIMIT_S)
    assert found.exit_code is None  # only its parent learns that
    found.close()
    daemon.wait(LIMIT_S)
    assert adopt_daemon(daemon.pid, daemon.started, bench.places) is None


def test_what_is_left_of_its_session_is_listed_and_killed_with_it_also_afterwards(bench, directory):
    program = directory / "server"
    program.write_text(
        "#!/bin/sh\nsleep 1000 &\necho $! > server.pid\nwait\n".replace("server.pid", f"{directory}/pid")
    )
    program.chmod(0o755)
    daemon = start_daemon(
        str(program), DaemonSpec(resource="nvidia.com/gpu", gpus=("GPU-a",)), bench.places, multi_user=False
    )
    written = directory / "pid"
    server = wait_until(lambda: written.exists() and written.read_text().strip(), "a server")
    os.kill(daemon.pid, signal.SIGKILL)
    assert daemon.wait(LIMIT_S)
    assert daemon.list_rest() == (int(server),)
    daemon.kill()
    wait_until(lambda: not daemon.list_rest(), "the end of the server")
    daemon.close()


def test_a_program_that_cannot_be_started_is_an_error_in_one_line(bench, directory):
    spec = DaemonSpec(resource="nvidia.com/gpu", gpus=("GPU-a",))
    with pytest.raises(HostError, match="not found"):
        start_daemon(str(directory / "none"), spec, bench.places, multi_user=True)
    with pytest.raises(HostError, match="cannot be started: Permission denied"):
        start_daemon(str(directory), spec, bench.places, multi_user=True)


def test_a_daemon_outlives_the_process_that_started_it(bench):
    code = (
        "import sys; from pathlib import Path; from nvdp.model.mps import DaemonSpec; "
        "from nvdp.mps.places import Places; from nvdp.mps.process import start_daemon; "
        "d = start_daemon(sys.argv[1], DaemonSpec(resource='nvidia.com/gpu', gpus=('GPU-a',)), "
        "Places(Path(sys.argv[2]), 'nvidia.com/gpu'), multi_user=True); print(d.pid, d.started, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, bench.program, str(bench.mps_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as starter:
        pid, started = map(int, starter.stdout.readline().split())
        wait_until(bench.does_answer, "a daemon that answers")
        os.killpg(starter.pid, signal.SIGKILL)
    assert bench.does_answer()
    found = adopt_daemon(pid, started, bench.places)
    assert found is not None
    found.kill()
    assert found.wait(LIMIT_S)
    found.close()
