"""Events, from a compiled libnvidia-ml through the child's waiting thread to whom they are told."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import termios
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from nvdp.model.inventory import GpuRef
from nvdp.nvml.frames import WAIT_S, Ecc, Probe, Probed, Scanned, WatchFailed, Xid
from nvdp.nvml.outcomes import Died, Hung

CARDS = "cards 0 1 2 3"
LIMIT_S = 0.4


def uuid(card: int) -> str:
    return f"GPU-{card:08x}-0000-0000-0000-000000000000"


@pytest.fixture
def fake(fake_driver, asking):
    fake_driver.install()
    return asking(driver_root=str(fake_driver.root))


def has_waiting_thread(pid: int) -> bool:
    return psutil.Process(pid).num_threads() > 1


def wait_until(condition, *, limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s}s"
        time.sleep(0.01)


def test_every_event_is_told_at_once_with_its_gpu_and_instance_and_time(fake_driver, fake) -> None:
    fake.watch()
    fake_driver.configure(CARDS, "event 2 79", "event 1 48 3 0", "ecc 0 double", "ecc 3 single")
    xid, mig, double, single = heard = fake.heard.wait(4)
    at = [notice.at for notice in heard]
    assert heard == [
        Xid(uuid=uuid(2), code=79, at=xid.at),
        Xid(uuid=uuid(1), code=48, gpu_instance=3, compute_instance=0, at=mig.at),
        Ecc(uuid=uuid(0), double=True, at=double.at),
        Ecc(uuid=uuid(3), double=False, at=single.at),
    ]
    assert fake_driver.at <= at[0] <= at[1] <= at[2] <= at[3] <= time.monotonic()


def test_what_happened_before_the_gpu_was_registered_is_not_told(fake_driver, fake) -> None:
    fake_driver.configure(CARDS, "event 2 79")
    fake.watch()
    fake_driver.configure(CARDS, "event 2 79", "event 0 31")
    (notice,) = fake.heard.wait(1)
    assert (notice.uuid, notice.code) == (uuid(0), 31)


@pytest.mark.parametrize("call", ["nvmlDeviceGetMinorNumber", "nvmlDeviceGetMigMode", "nvmlDeviceGetRemappedRows"])
def test_what_happens_while_the_first_scan_reads_a_gpu_is_told(fake_driver, fake, call) -> None:
    fake_driver.configure(CARDS, f"await {call} 1")
    client = fake.spawn()
    with ThreadPoolExecutor(1) as pool:
        scanning = pool.submit(fake.scan, client)
        wait_until(lambda: (crumb := client._receiver.last[0]).call == call and crumb.gpu.index == 1)
        fake_driver.configure(CARDS, "event 1 79")
        assert isinstance(scanning.result(), Scanned)
    (notice,) = fake.heard.wait(1)
    assert (notice.uuid, notice.code) == (uuid(1), 79)


@pytest.mark.parametrize("rule", ["fail nvmlDeviceRegisterEvents 3 2", "fail nvmlDeviceGetSupportedEventTypes 3 2"])
def test_a_gpu_without_events_is_named_and_no_fault(fake_driver, fake, rule) -> None:
    fake_driver.configure(CARDS, rule)
    scanned = fake.scan()
    assert isinstance(scanned, Scanned)
    assert scanned.unwatched == (uuid(2),)
    assert all(gpu.fault is None for gpu in scanned.inventory.gpus)
    assert scanned.watch.problem == ""


def test_a_gpu_that_has_none_of_the_events_that_matter_is_not_registered(fake_driver, fake) -> None:
    fake_driver.configure(CARDS, "types 1 4", "fail nvmlDeviceRegisterEvents 999 1")
    scanned = fake.scan()
    assert isinstance(scanned, Scanned)
    assert (scanned.unwatched, scanned.inventory.gpus[1].fault) == ((uuid(1),), None)


def test_a_gpu_that_has_some_of_the_events_is_registered_for_those(fake_driver, fake) -> None:
    fake_driver.configure(CARDS, "types 1 8")
    fake.watch()
    fake_driver.configure(CARDS, "types 1 8", "ecc 1 double", "event 1 79")
    (notice,) = fake.heard.wait(1)
    assert isinstance(notice, Xid)


@pytest.mark.invariant(5)
def test_a_registration_that_fails_is_the_fault_of_that_gpu_until_one_succeeds(fake_driver, fake) -> None:
    fake_driver.configure(CARDS, "fail nvmlDeviceRegisterEvents 999 1")
    client = fake.spawn()
    first = fake.scan(client)
    assert isinstance(first, Scanned)
    assert [gpu.fault and gpu.fault.call for gpu in first.inventory.gpus] == [
        None,
        "nvmlDeviceRegisterEvents",
        None,
        None,
    ]
    assert first.unwatched == (uuid(1),)
    fake_driver.configure(CARDS)
    second = fake.scan(client)
    assert isinstance(second, Scanned)
    assert (second.unwatched, second.inventory.gpus[1].fault) == ((), None)
    fake_driver.configure(CARDS, "event 1 79")
    assert fake.heard.wait(1)[0].uuid == uuid(1)


@pytest.mark.parametrize(
    ("rule", "kind"), [("fail nvmlEventSetCreate 999", "Unknown"), ("fail nvmlEventSetCreate 3", "NotSupported")]
)
def test_without_an_event_set_scans_are_whole_and_say_so_and_the_next_one_tries_again(
    fake_driver, fake, rule, kind
) -> None:
    fake_driver.configure(CARDS, rule)
    client = fake.spawn()
    scanned = fake.scan(client)
    assert isinstance(scanned, Scanned)
    assert scanned.watch.problem.startswith("nvmlEventSetCreate: ")
    assert (scanned.watch.kind, scanned.watch.failed) == (kind, False)
    assert len(scanned.unwatched) == 4
    assert all(gpu.fault is None for gpu in scanned.inventory.gpus)
    fake_driver.configure(CARDS)
    again = fake.scan(client)
    assert isinstance(again, Scanned)
    assert (again.watch.problem, again.watch.kind, again.unwatched) == ("", "", ())
    fake_driver.configure(CARDS, "event 1 79")
    fake.heard.wait(1)


def test_a_library_without_the_calls_is_no_fault_and_is_told(fake_driver, asking) -> None:
    fake_driver.install(basic=True)
    fake = asking(driver_root=str(fake_driver.root))
    client = fake.spawn()
    for _ in range(2):
        scanned = fake.scan(client)
        assert isinstance(scanned, Scanned)
        assert scanned.watch.problem == "nvmlEventSetCreate: this driver's library does not know the call"
        assert scanned.watch.kind == "FunctionNotFound"
        assert len(scanned.unwatched) == 4
    assert not has_waiting_thread(client.pid)


def test_a_node_without_gpus_has_nothing_to_wait_for(fake_driver, fake) -> None:
    fake_driver.configure("cards")
    client = fake.watch()
    assert not has_waiting_thread(client.pid)


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ("fail nvmlEventSetWait 15", "GpuIsLost"),
        ("fail nvmlEventSetWait 999", "Unknown"),
        ("fail nvmlEventSetWait 77", "Unknown"),
    ],
)
def test_a_wait_that_fails_is_told_once_and_scans_go_on(fake_driver, fake, rule, kind) -> None:
    client = fake.watch()
    fake_driver.configure(CARDS, rule)
    (failed,) = fake.heard.wait(1)
    assert isinstance(failed, WatchFailed)
    assert failed.kind == kind
    assert failed.text.startswith("nvmlEventSetWait: ")
    wait_until(lambda: not has_waiting_thread(client.pid))
    fake_driver.configure(CARDS, "event 1 79")
    scanned = fake.scan(client)
    assert isinstance(scanned, Scanned)
    assert scanned.watch.failed
    assert (scanned.watch.problem, scanned.watch.kind) == (failed.text, kind)
    assert fake.heard.of(client) == [failed], "this session is deaf"


@pytest.mark.invariant(5)
def test_a_new_session_does_without_the_gpu_that_spoils_the_wait(fake_driver, fake) -> None:
    """As when one falls off the bus: its own calls fail too, so that it is not in the next set."""
    fake.watch()
    lost = ("fail nvmlEventSetWait 15 2", "fail nvmlDeviceGetHandleByIndex 15 2")
    fake_driver.configure(CARDS, *lost)
    fake.heard.wait(1)
    again = fake.watch()
    fake_driver.configure(CARDS, *lost, "event 2 79", "event 3 31")
    notice = fake.heard.wait(2)[1]
    assert (notice.uuid, notice.code) == (uuid(3), 31)
    assert fake.heard.of(again) == [notice]


def test_an_event_of_a_gpu_that_cannot_be_identified_ends_the_wait(fake_driver, fake) -> None:
    fake.watch()
    fake_driver.configure(CARDS, "event -1 79")
    (failed,) = fake.heard.wait(1)
    text = "nvmlEventSetWait: an event of a GPU that was never registered"
    assert failed == WatchFailed(kind="Unknown", text=text)


def test_a_wait_that_never_returns_disturbs_no_scan_and_its_silence_is_told(fake_driver, fake) -> None:
    client = fake.watch()
    fake_driver.configure(CARDS, "hang nvmlEventSetWait")
    silences = []
    for _ in range(5):
        scanned = fake.scan(client, limit_s=5)
        assert isinstance(scanned, Scanned)
        assert not scanned.watch.failed
        silences.append(scanned.watch.silent_s)
    assert silences == sorted(silences)
    wait_until(lambda: fake.scan(client).watch.silent_s > silences[-1] + 0.5)
    assert scanned.watch.waits == 0, "not one came back"
    fake.children.end(client)
    assert client.is_gone


def test_a_wait_that_works_is_counted_and_not_long_ago(fake_driver, fake) -> None:
    client = fake.watch()
    fake_driver.configure(CARDS, "event 1 79")
    fake.heard.wait(1)
    watch = fake.scan(client).watch
    assert watch.waits == 1
    assert watch.silent_s < WAIT_S


def test_a_wait_that_always_returns_at_once_does_not_burn_the_processor(fake_driver, fake) -> None:
    fake_driver.configure(CARDS, "fail nvmlEventSetWait 10")
    client = fake.watch()
    process = psutil.Process(client.pid)
    wait_until(lambda: fake.scan(client).watch.waits >= 3)
    before, began, scans = process.cpu_times(), time.monotonic(), fake.scan(client).watch.waits
    wait_until(lambda: time.monotonic() - began > 1.0)
    after, more = process.cpu_times(), fake.scan(client).watch.waits - scans
    took_s = time.monotonic() - began
    assert more <= 15 * took_s
    assert after.user + after.system - before.user - before.system < 0.3 * took_s


def test_a_thousand_events_in_a_burst_come_in_order_while_scans_go_on(fake_driver, fake) -> None:
    client = fake.watch()
    fake_driver.configure(CARDS, *(f"event {n % 4} {n}" for n in range(1000)))
    for _ in range(5):
        assert isinstance(fake.scan(client), Scanned)
    assert [notice.code for notice in fake.heard.wait(1000)] == list(range(1000))


def test_a_daemon_that_does_not_listen_for_a_while_loses_nothing_and_blocks_nobody_for_ever(fake_driver, fake) -> None:
    entered, released = threading.Event(), threading.Event()

    def take_slowly(pid, notice) -> None:
        entered.set()
        assert released.wait(20)
        fake.heard.take(pid, notice)

    client = fake.children.spawn(take_slowly)
    try:
        assert isinstance(fake.scan(client), Scanned)
        fake_driver.configure(CARDS, *(f"event {n % 4} {n}" for n in range(1500)))
        assert entered.wait(20)
        wait_until(lambda: is_full(client._connection))
        released.set()
        assert [notice.code for notice in fake.heard.wait(1500)] == list(range(1500))
        assert isinstance(fake.scan(client), Scanned)
    finally:
        released.set()
        fake.children.end(client)


def is_full(connection: socket.socket) -> bool:
    """Whether nothing more comes although not all has come: whoever writes waits for room."""
    before = fcntl.ioctl(connection, termios.FIONREAD, bytes(4))
    time.sleep(0.1)
    return before != bytes(4) and before == fcntl.ioctl(connection, termios.FIONREAD, bytes(4))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_child_that_dies_while_nobody_asks_is_told_at_once(fake, number) -> None:
    client = fake.watch()
    os.kill(client.pid, number)
    at = time.monotonic()
    (died,) = fake.heard.wait(1)
    assert time.monotonic() - at < 5
    assert died == Died(call="", gpu=None, how=f"was killed by {number.name}", at_fault=False)
    assert fake.scan(client) == died, "and the next call knows it"
    assert len(fake.heard.all) == 1


def test_a_crash_in_the_wait_blames_no_gpu(fake_driver, fake) -> None:
    fake.watch()
    fake_driver.configure(CARDS, "abort nvmlEventSetWait 2")
    (died,) = fake.heard.wait(1)
    assert isinstance(died, Died)
    assert (died.how, died.gpu, died.at_fault) == ("was killed by SIGABRT", None, False)


def test_a_child_that_is_ended_or_closed_is_not_told_as_dead(fake) -> None:
    first, second = fake.watch(), fake.watch()
    fake.children.end(first)
    second.close()
    fake.children.end(second)
    assert first.is_gone
    assert second.is_gone
    assert fake.heard.all == []


def test_a_stopped_child_tells_what_happened_when_it_goes_on(fake_driver, fake) -> None:
    client = fake.watch()
    os.kill(client.pid, signal.SIGSTOP)
    fake_driver.configure(CARDS, "event 1 79")
    os.kill(client.pid, signal.SIGCONT)
    assert fake.heard.wait(1)[0].uuid == uuid(1)


def test_two_sessions_tell_the_same_event_each_once_and_nobody_misses_it(fake_driver, fake) -> None:
    """As in a renewal: the old one is ended when the new one has scanned."""
    old = fake.watch()
    lines = ["event 0 1"]
    fake_driver.configure(CARDS, *lines)
    fake.heard.wait(1)
    new = fake.spawn()
    assert isinstance(fake.scan(new), Scanned)
    lines.append("event 1 2")
    fake_driver.configure(CARDS, *lines)
    fake.heard.wait(3)
    fake.children.end(old)
    lines.append("event 2 3")
    fake_driver.configure(CARDS, *lines)
    fake.heard.wait(4)
    codes = {child.pid: [notice.code for notice in fake.heard.of(child)] for child in (old, new)}
    assert codes == {old.pid: [1, 2], new.pid: [2, 3]}
    twice = [notice.at for _, notice in fake.heard.all if notice.code == 2]
    assert abs(twice[0] - twice[1]) < 2.0, "near enough in time to be known as one, see nvdp/services/health.py"


def test_a_probe_registers_too_so_that_a_clean_one_promises_a_clean_scan(fake_driver, fake) -> None:
    wanted = GpuRef(index=2, count=4, pci="0000:12:00.0", uuid=uuid(2))
    client = fake.spawn()
    assert client.call(Probe(gpu=wanted), limit_s=5).fault is None
    assert not has_waiting_thread(client.pid), "but it hears nothing"
    fake_driver.configure(CARDS, "fail nvmlDeviceRegisterEvents 999 2")
    probed = fake.spawn().call(Probe(gpu=wanted), limit_s=5)
    assert isinstance(probed, Probed)
    assert probed.fault is not None
    assert probed.fault.call == "nvmlDeviceRegisterEvents"
    fake_driver.configure(CARDS, "hang nvmlDeviceRegisterEvents 2")
    hung = fake.spawn().call(Probe(gpu=wanted), limit_s=LIMIT_S)
    assert isinstance(hung, Hung)
    assert hung.gpu == wanted
