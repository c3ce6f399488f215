"""The heartbeat of ``nvdp mps``: as old as the main thread's last word, and with claims in it before they count."""

from __future__ import annotations

import pytest

from nvdp.errors import HostError
from nvdp.model.mps import HEARTBEAT_S, SILENT_S, DaemonReport, MpsReport, Phase
from nvdp.services.mps_reporting import Reporter
from tests.daemon.node import at_length
from tests.daemon.process import wait_until

GPU = "nvidia.com/gpu"
READY = {GPU: DaemonReport(phase=Phase.READY, pid=7)}


class File:
    def __init__(self):
        self.written = []
        self.fails = self.has_no_second_place = False
        self.copied = []

    def copy(self, claims):
        if self.has_no_second_place:
            raise HostError("the other disk is full")
        self.copied.append((claims, self.last and self.last.claims))

    def write(self, report, sync):
        if self.fails:
            raise HostError("the disk is full")
        self.written.append((report, sync))

    @property
    def last(self):
        return self.written[-1][0] if self.written else None


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def file():
    return File()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def told():
    return []


@pytest.fixture
def reporter(file, clock, told):
    first = MpsReport(at=100.0, claims={"GPU-a": "Default"})
    reporter = Reporter(
        file.write, copy=file.copy, first=first, log=lambda _reason, msg, /, **_: told.append(msg), clock=clock
    )
    yield reporter
    reporter.stop()


@at_length
def test_a_change_is_written_at_once_and_a_heartbeat_without_one(file, reporter):
    reporter.start()
    reporter.publish(READY, answered={GPU: 100.0}, heard="")
    wait_until(lambda: file.last and file.last.daemons == READY, what="the change")
    count = len(file.written)
    wait_until(lambda: len(file.written) > count, what="a heartbeat")
    assert file.last.claims == {"GPU-a": "Default"}


def test_a_main_thread_that_says_nothing_any_more_makes_the_report_old(file, reporter, clock):
    reporter.publish(READY, answered={GPU: 100.0}, heard="")
    clock.now += 60
    reporter.flush()
    assert file.last.at == 100.0


def test_a_daemon_that_has_not_been_heard_of_is_not_ready_whatever_was_said_of_it(file, reporter, clock):
    clock.now += SILENT_S + 0.1
    reporter.publish(READY, answered={GPU: 100.0}, heard="")
    reporter.flush()
    assert file.last.daemons[GPU].phase is Phase.FAILED
    assert "not been heard of for 4 s" in file.last.daemons[GPU].text


def test_that_newer_grants_were_heard_is_written_at_once(file, reporter):
    reporter.start()
    reporter.publish({}, answered={}, heard="abc")
    wait_until(lambda: file.last and file.last.heard == "abc", 0.8 * HEARTBEAT_S, what="the digest")


def test_claims_are_on_the_disk_when_persist_returns(file, reporter):
    reporter.persist({"GPU-b": "Default"})
    report, sync = file.written[-1]
    assert report.claims == {"GPU-b": "Default"}
    assert sync


def test_claims_that_cannot_be_written_do_not_count(file, reporter):
    file.fails = True
    with pytest.raises(HostError):
        reporter.persist({"GPU-b": "Default"})
    file.fails = False
    reporter.flush()
    assert file.last.claims == {"GPU-a": "Default"}


def test_claims_are_in_a_second_place_before_they_count_and_are_given_back_without_it(file, reporter):
    reporter.persist({"GPU-a": "Default", "GPU-b": "Default"})
    assert file.copied == [({"GPU-a": "Default", "GPU-b": "Default"}, None)]
    file.has_no_second_place = True
    with pytest.raises(HostError, match="the other disk"):
        reporter.persist({"GPU-a": "Default", "GPU-b": "Default", "GPU-c": "Default"})
    reporter.flush()
    assert file.last.claims.keys() == {"GPU-a", "GPU-b"}
    with pytest.raises(HostError, match="the other disk"):
        reporter.persist({"GPU-b": "Default"})
    reporter.flush()
    assert file.last.claims == {"GPU-b": "Default"}


def test_a_report_that_cannot_be_written_is_told_once(file, reporter, told):
    file.fails = True
    reporter.start()
    reporter.publish(READY, answered={}, heard="")
    wait_until(lambda: told, what="a word about it")
    reporter.publish({}, answered={}, heard="")
    file.fails = False
    reporter.publish(READY, answered={}, heard="")
    wait_until(lambda: file.last and file.last.daemons, what="a report")
    assert len(told) == 1
    assert "the disk is full" in told[0]


def test_after_the_stop_nothing_is_written(file, reporter):
    reporter.stop()
    reporter.flush()
    assert file.written == []
