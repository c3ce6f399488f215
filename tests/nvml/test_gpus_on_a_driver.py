"""The service that knows the GPUs on a compiled libnvidia-ml: sessions, plugging, start-up, a library replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvdp.host.sysfs import Sysfs
from nvdp.model.status import DriverState
from nvdp.nvml.children import NvmlChildren, Source
from nvdp.nvml.client import NvmlClient
from tests.services.gpu_bench import Bench


def name(card: int) -> str:
    return f"GPU-{card:08x}-0000-0000-0000-000000000000"


class FakeSys:
    """A /sys in which the kernel driver takes cards."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._driver = root / "bus/pci/drivers/nvidia"
        self._driver.mkdir(parents=True)
        (self._driver / "module").mkdir()

    def plug(self, *cards: int) -> None:
        for card in cards:
            pci = f"0000:{0x10 + card:02x}:00.0"
            device = self.root / "bus/pci/devices" / pci
            device.mkdir(parents=True)
            (device / "numa_node").write_text(f"{card % 2 if card < 4 else -1}\n")
            (self._driver / pci).symlink_to(device)


@pytest.fixture
def sys_tree(tmp_path) -> FakeSys:
    return FakeSys(tmp_path / "sys")


class CountedChildren(NvmlChildren):
    """Children that are counted as they start."""

    def __init__(self, **source: str) -> None:
        super().__init__(**source)
        self.spawned: list[NvmlClient] = []

    def spawn(self, on_notice=None) -> NvmlClient:
        self.spawned.append(super().spawn(on_notice))
        return self.spawned[-1]


@pytest.fixture
def bench(fake_driver, sys_tree):
    made = Bench(CountedChildren(driver_root=str(fake_driver.root)), sysfs=Sysfs(sys_tree.root))
    yield made
    made.service.stop()


def test_numa_nodes_come_from_the_host(bench, fake_driver, sys_tree) -> None:
    fake_driver.install()
    fake_driver.configure("cards 0 1 4 5")
    sys_tree.plug(0, 1, 4)
    bench.service.start()
    assert [gpu.numa_node for gpu in bench.wait_healthy(4).inventory.gpus] == [0, 1, None, None]


def test_the_library_may_come_late_be_broken_and_be_replaced(bench, fake_driver) -> None:
    bench.service.start()
    post = bench.wait(lambda post: post.driver.state is DriverState.MISSING)
    assert f"not found under {fake_driver.root} (searched 7 directories) nor by the loader" in post.driver.text
    fake_driver.library.write_bytes(b"half a libra")
    bench.wait(lambda post: "cannot be used" in post.driver.text)
    fake_driver.install()
    bench.wait_healthy(4)
    assert bench.reasons() == ["DriverMissing", "DriverMissing", "DriverReady"]


def test_a_driver_root_that_the_file_names_is_looked_into_at_once(fake_driver, sys_tree, tmp_path) -> None:
    fake_driver.install()
    bench = Bench(CountedChildren(driver_root=str(tmp_path)), sysfs=Sysfs(sys_tree.root))
    settings = {"rescan_interval_s": 60.0, "remove_after_s": 300.0, "call_timeout_s": 5.0}
    try:
        bench.service.configure(**settings)
        bench.service.start()
        bench.wait(lambda post: post.driver.state is DriverState.MISSING)
        bench.service.configure(**settings, source=Source(driver_root=str(fake_driver.root)))
        bench.wait_healthy(4)
        spawned = len(bench.children.spawned)
        bench.service.configure(**settings, source=Source(driver_root=str(fake_driver.root)))
        bench.service.look_now()
        bench.wait_scans(1)
        assert len(bench.children.spawned) == spawned + 1  # for the look alone: the root is the same
    finally:
        bench.service.stop()


@pytest.mark.parametrize("rule", ["fail nvmlInit 9", "abort nvmlInit"])
def test_an_init_that_fails_or_crashes_is_tried_again_until_it_works(bench, fake_driver, rule) -> None:
    fake_driver.install()
    fake_driver.configure("cards 0 1", rule)
    bench.service.start()
    post = bench.wait(lambda post: post.driver.state is DriverState.MISSING)
    assert "nvmlInit" in post.driver.text
    fake_driver.configure("cards 0 1")
    bench.wait_healthy(2)


@pytest.mark.parametrize("rule", ["fail nvmlDeviceGetUUID 15 2", "fail nvmlDeviceGetHandleByIndex 15 2"])
def test_a_gpu_that_its_session_has_lost_for_good_is_found_well_by_a_session_of_its_own(
    bench, fake_driver, rule
) -> None:
    fake_driver.install()
    fake_driver.configure("cards 0 1 2 3", "sticky", rule)
    bench.service.start()
    bench.wait(lambda post: post.inventory is not None and post.inventory.unreadable != ())
    fake_driver.configure("cards 0 1 2 3", "sticky")
    bench.wait_healthy(4)
    assert bench.reasons() == ["DriverReady"]


def test_a_card_that_the_kernel_driver_takes_is_looked_for_in_new_sessions(bench, fake_driver, sys_tree) -> None:
    fake_driver.install()
    fake_driver.configure("cards 0 1", "sticky")
    sys_tree.plug(0, 1)
    bench.service.start()
    bench.wait_healthy(2)
    fake_driver.configure("cards 0 1 2", "sticky")
    bench.wait_scans(2)
    assert not bench.posts[-1].ailments
    assert len(bench.posts[-1].inventory.gpus) == 2, "its session does not count it"
    sys_tree.plug(2)
    bench.wait_healthy(3)


def test_a_card_that_nvml_may_not_see_does_not_make_sessions_for_ever(bench, fake_driver, sys_tree) -> None:
    fake_driver.install()
    spawned = bench.children.spawned
    sys_tree.plug(0, 1, 2, 3, 9)
    bench.service.start()
    bench.wait_healthy(4)
    bench.wait_scans(4)
    assert len(spawned) == 1, "it was there from the start and is not ours"
    sys_tree.plug(10)
    bench.wait_scans(8)
    assert len(spawned) == 4


def test_looking_now_opens_a_new_session(bench, fake_driver) -> None:
    fake_driver.install()
    fake_driver.configure("cards 0 1", "sticky")
    bench.service.start()
    bench.wait_healthy(2)
    fake_driver.configure("cards 0 1 2 3", "sticky")
    bench.service.look_now()
    bench.wait_healthy(4)


def test_a_new_session_that_fails_leaves_the_old_one_in_place(bench, fake_driver) -> None:
    fake_driver.install()
    fake_driver.configure("cards 0 1", "sticky")
    bench.service.start()
    bench.wait_healthy(2)
    fake_driver.configure("cards 0 1", "sticky", "fail nvmlInit 999")
    bench.service.look_now()
    bench.wait_scans(3)
    assert {post.driver.state for post in bench.posts} == {DriverState.READY}
    assert bench.reasons() == ["DriverReady"]


def test_a_gpu_that_hangs_in_a_new_session_only_is_marked_while_the_old_session_serves_the_others(
    bench, fake_driver
) -> None:
    bench.hurry()
    fake_driver.install()
    fake_driver.configure("cards 0 1", "sticky")
    bench.service.start()
    bench.wait_healthy(2)
    fake_driver.configure("cards 0 1", "sticky", "hang nvmlDeviceGetName 1")
    bench.service.look_now()
    post = bench.wait(lambda post: bool(post.ailments))
    assert {uuid: ailment.cause.value for uuid, ailment in post.ailments.items()} == {name(1): "CallTimeout"}
    bench.wait_scans(2)
    fake_driver.configure("cards 0 1", "sticky")
    bench.wait_healthy(2)
