"""Events and conditions of the simulated machine: through pynvml's own wrappers, through ctypes, and in a child."""

from __future__ import annotations

import ctypes
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pynvml
import pytest

from nvdp.nvml.frames import Ecc, Scanned, WatchFailed, Xid
from nvdp.nvml.library import install_library
from nvdp.nvml.simulated.calls import build_calls
from nvdp.nvml.simulated.edits import Edits
from nvdp.nvml.simulated.machine import Machine
from tests.nvml.test_simulated import build_callbacks, build_directly, raises

NODE = """
gpus:
- {model: h100-sxm5-80gb, uuid: GPU-a, nvswitchLinks: 3}
- {model: a100-sxm4-80gb, uuid: GPU-b, mig: enabled, instances: [{profile: 1g.10gb, uuid: MIG-1}, {profile: 3g.40gb}]}
- {model: t4, uuid: GPU-c}
"""
ALL = (
    pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError | pynvml.nvmlEventTypeSingleBitEccError
)


@pytest.fixture
def write_node(tmp_path):
    def write(*lines: str, node: str = NODE) -> str:
        fresh = tmp_path / "fresh.yaml"
        fresh.write_text("\n".join([node, *lines]))
        fresh.rename(tmp_path / "node.yaml")
        return str(tmp_path / "node.yaml")

    return write


@pytest.fixture(params=[build_directly, build_callbacks], ids=["pynvml", "ctypes"])
def nvml(request, write_node):
    install_library(request.param(Machine(write_node())))
    pynvml.nvmlInit()
    yield pynvml
    install_library(None)


@pytest.fixture
def cards(nvml):
    return [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(3)]


@pytest.fixture
def event_set(nvml, cards):
    made = nvml.nvmlEventSetCreate()
    for card in cards:
        assert nvml.nvmlDeviceGetSupportedEventTypes(card) == ALL
        nvml.nvmlDeviceRegisterEvents(card, ALL, made)
    return made


def fetch(nvml, event_set, *, timeout_ms: int = 5000) -> tuple[int, int, int, int, int]:
    data = nvml.nvmlEventSetWait_v2(event_set, timeout_ms)
    index = nvml.nvmlDeviceGetIndex(data.device)
    return index, data.eventType, data.eventData, data.gpuInstanceId, data.computeInstanceId


NONE = 0xFFFFFFFF


def test_what_appears_in_the_file_happens_once(nvml, event_set, write_node) -> None:
    write_node("events: [{gpu: 2, xid: 79}, {gpu: GPU-a, ecc: double}, {gpu: 0, ecc: single}]")
    assert fetch(nvml, event_set) == (2, 8, 79, NONE, NONE)
    assert fetch(nvml, event_set) == (0, 2, 0, NONE, NONE)
    assert fetch(nvml, event_set) == (0, 1, 0, NONE, NONE)
    with raises(nvml.NVML_ERROR_TIMEOUT):
        fetch(nvml, event_set, timeout_ms=0)


@pytest.mark.parametrize("instance", ["1", "MIG-1"])
def test_an_event_of_a_mig_device_names_it(nvml, event_set, write_node, instance) -> None:
    write_node(f"events: [{{gpu: 1, xid: 94, instance: {instance}}}]")
    assert fetch(nvml, event_set) == (1, 8, 94, 17 if instance == "1" else 1, 0)


def test_nothing_is_told_of_before_the_registration_nor_twice_when_the_list_grows(nvml, cards, write_node) -> None:
    write_node("events: [{gpu: 0, xid: 1}]")
    event_set = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(cards[0], ALL, event_set)
    write_node("events: [{gpu: 0, xid: 1}, {gpu: 0, xid: 2}]")
    assert fetch(nvml, event_set)[2] == 2
    write_node("events: [{gpu: 0, xid: 1}, {gpu: 0, xid: 2}, {gpu: 0, xid: 2}]")
    assert fetch(nvml, event_set)[2] == 2, "the same once more"
    with raises(nvml.NVML_ERROR_TIMEOUT):
        fetch(nvml, event_set, timeout_ms=0)


def test_a_card_in_another_place_has_its_own_events_once(nvml, event_set, write_node) -> None:
    events = "{gpu: GPU-a, xid: 1}, {gpu: GPU-c, xid: 2}"
    write_node(f"events: [{events}]")
    assert [fetch(nvml, event_set)[2] for _ in range(2)] == [1, 2]

    first, second, third = NODE.strip().splitlines()[1:]
    write_node(f"events: [{events}, {{gpu: GPU-c, xid: 3}}]", node=f"gpus:\n{third}\n{first}\n{second}")

    assert fetch(nvml, event_set)[:3] == (0, 8, 3)
    with pytest.raises(pynvml.NVMLError_Timeout):
        fetch(nvml, event_set, timeout_ms=0)


def test_a_list_that_begins_anew_happens_anew(nvml, event_set, write_node) -> None:
    write_node("events: [{gpu: 0, xid: 1}]")
    assert fetch(nvml, event_set)[2] == 1
    write_node()
    nvml.nvmlDeviceGetCount()
    write_node("events: [{gpu: 0, xid: 1}]")
    assert fetch(nvml, event_set)[2] == 1
    write_node("events: [{gpu: 2, xid: 5}]")
    assert fetch(nvml, event_set)[:3] == (2, 8, 5)


def test_only_registered_kinds_of_registered_cards_are_told_and_each_set_by_itself(nvml, cards, write_node) -> None:
    first, second = nvml.nvmlEventSetCreate(), nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(cards[0], nvml.nvmlEventTypeXidCriticalError, first)
    nvml.nvmlDeviceRegisterEvents(cards[0], ALL, second)
    nvml.nvmlDeviceRegisterEvents(cards[1], ALL, second)
    write_node("events: [{gpu: 0, ecc: double}, {gpu: 2, xid: 3}, {gpu: 1, xid: 4}, {gpu: 0, xid: 5}]")
    assert fetch(nvml, first)[2] == 5
    assert [fetch(nvml, second)[1:3] for _ in range(3)] == [(2, 0), (8, 4), (8, 5)]
    for event_set in (first, second):
        with raises(nvml.NVML_ERROR_TIMEOUT):
            fetch(nvml, event_set, timeout_ms=0)


def test_kinds_that_a_card_does_not_have_and_sets_that_nobody_made_are_refused(nvml, cards) -> None:
    with raises(nvml.NVML_ERROR_INVALID_ARGUMENT):
        nvml.nvmlDeviceRegisterEvents(cards[0], nvml.nvmlEventTypeClock, nvml.nvmlEventSetCreate())
    with raises(nvml.NVML_ERROR_INVALID_ARGUMENT):
        nvml.nvmlEventSetWait_v2(ctypes.cast(0x77, nvml.c_nvmlEventSet_t), 0)


def test_a_wait_is_interrupted_by_an_event_and_others_may_call_meanwhile(nvml, event_set, write_node) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fetch, nvml, event_set, timeout_ms=20_000)
        for _ in range(10):
            assert nvml.nvmlDeviceGetCount() == 3
        assert not waiting.done()
        write_node("events: [{gpu: 0, xid: 13}]")
        assert waiting.result(10)[2] == 13


@pytest.mark.parametrize("gpu", [None, 1])
def test_a_fault_strikes_a_wait_that_is_under_way(nvml, event_set, write_node, gpu) -> None:
    where = f"gpu: {gpu}, " if gpu is not None else ""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(nvml.nvmlEventSetWait_v2, event_set, 20_000)
        write_node(f"faults: [{{call: nvmlEventSetWait, {where}error: GpuIsLost}}]")
        with raises(nvml.NVML_ERROR_GPU_IS_LOST):
            waiting.result(10)


def test_a_fault_of_a_card_does_not_strike_sets_without_it(nvml, cards, write_node) -> None:
    event_set = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(cards[0], ALL, event_set)
    write_node("faults: [{call: nvmlEventSetWait, gpu: 1, error: GpuIsLost}]", "events: [{gpu: 0, xid: 13}]")
    assert fetch(nvml, event_set)[2] == 13


def test_a_card_that_is_lost_does_not_spoil_the_wait_of_the_others(nvml, event_set, write_node) -> None:
    write_node("lost: [1]")
    nvml.nvmlDeviceGetCount()
    write_node("lost: [1]", "events: [{gpu: 1, xid: 79}, {gpu: 0, xid: 13}]")
    assert nvml.nvmlEventSetWait_v2(event_set, 5000).eventData == 79
    assert fetch(nvml, event_set)[:3] == (0, 8, 13)


def test_the_fields_that_nobody_tells_are_not_supported(nvml, cards) -> None:
    fields = nvml.nvmlDeviceGetFieldValues(cards[0], [230, 1, (165, 2)])
    assert [field.nvmlReturn for field in fields] == [0, 3, 3]
    assert fields[0].value.uiVal == 0


def test_corrected_errors_are_none_and_places_that_are_not_counted_are_not_supported(nvml, cards, write_node) -> None:
    write_node("conditions: [{gpu: 0, ecc: {memory: 3, sram: 4}}]")
    card = cards[0]
    assert nvml.nvmlDeviceGetTotalEccErrors(card, 1, 0) == 7
    assert nvml.nvmlDeviceGetTotalEccErrors(card, 0, 0) == 0
    assert [nvml.nvmlDeviceGetMemoryErrorCounter(card, 1, 0, place) for place in (2, 7)] == [3, 4]
    with raises(nvml.NVML_ERROR_NOT_SUPPORTED):
        nvml.nvmlDeviceGetMemoryErrorCounter(card, 1, 0, nvml.NVML_MEMORY_LOCATION_L1_CACHE)


def test_a_version_of_the_fabrics_structure_that_nobody_knows_is_refused(nvml, cards) -> None:
    info = nvml.c_nvmlGpuFabricInfo_v3_t()
    with raises(nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
        nvml.nvmlDeviceGetGpuFabricInfoV(cards[0], ctypes.byref(info))
    older = nvml.c_nvmlGpuFabricInfo_t()
    nvml.nvmlDeviceGetGpuFabricInfo(cards[0], ctypes.byref(older))
    assert older.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED
    with raises(nvml.NVML_ERROR_NOT_SUPPORTED):
        nvml.nvmlDeviceGetGpuFabricInfo(cards[1], ctypes.byref(older))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("nvmlDeviceGetFieldValues", (ctypes.c_void_p(0), 1, pynvml.c_nvmlFieldValue_t())),
        ("nvmlDeviceGetFieldValues", (ctypes.c_void_p(0), 1, ctypes.byref(pynvml.c_nvmlFieldValue_t()))),
        ("nvmlDeviceGetGpuFabricInfoV", (ctypes.c_void_p(0), pynvml.c_nvmlGpuFabricInfo_v2_t())),
        ("nvmlEventSetWait_v2", (ctypes.byref(pynvml.c_nvmlEventSet_t()), pynvml.c_nvmlEventData_t(), 5)),
        ("nvmlEventSetCreate", (pynvml.c_nvmlEventSet_t(),)),
    ],
)
def test_an_argument_that_c_would_not_survive_raises(write_node, name, arguments) -> None:
    calls = build_calls(Machine(write_node()))
    calls["nvmlInitWithFlags"](0)
    handle = pynvml.c_nvmlDevice_t()
    calls["nvmlDeviceGetHandleByIndex_v2"](0, ctypes.byref(handle))
    given = tuple(handle if isinstance(one, ctypes.c_void_p) else one for one in arguments)
    with pytest.raises(TypeError, match=name):
        calls[name](*given)


def test_two_threads_see_one_machine_each_call_while_it_is_edited(write_node) -> None:
    calls = build_calls(Machine(write_node()))
    calls["nvmlInitWithFlags"](0)
    wrong: list[object] = []
    stopped = threading.Event()

    def ask() -> None:
        count, handle, index = ctypes.c_uint(), pynvml.c_nvmlDevice_t(), ctypes.c_uint()
        try:
            while not stopped.is_set():
                calls["nvmlDeviceGetCount_v2"](ctypes.byref(count))
                calls["nvmlDeviceGetHandleByIndex_v2"](1, ctypes.byref(handle))
                calls["nvmlDeviceGetIndex"](handle, ctypes.byref(index))
                if count.value not in {2, 3}:
                    wrong.append(count.value)
        except (TypeError, ValueError, LookupError) as error:
            wrong.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(60):
        write_node("removed: [0]" if number % 2 else "")
        time.sleep(0.005)
    stopped.set()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.fixture(params=["told", "exhausted"])
def edits(request, tmp_path, write_node):
    path = write_node()
    if request.param == "told":
        return Edits(path)
    return Edits(str(tmp_path / "nowhere" / "node.yaml"))  # what cannot be watched is looked at


def test_a_wait_for_edits_ends_soon_after_one_or_at_its_limit(edits, write_node) -> None:
    began = time.monotonic()
    edits.wait(0.05)
    assert time.monotonic() - began < 5
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(edits.wait, 20.0)
        write_node("lost: [0]")
        waiting.result(10)


def test_an_edit_behind_a_link_is_noticed(tmp_path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/node.yaml").write_text(NODE)
    (tmp_path / "node.yaml").symlink_to(tmp_path / "real/node.yaml")
    edits = Edits(str(tmp_path / "node.yaml"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(edits.wait, 20.0)
        (tmp_path / "real/node.yaml").write_text(NODE + "lost: [0]\n")
        waiting.result(10)


def test_a_child_on_a_simulated_machine_tells_events_soon_after_the_edit(write_node, asking) -> None:
    fake = asking(simulated=write_node())
    fake.watch()
    events, delays = [], []
    for number in range(1, 21):
        events.append(f"- {{gpu: {number % 3}, xid: {number}}}")
        written_at = time.monotonic()
        write_node("events:", *events)
        notice = fake.heard.wait(number)[-1]
        assert (notice.uuid, notice.code) == (("GPU-a", "GPU-b", "GPU-c")[number % 3], number)
        delays.append(notice.at - written_at)
    assert sorted(delays)[len(delays) // 2] < 0.05, "usually a millisecond or two"


def test_a_child_tells_instances_ecc_errors_and_a_failed_wait(write_node, asking) -> None:
    fake = asking(simulated=write_node())
    fake.watch()
    write_node("events: [{gpu: 1, xid: 95, instance: 0}, {gpu: 2, ecc: double}, {gpu: 2, ecc: single}]")
    mig, double, single = fake.heard.wait(3)
    assert mig == Xid(uuid="GPU-b", code=95, gpu_instance=1, compute_instance=0, at=mig.at)
    assert double == Ecc(uuid="GPU-c", double=True, at=double.at)
    assert single == Ecc(uuid="GPU-c", double=False, at=single.at)
    write_node("faults: [{call: nvmlEventSetWait, gpu: 0, error: GpuIsLost}]")
    assert isinstance(fake.heard.wait(4)[-1], WatchFailed)


def test_a_thousand_simulated_events_come_in_order(write_node, asking) -> None:
    fake = asking(simulated=write_node())
    fake.watch()
    write_node("events:", *(f"- {{gpu: {n % 3}, xid: {n}}}" for n in range(1000)))
    assert [notice.code for notice in fake.heard.wait(1000)] == list(range(1000))


def test_a_child_on_a_simulated_machine_at_rest_uses_next_to_no_processor(write_node, asking) -> None:
    fake = asking(simulated=write_node())
    client = fake.watch()
    process = psutil.Process(client.pid)
    before = process.cpu_times()
    threading.Event().wait(1.0)  # what is measured is that nothing happens
    after = process.cpu_times()
    assert after.user + after.system - before.user - before.system <= 0.02
    assert isinstance(fake.scan(client), Scanned)
