"""The NVML child against a compiled libnvidia-ml that fails, hangs and crashes as told."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import nvdp
from nvdp.errors import HostError
from nvdp.model.inventory import GpuRef, MigMode
from nvdp.nvml.children import NvmlChildren
from nvdp.nvml.frames import Probe, Probed, Refused, Scan, Scanned
from nvdp.nvml.outcomes import Closed, Died, Hung
from tests.daemon.node import FULL

LIMIT_S = 0.4
ROOT = Path(nvdp.__file__).parent.parent


def uuid(card: int) -> str:
    return f"GPU-{card:08x}-0000-0000-0000-000000000000"


@pytest.fixture
def fake(fake_driver, asking):
    fake_driver.install()
    return asking(driver_root=str(fake_driver.root))


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.01)


def test_a_scan_reads_every_fact_of_every_card(fake) -> None:
    scanned = fake.scan()
    assert isinstance(scanned, Scanned)
    assert scanned.inventory.driver.version == "570.1.1"
    assert scanned.inventory.driver.cuda_version == "12.8"
    assert [gpu.uuid for gpu in scanned.inventory.gpus] == [uuid(n) for n in range(4)]
    gpu = scanned.inventory.gpus[2]
    assert (gpu.index, gpu.pci, gpu.minor, gpu.product) == (2, "0000:12:00.0", 2, "NVIDIA Fake")
    assert (gpu.memory_bytes, gpu.compute_capability, gpu.numa_node) == (16 << 30, "8.6", None)
    assert gpu.mig is MigMode.UNSUPPORTED
    assert gpu.fault is None


def test_a_library_with_the_oldest_calls_only_is_no_fault(fake_driver, asking) -> None:
    fake_driver.install(basic=True)
    scanned = asking(driver_root=str(fake_driver.root)).scan()
    assert isinstance(scanned, Scanned)
    assert [(gpu.uuid, gpu.fault, gpu.pci, gpu.product) for gpu in scanned.inventory.gpus] == [
        (uuid(n), None, None, None) for n in range(4)
    ]
    assert scanned.inventory.driver.version == ""


PER_GPU = (
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
)
VITALS = (
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetMemoryErrorCounter",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetGpuFabricInfo",
)


@pytest.mark.invariant(5)
@pytest.mark.parametrize("call", PER_GPU)
def test_a_failing_call_is_the_fault_of_that_gpu_only(fake_driver, fake, call) -> None:
    fake_driver.configure("cards 0 1 2 3", f"fail {call} 15 2")
    scanned = fake.scan()
    assert isinstance(scanned, Scanned)
    inventory = scanned.inventory
    assert [gpu.uuid for gpu in inventory.gpus if gpu.fault is None] == [uuid(n) for n in (0, 1, 3)]
    bad = [*(gpu for gpu in inventory.gpus if gpu.fault), *inventory.unreadable]
    assert [(gpu.index, gpu.fault.call, gpu.fault.kind) for gpu in bad] == [(2, call, "GpuIsLost")]
    assert "fallen off the bus" in bad[0].fault.text


@pytest.mark.invariant(5)
@pytest.mark.parametrize("call", [*PER_GPU, *VITALS])
def test_a_hanging_call_is_blamed_and_the_next_child_does_without_that_gpu(fake_driver, fake, call) -> None:
    fake_driver.configure("cards 0 1 2 3", f"hang {call} 2")
    client = fake.spawn()
    assert isinstance(fake.scan(client, skip=[GpuRef(index=2, count=4)]), Scanned)
    started = time.monotonic()
    hung = fake.scan(client, limit_s=LIMIT_S)
    assert LIMIT_S <= time.monotonic() - started < LIMIT_S + 5
    assert isinstance(hung, Hung)
    assert hung.call == call
    assert hung.gpu is not None
    assert hung.gpu.index == 2
    scanned = fake.scan(skip=[hung.gpu])
    assert isinstance(scanned, Scanned)
    assert [gpu.uuid for gpu in scanned.inventory.gpus] == [uuid(n) for n in (0, 1, 3)]
    assert scanned.skipped == (hung.gpu,)


@pytest.mark.campaign
@pytest.mark.invariant(5)
@pytest.mark.parametrize("call", [*PER_GPU, *VITALS][:: 1 if FULL else 4])  # blamed as a hang is, which has all of them
def test_a_crash_of_the_library_is_blamed_on_the_gpu_it_was_asked_about(fake_driver, fake, call) -> None:
    fake_driver.configure("cards 0 1 2 3", f"abort {call} 1")
    died = fake.scan()
    assert isinstance(died, Died)
    assert died.at_fault
    assert died.gpu is not None
    assert (died.call, died.gpu.index) == (call, 1)
    assert died.text == f"the NVML child was killed by SIGABRT in {call}"
    scanned = fake.scan(skip=[died.gpu])
    assert isinstance(scanned, Scanned)
    assert [gpu.uuid for gpu in scanned.inventory.gpus] == [uuid(n) for n in (0, 2, 3)]


def test_a_skipped_gpu_is_recognised_by_its_slot_after_a_renumbering(fake_driver, fake) -> None:
    fake_driver.configure("cards 1 2 3", "hang nvmlDeviceGetName 2")
    scanned = fake.scan(skip=[GpuRef(index=2, count=4, pci="0000:12:00.0", uuid=uuid(2))])
    assert isinstance(scanned, Scanned)
    assert [(gpu.uuid, gpu.index) for gpu in scanned.inventory.gpus] == [(uuid(1), 0), (uuid(3), 2)]
    met = GpuRef(index=1, count=3, pci="0000:12:00.0", uuid=uuid(2))
    assert (scanned.count, scanned.skipped) == (3, (met,)), "and told with the place where it is now"


def test_a_place_in_the_numbering_is_skipped_only_while_as_many_are_counted(fake_driver, fake) -> None:
    fake_driver.configure("cards 0 1 3")
    scanned = fake.scan(skip=[GpuRef(index=2, count=4)])
    assert isinstance(scanned, Scanned)
    assert [gpu.uuid for gpu in scanned.inventory.gpus] == [uuid(n) for n in (0, 1, 3)]
    assert scanned.skipped == ()


@pytest.mark.parametrize("call", ["nvmlDeviceGetCount", "nvmlSystemGetDriverVersion"])
def test_a_hang_that_concerns_no_gpu_blames_none(fake_driver, fake, call) -> None:
    client = fake.spawn()
    assert isinstance(fake.scan(client), Scanned)
    fake_driver.configure("cards 0", f"hang {call}")
    hung = fake.scan(client, limit_s=LIMIT_S)
    assert hung == Hung(call=call, gpu=None, limit_s=LIMIT_S)


def test_nvml_init_may_take_a_minute_and_is_still_given_up_when_asked_to_stop(fake_driver, fake) -> None:
    fake_driver.configure("cards 0", "hang nvmlInit")
    client = fake.spawn()
    started = time.monotonic()
    threading.Timer(3 * LIMIT_S, client.close).start()
    assert fake.scan(client, limit_s=LIMIT_S) == Closed()
    assert 3 * LIMIT_S <= time.monotonic() - started < 3 * LIMIT_S + 5


@pytest.mark.parametrize(
    ("rule", "kind", "told"),
    [
        ("fail nvmlInit 9", "DriverNotLoaded", "kernel module is not loaded"),
        ("fail nvmlInit 18", "LibRmVersionMismatch", "reload the module or reboot"),
        ("fail nvmlInit 4", "NoPermission", "may not"),
        ("fail nvmlInit 777", "Unknown", "error 777"),
        ("fail nvmlDeviceGetCount 999", "Unknown", "nvmlDeviceGetCount: the driver reports an internal error"),
    ],
)
def test_nvml_refusing_as_a_whole_is_told_in_our_own_words(fake_driver, fake, rule, kind, told) -> None:
    fake_driver.configure("cards 0", rule)
    refused = fake.scan()
    assert isinstance(refused, Refused)
    assert refused.kind == kind
    assert told in refused.text
    assert "\n" not in refused.text


def test_versions_that_cannot_be_read_are_empty_and_no_fault(fake_driver, fake) -> None:
    fake_driver.configure("cards 0", "fail nvmlSystemGetDriverVersion 999", "fail nvmlSystemGetCudaDriverVersion 3")
    scanned = fake.scan()
    assert isinstance(scanned, Scanned)
    assert (scanned.inventory.driver.version, scanned.inventory.driver.cuda_version) == ("", "")
    assert len(scanned.inventory.gpus) == 1


def test_a_node_without_gpus_is_a_clean_scan(fake_driver, fake) -> None:
    fake_driver.configure("cards")
    scanned = fake.scan()
    assert isinstance(scanned, Scanned)
    assert scanned.inventory.gpus == ()


def test_a_library_that_talks_on_standard_error_neither_blocks_nor_is_heard(fake_driver, fake, capfd) -> None:
    fake_driver.configure("cards 0 1 2 3", "talk")
    client = fake.spawn()
    for _ in range(3):
        assert isinstance(fake.scan(client), Scanned)
    assert capfd.readouterr() == ("", "")


def test_a_probe_touches_no_other_gpu_more_than_is_needed_to_find_its_own(fake_driver, fake) -> None:
    fake_driver.configure("cards 0 1 2 3", "hang nvmlDeviceGetUUID 0", "hang nvmlDeviceGetName 1")
    wanted = GpuRef(index=2, count=4, pci="0000:12:00.0", uuid=uuid(2))
    probed = fake.spawn().call(Probe(gpu=wanted), limit_s=5)
    assert isinstance(probed, Probed)
    assert probed.gpu is not None
    assert probed.gpu.uuid == uuid(2)
    assert probed.fault is None


def test_a_probe_says_what_failed_and_what_is_not_there(fake_driver, fake) -> None:
    fake_driver.configure("cards 0 1", "fail nvmlDeviceGetName 16 1")
    client = fake.spawn()
    bad = client.call(Probe(gpu=GpuRef(index=1, count=2, pci="0000:11:00.0")), limit_s=5)
    gone = client.call(Probe(gpu=GpuRef(index=2, count=3, pci="0000:12:00.0")), limit_s=5)
    assert isinstance(bad, Probed)
    assert bad.fault is not None
    assert (bad.fault.call, bad.fault.kind) == ("nvmlDeviceGetName", "ResetRequired")
    assert gone == Probed()


def test_a_probe_reads_the_new_card_in_the_slot_of_the_old(fake_driver, fake) -> None:
    wanted = GpuRef(index=1, count=4, pci="0000:11:00.0", uuid="GPU-of-an-old-card")
    probed = fake.spawn().call(Probe(gpu=wanted), limit_s=5)
    assert isinstance(probed, Probed)
    assert probed.gpu is not None
    assert probed.gpu.uuid == uuid(1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_that_is_killed_from_outside_blames_nobody(fake_driver, fake, number) -> None:
    fake_driver.configure("cards 0 1 2 3", "hang nvmlDeviceGetName 1")
    client = fake.spawn()
    assert isinstance(fake.scan(client, skip=[GpuRef(index=1, count=4)]), Scanned)
    threading.Timer(LIMIT_S, os.kill, (client.pid, number)).start()
    died = fake.scan(client, limit_s=30)
    assert isinstance(died, Died)
    assert not died.at_fault
    assert died.how == f"was killed by {number.name}"


def test_a_child_that_is_killed_while_it_waits_is_noticed_by_the_next_call(fake) -> None:
    client = fake.spawn()
    assert isinstance(fake.scan(client), Scanned)
    os.kill(client.pid, signal.SIGKILL)
    wait_gone(client.pid)
    died = fake.scan(client)
    assert isinstance(died, Died)
    assert not died.at_fault
    assert isinstance(fake.scan(client), Died), "and stays dead"


def test_a_stopped_child_is_given_up_and_blames_nobody(fake_driver, fake) -> None:
    fake_driver.configure("cards 0 1 2 3", "hang nvmlDeviceGetName 1")
    client = fake.spawn()
    assert isinstance(fake.scan(client, skip=[GpuRef(index=1, count=4)]), Scanned)
    threading.Timer(LIMIT_S / 2, os.kill, (client.pid, signal.SIGSTOP)).start()
    died = fake.scan(client, limit_s=LIMIT_S)
    assert isinstance(died, Died)
    assert not died.at_fault
    assert died.how == "was stopped (SIGSTOP)"
    fake.children.end(client)
    wait_gone(client.pid)


def test_close_from_another_thread_ends_a_call_at_once_even_of_a_stopped_child(fake_driver, fake) -> None:
    client = fake.spawn()
    assert isinstance(fake.scan(client), Scanned)
    os.kill(client.pid, signal.SIGSTOP)
    threading.Timer(LIMIT_S, fake.children.close_all).start()
    started = time.monotonic()
    assert fake.scan(client, limit_s=60) == Closed()
    assert time.monotonic() - started < LIMIT_S + 5
    with pytest.raises(HostError, match="let go of"):
        fake.spawn()
    fake.children.reopen()
    assert isinstance(fake.scan(), Scanned)


def test_nonsense_on_the_wire_ends_the_child_and_blames_nobody(fake_driver, fake) -> None:
    client = fake.spawn()
    assert isinstance(fake.scan(client), Scanned)
    client._receiver._frames.add(b"\xff\xff\xff\xff")
    died = fake.scan(client)
    assert isinstance(died, Died)
    assert died.how.startswith("sent nonsense")


def test_ending_a_child_shuts_nvml_down_and_leaves_no_process(fake_driver, fake) -> None:
    client = fake.spawn()
    assert isinstance(fake.scan(client), Scanned)
    fake.children.end(client)
    assert client.is_gone
    assert client._process.returncode == 0, "it listened: no need to kill it"
    assert fake.children.count_abandoned() == 0


def test_a_child_that_does_not_die_is_counted_until_it_does(fake_driver) -> None:
    fake_driver.install()
    fake_driver.configure("cards 0", "hang nvmlDeviceGetCount")
    deaf: list[subprocess.Popen[bytes]] = []
    children = NvmlChildren(driver_root=str(fake_driver.root), kill=deaf.append, kill_wait_s=0.1)
    client = children.spawn()
    client.call(Scan(), limit_s=LIMIT_S)
    started = time.monotonic()
    children.end(client)
    assert time.monotonic() - started < 5
    assert children.count_abandoned() == 1
    deaf[0].kill()
    wait_gone(client.pid)
    assert children.count_abandoned() == 0


def test_no_fifth_child_is_started_while_four_cannot_be_killed(fake_driver) -> None:
    fake_driver.install()
    fake_driver.configure("cards 0", "hang nvmlDeviceGetCount")
    deaf: list[subprocess.Popen[bytes]] = []
    children = NvmlChildren(driver_root=str(fake_driver.root), kill=deaf.append, kill_wait_s=0.0)
    for _ in range(4):
        client = children.spawn()
        client.call(Scan(), limit_s=0.05)
        children.end(client)
    with pytest.raises(HostError, match="4 NVML children hang in the driver and cannot be killed; no more are started"):
        children.spawn()
    for process in deaf:
        process.kill()
    wait_gone(deaf[0].pid)
    again = children.spawn()
    again.close()
    for process in deaf:
        process.kill()
        process.wait()
    assert children.count_abandoned() == 0
    children.end(again)


def test_where_no_thread_can_be_started_there_is_no_child_and_nothing_is_left_of_it(fake) -> None:
    me = psutil.Process()
    files, children = me.num_fds(), len(me.children())
    usual = threading.stack_size(1 << 46)  # more than there is of addresses: no thread gets that
    try:
        with pytest.raises(HostError, match=r"cannot be started: can't start new thread; see the pod's limits"):
            fake.children.spawn()
    finally:
        threading.stack_size(usual)
    assert (me.num_fds(), len(me.children())) == (files, children)
    assert isinstance(fake.scan(), Scanned)


def test_an_event_set_that_cannot_be_made_for_ever_is_no_gpus_fault(fake_driver, fake) -> None:
    fake_driver.configure("cards 0", "hang nvmlEventSetCreate")
    assert fake.scan(limit_s=LIMIT_S) == Hung(call="nvmlEventSetCreate", gpu=None, limit_s=LIMIT_S)


def test_the_child_dies_with_its_parent_even_inside_a_call(fake_driver) -> None:
    fake_driver.install()
    fake_driver.configure("cards 0", "hang nvmlDeviceGetCount")
    code = f"""
import threading
from nvdp.nvml.children import NvmlChildren
from nvdp.nvml.frames import Scan
client = NvmlChildren(driver_root={str(fake_driver.root)!r}).spawn()
print(client.pid, flush=True)
client.call(Scan(), limit_s=60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    child = psutil.Process(pid)
    deadline = time.monotonic() + 20
    while not any("libnvidia-ml" in mapped.path for mapped in child.memory_maps()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_gone(pid)


def test_the_child_imports_nothing_that_it_does_not_need() -> None:
    code = "import nvdp.nvml.child, sys; print(*sys.modules)"
    command = [sys.executable, "-S", "-c", code]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path]))}
    loaded = set(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split())
    assert {"pynvml", "msgspec"} <= loaded
    heavy = {"grpc", "yaml", "click", "subprocess", "socket", "argparse", "pathlib", "tempfile", "inspect", "asyncio"}
    assert not loaded & heavy
    assert not [name for name in loaded if name.startswith(("nvdp.services", "nvdp.config", "nvdp.nvml.simulated"))]


def list_open(pid: int) -> Iterator[str]:
    """What its files are; one that it has closed meanwhile is none of them."""
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield str(path.readlink())


def test_the_child_has_neither_grpc_nor_yaml_and_only_three_files_of_its_parent(fake) -> None:
    client = fake.spawn()
    assert isinstance(fake.scan(client), Scanned)
    process = psutil.Process(client.pid)
    mapped = [entry.path for entry in process.memory_maps()]
    assert not [path for path in mapped if "grpc" in path or "yaml" in path]
    fds = list(list_open(client.pid))
    of_the_library = ("anon_inode:inotify", "fake.conf")  # the fake one's, to wait for events
    ours = [fd for fd in fds if not fd.endswith(of_the_library)]
    assert len(ours) <= 4, "three standard files and the socket"


def test_a_library_that_is_replaced_is_used_by_the_next_child(fake_driver, asking) -> None:
    fake = asking(driver_root=str(fake_driver.root))
    fake_driver.library.write_bytes(b"no library at all")
    refused = fake.scan()
    assert isinstance(refused, Refused)
    assert "too short" in refused.text
    fake_driver.install(basic=True)
    scanned = fake.scan()
    assert isinstance(scanned, Scanned)
    assert scanned.inventory.driver.version == ""
    fake_driver.library.unlink()
    fake_driver.install()
    scanned = fake.scan()
    assert isinstance(scanned, Scanned)
    assert scanned.inventory.driver.version == "570.1.1"
