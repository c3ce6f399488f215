"""Who is left out of the scans, and until when, in virtual time."""

from __future__ import annotations

from nvdp.model.inventory import GpuRef
from nvdp.nvml.frames import COMMON_ANCESTOR_CALL, Scanned
from nvdp.nvml.outcomes import Hung
from nvdp.services.roll_call import RollCall
from tests.planning.values import gpu, inventory, uuid

REF = GpuRef(index=1, count=2, uuid=uuid(1))
HANGS = Hung(call="nvmlDeviceGetName", gpu=REF, limit_s=5.0)
PAUSED = "paused by nvdp pause"


def call_the_roll() -> RollCall:
    """Of two GPUs, the second of which hangs, as does the call about both."""
    roll = RollCall(remembered=None, clock=lambda: 1000.0, wall=lambda: 1000.0)
    roll.take(Scanned(inventory=inventory(gpu(0), gpu(1))))
    assert roll.dispense_with(Hung(call=COMMON_ANCESTOR_CALL, gpu=REF, limit_s=5.0))
    blamed = roll.find_blamed(HANGS)
    assert blamed is not None
    roll.silence(blamed, show=True)
    return roll


def causes(roll: RollCall) -> dict[str, str]:
    assert roll.presence is not None
    return {one: ailment.cause.value for one, ailment in roll.presence.ailments.items()}


def test_a_gpu_that_hangs_is_left_out_and_is_not_blamed_again_while_it_is():
    roll = call_the_roll()
    assert causes(roll) == {uuid(1): "CallTimeout"}
    assert roll.skipped == [REF]
    assert roll.find_blamed(HANGS) is None
    roll.lose_driver("nvmlInit: no answer")
    assert roll.skipped == [REF], "that the driver is lost makes no GPU answer"


def test_after_a_pause_nobody_counts_as_hanging_any_more():
    """It may be another driver by then, and other cards: whoever still hangs is found out anew."""
    roll = call_the_roll()
    roll.let_go(PAUSED)
    assert (roll.skipped, roll.asks_ancestors) == ([], True)
    assert causes(roll) == dict.fromkeys([uuid(0), uuid(1)], "DriverPaused")
    assert roll.find_blamed(HANGS) is not None
    roll.take(Scanned(inventory=inventory(gpu(0), gpu(1))))
    assert causes(roll) == {}
