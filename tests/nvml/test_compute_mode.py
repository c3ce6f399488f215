"""Compute modes on a compiled libnvidia-ml: read in each scan, set by a child, and drivers that refuse it."""

from __future__ import annotations

import pytest

from nvdp.model.inventory import ComputeMode, GpuRef
from nvdp.nvml.children import NvmlChildren
from nvdp.nvml.client import NvmlClient
from nvdp.nvml.compute_mode import set_compute_mode, set_compute_modes
from nvdp.nvml.frames import ComputeModeSet, Scanned, SetComputeMode

EXCLUSIVE, DEFAULT, PROHIBITED = ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT, ComputeMode.PROHIBITED
LIMIT_S = 0.5


def uuid(card: int) -> str:
    return f"GPU-{card:08x}-0000-0000-0000-000000000000"


class CountedChildren(NvmlChildren):
    """Children that are counted as they start."""

    def __init__(self, **source: str) -> None:
        super().__init__(**source)
        self.spawned: list[NvmlClient] = []

    def spawn(self, on_notice=None) -> NvmlClient:
        self.spawned.append(super().spawn(on_notice))
        return self.spawned[-1]


@pytest.fixture
def fake(fake_driver, asking):
    fake_driver.install()
    return asking(driver_root=str(fake_driver.root))


@pytest.fixture
def children(fake_driver, fake):
    made = CountedChildren(driver_root=str(fake_driver.root))
    yield made
    assert made.are_gone


def read_modes(fake) -> list[ComputeMode | None]:
    scanned = fake.scan()
    assert isinstance(scanned, Scanned)
    assert [gpu.fault for gpu in scanned.inventory.gpus] == [None] * len(scanned.inventory.gpus)
    return [gpu.compute_mode for gpu in scanned.inventory.gpus]


def test_each_scan_tells_the_mode_of_each_gpu(fake_driver, fake) -> None:
    fake_driver.configure("cards 0 1 2 3 4", "mode 0 3", "mode 1 2", "mode 2 1", "mode 4 77")
    assert read_modes(fake) == [EXCLUSIVE, PROHIBITED, ComputeMode.EXCLUSIVE_THREAD, DEFAULT, None]


@pytest.mark.parametrize("code", [2, 3, 4, 13, 999])
def test_a_mode_that_cannot_be_read_is_not_known_and_takes_no_gpu_off_offer(fake_driver, fake, code) -> None:
    fake_driver.configure("cards 0 1", f"fail nvmlDeviceGetComputeMode {code} 1")
    assert read_modes(fake) == [DEFAULT, None]


def test_a_mode_outlives_the_child_that_set_it_until_it_is_put_back(fake, children) -> None:
    set_compute_mode(children, uuid(2), EXCLUSIVE, limit_s=LIMIT_S)
    assert read_modes(fake) == [DEFAULT, DEFAULT, EXCLUSIVE, DEFAULT]
    set_compute_mode(children, uuid(2), DEFAULT, limit_s=LIMIT_S)
    assert read_modes(fake) == [DEFAULT] * 4


def test_the_modes_of_several_gpus_are_set_by_one_child(fake, children) -> None:
    assert set_compute_modes(children, {uuid(3): EXCLUSIVE, uuid(0): PROHIBITED}, limit_s=LIMIT_S) == {}
    assert read_modes(fake) == [PROHIBITED, DEFAULT, DEFAULT, EXCLUSIVE]
    assert len(children.spawned) == 1
    assert set_compute_modes(children, {}, limit_s=LIMIT_S) == {}
    assert len(children.spawned) == 1


def test_who_may_not_set_modes_is_told_what_it_takes(fake_driver, fake, children) -> None:
    fake_driver.configure("cards 0 1", "mode 1 3", "fail nvmlDeviceSetComputeMode 4")
    failed = set_compute_modes(children, {uuid(0): EXCLUSIVE, uuid(1): EXCLUSIVE}, limit_s=LIMIT_S)
    assert {gpu: str(error) for gpu, error in failed.items()} == {
        uuid(0): f"the compute mode of {uuid(0)} cannot be set to ExclusiveProcess: nvmlDeviceSetComputeMode: this "
        "process may not do that; only root with CAP_SYS_ADMIN may: set securityContext.privileged: true, or "
        "runAsUser: 0 and capabilities.add: [SYS_ADMIN]"
    }, "the other has its mode already, for which nobody needs to be allowed anything"
    error = failed[uuid(0)]
    assert (error.kind, error.call, error.gpu) == ("NoPermission", "nvmlDeviceSetComputeMode", uuid(0))


def test_a_gpu_in_mig_mode_and_one_that_is_not_there_keep_their_modes_alone(fake_driver, fake, children) -> None:
    fake_driver.configure("cards 0 1 2", "mig 0 1")
    wanted = {uuid(0): EXCLUSIVE, uuid(7): EXCLUSIVE, uuid(2): EXCLUSIVE}
    failed = set_compute_modes(children, wanted, limit_s=LIMIT_S)
    assert [(gpu, error.kind) for gpu, error in failed.items()] == [(uuid(0), "NotSupported"), (uuid(7), "NotFound")]
    assert str(failed[uuid(0)]).endswith("; it cannot be set while the GPU is in MIG mode")
    assert str(failed[uuid(7)]).endswith(": the driver counts no such GPU")
    assert read_modes(fake) == [DEFAULT, DEFAULT, EXCLUSIVE]


@pytest.mark.invariant(5)
@pytest.mark.parametrize(
    ("effect", "failure"),
    [
        ("hang", ("CallTimeout", "nvmlDeviceSetComputeMode did not return within 0.5s")),
        ("abort", ("CallFailed", "the NVML child was killed by SIGABRT in nvmlDeviceSetComputeMode")),
    ],
)
def test_a_gpu_that_hangs_or_crashes_its_call_keeps_no_other_from_its_mode(
    fake_driver, fake, children, effect, failure
) -> None:
    fake_driver.configure("cards 0 1 2", f"{effect} nvmlDeviceSetComputeMode 1")
    failed = set_compute_modes(children, dict.fromkeys(map(uuid, range(3)), EXCLUSIVE), limit_s=LIMIT_S)
    assert list(failed) == [uuid(1)]
    error = failed[uuid(1)]
    assert (error.kind, str(error).partition("ExclusiveProcess: ")[2]) == failure
    assert len(children.spawned) == 2
    assert read_modes(fake) == [EXCLUSIVE, DEFAULT, EXCLUSIVE]


@pytest.mark.parametrize("rule", ["hang nvmlDeviceGetHandleByIndex 0", "abort nvmlDeviceGetUUID 0"])
def test_a_gpu_on_the_way_is_left_out_and_has_its_own_failure_told(fake_driver, fake, children, rule) -> None:
    fake_driver.configure("cards 0 1", rule)
    failed = set_compute_modes(children, {uuid(1): EXCLUSIVE, uuid(0): EXCLUSIVE}, limit_s=LIMIT_S)
    assert list(failed) == [uuid(0)]
    assert len(children.spawned) == 2
    fake_driver.configure("cards 0 1")
    assert read_modes(fake) == [DEFAULT, EXCLUSIVE]


@pytest.mark.invariant(5)
def test_a_lost_gpu_on_the_way_keeps_no_other_from_its_mode(fake_driver, fake, children) -> None:
    fake_driver.configure("cards 0 1", "fail nvmlDeviceGetHandleByIndex 15 0")
    failed = set_compute_modes(children, {uuid(1): EXCLUSIVE, uuid(0): EXCLUSIVE}, limit_s=LIMIT_S)
    assert {gpu: error.kind for gpu, error in failed.items()} == {uuid(0): "GpuIsLost"}
    fake_driver.configure("cards 0 1")
    assert read_modes(fake) == [DEFAULT, EXCLUSIVE]


def test_a_driver_that_fails_as_a_whole_is_asked_once_for_all(fake_driver, fake, children) -> None:
    fake_driver.configure("cards 0 1", "fail nvmlInit 9")
    failed = set_compute_modes(children, {uuid(0): EXCLUSIVE, uuid(1): EXCLUSIVE}, limit_s=LIMIT_S)
    assert [(error.kind, error.gpu) for error in failed.values()] == [("DriverNotLoaded", uuid(n)) for n in (0, 1)]
    assert "the NVIDIA kernel module is not loaded" in str(failed[uuid(1)])
    assert len(children.spawned) == 1


def test_a_driver_too_old_to_know_of_modes_says_so(fake_driver, fake, children) -> None:
    fake_driver.install(basic=True)
    (error,) = set_compute_modes(children, {uuid(0): EXCLUSIVE}, limit_s=LIMIT_S).values()
    assert error.kind == "FunctionNotFound"
    assert "this driver's library does not know the call" in str(error)


def test_no_mode_is_set_while_the_driver_is_let_go_of(fake, children) -> None:
    children.close_all()
    failed = set_compute_modes(children, {uuid(0): EXCLUSIVE, uuid(1): EXCLUSIVE}, limit_s=LIMIT_S)
    assert all("the driver is let go of" in str(error) for error in failed.values())
    children.reopen()
    assert read_modes(fake) == [DEFAULT] * 4


def test_a_gpu_is_found_as_a_probe_finds_it_and_never_one_to_be_left_out(fake_driver, fake) -> None:
    fake_driver.configure("cards 0 1 2", "hang nvmlDeviceGetHandleByIndex 0")
    skip = (GpuRef(index=0, count=3),)
    client = fake.spawn()
    by_slot = SetComputeMode(gpu=GpuRef(index=9, count=9, pci="0000:12:00.0"), mode=EXCLUSIVE, skip=skip)
    assert client.call(by_slot, limit_s=5) == ComputeModeSet(mode=EXCLUSIVE)
    by_place = SetComputeMode(gpu=GpuRef(index=1, count=3), mode=PROHIBITED, skip=skip)
    assert client.call(by_place, limit_s=5) == ComputeModeSet(mode=PROHIBITED)
    itself = SetComputeMode(gpu=GpuRef(index=1, count=3), mode=DEFAULT, skip=(*skip, GpuRef(index=1, count=3)))
    assert client.call(itself, limit_s=5) == ComputeModeSet()
    fake_driver.configure("cards 0 1 2")
    assert read_modes(fake) == [DEFAULT, PROHIBITED, EXCLUSIVE]
