"""What ``nvdp mps`` is told is written by a thread of its own, the newest only, and again until a disk takes it."""

from __future__ import annotations

import shutil
import threading

import pytest

from nvdp.errors import HostError
from nvdp.host.mps_grants import has_grants, load_grants, write_grants
from nvdp.model.mps import DaemonSpec, Grant, MpsGrants
from nvdp.services.granting import GrantService
from tests.daemon.process import wait_until

NONE = MpsGrants(config="sha256:0")


def grants(*gpus: str, resource: str = "nvidia.com/gpu.mps") -> MpsGrants:
    grant = Grant(wanted=DaemonSpec(resource=resource, gpus=gpus), free=gpus)
    return MpsGrants(config="sha256:1", resources={resource: grant})


class Disk:
    """Writes into a directory; it can be slow, and it can be full."""

    def __init__(self, directory):
        self.directory = directory
        self.tries = 0
        self.full = False
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    def write(self, value):
        self.tries += 1
        self.entered.set()
        self.open.wait(5)
        if self.full:
            raise HostError("/state/mps.json: cannot be written: No space left on device")
        write_grants(self.directory, value)

    def is_kept(self):
        return has_grants(self.directory)

    @property
    def found(self):
        return load_grants(self.directory)


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path / "state")


@pytest.fixture
def told():
    return []


@pytest.fixture
def posted():
    return []


@pytest.fixture
def slow_s():
    return 60.0


@pytest.fixture
def service(disk, told, posted, slow_s):
    service = GrantService(
        posted.append,
        disk.write,
        is_kept=disk.is_kept,
        log=lambda reason, text, **_: told.append((reason.word, text)),
        retry_s=0.05,
        slow_s=slow_s,
    )
    service.start()
    yield service
    disk.full = False
    disk.open.set()
    last = grants("GPU-last")
    service.want(last)
    wait_until(lambda: disk.found == last, what="its thread at rest")


def test_what_is_wanted_is_written_once_even_if_it_is_nothing(service, disk):
    service.want(NONE)
    wait_until(lambda: disk.found == NONE, what="a file that grants nothing")
    service.want(MpsGrants(config="sha256:0"))
    service.want(grants("GPU-a"))
    wait_until(lambda: disk.found == grants("GPU-a"), what="the newest grants")
    assert disk.tries == 2


def test_what_is_written_is_told_as_the_very_value_and_what_could_not_be_is_not(service, disk, posted):
    first, second = grants("GPU-a"), grants("GPU-b")
    service.want(first)
    wait_until(lambda: posted, what="word of the first")
    disk.full = True
    service.want(second)
    wait_until(lambda: disk.tries >= 3, what="two tries")
    assert [event.grants is first for event in posted] == [True]
    disk.full = False
    wait_until(lambda: len(posted) > 1, what="word of the second")
    assert posted[-1].grants is second


@pytest.mark.parametrize("slow_s", [0.0])
def test_while_a_disk_is_stuck_nobody_waits_it_is_shown_and_only_the_newest_is_written(service, disk):
    disk.open.clear()
    service.want(grants("GPU-a"))
    assert disk.entered.wait(5)
    assert "taken more than 0s" in service.trouble.text
    for name in "bcd":
        service.want(grants(f"GPU-{name}"))
    disk.open.set()
    wait_until(lambda: disk.found == grants("GPU-d"), what="the newest grants")
    wait_until(lambda: service.trouble is None, what="no trouble")
    assert disk.tries == 2


def test_a_full_disk_is_told_once_shown_and_tried_again_until_it_takes_them(service, disk, told):
    disk.full = True
    service.want(grants("GPU-a"))
    wait_until(lambda: disk.tries >= 3, what="three tries")
    text = "/state/mps.json: cannot be written: No space left on device; nvdp mps goes on with what it was told before"
    wait_until(lambda: told, what="a line of the log")
    assert (service.trouble.reason, service.trouble.text) == ("StateDamaged", text)
    disk.full = False
    wait_until(lambda: disk.found == grants("GPU-a"), what="the grants")
    wait_until(lambda: service.trouble is None, what="no trouble")
    assert told == [("StateDamaged", text)]


def test_what_somebody_removes_is_written_again(service, disk):
    """Without the file the next ``nvdp mps`` would take what pods hold in another form."""
    service.want(grants("GPU-a"))
    wait_until(lambda: disk.found == grants("GPU-a"), what="the grants")
    shutil.rmtree(disk.directory)
    wait_until(lambda: disk.found == grants("GPU-a"), what="the grants again")
    assert disk.tries == 2


def test_a_disk_that_is_full_where_mps_is_not_used_is_no_trouble_of_these(service, disk, told):
    disk.full = True
    service.want(NONE)
    wait_until(lambda: disk.tries >= 2, what="two tries")
    assert (service.trouble, told) == (None, [])


def test_grants_that_cannot_be_taken_back_are_a_trouble(service, disk):
    service.want(grants("GPU-a"))
    wait_until(lambda: disk.found == grants("GPU-a"), what="the grants")
    disk.full = True
    service.want(NONE)
    wait_until(lambda: service.trouble is not None, what="a trouble")


def test_after_a_crash_it_goes_on_with_what_is_wanted(disk, told):
    crashes = [ValueError("a defect")]
    ended = threading.Event()

    def write(value):
        if crashes:
            raise crashes.pop()
        disk.write(value)

    hook, threading.excepthook = threading.excepthook, lambda _: ended.set()
    try:
        service = GrantService(
            lambda _: None, write, is_kept=disk.is_kept, log=lambda reason, text, **_: told.append(text)
        )
        service.start()
        service.want(grants("GPU-a"))
        assert ended.wait(5)
        wait_until(lambda: service.start() or disk.found == grants("GPU-a"), what="the grants")
    finally:
        threading.excepthook = hook
