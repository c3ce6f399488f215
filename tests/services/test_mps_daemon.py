"""The actor of one control daemon, with the twin as a real process: what it does about each thing that can go wrong."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import tempfile
from pathlib import Path

import msgspec
import psutil
import pytest

from nvdp.model.mps import DaemonSpec, Phase
from nvdp.model.reasons import Reason
from nvdp.mps.control import ControlFailedError, ControlPipe, ControlTimeoutError
from nvdp.mps.places import Places
from nvdp.mps.process import adopt_daemon, start_daemon
from nvdp.planning.daemon_course import Stage
from nvdp.services.mps_daemon import DaemonActor
from nvdp.services.mps_events import DaemonSeen, Order
from nvdp.services.mps_left import Adopted
from nvdp.services.mps_node import Node
from nvdp.services.mps_running import Program, Times, find_silence
from nvdp.simulate.mps.clients import MpsClient
from nvdp.simulate.mps.install import REAL_NAME, TWIN_NAME, install_control
from nvdp.simulate.mps.journal import Journal
from nvdp.simulate.mps.orders import Orders
from tests.daemon.node import at_length
from tests.daemon.process import LIMIT_S, wait_until

GPU = "nvidia.com/gpu"
A, B = "GPU-00000000-aaaa", "GPU-00000001-bbbb"
QUICK = Times(
    question_s=5.0,
    probe_s=0.05,
    second_try_s=0.05,
    clients_s=0.05,
    quit_s=0.1,
    term_s=0.2,
    in_the_way_s=0.1,
    waiting_s=0.1,
    up_s=8.0,
    first_delay_s=0.1,
)
HURRIED = msgspec.structs.replace(QUICK, question_s=1.0)  # for daemons that do not answer


def spec(*gpus, **facts):
    known = {"thread_percent": 25, "memory_mib": dict.fromkeys(gpus, 9216)}
    return DaemonSpec(resource=GPU, gpus=gpus, **(known | facts))


def wait_gone(pid, limit_s):
    """Whether the process has ended within that time."""
    gone, _ = psutil.wait_procs([psutil.Process(pid)], limit_s)
    return bool(gone)


class Bench:
    """One actor, and all that it posts and logs."""

    def __init__(self, directory: Path, name: str) -> None:
        self.program = install_control(directory, name=name)
        self.orders, self.journal = Orders(self.program), Journal(self.program)
        self.mps_dir = directory / "mps"
        self.mps_dir.mkdir()
        self.places = Places(self.mps_dir, GPU)
        self.pipe = self.places.pipe_dir
        self.told = []
        self.number = 0
        self.defect = None

    def build(self, *, adopted=None, times=QUICK):
        self.posted: queue.SimpleQueue[DaemonSeen] = queue.SimpleQueue()
        self.seen: DaemonSeen | None = None
        node = Node(
            mps_dir=self.mps_dir,
            program=Program(name=str(self.program), label=lambda _pipe: None),
            post=self.posted.put,
            log=lambda reason, msg, /, **fields: self.told.append((reason, msg, fields)),
            find_own_pids=self.find_own_pids,
            is_client_alive=lambda _pid: True,
            times=times,
        )
        self.actor = DaemonActor(GPU, node, adopted=adopted)
        self.actor.start()

    def hurry(self, question_s=HURRIED.question_s):
        self.actor.close()
        self.build(times=msgspec.structs.replace(HURRIED, question_s=question_s))

    def find_own_pids(self):
        if self.defect is not None:
            raise self.defect
        return {self.actor.pid}

    def order(self, stage, target=None, **facts):
        self.number += 1
        self.actor.order(Order(number=self.number, stage=stage, target=target, **facts))

    def wait(self, predicate):
        while self.seen is None or not predicate(self.seen):
            self.seen = self.posted.get(timeout=LIMIT_S)
        return self.seen

    def wait_phase(self, phase):
        return self.wait(lambda seen: seen.daemon.phase is phase).daemon

    def start(self, target):
        self.order(Stage.START, target)
        return self.wait_phase(Phase.READY)

    def wait_told(self, reason, words):
        return wait_until(
            lambda: next((one for one in self.told if one[0] is reason and words in one[1]), None), what=words
        )

    def close(self):
        self.actor.close()
        for start in self.journal.list_starts():
            try:
                process = psutil.Process(start["pid"])
                if str(self.program) in process.cmdline():
                    process.kill()
            except psutil.NoSuchProcess:
                pass


@pytest.fixture
def program_name():
    return TWIN_NAME


@pytest.fixture
def bench(program_name):
    directory = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    found = Bench(directory, program_name)
    found.build()
    yield found
    found.close()
    shutil.rmtree(directory)


def test_a_daemon_is_ready_only_with_all_its_limits_and_tells_what_it_is(bench):
    daemon = bench.start(spec(A, B))
    assert (daemon.running, daemon.restarts, daemon.text) == (spec(A, B), 0, "")
    commands = bench.journal.list_commands(bench.pipe)
    assert {f"set_default_device_pinned_mem_limit {gpu} 9216M" for gpu in (A, B)} <= set(commands)
    assert "set_default_active_thread_percentage 25" in commands
    (start,) = bench.journal.list_starts()
    assert start["pid"] == daemon.pid == bench.actor.pid
    assert start["env"]["CUDA_VISIBLE_DEVICES"] == f"{A},{B}"
    assert bench.wait_told(Reason.MPS_DAEMON_READY, "2 GPUs, 25 % threads, 9216 MiB")[2]["pid"] == daemon.pid


def test_a_daemon_that_dies_is_back_at_once_and_its_exit_code_and_last_words_are_told(bench):
    first = bench.start(spec(A))
    inode = bench.pipe.stat().st_ino
    bench.orders.die(first.pid, code=3, text="no memory left")
    failed = bench.wait_phase(Phase.FAILED)
    assert (failed.exit_code, failed.running) == (3, None)
    assert "no memory left" in failed.last_lines[-1]
    _, text, fields = bench.wait_told(Reason.MPS_DAEMON_FAILED, "exit code 3")
    assert "at once" in text
    assert fields["last_lines"][-1] == failed.last_lines[-1]

    second = bench.wait_phase(Phase.READY)
    assert second.restarts == 1
    assert bench.pipe.stat().st_ino == inode, "pods have the directory mounted"


@at_length
def test_a_daemon_that_does_not_come_up_is_tried_again_with_longer_and_longer_pauses(bench):
    bench.orders.die_at_start(3, code=1, text="no device", pipe_dir=bench.pipe)
    daemon = bench.start(spec(A, multi_user=False))
    assert daemon.restarts == 3
    told = [text.rpartition("; ")[2] for reason, text, _ in bench.told if reason is Reason.MPS_DAEMON_FAILED]
    assert told == ["started anew at once", "started anew in 0.1 s"]


def test_a_program_without_multi_user_is_used_without_it_and_that_is_told(bench):
    bench.orders.lack_multi_user()
    daemon = bench.start(spec(A))
    assert daemon.running == spec(A, multi_user=False)
    assert bench.seen.lacks_multi_user or bench.wait(lambda seen: seen.lacks_multi_user)
    bench.wait_told(Reason.MPS_UNSUPPORTED, "multiUser")


def test_a_daemon_that_hangs_has_failed_and_is_replaced_if_it_serves_nobody(bench):
    bench.hurry(0.5)
    first = bench.start(spec(A))
    bench.wait(lambda seen: seen.are_clients_known)
    bench.orders.hang(bench.pipe)
    failed = bench.wait_phase(Phase.FAILED)
    assert "no answer within 0.5 s" in failed.text
    wait_until(lambda: not psutil.pid_exists(first.pid), what="its end")
    bench.orders.hang(bench.pipe, hangs=False)
    assert bench.wait_phase(Phase.READY).pid != first.pid


@at_length
def test_a_daemon_that_misses_one_question_as_when_we_were_halted_ourselves_goes_on(bench):
    bench.hurry()
    first = bench.start(spec(A))
    bench.orders.hang(bench.pipe)
    bench.wait_phase(Phase.FAILED)
    bench.orders.hang(bench.pipe, hangs=False)
    assert bench.wait_phase(Phase.READY).pid == first.pid


@at_length
def test_a_daemon_that_hangs_while_pods_hold_it_gets_its_time_though_no_client_of_it_was_counted(bench):
    bench.hurry()
    first = bench.start(spec(A))
    bench.order(Stage.KEEP, is_in_use=True)
    bench.wait(lambda seen: seen.order == bench.number)
    bench.orders.hang(bench.pipe)
    assert "pods may use it" in bench.wait_phase(Phase.FAILED).text
    asked = 2 * HURRIED.question_s + QUICK.probe_s
    assert not wait_gone(first.pid, 3 * asked)
    bench.orders.hang(bench.pipe, hangs=False)
    assert bench.wait_phase(Phase.READY).pid == first.pid


@at_length
def test_a_daemon_that_hangs_while_it_has_clients_gets_its_time_and_goes_on(bench):
    bench.hurry()
    first = bench.start(spec(A))
    with MpsClient(bench.pipe) as client:
        bench.wait(lambda seen: seen.daemon.clients == 1)
        bench.orders.hang(bench.pipe)
        bench.wait_phase(Phase.FAILED)
        bench.orders.hang(bench.pipe, hangs=False)
        assert bench.wait_phase(Phase.READY).pid == first.pid
        assert client.is_served


def test_a_client_that_waits_for_the_server_of_another_user_is_told_of_with_what_to_do(bench):
    bench.start(spec(A, multi_user=False))
    with MpsClient(bench.pipe, user=1000) as first, MpsClient(bench.pipe, user=2000):
        assert bench.wait(lambda seen: seen.daemon.waiting_users).daemon.waiting_users == (2000,)
        _, text, fields = bench.wait_told(Reason.MPS_UNSUPPORTED, "user 2000 wait until those of user 1000")
        assert "runAsUser" in text
        assert fields["users"] == [2000]
        first.close()
        bench.wait(lambda seen: not seen.daemon.waiting_users)


def test_an_end_waits_for_clients_unless_it_is_by_force(bench):
    daemon = bench.start(spec(A))
    with MpsClient(bench.pipe) as client:
        bench.order(Stage.END)
        seen = bench.wait(lambda seen: seen.order == bench.number and seen.daemon.clients == 1)
        assert (seen.are_clients_known, [*seen.daemon.servers.values()]) == (True, ["active"])
        assert psutil.pid_exists(daemon.pid)
        bench.order(Stage.END, by_force=True)
        bench.wait(lambda seen: seen.daemon.running is None)
        wait_until(lambda: client.is_cut, what="the end of the client")
    assert not psutil.pid_exists(daemon.pid)


@at_length
def test_a_daemon_that_ignores_its_word_and_sigterm_is_killed(bench):
    daemon = bench.start(spec(A))
    bench.orders.refuse_quit()
    bench.orders.ignore_term()
    bench.order(Stage.END, by_force=True)
    bench.wait(lambda seen: seen.daemon.running is None)
    assert not psutil.pid_exists(daemon.pid)


def test_of_a_resource_that_is_no_more_nothing_is_left(bench):
    bench.start(spec(A))
    bench.order(Stage.NOTHING, by_force=True)
    bench.wait(lambda seen: seen.is_gone)
    assert [*bench.mps_dir.iterdir()] == []


def test_a_daemon_that_an_earlier_process_started_is_taken_over_with_its_clients(bench):
    before = bench.start(spec(A))
    with MpsClient(bench.pipe) as client:
        bench.actor.close()
        process = adopt_daemon(before.pid, before.started, bench.places)
        bench.build(adopted=Adopted(process, before))
        after = bench.wait_phase(Phase.READY)
        assert (after.pid, after.running, after.restarts) == (before.pid, spec(A), 0)
        assert client.is_served
    os.kill(before.pid, signal.SIGKILL)
    bench.wait_phase(Phase.FAILED)
    assert bench.seen.daemon.exit_code is None


@at_length
def test_limits_are_set_anew_if_the_earlier_process_may_not_have_come_so_far(bench):
    bench.places.prepare()
    process = start_daemon(str(bench.program), spec(A), bench.places, multi_user=True)
    bench.actor.close()
    report = bench.wait_phase(Phase.WAITING)
    bench.build(adopted=Adopted(process, type(report)(phase=Phase.STARTING, running=spec(A))))
    bench.wait_phase(Phase.READY)
    assert f"set_default_device_pinned_mem_limit {A} 9216M" in bench.journal.list_commands(bench.pipe)


def test_a_daemon_that_nobody_knows_any_more_is_taken_over_with_its_clients_and_asked_for_its_limits(bench):
    bench.places.prepare()
    orphan = start_daemon(str(bench.program), spec(A, B), bench.places, multi_user=True)
    wait_until((bench.pipe / "control").exists, what="its socket")
    with contextlib.closing(orphan), MpsClient(bench.pipe) as client:
        pipe = ControlPipe(str(bench.program), bench.pipe)
        pipe.set_thread_percent(25)
        pipe.set_memory_limit(A, 9216)
        bench.order(Stage.CHECK, spec(A))
        daemon = bench.wait_phase(Phase.READY)
        assert (daemon.pid, daemon.running) == (orphan.pid, spec(A, B, memory_mib={A: 9216}))
        assert client.is_served


def test_a_program_that_is_gone_costs_a_daemon_that_lives_nothing(bench):
    first = bench.start(spec(A))
    bench.wait(lambda seen: seen.are_clients_known)
    bench.program.rename(f"{bench.program}.away")
    failed = bench.wait_phase(Phase.FAILED)
    assert "not found" in failed.text
    assert "it runs on" in failed.text
    bench.order(Stage.END)
    seen = bench.wait(lambda seen: seen.order == bench.number)
    assert seen.daemon.pid == first.pid
    assert not wait_gone(first.pid, 4 * QUICK.probe_s)
    bench.order(Stage.KEEP)  # before the program is back, or the end that was ordered would come about
    bench.wait(lambda seen: seen.order == bench.number)
    Path(f"{bench.program}.away").rename(bench.program)
    assert bench.wait_phase(Phase.READY).pid == first.pid


@pytest.mark.parametrize(
    ("answers", "is_in_use", "silence"),
    [
        ([ControlTimeoutError("late"), None], True, ""),
        ([ControlTimeoutError("late"), None], False, "late"),
        ([ControlFailedError("no"), None], False, ""),
        ([ControlTimeoutError("late"), ControlTimeoutError("later")], True, "later"),
    ],
)
def test_one_answer_that_is_late_is_no_silence_of_a_daemon_that_pods_use(answers, is_in_use, silence):
    class Pipe:
        def find_thread_percent(self):
            answer = answers.pop(0)
            if answer is not None:
                raise answer

    assert find_silence(Pipe(), is_in_use=is_in_use, times=QUICK) == silence


@at_length
def test_an_end_by_force_interrupts_a_start_that_hangs(bench):
    bench.hurry(0.5)
    bench.orders.hang()
    bench.order(Stage.START, spec(A))
    pid = bench.wait(lambda seen: seen.daemon.pid).daemon.pid
    bench.order(Stage.NOTHING, by_force=True)
    assert wait_gone(pid, QUICK.up_s / 2)
    bench.wait(lambda seen: seen.is_gone)
    assert not [text for reason, text, _ in bench.told if reason is Reason.MPS_DAEMON_FAILED]


def test_what_nobody_expected_is_a_failure_that_is_told_and_tried_again_and_no_end(bench):
    first = bench.start(spec(A))
    bench.order(Stage.CHECK, spec(A))
    bench.defect = RecursionError("too deep")
    failed = bench.wait_phase(Phase.FAILED)
    assert "too deep" in failed.text
    assert "RecursionError" in bench.wait_told(Reason.MPS_DAEMON_FAILED, "a defect")[2]["trace"]
    bench.defect = None
    assert bench.wait_phase(Phase.READY).pid == first.pid


class TestAmongDaemonsOfOthers:
    @pytest.fixture
    def program_name(self):
        return REAL_NAME

    def start_foreign(self, bench, mps_dir, *gpus):
        places = Places(mps_dir, "theirs")
        places.prepare()
        return start_daemon(str(bench.program), spec(*gpus), places, multi_user=True)

    def test_a_gpu_of_another_daemon_is_refused_with_its_pid_until_that_has_ended(self, bench, tmp_path):
        foreign = self.start_foreign(bench, tmp_path, A)
        bench.order(Stage.CHECK, spec(A, B))
        refused = bench.wait_phase(Phase.REFUSED)
        assert f"PID {foreign.pid}" in refused.text
        assert str(tmp_path) in refused.text
        foreign.kill()
        foreign.wait(LIMIT_S)
        foreign.close()
        assert bench.wait(lambda seen: seen.cleared).cleared == {A, B}
        assert bench.seen.daemon.phase is Phase.WAITING
