"""The service that knows the GPUs, with real NVML children on a simulated node."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time

import psutil
import pytest

from nvdp.host.devnodes import NodeView
from nvdp.model.status import DriverState
from nvdp.nvml.children import NvmlChildren
from tests.daemon.node import FULL
from tests.services.gpu_bench import REMOVE_AFTER_S, Bench, NodeFile, is_ready

PER_GPU = (
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMigMode",
)
SOME = PER_GPU if FULL else PER_GPU[::4]  # the child is shown to blame the right GPU for each: tests/nvml/test_child.py


@pytest.fixture
def node(tmp_path) -> NodeFile:
    return NodeFile(tmp_path)


@pytest.fixture
def bench(node):
    made = Bench(NvmlChildren(simulated=str(node.path)))
    yield made
    made.service.stop()


def child_pids() -> set[int]:
    return {child.pid for child in psutil.Process().children() if is_at_work(child)}


def is_at_work(child: psutil.Process) -> bool:
    """It may end while it is looked at."""
    try:
        return child.status() != psutil.STATUS_ZOMBIE and "nvdp.nvml.child" in child.cmdline()
    except psutil.NoSuchProcess:
        return False


def test_the_first_scan_is_posted_whole(bench) -> None:
    bench.service.start()
    post = bench.wait_healthy(4)
    assert [gpu.uuid for gpu in post.inventory.gpus] == ["GPU-zero", "GPU-one", "GPU-two", "GPU-three"]
    assert [gpu.numa_node for gpu in post.inventory.gpus] == [0, 1, 0, 1]
    assert (post.driver.version, post.driver.cuda_version) == ("580.65.06", "13.0")
    assert (post.control_nodes, post.missing_nodes, post.imex_channels) == ((), (), ())
    assert bench.posts[0] is post, "nothing was posted before"
    assert bench.reasons() == ["DriverReady"]
    assert re.fullmatch(r"driver 580\.65\.06, CUDA 13\.0, 4 GPUs in \d+\.\d{3}s", bench.lines[0][1])
    assert bench.scans[0] > 0


@pytest.mark.requirement(36)
def test_which_device_nodes_the_host_has_is_told_with_each_scan(node, tmp_path) -> None:
    dev = tmp_path / "dev"
    dev.mkdir()
    for name in ("nvidiactl", "nvidia0", "nvidia1", "nvidia3"):
        (dev / name).touch()
    bench = Bench(NvmlChildren(simulated=str(node.path)), nodes=NodeView(dev, is_host=True))
    try:
        bench.service.start()
        post = bench.wait_healthy(4)
        assert (post.control_nodes, post.missing_nodes) == (("/dev/nvidiactl",), ("/dev/nvidia2",))
        (dev / "nvidia2").touch()
        bench.wait(lambda post: post.missing_nodes == ())
    finally:
        bench.service.stop()


def test_each_complete_scan_is_posted_so_that_its_age_is_known_but_logged_once(bench) -> None:
    bench.service.start()
    bench.wait_healthy(4)
    bench.wait_scans(3)
    first, *more = bench.posts
    assert len(more) >= 3
    assert all((post.inventory, post.ailments) == (first.inventory, first.ailments) for post in more)
    assert more[-1].wall > first.wall
    assert all(post.scanned_at is not None and post.scanned_at <= post.wall for post in bench.posts)
    assert more[-1].scanned_at > first.scanned_at
    assert bench.reasons() == ["DriverReady"]
    assert len(child_pids()) == 1, "one child answers them all"


def test_a_driver_that_is_not_there_yet_is_waited_for(bench, node) -> None:
    node.write("driver: {state: missing}", gpus=0)
    bench.service.start()
    post = bench.wait(lambda post: post.driver.state is DriverState.MISSING)
    assert (post.inventory, post.scanned_at) == (None, None)
    assert "libnvidia-ml.so.1 not found" in post.driver.text
    node.write("driver: {state: not-loaded}")
    post = bench.wait(lambda post: "kernel module is not loaded" in post.driver.text)
    assert post.driver.state is DriverState.MISSING
    node.write()
    post = bench.wait_healthy(4)
    assert bench.reasons() == ["DriverMissing", "DriverMissing", "DriverReady"]
    assert bench.lines[0][1].endswith(". Trying again every 0s"), "the interval of this bench"
    assert "was away for" in bench.lines[2][1]
    assert post.driver.text == ""
    assert bench.errors["dlopen", "LibraryNotFound"] >= 1


def test_kernel_module_and_library_of_different_versions_are_told_with_both(bench, node) -> None:
    node.write("driver: {version: 580.1, kernel: 570.2}")
    bench.service.start()
    post = bench.wait(lambda post: post.driver.state is DriverState.MISMATCH)
    assert "kernel module 570.2, library 580.1; reload the module or reboot" in post.driver.text
    node.write("driver: {version: 580.1, kernel: 580.1}")
    bench.wait_healthy(4)
    assert bench.reasons() == ["DriverMismatch", "DriverReady"]


def test_a_driver_that_goes_makes_all_gpus_ail_with_their_facts_kept_until_it_is_back(bench, node) -> None:
    bench.service.start()
    before = bench.wait_healthy(4).inventory
    node.write("driver: {state: missing}")
    post = bench.wait(lambda post: post.driver.state is DriverState.LOST)
    assert post.inventory == before
    assert {ailment.cause.value for ailment in post.ailments.values()} == {"DriverLost"}
    assert len(post.ailments) == 4
    assert post.driver.version == "580.65.06", "the last one that was known"
    complete = [post for post in bench.posts if post.driver.state is DriverState.READY]
    assert post.scanned_at == complete[-1].scanned_at < post.wall, "no scan was complete since"
    node.write()
    bench.wait_healthy(4)
    assert bench.reasons() == ["DriverReady", "DriverLost", "DriverReady"]


@pytest.mark.invariant(10)
def test_a_gpu_that_vanishes_ails_moves_no_other_and_leaves_in_time(bench, node) -> None:
    bench.service.start()
    slots = {gpu.uuid: gpu.pci for gpu in bench.wait_healthy(4).inventory.gpus}
    node.write("removed: [1]")
    post = bench.wait_causes(one="Vanished")
    assert {gpu.uuid: gpu.pci for gpu in post.inventory.gpus} == slots
    assert [gpu.uuid for gpu in post.inventory.gpus] == list(slots), "in the same order"
    assert {gpu.uuid: gpu.index for gpu in post.inventory.gpus}["GPU-two"] == 1, "although NVML renumbers"
    bench.configure(remove_after_s=0.5)
    post = bench.wait_healthy(3)
    assert "GPU-one" not in {gpu.uuid for gpu in post.inventory.gpus}
    node.write()
    assert {gpu.uuid: gpu.pci for gpu in bench.wait_healthy(4).inventory.gpus} == slots
    assert bench.reasons() == ["DriverReady"], "who comes and goes is told where it is known whose it is"


def test_a_gpu_that_is_back_before_its_time_is_well_again(bench, node) -> None:
    bench.service.start()
    bench.wait_healthy(4)
    node.write("removed: [0, 3]")
    bench.wait_causes(zero="Vanished", three="Vanished")
    node.write()
    bench.wait_healthy(4)
    assert bench.reasons() == ["DriverReady"], "who ails is told where it is known who uses it"


def test_a_gpu_that_is_plugged_in_appears_by_itself(bench, node) -> None:
    node.write(gpus=2)
    bench.service.start()
    bench.wait_healthy(2)
    node.write(gpus=4)
    bench.wait_healthy(4)
    assert bench.reasons() == ["DriverReady"]


@pytest.mark.invariant(5)
def test_a_lost_gpu_ails_with_the_drivers_word_and_is_well_when_the_driver_says_so(bench, node) -> None:
    bench.service.start()
    facts = bench.wait_healthy(4).inventory.gpus[2]
    node.write("lost: [2]")
    post = bench.wait_causes(two="Lost")
    assert post.ailments["GPU-two"].text.startswith("nvmlDeviceGetHandleByIndex: the GPU has fallen off the bus")
    kept = post.inventory.gpus[2]
    assert (kept.pci, kept.product, kept.memory_bytes) == (facts.pci, facts.product, facts.memory_bytes)
    assert bench.errors["nvmlDeviceGetHandleByIndex", "GpuIsLost"] >= 1
    node.write()
    assert bench.wait_healthy(4).inventory.gpus[2] == facts


@pytest.mark.invariant(5)
def test_a_call_that_fails_marks_that_gpu_and_is_retried(bench, node) -> None:
    bench.service.start()
    bench.wait_healthy(4)
    node.write("faults: [{call: nvmlDeviceGetMemoryInfo, gpu: 1, error: ResetRequired}]")
    post = bench.wait_causes(one="CallFailed")
    assert post.ailments["GPU-one"].text.startswith("nvmlDeviceGetMemoryInfo: the GPU must be reset")
    assert post.inventory.gpus[1].memory_bytes, "the last known value"
    bench.wait_scans(3)
    assert bench.posts[-1].ailments["GPU-one"].since == post.ailments["GPU-one"].since
    node.write()
    bench.wait_healthy(4)


@pytest.mark.invariant(5)
@pytest.mark.campaign
@pytest.mark.parametrize("call", SOME)
@pytest.mark.parametrize(("fault", "cause"), [("hang", "CallTimeout"), ("crash", "CallFailed")])
def test_a_call_that_hangs_or_crashes_costs_its_gpu_only_until_it_answers_again(
    bench, node, call, fault, cause
) -> None:
    if fault == "hang":
        bench.hurry()
    bench.service.start()
    before = bench.wait_healthy(4)
    node.write(f"faults: [{{call: {call}, gpu: 1, {fault}: true}}]")
    broken_at = time.monotonic()
    post = bench.wait_causes(one=cause)
    assert time.monotonic() - broken_at < 5
    assert call in post.ailments["GPU-one"].text
    assert [gpu.uuid for gpu in post.inventory.gpus] == [gpu.uuid for gpu in before.inventory.gpus]
    bench.wait_scans(2)
    assert bench.wait_causes(one=cause), "and the others are scanned as before"
    node.write()
    assert bench.wait_healthy(4).inventory == before.inventory
    if fault == "hang":
        assert bench.timeouts.total() >= 1
    assert set(bench.reasons()) == {"DriverReady"}
    assert {driver.state for driver in (post.driver for post in bench.posts)} == {DriverState.READY}


def test_several_gpus_may_hang_at_once_and_each_is_marked_as_soon_as_it_is_known(bench, node) -> None:
    bench.hurry()
    bench.service.start()
    bench.wait_healthy(4)
    node.write(*["faults:"], *[f"- {{call: nvmlDeviceGetName, gpu: {n}, hang: true}}" for n in (0, 2, 3)])
    bench.wait_causes(zero="CallTimeout")
    bench.wait_causes(zero="CallTimeout", two="CallTimeout", three="CallTimeout")
    node.write()
    bench.wait_healthy(4)


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName"])
def test_a_gpu_that_hangs_from_the_start_keeps_no_other_from_being_offered(bench, node, call) -> None:
    bench.hurry()
    node.write(f"faults: [{{call: {call}, gpu: 2, hang: true}}]")
    bench.service.start()
    post = bench.wait(is_ready)
    healthy = {gpu.uuid for gpu in post.inventory.gpus} - set(post.ailments)
    assert healthy == {"GPU-zero", "GPU-one", "GPU-three"}
    shown = [gpu.index for gpu in post.inventory.unreadable] + [gpu.index for gpu in post.inventory.gpus if gpu.fault]
    assert shown == [2]
    node.write()
    bench.wait_healthy(4)


def test_a_hang_that_concerns_the_whole_library_is_tried_once_more_before_all_is_lost(bench, node) -> None:
    bench.hurry()
    bench.service.start()
    bench.wait_healthy(4)
    node.write("faults: [{call: nvmlDeviceGetCount, hang: true}]")
    post = bench.wait(lambda post: post.driver.state is DriverState.LOST)
    assert post.driver.text == "nvmlDeviceGetCount did not return within 0.4s"
    assert {ailment.cause.value for ailment in post.ailments.values()} == {"DriverLost"}
    assert bench.timeouts[""] >= 2
    node.write()
    bench.wait_healthy(4)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGABRT])
def test_a_child_that_is_killed_or_stopped_is_replaced_and_nothing_is_lost(bench, number) -> None:
    if number == signal.SIGSTOP:
        bench.hurry(1.0)
    bench.service.start()
    bench.wait_healthy(4)
    (pid,) = child_pids()
    os.kill(pid, number)
    bench.wait(lambda _: child_pids() - {pid} and pid not in child_pids())
    bench.wait_scans(2)
    assert {post.driver.state for post in bench.posts} == {DriverState.READY}
    assert not any(post.ailments for post in bench.posts)
    assert bench.reasons() == ["DriverReady"]


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetName"])
def test_stopping_takes_no_time_whatever_hangs(node, call) -> None:
    node.write(f"faults: [{{call: {call}, hang: true}}]")
    bench = Bench(NvmlChildren(simulated=str(node.path)), call_timeout_s=60)
    bench.service.start()
    deadline = time.monotonic() + 10
    while not child_pids():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(min(child_pids()), signal.SIGSTOP)
    started = time.monotonic()
    bench.service.stop()
    assert time.monotonic() - started < 3
    while child_pids():
        assert time.monotonic() < started + 5
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_crashes_is_started_again_and_knows_what_it_knew(bench, node, monkeypatch) -> None:
    crashed, ended = [], threading.Event()

    def hook(args) -> None:
        crashed.append(args.thread)
        assert ended.wait(20)  # a thread that dies takes as long as it likes

    monkeypatch.setattr(threading, "excepthook", hook)
    bench.service.start()
    bench.wait_healthy(4)
    node.write("removed: [1]")
    bench.wait_causes(one="Vanished")
    bench.poison = RuntimeError("a defect")
    deadline = time.monotonic() + 10
    while not crashed:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    bench.service.start()
    bench.service.start()  # it runs: nothing happens
    bench.wait_scans(2)
    bench.wait_causes(one="Vanished")
    ended.set()
    (thread,) = crashed
    thread.join(5)
    assert thread.name == "gpus"
    assert [thread.name for thread in threading.enumerate()].count("gpus") == 1


def test_looking_now_does_not_wait_for_the_interval(bench, node) -> None:
    bench.configure(rescan_interval_s=3600)
    bench.service.start()
    bench.wait_healthy(4)
    (pid,) = child_pids()
    node.write("removed: [1]")
    bench.service.look_now()
    bench.wait_causes(one="Vanished")
    assert child_pids() - {pid}, "and it looks through a new session"
    deadline = time.monotonic() + 10
    while pid in child_pids():
        assert time.monotonic() < deadline, "the old one is kept for a moment only"
        time.sleep(0.02)


def test_children_that_will_not_die_are_counted(node) -> None:
    deaf: list = []
    children = NvmlChildren(simulated=str(node.path), kill=deaf.append, kill_wait_s=0.05)
    bench = Bench(children)
    bench.hurry()
    bench.service.start()
    bench.wait_healthy(4)
    node.write("faults: [{call: nvmlDeviceGetName, gpu: 1, hang: true}]")
    bench.wait(lambda post: post.children_abandoned >= 1)
    node.write()
    bench.wait(lambda post: not post.ailments)
    for process in deaf:
        process.kill()
    bench.wait(lambda post: post.children_abandoned == 0)
    bench.service.stop()
    for process in deaf:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 5
    while any(thread.name == "gpu-probe" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_that_cannot_be_started_is_a_failure_of_the_driver_that_is_waited_out(node, monkeypatch) -> None:
    bench = Bench(NvmlChildren(simulated=str(node.path)))
    with monkeypatch.context() as broken:
        broken.setattr("sys.executable", "/nonexistent/python")
        bench.service.start()
        post = bench.wait(lambda post: post.driver.state is DriverState.MISSING)
        assert post.driver.text.startswith("the NVML child cannot be started: [Errno 2] No such file")
    bench.wait_healthy(4)
    bench.service.stop()


@pytest.mark.invariant(5)
@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(3 if FULL else 1))
def test_after_any_history_the_state_is_that_of_the_last_edit(bench, node, seed) -> None:
    dice = random.Random(seed)
    bench.hurry()
    bench.service.start()
    bench.wait_healthy(4)
    known = len(bench.posts)
    names = NodeFile.NAMES
    for _ in range(6):
        ills = {
            name: dice.choice(["well", "well", "lost", "removed", "failing", "hanging", "crashing"]) for name in names
        }
        ill = {kind: [name for name, what in ills.items() if what == kind] for kind in set(ills.values())}
        faults = [f"{{call: nvmlDeviceGetName, gpu: GPU-{name}, error: 999}}" for name in ill.get("failing", [])]
        faults += [f"{{call: nvmlDeviceGetUUID, gpu: GPU-{name}, hang: true}}" for name in ill.get("hanging", [])]
        faults += [
            f"{{call: nvmlDeviceGetMinorNumber, gpu: GPU-{name}, crash: true}}" for name in ill.get("crashing", [])
        ]
        node.write(
            f"lost: [{', '.join(f'GPU-{name}' for name in ill.get('lost', []))}]",
            f"removed: [{', '.join(f'GPU-{name}' for name in ill.get('removed', []))}]",
            f"faults: [{', '.join(faults)}]",
        )
        if dice.random() < 0.5:
            bench.wait_scans(1)  # sometimes the next edit comes before this one was seen
    node.write("lost: [0]", "removed: [2]", "faults: [{call: nvmlDeviceGetName, gpu: 3, hang: true}]")
    bench.wait_causes(zero="Lost", two="Vanished", three="CallTimeout")
    node.write()
    post = bench.wait_healthy(4)
    assert [gpu.uuid for gpu in post.inventory.gpus] == [f"GPU-{name}" for name in names]
    assert {len(post.inventory.gpus) for post in bench.posts[known:]} == {4}, f"nothing was gone for {REMOVE_AFTER_S}s"
