"""The simulated library, called by pynvml's own wrappers: directly, and through real ctypes callbacks."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pynvml
import pytest

from nvdp.nvml.frames import Refused, Scanned
from nvdp.nvml.library import install_library
from nvdp.nvml.simulated.calls import CALLS, build_calls
from nvdp.nvml.simulated.machine import Machine
from nvdp.nvml.simulated.names import CALL_NAMES, normalise_call

NODE = """
driver: {version: 570.1, cuda: 12.8, migMonitor: true}
gpus:
- model: a100-sxm4-80gb
  count: 2
  uuid: [GPU-a, GPU-b]
  pci: [0000:07:00.0, 0001:0f:00.0]
  numa: [0, 1]
  nvswitchLinks: 2
  processes: [{pid: 42, memoryBytes: 1048576}, {pid: 43}, {pid: 44, graphics: true}]
- {model: t4, uuid: GPU-c, pci: 0000:0f:00.0, numa: 0}
layouts:
- gpu: 0
  instances:
  - {profile: 1g.10gb, uuid: MIG-1, gpuInstance: 7}
  - null
  - {profile: 1c.3g.40gb, uuid: MIG-2, computeInstance: 1}
- {gpu: 1, migPending: enabled}
nvlinks: [{gpus: [0, 1], links: 3}]
pcieSwitches: [[0, 2]]
"""


@pytest.fixture
def write_node(tmp_path):
    path = tmp_path / "node.yaml"

    def write(text: str = "", *, base: str = NODE) -> str:
        fresh = tmp_path / "fresh.yaml"
        fresh.write_text(base + text)
        fresh.rename(path)
        return str(path)

    return write


def build_callbacks(machine: Machine) -> SimpleNamespace:
    """The same functions behind C function pointers: libffi converts the arguments, not pynvml's good will."""
    functions = {}
    for name, call in build_calls(machine).items():
        if name != "nvmlErrorString":  # a callback cannot return text that stays alive
            prototype = ctypes.CFUNCTYPE(ctypes.c_int, *(parameter.c_type for parameter in call.parameters))
            functions[name] = prototype(call)
    return SimpleNamespace(**functions)


def build_directly(machine: Machine) -> SimpleNamespace:
    return SimpleNamespace(**build_calls(machine))


@pytest.fixture(params=[build_directly, build_callbacks], ids=["pynvml", "ctypes"])
def machine(request, write_node):
    made = Machine(write_node())
    install_library(request.param(made))
    yield made
    install_library(None)


@pytest.fixture
def nvml(machine):
    pynvml.nvmlInit()
    return pynvml


def raises(code: int):
    return pytest.raises(pynvml.NVMLError, check=lambda error: error.value == code)


def test_the_driver_tells_its_versions(nvml) -> None:
    assert nvml.nvmlSystemGetDriverVersion() == "570.1"
    assert nvml.nvmlSystemGetNVMLVersion() == "570.1"
    assert nvml.nvmlSystemGetCudaDriverVersion() == nvml.nvmlSystemGetCudaDriverVersion_v2() == 12080


def test_a_card_tells_its_facts(nvml) -> None:
    assert nvml.nvmlDeviceGetCount() == 3
    card = nvml.nvmlDeviceGetHandleByIndex(1)
    assert nvml.nvmlDeviceGetUUID(card) == "GPU-b"
    assert nvml.nvmlDeviceGetIndex(card) == nvml.nvmlDeviceGetMinorNumber(card) == 1
    assert nvml.nvmlDeviceGetName(card) == "NVIDIA A100-SXM4-80GB"
    assert nvml.nvmlDeviceGetPciInfo(card).busId == "00000001:0F:00.0"
    assert nvml.nvmlDeviceGetPciInfo(card).domain == 1
    memory = nvml.nvmlDeviceGetMemoryInfo(card)
    assert (memory.total, memory.used) == (81920 << 20, 1 << 20)
    assert memory.free == memory.total - memory.used
    assert nvml.nvmlDeviceGetCudaComputeCapability(card) == (8, 0)
    assert [(p.pid, p.usedGpuMemory) for p in nvml.nvmlDeviceGetComputeRunningProcesses(card)] == [
        (42, 1 << 20),
        (43, 0),
    ]
    assert [process.pid for process in nvml.nvmlDeviceGetGraphicsRunningProcesses(card)] == [44]


def test_a_card_is_found_by_uuid_and_slot(nvml) -> None:
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID("GPU-c")) == 2
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId("0000:0F:00.0")) == 2
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId("00000001:0f:00.0")) == 1
    with raises(nvml.NVML_ERROR_NOT_FOUND):
        nvml.nvmlDeviceGetHandleByUUID("GPU-z")
    with raises(nvml.NVML_ERROR_NOT_FOUND):
        nvml.nvmlDeviceGetHandleByPciBusId("0000:ff:00.0")


def test_mig_devices_are_devices_of_their_card(nvml) -> None:
    card = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetMigMode(card) == [1, 1]
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(card) == 7
    mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 2)
    assert nvml.nvmlDeviceIsMigDeviceHandle(mig).value == 1
    assert nvml.nvmlDeviceIsMigDeviceHandle(card).value == 0
    assert nvml.nvmlDeviceGetUUID(mig) == "MIG-2"
    assert nvml.nvmlDeviceGetName(mig) == "NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb"
    assert (nvml.nvmlDeviceGetGpuInstanceId(mig), nvml.nvmlDeviceGetComputeInstanceId(mig)) == (17, 1)
    assert nvml.nvmlDeviceGetMemoryInfo(mig).total == 38912 << 20
    attributes = nvml.nvmlDeviceGetAttributes_v2(mig)
    assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 1)
    assert (attributes.memorySizeMB, attributes.sharedDecoderCount) == (38912, 3)
    inside = nvml.nvmlGpuInstanceGetInfo(nvml.nvmlDeviceGetGpuInstanceById(card, 17))
    assert (inside.id, inside.profileId) == (17, 9)
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)) == "GPU-a"
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID("MIG-1")) == "MIG-1"
    for call in (
        lambda: nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 1),
        lambda: nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 3),
        lambda: nvml.nvmlDeviceGetGpuInstanceById(card, 1),
        lambda: nvml.nvmlDeviceGetMigDeviceHandleByIndex(nvml.nvmlDeviceGetHandleByIndex(2), 0),
    ):
        with raises(nvml.NVML_ERROR_NOT_FOUND):
            call()
    with raises(nvml.NVML_ERROR_INVALID_ARGUMENT):
        nvml.nvmlDeviceGetMinorNumber(mig)
    with raises(nvml.NVML_ERROR_NOT_SUPPORTED):
        nvml.nvmlDeviceGetGpuInstanceId(card)
    with raises(nvml.NVML_ERROR_NOT_SUPPORTED):
        nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByIndex(2))
    assert nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByIndex(1)) == [0, 1]


def test_a_card_tells_what_instances_it_offers(nvml) -> None:
    card = nvml.nvmlDeviceGetHandleByIndex(0)
    named = nvml.nvmlDeviceGetGpuInstanceProfileInfo(card, nvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1)
    assert (named.id, named.sliceCount, named.memorySizeMB, named.ofaCount) == (20, 1, 9728, 1)
    assert named.name in {"MIG 1g.10gb+me", b"MIG 1g.10gb+me"}
    assert nvml.nvmlDeviceGetGpuInstanceProfileInfo(card, 4, version=1).sliceCount == 7
    for number, code in ((5, nvml.NVML_ERROR_NOT_SUPPORTED), (32, nvml.NVML_ERROR_INVALID_ARGUMENT)):
        with raises(code):
            nvml.nvmlDeviceGetGpuInstanceProfileInfo(card, number)


def test_a_process_without_the_monitor_capability_may_ask_mig_devices_but_not_their_card(nvml, write_node) -> None:
    write_node(base=NODE.replace(", migMonitor: true", "").replace("{pid: 43}", "{pid: 43, instance: 0}"))
    card = nvml.nvmlDeviceGetHandleByIndex(0)
    mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
    for call in (
        lambda: nvml.nvmlDeviceGetMemoryInfo(card),
        lambda: nvml.nvmlDeviceGetGpuInstanceById(card, 7),
        lambda: nvml.nvmlDeviceGetComputeRunningProcesses(card),
    ):
        with raises(nvml.NVML_ERROR_NO_PERMISSION):
            call()
    assert nvml.nvmlDeviceGetMemoryInfo(mig).total == 9728 << 20
    assert [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(mig)] == [43]
    assert nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(1)).total == 81920 << 20


def test_a_mig_device_that_is_no_more_is_no_device(nvml, write_node) -> None:
    mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(nvml.nvmlDeviceGetHandleByIndex(0), 0)
    write_node(base=NODE.replace("{profile: 1g.10gb, uuid: MIG-1, gpuInstance: 7}", "null"))
    with raises(nvml.NVML_ERROR_INVALID_ARGUMENT):
        nvml.nvmlDeviceGetUUID(mig)
    write_node()
    assert nvml.nvmlDeviceGetUUID(mig) == "MIG-1"


def test_links_and_topology_are_those_of_the_node_file(nvml) -> None:
    first, second, third = (nvml.nvmlDeviceGetHandleByIndex(n) for n in range(3))
    assert nvml.nvmlDeviceGetTopologyCommonAncestor(first, third) == nvml.NVML_TOPOLOGY_SINGLE
    assert nvml.nvmlDeviceGetTopologyCommonAncestor(first, second) == nvml.NVML_TOPOLOGY_SYSTEM
    remote = []
    for link in range(5):
        assert nvml.nvmlDeviceGetNvLinkState(first, link) == 1
        kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(first, link)
        remote.append((kind, nvml.nvmlDeviceGetNvLinkRemotePciInfo(first, link).busId))
    assert remote == [(0, "00000001:0F:00.0")] * 3 + [(2, "00000000:FF:00.0")] * 2
    with raises(nvml.NVML_ERROR_INVALID_ARGUMENT):
        nvml.nvmlDeviceGetNvLinkState(first, 5)
    with raises(nvml.NVML_ERROR_INVALID_ARGUMENT):
        nvml.nvmlDeviceGetNvLinkState(third, 0)
    with raises(nvml.NVML_ERROR_INVALID_ARGUMENT):
        nvml.nvmlDeviceGetTopologyCommonAncestor(first, first)


def test_nothing_works_before_nvml_is_initialised_nor_after_it_is_shut_down(machine) -> None:
    for _ in range(2):
        with raises(pynvml.NVML_ERROR_UNINITIALIZED):
            pynvml.nvmlDeviceGetCount()
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 3
        pynvml.nvmlShutdown()


def test_handles_that_were_never_given_out_and_places_that_are_empty_are_refused(nvml) -> None:
    with raises(nvml.NVML_ERROR_INVALID_ARGUMENT):
        nvml.nvmlDeviceGetName(ctypes.cast(0x77, pynvml.c_nvmlDevice_t))
    with raises(nvml.NVML_ERROR_INVALID_ARGUMENT):
        nvml.nvmlDeviceGetHandleByIndex(3)


def test_an_edit_of_the_file_changes_the_machine_under_way(nvml, write_node) -> None:
    card = nvml.nvmlDeviceGetHandleByIndex(1)
    write_node("lost: [1]")
    with raises(nvml.NVML_ERROR_GPU_IS_LOST):
        nvml.nvmlDeviceGetName(card)
    with raises(nvml.NVML_ERROR_GPU_IS_LOST):
        nvml.nvmlDeviceGetHandleByIndex(1)
    assert nvml.nvmlDeviceGetCount() == 3
    write_node("removed: [GPU-b]")
    assert nvml.nvmlDeviceGetCount() == 2
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(1)) == "GPU-c", "those behind move up"
    with raises(nvml.NVML_ERROR_GPU_IS_LOST):
        nvml.nvmlDeviceGetName(card)
    write_node("driver: {state: missing}", base="")
    with raises(nvml.NVML_ERROR_DRIVER_NOT_LOADED):
        nvml.nvmlDeviceGetCount()
    write_node()
    assert nvml.nvmlDeviceGetUUID(card) == "GPU-b", "and the old handle is good again"


def test_a_broken_edit_leaves_the_machine_as_it_was_and_says_so_once(nvml, write_node, capsys) -> None:
    path = write_node("lost: nonsense")
    assert nvml.nvmlDeviceGetCount() == nvml.nvmlDeviceGetCount() == 3
    assert capsys.readouterr().err == f"{path}: lost: Expected array, got str; the simulated machine stays as it was\n"
    write_node("removed: [0]")
    assert nvml.nvmlDeviceGetCount() == 2


def test_a_fault_strikes_the_call_and_the_card_it_names(nvml, write_node) -> None:
    write_node("faults: [{call: nvmlDeviceGetName, gpu: 1, error: ResetRequired}, {call: nvmlDeviceGetC*, error: 77}]")
    first, second = (nvml.nvmlDeviceGetHandleByIndex(n) for n in range(2))
    assert nvml.nvmlDeviceGetName(first)
    with raises(nvml.NVML_ERROR_RESET_REQUIRED):
        nvml.nvmlDeviceGetName(second)
    with raises(77):
        nvml.nvmlDeviceGetCount()
    with raises(77):
        nvml.nvmlDeviceGetComputeRunningProcesses(second)


def test_pynvml_may_set_attributes_and_read_error_texts(write_node) -> None:
    install_library(build_directly(Machine(write_node())))
    assert "fallen off the bus" in pynvml.nvmlErrorString(15)
    install_library(None)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("nvmlDeviceGetCount_v2", (ctypes.c_uint(),)),
        ("nvmlDeviceGetCount_v2", (0,)),
        ("nvmlDeviceGetCount_v2", (ctypes.byref(ctypes.c_ulonglong()),)),
        ("nvmlDeviceGetCount_v2", ()),
        ("nvmlInitWithFlags", (ctypes.byref(ctypes.c_uint()),)),
        ("nvmlDeviceGetHandleByIndex_v2", (0, pynvml.c_nvmlDevice_t())),
        ("nvmlSystemGetDriverVersion", (b"text", 80)),
        ("nvmlDeviceGetHandleByUUID", ("text", ctypes.byref(pynvml.c_nvmlDevice_t()))),
        ("nvmlDeviceGetName", (ctypes.byref(pynvml.c_nvmlDevice_t()), ctypes.create_string_buffer(9), 9)),
    ],
)
def test_an_argument_that_c_would_not_survive_raises(write_node, name, arguments) -> None:
    call = build_calls(Machine(write_node()))[name]
    with pytest.raises(TypeError, match=name):
        call(*arguments)


def test_the_compute_mode_is_what_was_set_last(nvml) -> None:
    first, second, third = (nvml.nvmlDeviceGetHandleByIndex(n) for n in range(3))
    assert nvml.nvmlDeviceGetComputeMode(second) == nvml.NVML_COMPUTEMODE_DEFAULT
    nvml.nvmlDeviceSetComputeMode(second, nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    modes = [nvml.nvmlDeviceGetComputeMode(card) for card in (first, second, third)]
    assert modes == [0, nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, 0]
    with raises(nvml.NVML_ERROR_NOT_SUPPORTED):
        nvml.nvmlDeviceSetComputeMode(first, nvml.NVML_COMPUTEMODE_PROHIBITED)  # it is in MIG mode
    with raises(nvml.NVML_ERROR_INVALID_ARGUMENT):
        nvml.nvmlDeviceSetComputeMode(second, nvml.NVML_COMPUTEMODE_COUNT)


def test_null_and_too_small_buffers_are_refused_as_nvml_does(write_node) -> None:
    calls = build_calls(Machine(write_node()))
    assert calls["nvmlInitWithFlags"](0) == 0
    assert calls["nvmlDeviceGetCount_v2"](None) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    buffer = ctypes.create_string_buffer(3)
    assert calls["nvmlSystemGetDriverVersion"](buffer, 3) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE


def test_faults_can_name_every_call_there_is_and_no_other() -> None:
    assert sorted({normalise_call(name) for name in CALLS}) == sorted(CALL_NAMES)


def test_every_call_is_one_that_pynvml_knows() -> None:
    assert [name for name in CALL_NAMES if not hasattr(pynvml, name)] == []


def test_the_child_scans_a_simulated_machine_with_its_numa_nodes(write_node, asking) -> None:
    scanned = asking(simulated=write_node()).scan()
    assert isinstance(scanned, Scanned)
    assert [(gpu.uuid, gpu.numa_node) for gpu in scanned.inventory.gpus] == [("GPU-a", 0), ("GPU-b", 1), ("GPU-c", 0)]


@pytest.mark.parametrize(
    ("driver", "kind", "told"),
    [
        ("{state: missing}", "LibraryNotFound", "says driver.state: missing; /dev/nvidiactl is missing"),
        ("{state: not-loaded}", "DriverNotLoaded", "load it on the node"),
        ("{version: 580.1, kernel: 570.2}", "LibRmVersionMismatch", "kernel module 570.2, library 580.1; reload"),
        ("{state: what}", "LibraryNotFound", "driver.state: Invalid enum value"),
    ],
)
def test_a_simulated_driver_fails_to_start_as_a_real_one_does(write_node, asking, driver, kind, told) -> None:
    refused = asking(simulated=write_node(f"driver: {driver}", base="")).scan()
    assert isinstance(refused, Refused)
    assert refused.kind == kind
    assert told in refused.text
