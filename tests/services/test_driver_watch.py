"""What is said of the driver as a whole, and how long it is waited for, after each way to fail."""

from __future__ import annotations

import pytest

from nvdp.model.inventory import Driver, GpuRef
from nvdp.model.pause import Pause
from nvdp.model.status import DriverState
from nvdp.nvml.frames import Refused
from nvdp.nvml.outcomes import Died, Hung
from nvdp.services.driver_watch import DriverWatch

REFUSED = Refused(call="nvmlDeviceGetCount", kind="Unknown", text="nvmlDeviceGetCount: no")
HUNG = Hung(call="nvmlInit", gpu=None, limit_s=5.0)
GPU_HUNG = Hung(call="nvmlDeviceGetName", gpu=GpuRef(index=1, count=2), limit_s=5.0)
KILLED = Died(call="", gpu=None, how="was killed by SIGKILL", at_fault=False)
UNLOADED = Refused(call="nvmlInit", kind="DriverNotLoaded", text="nvmlInit: Driver Not Loaded")
RETRY = {"retry_every_s": 10.0}
SAME, OTHER = (Driver(version=version, cuda_version="12.8") for version in ("570.1.1", "580.2.2"))
UNREAD = Driver(version="", cuda_version="")


@pytest.fixture
def driver() -> DriverWatch:
    """Has worked."""
    made = begin()
    made.succeed(SAME, gpus=2, seconds=0.1)
    return made


def begin(remembered: Driver | None = None) -> DriverWatch:
    return DriverWatch(lambda *_, **__: None, clock=lambda: 0.0, remembered=remembered)


def find_reloads(driver: DriverWatch, *steps: Driver | Refused | Hung | Died) -> list[bool]:
    """What each of the scans that were complete said of a reload since the one before."""
    said = []
    for step in steps:
        if isinstance(step, Driver):
            said.append(driver.succeed(step, gpus=2, seconds=0.1))
        else:
            driver.note(step)
            driver.fail(step, **RETRY)
    return said


def find_init_limits(driver: DriverWatch, *, hangs: int, call_timeout_s: float = 5.0) -> list[float]:
    limits = []
    for _ in range(hangs):
        driver.note(HUNG)
        limits.append(driver.find_init_limit(call_timeout_s=call_timeout_s))
    return limits


@pytest.mark.parametrize("failure", [REFUSED, HUNG, KILLED])
def test_all_is_lost_when_a_second_child_fails_and_not_before(driver, failure) -> None:
    driver.note(failure)
    assert driver.fail(failure, **RETRY) is None
    assert driver.is_ready
    driver.note(failure)
    assert driver.fail(failure, **RETRY) == 2.0
    assert driver.status.state is DriverState.LOST


def test_a_scan_that_cost_two_children_needs_no_third_to_tell_that_all_is_lost(driver) -> None:
    driver.note(HUNG, children=2)
    assert driver.fail(HUNG, **RETRY) == 1.0
    assert driver.status.state is DriverState.LOST


def test_a_child_that_a_gpu_has_cost_counts_until_a_scan_is_complete(driver) -> None:
    driver.note(GPU_HUNG, of_gpu=True)
    driver.note(HUNG)
    assert driver.fail(HUNG, **RETRY) == 1.0
    driver.succeed(Driver(version="570.1.1", cuda_version="12.8"), gpus=2, seconds=0.1)
    driver.note(HUNG)
    assert driver.fail(HUNG, **RETRY) is None


@pytest.mark.invariant(5)
@pytest.mark.parametrize("failure", [REFUSED, KILLED])
def test_a_gpu_that_hangs_and_a_child_that_somebody_kills_are_not_the_whole_driver(driver, failure) -> None:
    driver.note(GPU_HUNG, of_gpu=True)
    driver.note(failure)
    assert driver.fail(failure, **RETRY) is None
    assert driver.is_ready
    driver.note(failure)
    assert driver.fail(failure, **RETRY) == 2.0


def test_a_new_session_has_a_minute_unless_the_driver_hung_and_then_longer_each_time(driver) -> None:
    assert driver.find_init_limit(call_timeout_s=5.0) == 60.0
    driver.note(KILLED)
    driver.note(REFUSED)
    assert driver.find_init_limit(call_timeout_s=5.0) == 60.0
    assert find_init_limits(driver, hangs=6) == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    driver.succeed(Driver(version="570.1.1", cuda_version="12.8"), gpus=2, seconds=0.1)
    assert driver.find_init_limit(call_timeout_s=5.0) == 60.0


def test_an_interpreter_has_time_to_start_however_short_a_call_may_take(driver) -> None:
    assert find_init_limits(driver, hangs=2, call_timeout_s=0.1) == [2.0, 4.0]


def test_a_pause_forgets_what_failed_before(driver) -> None:
    driver.note(HUNG, children=2)
    driver.pause(Pause(by="nvdp pause", since=0.0))
    assert driver.find_init_limit(call_timeout_s=5.0) == 60.0


def test_a_driver_of_another_version_or_that_was_not_loaded_in_between_was_reloaded(driver) -> None:
    assert find_reloads(driver, SAME, OTHER, OTHER) == [False, True, False]
    assert find_reloads(driver, UNLOADED, OTHER, OTHER) == [True, False]


@pytest.mark.parametrize("failure", [REFUSED, HUNG, KILLED])
def test_a_driver_that_failed_otherwise_was_not_reloaded(driver, failure) -> None:
    assert find_reloads(driver, failure, failure, SAME) == [False]


def test_a_version_that_cannot_be_read_is_no_other_version(driver) -> None:
    assert find_reloads(driver, UNREAD, SAME, UNREAD, OTHER) == [False, False, False, True]


def test_the_first_driver_that_is_ever_met_was_not_reloaded() -> None:
    assert find_reloads(begin(), UNLOADED, SAME) == [False]
    assert find_reloads(begin(), UNREAD, SAME) == [False, False]


@pytest.mark.invariant(9)
def test_what_a_predecessor_met_in_this_boot_tells_a_reload_from_a_restart() -> None:
    assert find_reloads(begin(SAME), SAME, OTHER) == [False, True]
    assert find_reloads(begin(SAME), OTHER, OTHER) == [True, False]
    assert find_reloads(begin(SAME), UNLOADED, SAME) == [True]
    assert find_reloads(begin(SAME), REFUSED, HUNG, SAME) == [False]
    assert find_reloads(begin(SAME), UNREAD, SAME, OTHER) == [False, False, True]
    assert find_reloads(begin(UNREAD), OTHER) == [False]


def test_a_driver_that_only_a_predecessor_met_is_missing_and_not_lost() -> None:
    met = begin(SAME)
    find_reloads(met, UNLOADED)
    assert met.status.state is DriverState.MISSING
