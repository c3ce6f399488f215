"""What /sys knows of PCI devices, read from a tree of the test's own."""

from __future__ import annotations

import pytest

from nvdp.host.sysfs import Sysfs


@pytest.mark.parametrize(("text", "node"), [("0\n", 0), ("1\n", 1), ("-1\n", None), ("", None), ("many\n", None)])
def test_the_numa_node_of_a_slot(tmp_path, text, node) -> None:
    device = tmp_path / "bus/pci/devices/0000:1b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text(text)
    assert Sysfs(tmp_path).find_numa_node("0000:1b:00.0") == node


def test_a_slot_that_is_not_there_has_no_numa_node(tmp_path) -> None:
    assert Sysfs(tmp_path).find_numa_node("0000:1b:00.0") is None


def test_the_cards_that_the_driver_has_taken(tmp_path) -> None:
    assert Sysfs(tmp_path).find_bound_gpus() == frozenset(), "no driver, no cards"
    driver = tmp_path / "bus/pci/drivers/nvidia"
    for name in ("0000:1b:00.0", "10000:01:00.0", "module", "bind", "uevent"):
        (driver / name).mkdir(parents=True)
    assert Sysfs(tmp_path).find_bound_gpus() == {"0000:1b:00.0", "10000:01:00.0"}
