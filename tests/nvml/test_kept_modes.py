"""The compute modes of a simulated machine: kept as a driver keeps them, whoever set them."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from nvdp.model.inventory import ComputeMode
from nvdp.nvml.compute_mode import set_compute_modes
from nvdp.nvml.frames import Refused, Scanned
from nvdp.nvml.simulated.kept_modes import KeptModes

EXCLUSIVE, DEFAULT, PROHIBITED = ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT, ComputeMode.PROHIBITED


@pytest.fixture
def node(tmp_path) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text("gpus: [{model: t4, count: 2, uuid: [GPU-0, GPU-1]}]\n")
    return path


def read_modes(asked, client=None) -> list[ComputeMode | None]:
    scanned = asked.scan(client)
    assert isinstance(scanned, Scanned)
    return [gpu.compute_mode for gpu in scanned.inventory.gpus]


def test_what_one_child_sets_all_see_also_those_that_run(node, asking) -> None:
    asked = asking(simulated=str(node))
    running = asked.watch()
    assert set_compute_modes(asked.children, {"GPU-1": EXCLUSIVE}, limit_s=5) == {}
    assert read_modes(asked, running) == read_modes(asked) == [DEFAULT, EXCLUSIVE]
    assert set_compute_modes(asked.children, {"GPU-1": DEFAULT}, limit_s=5) == {}
    assert read_modes(asked, running) == [DEFAULT, DEFAULT]
    assert [path.name for path in node.parent.iterdir()] == ["node.yaml"], "nothing is left of it"


def test_modes_are_lost_when_the_driver_is_unloaded(node, asking) -> None:
    asked, text = asking(simulated=str(node)), node.read_text()
    assert set_compute_modes(asked.children, {"GPU-1": EXCLUSIVE}, limit_s=5) == {}
    node.write_text(text + "driver: {state: not-loaded}\n")
    assert isinstance(asked.scan(), Refused)
    node.write_text(text)
    assert read_modes(asked) == [DEFAULT, DEFAULT]


def test_a_driver_may_refuse_as_a_node_file_says(node, asking) -> None:
    node.write_text(node.read_text() + "faults: [{call: nvmlDeviceSetComputeMode, gpu: 0, error: NoPermission}]\n")
    children = asking(simulated=str(node)).children
    failed = set_compute_modes(children, {"GPU-0": EXCLUSIVE, "GPU-1": EXCLUSIVE}, limit_s=5)
    assert [(gpu, error.kind) for gpu, error in failed.items()] == [("GPU-0", "NoPermission")]


def test_a_mode_that_the_node_file_is_edited_to_was_set_later(node) -> None:
    modes = KeptModes(str(node))
    modes.set("GPU-0", EXCLUSIVE, DEFAULT)
    assert KeptModes(str(node)).find("GPU-0", DEFAULT) is EXCLUSIVE
    assert modes.find("GPU-0", PROHIBITED) is PROHIBITED
    modes.set("GPU-0", DEFAULT, PROHIBITED)
    assert modes.find("GPU-0", PROHIBITED) is DEFAULT


def test_no_mode_is_lost_that_several_processes_set_at_once(node) -> None:
    def set_all(number: int) -> None:
        modes = KeptModes(str(node))
        for card in range(20):
            modes.set(f"GPU-{number}-{card}", PROHIBITED, DEFAULT)

    threads = [threading.Thread(target=set_all, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    modes = KeptModes(str(node))
    kept = [modes.find(f"GPU-{number}-{card}", DEFAULT) for number in range(4) for card in range(20)]
    assert kept == [PROHIBITED] * 80


@pytest.mark.parametrize("text", ["{", "[]", '{"GPU-0": {"mode": "Sometimes", "over": "Default"}}'])
def test_a_broken_file_says_nothing_and_is_replaced(node, text) -> None:
    modes = KeptModes(str(node))
    Path(modes.path).write_text(text)
    assert modes.find("GPU-0", PROHIBITED) is PROHIBITED
    modes.set("GPU-0", EXCLUSIVE, DEFAULT)
    assert json.loads(Path(modes.path).read_text()) == {"GPU-0": {"mode": "ExclusiveProcess", "over": "Default"}}


def test_a_node_that_comes_along_has_its_modes_in_the_temporary_directory(tmp_path, monkeypatch, asking) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    asked = asking(simulated="t4")
    scanned = asked.scan()
    assert isinstance(scanned, Scanned)
    assert set_compute_modes(asked.children, {scanned.inventory.gpus[0].uuid: EXCLUSIVE}, limit_s=5) == {}
    assert read_modes(asked) == [EXCLUSIVE]
    (kept,) = tmp_path.iterdir()
    assert kept.match("nvdp-*.modes.json")
