"""Who is there over a restart: what a predecessor saw in this boot is compared with the first scan."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.model.inventory import Driver, Fault, GpuRef, Inventory, MigMode, UnreadableGpu
from nvdp.model.reasons import Cause
from nvdp.nvml.frames import Scanned
from nvdp.nvml.outcomes import Hung
from nvdp.services.roll_call import RollCall
from tests.planning.values import cut, gpu, inventory, mig_uuid, uuid

REMOVE_AFTER_S = 300.0
LOST = Fault(call="nvmlDeviceGetUUID", kind="GpuIsLost", text="lost")


class Process:
    """One life of the plugin, which begins at 100 s with what the one before remembered."""

    def __init__(self, remembered: Inventory | None = None) -> None:
        self.now = 100.0
        self.roll = RollCall(remembered=remembered, clock=lambda: self.now, wall=lambda: 1000.0 + self.now)

    def scan(self, *gpus, skipped=(), **facts) -> None:
        found = msgspec.structs.replace(inventory(*gpus), **facts)
        self.roll.take(Scanned(inventory=found, skipped=tuple(skipped)))
        self.roll.expire(remove_after_s=REMOVE_AFTER_S)

    @property
    def causes(self) -> dict[str, Cause | None]:
        """All that are known, in the order of the list."""
        presence = self.roll.presence
        ailments = presence.ailments
        found = (one.uuid for one in presence.inventory.gpus)
        return {one: ailments[one].cause if one in ailments else None for one in found}


A, B, C = (uuid(number) for number in range(3))

pytestmark = pytest.mark.invariant(3)


def test_a_gpu_that_vanished_before_or_during_a_restart_stays_known_until_its_time_is_over():
    process = Process(inventory(gpu(0), gpu(1), gpu(2)))
    process.scan(gpu(0), gpu(2, index=1))
    assert process.causes == {A: None, B: Cause.VANISHED, C: None}
    assert process.roll.find_next_expiry(remove_after_s=REMOVE_AFTER_S) == 100.0 + REMOVE_AFTER_S
    process.now += REMOVE_AFTER_S - 1
    process.scan(gpu(0), gpu(2, index=1))
    assert B in process.causes
    process.now += 1
    process.scan(gpu(0), gpu(2, index=1))
    assert process.causes == {A: None, C: None}


def test_a_gpu_that_was_forgotten_stays_so_over_a_restart():
    first = Process(inventory(gpu(0), gpu(1)))
    first.scan(gpu(0))
    first.now += REMOVE_AFTER_S
    first.scan(gpu(0))
    again = Process(first.roll.presence.inventory)
    again.scan(gpu(0))
    assert again.causes == {A: None}


def test_a_first_scan_may_find_what_a_predecessor_did_not_know():
    process = Process(inventory(gpu(0)))
    process.scan(gpu(0), gpu(1))
    assert process.causes == {A: None, B: None}


def test_a_gpu_that_is_out_of_reach_at_the_start_is_the_one_that_was_in_its_slot():
    process = Process(inventory(gpu(0), gpu(1)))
    process.scan(gpu(0), unreadable=(UnreadableGpu(index=1, pci=gpu(1).pci, fault=LOST),))
    assert process.causes == {A: None, B: Cause.LOST}
    assert process.roll.presence.unreadable == ()
    assert process.roll.presence.inventory.gpus[1].product == "NVIDIA A10"


@pytest.mark.parametrize("pci", [gpu(1).pci, None], ids=["by its slot", "by its place"])
def test_a_gpu_that_hangs_from_the_start_is_the_one_that_was_known(pci):
    process = Process(inventory(gpu(0), gpu(1)))
    hung = Hung(call="nvmlDeviceGetUUID", gpu=GpuRef(index=1, count=2, pci=pci), limit_s=5.0)
    blamed = process.roll.find_blamed(hung)
    process.roll.silence(blamed, show=False)
    assert process.roll.presence is None, "nothing is shown that was not looked at"
    process.scan(gpu(0), skipped=process.roll.skipped)
    assert process.causes == {A: None, B: Cause.CALL_TIMEOUT}
    assert process.roll.presence.unreadable == ()


def test_of_a_gpu_that_answers_only_the_mig_devices_that_it_has_now_are_known():
    process = Process(inventory(cut(0, "1g.10gb", "1g.10gb"), cut(1, "1g.10gb"), cut(2, "1g.10gb")))
    process.scan(cut(0, "1g.10gb"), gpu(1, mig=MigMode.DISABLED))
    first, second, third = process.roll.presence.inventory.gpus
    assert [one.uuid for one in first.instances] == [mig_uuid(0, 0)]
    assert second.instances is None
    assert [one.uuid for one in third.instances] == [mig_uuid(2, 0)], "it vanished with its MIG devices"
    assert process.causes[C] is Cause.VANISHED


def test_the_driver_of_now_is_the_one_that_answers():
    driver = Driver(version="999.1", cuda_version="99.0")
    process = Process(inventory(gpu(0)))
    process.scan(gpu(0), driver=driver)
    assert process.roll.presence.driver == driver


def test_while_nobody_may_look_all_are_known_and_compared_with_the_first_scan_after_that():
    process = Process(inventory(gpu(0), gpu(1)))
    process.roll.let_go("paused")
    assert process.causes == {A: Cause.DRIVER_PAUSED, B: Cause.DRIVER_PAUSED}
    process.scan(gpu(0))
    assert process.causes == {A: None, B: Cause.VANISHED}
