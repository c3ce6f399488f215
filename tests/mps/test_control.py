"""Commands to a control daemon and what it answers, by real processes."""

from __future__ import annotations

import threading

import pytest

from nvdp.mps.control import ControlFailedError, ControlPipe, ControlTimeoutError, ControlUnaskableError
from nvdp.mps.procfs import find_stat
from nvdp.simulate.mps.clients import MpsClient, set_server_state
from tests.mps.conftest import LIMIT_S, wait_until


def test_limits_that_are_set_are_those_of_the_next_server(bench):
    bench.start("GPU-a", "GPU-b")
    bench.pipe.set_thread_percent(33)
    bench.pipe.set_memory_limit("GPU-b", 14377)
    assert bench.pipe.find_thread_percent() == 33.0
    with MpsClient(bench.places.pipe_dir):
        (server,) = bench.journal.list_servers()
    assert (server["thread_percent"], server["memory"]) == (33.0, {"GPU-b": "14377M"})


def test_servers_are_told_with_their_state_and_their_clients(bench):
    bench.start("GPU-a")
    assert bench.pipe.list_servers() == {}
    with MpsClient(bench.places.pipe_dir, pid=41), MpsClient(bench.places.pipe_dir, pid=42):
        ((server, state),) = bench.pipe.list_servers().items()
        assert state == "active"
        assert bench.pipe.list_clients(server) == (41, 42)
        set_server_state(bench.places.pipe_dir, "FAULT")
        assert bench.pipe.list_servers() == {server: "fault"}


def test_where_no_daemon_is_each_command_fails_in_one_line_that_names_the_pipe(bench):
    with pytest.raises(ControlFailedError) as raised:
        bench.pipe.find_thread_percent()
    assert str(raised.value) == (
        f"{bench.places.pipe_dir}: get_default_active_thread_percentage: "
        '"Cannot find MPS control daemon process" (exit code 1)'
    )


def test_a_daemon_that_hangs_costs_one_limit_and_answers_again_once_it_does_not(bench):
    bench.start("GPU-a")
    bench.orders.hang()
    hasty = ControlPipe(bench.program, bench.places.pipe_dir, limit_s=0.1)
    with pytest.raises(ControlTimeoutError, match=r"no answer within 0\.1 s$"):
        hasty.set_thread_percent(7)
    bench.orders.hang(hangs=False)
    assert bench.pipe.find_thread_percent() == 100.0  # nobody waits for the other answer any more


def test_a_refused_command_is_an_error_and_the_next_one_is_not(bench):
    bench.start("GPU-a")
    bench.orders.fail("set_default_active_thread_percentage", times=1)
    with pytest.raises(ControlFailedError, match="Refused"):
        bench.pipe.set_thread_percent(50)
    bench.pipe.set_thread_percent(50)
    assert bench.pipe.find_thread_percent() == 50.0


def test_questions_of_several_threads_go_to_the_daemon_one_by_one(directory):
    program = directory / "count"
    program.write_text(f"#!/bin/sh\nmkdir {directory}/busy || exit 1\nsleep 0.01\nrmdir {directory}/busy\necho 100.0\n")
    program.chmod(0o755)
    pipe = ControlPipe(str(program), directory, limit_s=LIMIT_S)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(pipe.find_thread_percent())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [100.0] * 6


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo many", 'answered "many", which nvdp cannot read'),
        ("echo nan", 'answered "nan", which nvdp cannot read'),
        ("", 'answered "", which nvdp cannot read'),
        ("kill -9 $$", r"failed \(signal 9\)"),
        ("echo Cannot find MPS control daemon process", r"\(exit code 0\)"),
        ("echo first >&2; echo second >&2; exit 3", r'"first second" \(exit code 3\)'),
        ("exec yes", "the answer has more than 64 KiB"),
        ("exec yes >&2", "the answer has more than 64 KiB"),
    ],
)
def test_what_a_program_says_that_is_no_answer_becomes_one_line(directory, script, error):
    program = directory / "said"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(ControlFailedError, match=error) as raised:
        ControlPipe(str(program), directory, limit_s=LIMIT_S).find_thread_percent()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("script", ["printf %011d 1", "seq 1001"])
def test_numbers_that_no_daemon_has_are_no_answer(directory, script):
    program = directory / "said"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(ControlFailedError, match="which nvdp cannot read"):
        ControlPipe(str(program), directory, limit_s=LIMIT_S).list_clients(7)


def test_what_a_program_has_started_ends_with_it(directory):
    program = directory / "said"
    program.write_text(f"#!/bin/sh\nsleep 60 &\necho $! >{directory}/below\nexec yes\n")
    program.chmod(0o755)
    with pytest.raises(ControlFailedError):
        ControlPipe(str(program), directory, limit_s=LIMIT_S).find_thread_percent()
    below = int((directory / "below").read_text())
    wait_until(lambda: (stat := find_stat(below)) is None or stat.has_ended, "the end of what the program started")


def test_a_server_whose_state_the_daemon_does_not_tell_has_an_unknown_one(directory):
    program = directory / "mute"
    program.write_text(
        '#!/bin/sh\nread -r command\n[ "$command" = get_server_list ] && printf "7\\n8\\n9\\n" && exit\n'
        '[ "$command" = "get_server_status 7" ] && echo "Server state: INITIALIZING" && exit\n'
        '[ "$command" = "get_server_status 8" ] && echo fine && exit\nexit 1\n'
    )
    program.chmod(0o755)
    pipe = ControlPipe(str(program), directory, limit_s=LIMIT_S)
    assert pipe.list_servers() == {7: "initializing", 8: "unknown", 9: "unknown"}


def test_a_program_that_is_not_there_is_an_error_that_says_how_it_comes(directory):
    with pytest.raises(
        ControlUnaskableError, match=r"nvidia-cuda-mps-none: not found; .*NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    ):
        ControlPipe("nvidia-cuda-mps-none", directory).quit()


def test_who_asks_gets_the_paths_of_ours_and_nothing_else(directory, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PROTOCOL_VERSION", "3")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/driver")
    program = directory / "env"
    program.write_text("#!/bin/sh\n/usr/bin/env\n")
    program.chmod(0o755)
    said = ControlPipe(str(program), directory, limit_s=LIMIT_S).ask("anything")
    names = {line.partition("=")[0] for line in said.splitlines()} - {"PWD", "_", "SHLVL", "OLDPWD"}  # the shell's own
    assert names == {"PATH", "LD_LIBRARY_PATH", "CUDA_MPS_PIPE_DIRECTORY"}
