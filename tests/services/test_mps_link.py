"""What the plugin sees of ``nvdp mps``: its report, judged by its age and its boot, and told when it says news."""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

from nvdp.host.mps_report import remove_report, write_report
from nvdp.model.mps import REPORT_NAME, DaemonReport, DaemonSpec, MpsReport, MpsView, Phase
from nvdp.services.mps import MpsLink, Times, judge_report
from tests.daemon.process import wait_until

RESOURCE = "nvidia.com/gpu.mps"
SPEC = DaemonSpec(resource=RESOURCE, gpus=("GPU-a",))
READY = DaemonReport(phase=Phase.READY, running=SPEC, pid=7, started=9)
CLAIMS = {"GPU-a": "Default"}
BOOT = "boot-1"
QUICK = Times(look_s=0.01, idle_s=0.01, silent_s=30.0)
RARE = Times(look_s=0.01, idle_s=3600.0, silent_s=30.0)


def report(*, at: float | None = None, **facts) -> MpsReport:
    known = {"boot_id": BOOT, "daemons": {RESOURCE: READY}, "claims": CLAIMS, "heard": "0a"}
    return MpsReport(at=time.monotonic() if at is None else at, **(known | facts))


class Node:
    """A directory of MPS, and a link that looks at it."""

    made: ClassVar[list[Node]] = []

    def __init__(self, directory: Path, times: Times) -> None:
        self.made.append(self)
        self._ago_s = 0.0
        self.directory = directory
        self.posted: queue.SimpleQueue = queue.SimpleQueue()
        self.link = MpsLink(self.posted.put, mps_dir=directory, boot_id=BOOT, times=times, clock=self._clock)

    def _clock(self) -> float:
        return time.monotonic() - self._ago_s

    def end(self) -> None:
        """The next look is a day away."""
        self._ago_s = 86400.0

    def write(self, **facts) -> None:
        write_report(self.directory, report(**facts))

    def next_view(self) -> MpsView:
        return self.posted.get(timeout=10).view


@pytest.fixture(autouse=True)
def all_ended():
    """A link cannot be stopped. None goes on to look a hundred times a second when its test is over."""
    yield
    while Node.made:
        Node.made.pop().end()


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path, QUICK)


def test_the_first_look_is_told_whatever_it_sees_and_can_be_waited_for(node):
    assert not node.link.wait_seen(0.0)
    node.link.start()
    assert node.link.wait_seen(10.0)
    view = node.posted.get_nowait().view  # before anybody is woken
    assert "nvdp mps does not run on this node" in view.problem
    assert f"there is no {node.directory / REPORT_NAME}" in view.problem


def test_a_heartbeat_is_no_news_and_a_change_is(node):
    node.write()
    node.link.start()
    assert node.next_view() == MpsView(daemons={RESOURCE: READY}, claims=CLAIMS, heard="0a")
    node.write(at=time.monotonic())
    node.write(daemons={})
    assert node.next_view() == MpsView(daemons={}, claims=CLAIMS, heard="0a")
    node.write(daemons={}, heard="0b")
    assert node.next_view().heard == "0b"


def test_a_report_that_goes_takes_all_with_it_as_modes_were_put_back_before(node):
    node.write()
    node.link.start()
    node.next_view()
    remove_report(node.directory)
    view = node.next_view()
    assert (view.daemons, view.claims) == ({}, {})
    assert view.problem


def test_what_cannot_be_understood_is_a_problem_and_the_gpus_stay_claimed(node):
    node.write()
    node.link.start()
    node.next_view()
    (node.directory / REPORT_NAME).write_text("{")
    view = node.next_view()
    assert view.problem.startswith("the report of nvdp mps cannot be used: ")
    assert (view.daemons, view.claims) == ({}, CLAIMS)


def test_silence_is_a_problem_until_the_next_heartbeat(tmp_path):
    node = Node(tmp_path, Times(look_s=0.01, silent_s=1.0))
    node.write()
    node.link.start()
    assert not node.next_view().problem
    silent = node.next_view()
    assert "nvdp mps does not answer" in silent.problem
    assert silent.claims == CLAIMS
    node.write()
    assert not node.next_view().problem


def test_where_nothing_is_used_or_claimed_it_looks_rarely_and_at_once_when_that_changes(tmp_path):
    node = Node(tmp_path, RARE)
    node.link.start()
    node.next_view()
    node.write(claims={})
    node.link.use(is_used=True)
    assert node.next_view().daemons == {RESOURCE: READY}
    node.link.use(is_used=False)
    node.write(daemons={}, claims={})
    node.link.look()
    assert node.next_view().daemons == {}


def test_while_gpus_are_claimed_it_looks_often_though_nothing_is_used(tmp_path):
    node = Node(tmp_path, RARE)
    node.write()
    node.link.start()
    node.next_view()
    node.write(claims={})
    assert node.next_view().claims == {}


def test_started_twice_it_looks_once(node):
    before = sum(one.name == MpsLink.THREAD for one in threading.enumerate())
    node.link.start()
    node.link.start()
    node.next_view()
    wait_until(
        lambda: sum(one.name == MpsLink.THREAD for one in threading.enumerate()) == before + 1, what="one thread"
    )


PATH = Path("/mps") / REPORT_NAME
# When the report is of, and which boot; then what is wrong, and whether what it claims stands.
JUDGED = {
    "just now": (100.0, BOOT, "", True),
    "as old as it may be": (96.5, BOOT, "", True),
    "older": (96.4, BOOT, "nvdp mps does not answer: /mps/nvdp.json is older than 3.5s", True),
    "of another boot": (100.0, "boot-0", "has not run since the node booted", False),
    "by a clock that began anew": (5000.0, BOOT, "has not run since the node booted", False),
    "of a node that does not tell its boots": (100.0, "", "", True),
}


@pytest.mark.parametrize(("at", "boot_id", "problem", "stands"), JUDGED.values(), ids=JUDGED)
def test_a_report_counts_while_it_is_young_and_of_this_boot(at, boot_id, problem, stands):
    view = judge_report(report(at=at, boot_id=boot_id), path=PATH, now=100.0, boot_id=BOOT)
    assert (problem in view.problem, bool(view.problem)) == (True, bool(problem))
    assert view.claims == (CLAIMS if stands else {})
