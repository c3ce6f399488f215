"""``nvdp mps`` as a process, without a plugin: killed, stopped and reconfigured in every order, it leaves no trace."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from nvdp.host.mps_grants import write_grants
from nvdp.host.mps_report import load_report
from nvdp.model.mps import REPORT_NAME, DaemonSpec, Grant, MpsGrants, Phase
from nvdp.simulate.mps.clients import MpsClient
from tests.daemon.mps import MPS, MpsSide, build_mps
from tests.daemon.node import at_length, build_config, gpu_uuid
from tests.daemon.process import check_line, wait_until

FIRST, SECOND = gpu_uuid(0), gpu_uuid(1)
HUNG_S = 10.0  # half of it, where the processes that ask get their turn at once


def has_ended(pid: int) -> bool:
    """Also if its exit code is still there, which is for its parent."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Side(MpsSide):
    """With the node's compute modes, and a configuration to edit."""

    def __init__(self, root, machine, config_map) -> None:
        super().__init__(root, machine, config_map)
        self.root, self.config_map = root, config_map
        self._modes_file = machine.path.with_name(f"{machine.path.name}.modes.json")

    @property
    def modes(self) -> list[str]:
        """The modes of the GPUs that do not have their own."""
        try:
            return [kept["mode"] for kept in json.loads(self._modes_file.read_text()).values()]
        except FileNotFoundError:
            return []

    @property
    def report(self):
        return load_report(self.directory)

    def wait(self, predicate, what):
        """The daemon's report, once it is as wanted."""

        def look():
            daemon = self.report.daemons.get(MPS) if self.report is not None else None
            return daemon if daemon is not None and predicate(daemon) else None

        return wait_until(look, what=what)

    def wait_report_of(self, keeper):
        """The report that is there may be an earlier process's."""
        wait_until(lambda: self.report is not None and self.report.pid == keeper.pid, what="a report")

    def wait_gone(self):
        wait_until(lambda: self.report is not None and MPS not in self.report.daemons, what="the end of the daemon")

    def assert_clean(self):
        """As if there never had been any MPS; the daemons are gone too."""
        assert [*self.directory.iterdir()] == []
        assert self.modes == []
        assert [start["pid"] for start in self.journal.list_starts() if not has_ended(start["pid"])] == []


@pytest.fixture
def mps(root, machine, config_map) -> Iterator[Side]:
    side = Side(root, machine, config_map)
    config_map.publish(build_mps({"devices": [0, 1]}))
    yield side
    side.end()
    for keeper in side.keepers:
        print(f"the log of nvdp mps {keeper.pid}:", *keeper.log, *keeper.log.texts, sep="\n")  # noqa: T201 - as in start
        assert not keeper.log.texts
        for line in keeper.log:
            check_line(line)
            assert line["reason"] != "ServiceRestarted"


@at_length
def test_a_stop_ends_all_daemons_and_leaves_the_node_as_it_was(mps):
    keeper = mps.start()
    pid = mps.find_pid()
    assert mps.report.claims == {FIRST: "Default", SECOND: "Default"}
    assert mps.modes == ["ExclusiveProcess"] * 2
    assert keeper.wait_ready().body["daemons"][MPS]["phase"] == "ready"
    assert keeper.probe("/healthz").status == 200
    assert keeper.stop().code == 0
    assert has_ended(pid)
    mps.assert_clean()


def test_a_kill_leaves_daemons_and_clients_to_the_next_process_which_touches_nothing_before(mps):
    first = mps.start()
    before = mps.wait(lambda daemon: daemon.phase is Phase.READY, "a daemon")
    keeper, never = mps.start(), mps.start()
    for waiting in (keeper, never):
        waiting.log.wait_for("Starting", text="another nvdp mps has this MPS root")
        assert (waiting.probe("/readyz").status, waiting.probe("/healthz").status) == (503, 200)
    assert never.stop().code == 0
    with MpsClient(mps.pipe()) as client:
        assert mps.report.pid == first.pid
        first.kill()
        mps.wait_report_of(keeper)
        after = mps.wait(lambda daemon: daemon.phase is Phase.READY and daemon.clients == 1, "the daemon again")
        assert (after.pid, after.started, after.restarts) == (before.pid, before.started, 0)
        assert mps.report.claims == {FIRST: "Default", SECOND: "Default"}

        mps.config_map.publish(build_config())
        mps.wait(lambda daemon: "pods still use it" in daemon.text, "the end that waits for the client")
        assert client.is_served
    mps.wait_gone()
    wait_until(lambda: not mps.report.claims, what="all modes put back")
    assert mps.modes == []
    wait_until(lambda: not keeper.children, what="an end of the NVML child, which nobody needs any more")
    assert keeper.stop().code == 0
    mps.assert_clean()


@at_length
@pytest.mark.parametrize("rest", ["{garbage", None])
def test_without_the_report_of_a_process_that_was_killed_nothing_is_ended_under_clients_and_no_mode_is_lost(mps, rest):
    mps.start()
    before = mps.wait(lambda daemon: daemon.phase is Phase.READY, "a daemon")
    with MpsClient(mps.pipe()) as client:
        mps.keepers[0].kill()
        file = mps.directory / REPORT_NAME
        file.unlink() if rest is None else file.write_text(rest)
        mps.config_map.publish(build_config())
        keeper = mps.start()
        keeper.log.wait_for("Starting")
        wait_until(lambda: rest != file.read_text() if file.exists() else False, what="a report")
        daemon = mps.wait(lambda daemon: "pods still use it" in daemon.text, "the end that waits for the client")
        assert (daemon.pid, daemon.running) == (before.pid, before.running)
        assert client.is_served
    mps.wait_gone()
    assert keeper.stop().code == 0
    mps.assert_clean()


@at_length
def test_what_a_kill_of_all_left_behind_the_next_start_puts_right_though_mps_is_over(mps):
    mps.start()
    pid = mps.find_pid()
    mps.keepers[0].kill()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: has_ended(pid), what="the end of the daemon")
    mps.config_map.publish(build_config())
    assert mps.modes == ["ExclusiveProcess"] * 2

    keeper = mps.start()
    wait_until(lambda: mps.report.pid == keeper.pid and not mps.report.claims, what="all modes put back")
    assert mps.modes == []
    mps.wait_gone()
    assert [entry.name for entry in mps.directory.iterdir()] == ["nvdp.json"]


def test_the_word_of_the_plugin_counts_whatever_the_file_says(mps):
    spec = DaemonSpec(resource=MPS, gpus=(FIRST, SECOND), thread_percent=50)

    def grant(**facts):
        grants = MpsGrants(resources={MPS: Grant(**facts)})
        write_grants(mps.root / "state", grants)
        return grants.digest

    told = grant(wanted=spec)
    mps.start()
    mps.wait(lambda daemon: daemon.phase is Phase.WAITING and "not free yet" in daemon.text, "free GPUs waited for")
    wait_until(lambda: mps.report.heard == told, what="a sign that it was heard")
    assert mps.modes == []

    grant(wanted=spec, free=(FIRST,))
    part = mps.wait(lambda daemon: daemon.phase is Phase.READY, "what is free")
    assert part.running.gpus == (FIRST,)
    assert mps.report.claims == {FIRST: "Default"}

    grant(wanted=spec, free=(FIRST, SECOND), held=(FIRST,))
    mps.wait(lambda daemon: "pods still use it" in daemon.text, "the change that waits for pods")
    grant(wanted=spec, free=(FIRST, SECOND))
    mps.wait(lambda daemon: daemon.phase is Phase.READY and daemon.running == spec, "all of it")
    grant(held=(FIRST,))
    mps.wait(lambda daemon: "pods still use it" in daemon.text, "the end that waits for pods")
    write_grants(mps.root / "state", MpsGrants())
    mps.wait_gone()
    wait_until(lambda: not mps.report.claims, what="all modes put back")


@at_length
def test_a_daemon_that_hangs_is_failed_within_seconds_and_replaced(mps):
    mps.start()
    pid = mps.find_pid()
    wait_until(lambda: "get_server_list" in mps.journal.list_commands(mps.pipe()), what="no clients, as is known")
    mps.orders.hang(mps.pipe())
    wait_until(lambda: mps.report.daemons[MPS].phase is Phase.FAILED, HUNG_S, what="a daemon that has failed")
    wait_until(lambda: not psutil.pid_exists(pid), what="its end")
    mps.orders.hang(mps.pipe(), hangs=False)
    assert mps.wait(lambda daemon: daemon.phase is Phase.READY, "another one").pid != pid


@at_length
def test_without_a_plugin_a_gpu_is_taken_only_once_no_process_computes_on_it(mps, machine):
    machine.occupy(1, {"pid": 2**31 - 2, "memoryBytes": 3 << 20})
    mps.start()
    part = mps.wait(lambda daemon: daemon.phase is Phase.READY, "what is free")
    assert part.running.gpus == (FIRST,)
    assert f"process {2**31 - 2} computes on it" in part.text
    assert mps.report.claims == {FIRST: "Default"}
    machine.occupy(1)
    mps.wait(lambda daemon: daemon.phase is Phase.READY and len(daemon.running.gpus) > 1, "all of it")


@at_length
def test_a_pause_ends_what_nobody_uses_and_lets_go_of_the_driver(mps):
    keeper = mps.start()
    mps.find_pid()
    paused = build_mps({"devices": [0, 1]}, devices={"paused": True})
    with MpsClient(mps.pipe()):
        mps.wait(lambda daemon: daemon.clients == 1, "the client")
        mps.config_map.publish(paused)
        mps.wait(lambda daemon: "pods still use it" in daemon.text, "a daemon that stays for its client")
        wait_until(lambda: not keeper.children, what="no NVML child")
    mps.wait(lambda daemon: daemon.phase is Phase.WAITING and "paused by" in daemon.text, "a daemon that waits")
    mps.config_map.publish(build_mps({"devices": [0, 1]}))
    mps.find_pid()
    assert keeper.stop().code == 0
    mps.assert_clean()


@at_length
def test_a_start_in_a_pause_does_not_touch_the_driver_though_modes_are_to_be_put_back(mps):
    mps.start()
    pid = mps.find_pid()
    mps.keepers[0].kill()
    os.kill(pid, signal.SIGKILL)
    mps.config_map.publish(build_mps({"devices": [0, 1]}, devices={"paused": True}))
    keeper = mps.start()
    keeper.log.wait_for("DriverPaused")
    mps.wait_report_of(keeper)
    assert not keeper.children
    assert not keeper.log.of("DriverReady")
    assert mps.report.claims.keys() == {FIRST, SECOND}

    mps.config_map.publish("devices: [")
    keeper.log.wait_for("ConfigRefused")
    keeper.kill()
    keeper = mps.start()
    keeper.log.wait_for("DriverPaused")
    mps.wait_report_of(keeper)
    assert not keeper.children
    assert not keeper.log.of("DriverReady")

    mps.config_map.publish(build_config())
    wait_until(lambda: not mps.report.claims, what="all modes put back")
    assert keeper.stop().code == 0
    mps.assert_clean()


@at_length
def test_a_gpu_that_is_lost_at_the_end_gets_its_mode_back_at_the_next_start(mps, machine):
    keeper = mps.start()
    mps.find_pid()
    machine.change(lost=[1])
    assert keeper.stop().code == 0
    keeper.log.wait_for("MPSUnsupported", text="1 GPUs keep the compute mode")
    assert mps.report.claims == {SECOND: "Default"}
    machine.change(lost=[])
    keeper = mps.start()
    mps.find_pid()
    assert keeper.stop().code == 0
    mps.assert_clean()


@at_length
@pytest.mark.timeout(600)
def test_killed_at_any_moment_it_neither_loses_a_mode_nor_leaves_a_daemon(mps):
    rng = random.Random(7)
    for _ in range(30):
        keeper = mps.start()
        mps.wait_report_of(keeper)
        with pytest.raises(subprocess.TimeoutExpired):
            keeper.process.wait(rng.uniform(0.0, 0.8))
        pids = [daemon.pid for daemon in mps.report.daemons.values()] if rng.random() < 0.3 else []
        for pid in filter(None, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        keeper.kill()
    keeper = mps.start()
    mps.wait_report_of(keeper)
    mps.wait(lambda daemon: daemon.phase is Phase.READY, "a daemon after all")
    assert keeper.stop().code == 0
    mps.assert_clean()


def test_without_the_directory_of_the_node_there_is_nothing_to_do_and_it_says_so(mps):
    keeper = mps.start("--mps-dir", mps.root / "nowhere")
    assert keeper.wait().code == 1
    (last,) = keeper.log.of("Stopped")
    assert "mount the node's MPS root there" in last["msg"]
