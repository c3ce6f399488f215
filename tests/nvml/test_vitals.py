"""The condition of a GPU as the child reads it, from a compiled libnvidia-ml and from a simulated one."""

from __future__ import annotations

import pynvml
import pytest

from nvdp.model.health import NvLink, Vitals
from nvdp.model.inventory import GpuRef
from nvdp.nvml.conditions import (
    FABRIC_PARTS,
    FABRIC_STATES,
    RECOVERY_ACTION_FIELD,
    RECOVERY_ACTIONS,
    find_fabric_faults,
)
from nvdp.nvml.frames import ComputeProcess, Probe, Probed, Processes, ProcessesRead, Scanned
from nvdp.nvml.kinds import NvmlErrorKind
from nvdp.nvml.outcomes import Died, Hung

LIMIT_S = 0.4
CARDS = "cards 0 1 2 3"


def uuid(card: int) -> str:
    return f"GPU-{card:08x}-0000-0000-0000-000000000000"


def ref(card: int) -> GpuRef:
    return GpuRef(index=card, count=4, pci=f"0000:{0x10 + card:02x}:00.0", uuid=uuid(card))


@pytest.fixture
def fake(fake_driver, asking):
    fake_driver.install()
    return asking(driver_root=str(fake_driver.root))


@pytest.fixture
def read(fake_driver, fake):
    """The vitals of card 1 under these lines of the fake's file."""

    def read_vitals(*lines: str) -> Vitals:
        fake_driver.configure(CARDS, *lines)
        scanned = fake.scan()
        assert isinstance(scanned, Scanned)
        assert [gpu.fault for gpu in scanned.inventory.gpus] == [None] * 4
        assert all(scanned.vitals[uuid(n)] == Vitals() for n in (0, 2, 3)), "and no other card's"
        return scanned.vitals[uuid(1)]

    return read_vitals


def test_what_a_gpu_does_not_offer_says_nothing(read) -> None:
    assert read() == Vitals()


def test_a_library_with_the_oldest_calls_only_says_nothing(fake_driver, asking) -> None:
    fake_driver.install(basic=True)
    scanned = asking(driver_root=str(fake_driver.root)).scan()
    assert isinstance(scanned, Scanned)
    assert scanned.vitals == {uuid(n): Vitals() for n in range(4)}


READINGS = [
    ("recovery 0", {"recovery_action": "None"}),
    ("recovery 1", {"recovery_action": "GPUReset"}),
    ("recovery 7", {"recovery_action": "SystemReboot"}),
    ("recovery 42", {"recovery_action": "Unknown"}),
    ("remap_failure 0", {"row_remap_failure": False}),
    ("remap_failure 1", {"row_remap_failure": True}),
    ("pages_pending 0", {"retired_pages_pending": False}),
    ("pages_pending 1", {"retired_pages_pending": True}),
    ("ecc_memory 3", {"uncorrected_memory": 3}),
    ("ecc_sram 4", {"uncorrected_sram": 4}),
    ("ecc_total 5", {"uncorrected_memory": 5}),
    ("links 0", {"nvlinks": None}),
    ("fabric_state 0", {}),
    ("fabric_state 1", {"fabric_state": "NotStarted", "fabric_status": "Success"}),
    ("fabric_state 2", {"fabric_state": "InProgress", "fabric_status": "Success"}),
]


@pytest.mark.parametrize(("reading", "told"), READINGS)
def test_a_reading_is_told_in_the_words_of_the_field(read, reading, told) -> None:
    assert read(f"vital 1 {reading}", "vital 1 fabric_status 0", "vital 1 fabric_mask 0") == Vitals(**told)


def test_a_total_does_not_stand_beside_a_count_of_the_memory(read) -> None:
    assert read("vital 1 ecc_memory 0", "vital 1 ecc_total 5") == Vitals(uncorrected_memory=0)


def test_a_count_that_failed_is_not_replaced_by_a_total_that_may_mean_something_else(read) -> None:
    vitals = read("fail nvmlDeviceGetMemoryErrorCounter 999 1", "vital 1 ecc_total 5")
    assert vitals == Vitals(errors=("nvmlDeviceGetMemoryErrorCounter",))


def test_each_link_is_told_with_its_other_end(read) -> None:
    links = read("vital 1 links 3", "vital 1 links_down 2").nvlinks
    assert links == (
        NvLink(number=0, up=True, peer="0000:10:00.0"),
        NvLink(number=1, up=False),
        NvLink(number=2, up=True, peer="0000:10:00.0"),
    )


def test_the_other_end_of_a_link_is_known_when_it_goes_down_and_not_asked_again(fake_driver, fake) -> None:
    fake_driver.configure(CARDS, "vital 1 links 1")
    client = fake.spawn()
    assert fake.scan(client).vitals[uuid(1)].nvlinks == (NvLink(number=0, up=True, peer="0000:10:00.0"),)
    fake_driver.configure(CARDS, "vital 1 links 1", "vital 1 links_down 1", "fail nvmlDeviceGetNvLinkRemotePciInfo 999")
    vitals = fake.scan(client).vitals[uuid(1)]
    assert vitals == Vitals(nvlinks=(NvLink(number=0, up=False, peer="0000:10:00.0"),))


def test_links_whose_other_ends_nobody_tells_are_links_all_the_same(read) -> None:
    vitals = read("vital 1 links 2", "fail nvmlDeviceGetNvLinkRemotePciInfo 3 1")
    assert vitals == Vitals(nvlinks=(NvLink(number=0, up=True), NvLink(number=1, up=True)))


@pytest.mark.parametrize(
    ("status", "mask", "told"),
    [
        (0, 0, ("Success", ())),
        (0, 0x1 | 0x2 << 2, ("Success", ("DegradedBandwidth",))),
        (10, 0x5 | 0x2 << 8, ("Timeout", ("DegradedBandwidth", "RouteRecovery", "Misconfigured"))),
        (4711, 0x5A, ("Unknown", ("RouteUnhealthy", "AccessTimeoutRecovery"))),
    ],
)
def test_the_place_in_the_fabric_is_told_with_all_that_is_wrong(read, status, mask, told) -> None:
    lines = ("fabric_state 3", f"fabric_status {status}", f"fabric_mask {mask}")
    vitals = read(*(f"vital 1 {line}" for line in lines))
    assert vitals == Vitals(fabric_state="Completed", fabric_status=told[0], fabric_faults=told[1])


@pytest.mark.parametrize("code", [13, 25])
def test_an_older_driver_tells_the_fabric_without_its_health(read, code) -> None:
    lines = ("vital 1 fabric_state 3", "vital 1 fabric_status 0", "vital 1 fabric_mask 1")
    vitals = read(*lines, f"fail nvmlDeviceGetGpuFabricInfoV {code} 1")
    assert vitals == Vitals(fabric_state="Completed", fabric_status="Success")


EACH_CALL = (
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetMemoryErrorCounter",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetGpuFabricInfo",
)


@pytest.mark.invariant(5)
@pytest.mark.parametrize("call", EACH_CALL)
def test_a_reading_that_fails_is_noted_and_no_fault_of_the_gpu(read, call) -> None:
    assert read(f"fail {call} 999 1") == Vitals(errors=(call,))


@pytest.mark.invariant(5)
@pytest.mark.parametrize("call", EACH_CALL)
def test_a_gpu_that_a_reading_finds_lost_has_that_as_its_fault(fake_driver, fake, call) -> None:
    fake_driver.configure(CARDS, f"fail {call} 15 1")
    scanned = fake.scan()
    assert isinstance(scanned, Scanned)
    faults = [gpu.fault and (gpu.fault.call, gpu.fault.kind) for gpu in scanned.inventory.gpus]
    assert faults == [None, (call, "GpuIsLost"), None, None]
    assert scanned.vitals[uuid(1)] == Vitals(errors=(call,))


@pytest.mark.parametrize("call", EACH_CALL)
def test_a_reading_that_is_not_supported_says_nothing(read, call) -> None:
    assert read(f"fail {call} 3 1") == read(f"fail {call} 13 1") == Vitals()


def test_counters_that_move_do_not_make_it_another_inventory(fake_driver, fake) -> None:
    client = fake.spawn()
    fake_driver.configure(CARDS, "vital 1 ecc_memory 0")
    first = fake.scan(client)
    fake_driver.configure(CARDS, "vital 1 ecc_memory 1")
    second = fake.scan(client)
    assert first.inventory == second.inventory
    assert first.vitals != second.vitals


def test_a_probe_reads_the_same(fake_driver, fake) -> None:
    fake_driver.configure(CARDS, "vital 1 recovery 2", "vital 1 links 1")
    client = fake.spawn()
    probed = client.call(Probe(gpu=ref(1)), limit_s=5)
    assert isinstance(probed, Probed)
    assert probed.vitals == fake.scan(client).vitals[uuid(1)]
    assert probed.vitals.recovery_action == "NodeReboot"


def test_what_computes_on_a_gpu_is_told_when_it_is_asked(fake) -> None:
    client = fake.spawn()
    told = client.call(Processes(gpu=ref(2)), limit_s=5)
    assert told == ProcessesRead(processes=(ComputeProcess(pid=1002, memory_bytes=1 << 30),))
    gone = client.call(Processes(gpu=GpuRef(index=7, count=8, pci="0000:17:00.0")), limit_s=5)
    assert gone == ProcessesRead()


def test_an_older_library_is_asked_by_the_older_name(fake_driver, asking) -> None:
    fake_driver.install(basic=True)
    told = asking(driver_root=str(fake_driver.root)).spawn().call(Processes(gpu=GpuRef(index=2, count=4)), limit_s=5)
    assert told == ProcessesRead(processes=(ComputeProcess(pid=1002, memory_bytes=1 << 30),))


def test_asking_for_processes_touches_no_other_gpu_and_fails_hangs_and_crashes_as_a_probe_does(
    fake_driver, fake
) -> None:
    call = "nvmlDeviceGetComputeRunningProcesses"
    fake_driver.configure(CARDS, "hang nvmlDeviceGetUUID 0", "hang nvmlDeviceGetHandleByIndex 3", f"hang {call} 1")
    skip = (GpuRef(index=3, count=4),)
    assert fake.spawn().call(Processes(gpu=ref(2), skip=skip), limit_s=5).processes
    hung = fake.spawn().call(Processes(gpu=ref(1), skip=skip), limit_s=LIMIT_S)
    assert hung == Hung(call=call, gpu=ref(1), limit_s=LIMIT_S)
    fake_driver.configure(CARDS, f"abort {call} 1", f"fail {call} 3 2", "fail nvmlDeviceGetUUID 15 3")
    died = fake.spawn().call(Processes(gpu=ref(1)), limit_s=5)
    assert isinstance(died, Died)
    assert died.at_fault
    client = fake.spawn()
    faults = [client.call(Processes(gpu=ref(card)), limit_s=5).fault for card in (2, 3)]
    assert [(fault.call, fault.kind) for fault in faults] == [
        (call, "NotSupported"),
        ("nvmlDeviceGetUUID", "GpuIsLost"),
    ]


def test_a_simulated_node_fares_as_its_file_says(asking, tmp_path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(
        """
gpus: [{model: h100-sxm5-80gb, count: 2, nvswitchLinks: 2}, {model: t4}, {model: a100-sxm4-80gb, nvswitchLinks: 1}]
conditions:
- {gpu: 1, recoveryAction: DrainAndReset, remapFailure: true, ecc: {memory: 1, sram: 2}, linksDown: [1],
   fabric: {state: InProgress, status: Timeout, faults: [RouteUnhealthy, Misconfigured]}}
- {gpu: 2, recoveryAction: Unsupported, retiredPagesPending: true, ecc: {memory: 7}}
- {gpu: 3, recoveryAction: Unknown, fabric: {state: NotStarted}}
"""
    )
    scanned = asking(simulated=str(path)).scan()
    assert isinstance(scanned, Scanned)
    well, ailing, old, mid = scanned.vitals.values()
    switch = "0000:ff:00.0"
    assert well == Vitals(
        recovery_action="None",
        row_remap_failure=False,
        uncorrected_memory=0,
        uncorrected_sram=0,
        nvlinks=(NvLink(number=0, up=True, peer=switch), NvLink(number=1, up=True, peer=switch)),
        fabric_state="Completed",
        fabric_status="Success",
    )
    assert ailing == Vitals(
        recovery_action="DrainAndReset",
        row_remap_failure=True,
        uncorrected_memory=1,
        uncorrected_sram=2,
        nvlinks=(NvLink(number=0, up=True, peer=switch), NvLink(number=1, up=False)),
        fabric_state="InProgress",
        fabric_status="Timeout",
        fabric_faults=("RouteUnhealthy", "Misconfigured"),
    )
    assert old == Vitals(retired_pages_pending=True, uncorrected_memory=7)
    assert (mid.recovery_action, mid.fabric_state, mid.fabric_status) == ("Unknown", "NotStarted", "Success")


def test_the_numbers_are_those_of_nvml() -> None:
    assert pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION == RECOVERY_ACTION_FIELD
    prefix = "NVML_GPU_RECOVERY_ACTION_"
    actions = {name.removeprefix(prefix): getattr(pynvml, name) for name in dir(pynvml) if name.startswith(prefix)}
    told = {number: word.upper() for number, word in RECOVERY_ACTIONS.items()}
    assert {number: name.replace("_", "") for name, number in actions.items()} == told
    for number, word in FABRIC_STATES.items():
        upper = {"NotStarted": "NOT_STARTED", "InProgress": "IN_PROGRESS"}.get(word, word.upper())
        assert getattr(pynvml, f"NVML_GPU_FABRIC_STATE_{upper}") == number


@pytest.mark.parametrize(
    ("fault", "name", "well"),
    [
        ("DegradedBandwidth", "DEGRADED_BW", "FALSE"),
        ("RouteRecovery", "ROUTE_RECOVERY", "FALSE"),
        ("RouteUnhealthy", "ROUTE_UNHEALTHY", "FALSE"),
        ("AccessTimeoutRecovery", "ACCESS_TIMEOUT_RECOVERY", "FALSE"),
        ("Misconfigured", "INCORRECT_CONFIGURATION", "NONE"),
    ],
)
def test_the_parts_of_the_fabrics_health_are_those_of_nvml(fault, name, well) -> None:
    (part,) = (part for part in FABRIC_PARTS if part.fault == fault)
    prefix = "NVML_GPU_FABRIC_HEALTH_MASK"
    shift = getattr(pynvml, f"{prefix}_SHIFT_{name}")
    assert part.shift == shift
    assert (1 << part.width) - 1 == getattr(pynvml, f"{prefix}_WIDTH_{name}")
    assert find_fabric_faults(getattr(pynvml, f"{prefix}_{name}_{well}") << shift) == ()
    assert find_fabric_faults(getattr(pynvml, f"{prefix}_{name}_NOT_SUPPORTED") << shift) == ()
    for value in range(1 << part.width):
        if value not in {0, getattr(pynvml, f"{prefix}_{name}_{well}")}:
            assert find_fabric_faults(value << shift) == (fault,)


def test_a_status_of_the_fabric_has_the_word_of_its_error(read) -> None:
    for kind in (NvmlErrorKind.NOT_SUPPORTED, NvmlErrorKind.IN_USE):
        vitals = read("vital 1 fabric_state 3", f"vital 1 fabric_status {kind.code}", "vital 1 fabric_mask 0")
        assert vitals.fabric_status == kind.word
