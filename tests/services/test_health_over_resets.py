"""What counts as evidence of a reset, of a GPU whose driver does not say what it asks for."""

from __future__ import annotations

import pytest

from nvdp.config.schema import HealthSettings
from nvdp.model.health import Vitals
from nvdp.nvml.frames import Xid
from nvdp.planning.course import Record
from nvdp.planning.presence import expire, merge_scan
from nvdp.services.health import HealthWatch, KnownFaults
from tests.planning.values import gpu, inventory, uuid

A, B = uuid(0), uuid(1)
NEEDS_RESET = 79
HOLD_OFF_S = HealthSettings().recovery.hold_off.seconds
REMOVE_AFTER_S = 300.0


class Unheard:
    def xid_seen(self, uuid, xid, verdict): ...

    def memory_error_seen(self, uuid, kind): ...


class Process:
    """One life of the plugin in one boot; GPU A has had a fault that needs a reset if it has no predecessor."""

    def __init__(self, records: dict[str, Record] | None = None, *, boot_id: str = "this boot") -> None:
        self.now = 100.0
        self.watch = HealthWatch(
            KnownFaults(records=records or {}, boot_id=boot_id),
            log=lambda *_, **__: None,
            observer=Unheard(),
            clock=lambda: self.now,
            wall=lambda: 1000.0 + self.now,
        )
        self.presence = None
        if records is None:
            self.scan(gpu(0), gpu(1))
            self.watch.hear(1, Xid(uuid=A, code=NEEDS_RESET, at=self.now))

    def scan(self, *gpus, passed_s: float = 0.0) -> None:
        self.now += passed_s
        merged = merge_scan(self.presence, inventory(*gpus), (), now=self.now, wall=self.now)
        self.presence = expire(merged, now=self.now, remove_after_s=REMOVE_AFTER_S)
        self.watch.take_scan(self.presence, {one.uuid: Vitals() for one in gpus})

    @property
    def is_cured(self) -> bool:
        """Whether A is well again after it has answered for the hold-off."""
        self.scan(gpu(0), gpu(1))
        assert A in self.watch.find_ailments(self.presence), "nothing is over before the hold-off"
        self.scan(gpu(0), gpu(1), passed_s=HOLD_OFF_S)
        return A not in self.watch.find_ailments(self.presence)


def test_time_alone_cures_nothing():
    assert not Process().is_cured


def test_a_driver_that_was_reloaded_is_evidence():
    process = Process()
    process.watch.note_driver_reset()
    assert process.is_cured


@pytest.mark.invariant(9)
@pytest.mark.parametrize(
    ("kept_in", "now_in", "is_cured"),
    [
        ("this boot", "this boot", False),
        ("this boot", "another boot", True),
        ("this boot", "", False),
        ("", "another boot", False),
    ],
    ids=["a restart", "a reboot", "which boot it is now is not known", "which boot it was is not known"],
)
def test_a_reboot_is_evidence_and_a_restart_is_none(kept_in, now_in, is_cured):
    before = Process(boot_id=kept_in)
    assert Process(before.watch.records, boot_id=now_in).is_cured is is_cured


def test_a_gpu_that_was_gone_and_is_back_is_evidence():
    process = Process()
    process.scan(gpu(1))
    assert process.is_cured


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_gpu_that_was_forgotten_with_a_fault_comes_back_with_it_and_was_gone(is_restarted):
    process = Process()
    process.scan(gpu(1))
    process.scan(gpu(1), passed_s=REMOVE_AFTER_S)
    assert [one.uuid for one in process.presence.inventory.gpus] == [B]
    process.scan(gpu(1))
    assert process.watch.records.keys() == {A}
    if is_restarted:
        process = Process(process.watch.records)
        process.scan(gpu(1))
    assert process.is_cured


def test_a_fault_of_a_gpu_that_a_start_does_not_find_is_kept_for_its_return():
    process = Process(Process().watch.records)
    process.scan(gpu(1))
    assert process.watch.records[A].is_gone
    assert process.is_cured


def test_a_gpu_that_was_forgotten_without_a_fault_leaves_nothing_behind():
    process = Process({})
    process.scan(gpu(0), gpu(1))
    process.scan(gpu(1))
    assert A in process.watch.records
    process.scan(gpu(1), passed_s=REMOVE_AFTER_S)
    assert process.watch.records.keys() == set()
