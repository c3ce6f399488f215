"""When GPUs that ail are probed: ever more rarely, and never two probes of one at a time; in virtual time."""

from __future__ import annotations

import queue

import pytest

from nvdp.model.inventory import GpuRef
from nvdp.nvml.children import NvmlChildren
from nvdp.services.probing import Probing
from tests.planning.values import uuid

ONE, TWO = (GpuRef(index=n, count=3, uuid=uuid(n)) for n in (1, 2))
PACE = [1, 2, 4, 8, 16, 32, 60, 60, 60]


class Ward:
    """Probes that begin when they are due, and find nothing out: no child is to be had."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.reports: queue.SimpleQueue[str] = queue.SimpleQueue()
        children = NvmlChildren()
        children.close_all()
        self.probing = Probing(children, report=lambda done: self.reports.put(done.key), clock=lambda: self.now)

    def follow(self, *refs: GpuRef) -> None:
        self.probing.follow({str(ref): ref for ref in refs})

    def start_due(self) -> None:
        self.probing.start_due([], limit_s=5.0)

    def wait_next(self) -> float:
        """Until a probe is due; how long that took. It is not started any sooner."""
        due_at = self.probing.next_due_at
        assert due_at is not None
        waited, self.now = due_at - self.now, due_at - 0.001
        self.start_due()
        assert self.probing.next_due_at == due_at
        self.now = due_at
        return waited

    def probe(self) -> float:
        """The next probe, whose result is there at once; how long it was waited for."""
        waited = self.wait_next()
        self.start_due()
        self.probing.finish(self.reports.get(timeout=10))
        return waited


@pytest.fixture
def ward() -> Ward:
    return Ward()


def test_a_gpu_that_goes_on_ailing_is_probed_ever_more_rarely_up_to_once_a_minute(ward):
    ward.follow(ONE)
    delays = []
    for _ in PACE:
        delays.append(ward.probe())
        ward.follow(ONE)
    assert delays == PACE


def test_the_next_delay_begins_when_the_probe_has_ended_and_until_then_there_is_no_other(ward):
    ward.follow(ONE)
    assert ward.wait_next() == 1
    ward.start_due()
    key = ward.reports.get(timeout=10)
    assert ward.probing.next_due_at is None, "it runs"
    ward.now += 5
    ward.start_due()
    ward.probing.finish(key)
    assert ward.probing.next_due_at == ward.now + 2
    assert ward.reports.empty()


def test_each_gpu_has_its_own_pace(ward):
    ward.follow(ONE)
    for _ in range(3):
        ward.probe()
    ward.follow(ONE, TWO)
    assert ward.probe() == 1
    ward.follow(TWO)
    assert ward.probe() == 2


@pytest.mark.parametrize(("well_s", "delay_s"), [(79.0, 16), (80.0, 1)])
def test_a_gpu_that_ails_again_within_ten_of_its_last_delays_goes_on_where_it_stopped(ward, well_s, delay_s):
    ward.follow(ONE)
    for _ in range(3):
        ward.probe()
    ward.follow()
    assert ward.probing.next_due_at is None
    ward.now += well_s
    ward.follow()
    ward.follow(ONE)
    assert ward.probe() == delay_s
