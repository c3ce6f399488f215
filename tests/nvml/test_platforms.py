"""WSL2 and Tegra: how a child tells them from other systems, and the one device that it tells of there."""

from __future__ import annotations

import shutil

import pytest

from nvdp.errors import HostError, NvmlError
from nvdp.model.inventory import ComputeMode, Driver, Gpu, GpuRef, MigMode
from nvdp.model.platforms import DeviceDiscoveryStrategy, Platform
from nvdp.model.reasons import Cause
from nvdp.nvml.children import NvmlChildren, Source
from nvdp.nvml.compute_mode import set_compute_mode
from nvdp.nvml.frames import Probe, Probed, Processes, ProcessesRead, Refused, Scanned
from nvdp.nvml.outcomes import Hung
from nvdp.nvml.platforms import has_tegra_files, is_integrated
from nvdp.nvml.simulated.export import build_node_file
from nvdp.nvml.simulated.nodefile import parse_node
from tests.services.gpu_bench import Bench

AUTO, NVML, TEGRA = DeviceDiscoveryStrategy
ALL = Gpu(uuid="all", index=0, product="NVIDIA L40S, Tesla T4", mig=MigMode.UNSUPPORTED)
CHIP = Gpu(uuid="tegra", index=0, product="tegra", mig=MigMode.UNSUPPORTED)
WSL_NODE = "platform: wsl\ngpus:\n- {model: t4, count: 2}\n- {model: l40s}\n"
OF_ALL = GpuRef(index=0, count=1, uuid="all")
HANDLE = "nvmlDeviceGetHandleByIndex"


def fail(*cards: int) -> str:
    return "".join(f"- {{call: {HANDLE}, gpu: {card}, error: GpuIsLost}}\n" for card in cards)


@pytest.fixture
def ask_node(asking, tmp_path):
    """``ask_node(text)``: what asks the machine of a node file with this text."""

    def make(text: str, discovery: DeviceDiscoveryStrategy = AUTO):
        file = tmp_path / "node.yaml"
        file.write_text(text)
        return asking(simulated=str(file), discovery=discovery)

    return make


def scan(asked, **kwargs) -> Scanned:
    outcome = asked.scan(**kwargs)
    assert isinstance(outcome, Scanned), outcome
    return outcome


# WSL2


def test_three_gpus_of_wsl_are_exactly_one_device(ask_node):
    """NVIDIA's vector B3."""
    scanned = scan(ask_node(WSL_NODE))
    assert (scanned.inventory.platform, scanned.inventory.gpus) == (Platform.WSL, (ALL,))
    assert scanned.inventory.driver == Driver(version="580.65.06", cuda_version="13.0")
    assert (scanned.vitals, scanned.unwatched, scanned.inventory.unreadable) == ({}, ("all",), ())


def test_wsl_without_gpus_has_no_device(ask_node):
    assert scan(ask_node("platform: wsl\n")).inventory.gpus == ()


def test_the_device_of_wsl_is_faulty_only_if_nvml_reaches_no_gpu(ask_node):
    (gpu,) = scan(ask_node(WSL_NODE + "faults:\n" + fail(0, 2))).inventory.gpus
    assert (gpu.fault, gpu.product) == (None, "Tesla T4")
    asked = ask_node(WSL_NODE + "faults:\n" + fail(0, 1, 2))
    (gpu,) = scan(asked).inventory.gpus
    assert (gpu.fault.call, gpu.fault.kind, gpu.product) == (HANDLE, "GpuIsLost", None)
    assert asked.spawn().call(Probe(gpu=OF_ALL), limit_s=5) == Probed(gpu=gpu, fault=gpu.fault)


def test_a_call_of_wsl_that_does_not_return_is_blamed_on_the_one_device(ask_node):
    asked = ask_node(WSL_NODE + f"faults:\n- {{call: {HANDLE}, gpu: 1, hang: true}}\n")
    hung = asked.scan(limit_s=0.3)
    assert isinstance(hung, Hung)
    assert hung.gpu == OF_ALL
    scanned = scan(asked, skip=(OF_ALL, GpuRef(index=0, count=3, uuid="GPU-x")))
    assert (scanned.skipped, scanned.inventory.gpus) == ((OF_ALL,), ())
    assert asked.spawn().call(Probe(gpu=OF_ALL, skip=(OF_ALL,)), limit_s=5) == Probed()


@pytest.mark.parametrize("text", [WSL_NODE, "platform: tegra\n"])
def test_nobody_tells_which_processes_use_the_one_device(ask_node, text):
    asked = ask_node(text)
    client = asked.spawn()
    (gpu,) = scan(asked, client=client).inventory.gpus
    told = client.call(Processes(gpu=GpuRef(index=0, count=0, uuid=gpu.uuid)), limit_s=5)
    assert (told.processes, told.fault.kind) == (None, "NotSupported")
    assert client.call(Processes(gpu=GpuRef(index=0, count=0, uuid="GPU-x")), limit_s=5) == ProcessesRead()


@pytest.mark.parametrize("text", [WSL_NODE, "platform: tegra\n"])
def test_the_one_device_has_no_compute_mode_that_could_be_set(ask_node, text):
    children = ask_node(text).children
    (gpu,) = scan(ask_node(text)).inventory.gpus
    assert gpu.compute_mode is None
    with pytest.raises(NvmlError, match=r"this system has no compute modes that could be set$"):
        set_compute_mode(children, gpu.uuid, ComputeMode.PROHIBITED, limit_s=5)
    with pytest.raises(NvmlError, match=r"GPU-x .* counts no such GPU$"):
        set_compute_mode(children, "GPU-x", ComputeMode.PROHIBITED, limit_s=5)


# Tegra


def test_a_tegra_system_without_nvml_has_one_device_of_which_nothing_is_known(ask_node):
    scanned = scan(ask_node("platform: tegra\n"))
    assert (scanned.inventory.platform, scanned.inventory.gpus) == (Platform.TEGRA, (CHIP,))
    assert scanned.inventory.driver == Driver(version="", cuda_version="")


def test_nvml_that_knows_the_gpu_of_a_chip_means_tegra_for_all_that_its_session_answers(ask_node):
    asked = ask_node("gpus: [{model: t4}, {product: Orin (nvgpu)}]")
    client = asked.spawn()
    assert scan(asked, client=client).inventory.gpus == (CHIP,)
    chip = GpuRef(index=0, count=1, uuid="tegra")
    assert client.call(Probe(gpu=chip), limit_s=5) == Probed(gpu=CHIP)


def test_nvml_that_is_asked_for_tells_of_the_gpu_of_a_chip_too(ask_node):
    (gpu,) = scan(ask_node("gpus: [{product: NVIDIA Thor}]", NVML)).inventory.gpus
    assert gpu.product == "NVIDIA Thor"


@pytest.mark.parametrize(
    ("product", "expected"),
    [
        ("Orin (nvgpu)", True),
        ("NVIDIA Thor", True),
        ("NVIDIA Thor X", True),
        ("NVIDIA thor", False),
        ("NVIDIA L4", False),
        (None, False),
    ],
)
def test_the_gpu_of_a_chip_is_told_by_its_name(product, expected):
    assert is_integrated(Gpu(uuid="GPU-x", index=0, product=product)) is expected


@pytest.mark.parametrize("text", [WSL_NODE, "driver: {state: missing}"])
def test_tegra_that_is_asked_for_asks_nobody(ask_node, text):
    assert scan(ask_node(text, TEGRA)).inventory.gpus == (CHIP,)


def test_nvml_that_is_asked_for_is_missed_on_a_tegra_system(ask_node):
    refused = ask_node("platform: tegra\n", NVML).scan()
    assert isinstance(refused, Refused)
    assert refused.kind == "LibraryNotFound"


# By the files of a system


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"etc/nv_tegra_release": "# R36"}, True),
        ({"sys/devices/soc0/family": "Tegra\n"}, True),
        ({"sys/devices/soc0/family": "TEGRA234"}, True),
        ({"sys/devices/soc0/family": "Snapdragon"}, False),
        ({"sys/devices/soc0/family": ""}, False),
        ({}, False),
    ],
)
def test_a_tegra_system_is_told_by_its_files(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    assert has_tegra_files(str(tmp_path)) is expected


def test_tegra_files_count_only_where_there_is_no_nvml(fake_driver, asking):
    (fake_driver.root / "etc").mkdir()
    (fake_driver.root / "etc/nv_tegra_release").touch()
    source = {"driver_root": str(fake_driver.root)}
    assert scan(asking(**source)).inventory.gpus == (CHIP,)
    assert isinstance(asking(**source, discovery=NVML).scan(), Refused)
    fake_driver.install()
    assert scan(asking(**source)).inventory.platform is Platform.NVML


@pytest.mark.parametrize(("directory", "discovery"), [("usr/lib64", NVML), ("usr/lib/wsl/lib", AUTO)])
def test_a_dxcore_library_that_loads_means_wsl(fake_driver, asking, directory, discovery):
    fake_driver.install()
    place = fake_driver.root / directory
    place.mkdir(parents=True, exist_ok=True)
    source = {"driver_root": str(fake_driver.root), "discovery": discovery}
    (place / "libdxcore.so").write_text("no library")
    assert scan(asking(**source)).inventory.platform is Platform.NVML
    shutil.copy(fake_driver.library, place / "libdxcore.so")
    scanned = scan(asking(**source))
    assert scanned.inventory.platform is Platform.WSL
    assert [(gpu.uuid, gpu.product) for gpu in scanned.inventory.gpus] == [("all", "NVIDIA Fake")]


# Node files


def test_a_simulated_tegra_system_has_no_cards():
    with pytest.raises(HostError, match=r"^node: gpus: a Tegra system has no cards"):
        parse_node("platform: tegra\ngpus: [{model: t4}]", name="node")


@pytest.mark.parametrize("text", ["platform: tegra\n", WSL_NODE + "faults:\n" + fail(0, 1, 2)])
def test_an_exported_node_of_the_platform_is_the_same_to_a_scan(ask_node, text):
    inventory = scan(ask_node(text)).inventory
    assert scan(ask_node(build_node_file(inventory))).inventory == inventory


# In the service that knows the GPUs


def test_another_strategy_of_the_file_is_followed_at_once(tmp_path):
    file = tmp_path / "node.yaml"
    file.write_text("gpus: [{model: t4}]")
    bench = Bench(NvmlChildren(simulated=str(file)))
    settings = {"rescan_interval_s": 60.0, "remove_after_s": 300.0, "call_timeout_s": 5.0}
    try:
        bench.service.configure(**settings)
        bench.service.start()
        bench.wait_healthy(1)
        bench.service.configure(**settings, source=Source(discovery=TEGRA))
        post = bench.wait(lambda post: post.inventory.platform is Platform.TEGRA)
        assert "tegra" not in post.ailments
        assert [one.cause for one in post.ailments.values()] == [Cause.VANISHED]
    finally:
        bench.service.stop()


def test_wsl_turns_unhealthy_and_recovers_as_a_whole(tmp_path):
    file = tmp_path / "node.yaml"
    fresh = tmp_path / "fresh.yaml"

    def write(text: str) -> None:
        fresh.write_text(text)
        fresh.rename(file)

    write(WSL_NODE)
    bench = Bench(NvmlChildren(simulated=str(file)))
    bench.hurry()
    try:
        bench.service.start()
        bench.wait_healthy(1)
        write(WSL_NODE + f"faults:\n- {{call: {HANDLE}, gpu: 1, hang: true}}\n")
        bench.wait(lambda post: {u: a.cause for u, a in post.ailments.items()} == {"all": Cause.CALL_TIMEOUT})
        write(WSL_NODE + "faults:\n" + fail(1, 2))
        bench.wait_healthy(1)
    finally:
        bench.service.stop()
