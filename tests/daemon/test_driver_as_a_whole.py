"""A compiled libnvidia-ml that fails, hangs or is replaced as a whole: how soon it is known, and what it holds up."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from nvdp.http.control import send_order
from nvdp.http.routes import PAUSE_PATH, RESUME_PATH
from tests.daemon.node import GPU, build_config, connect, gpu_uuid, healthy, wait_healthy
from tests.daemon.process import LIMIT_S, wait_until

ALL = [gpu_uuid(number) for number in range(4)]
NEWER = "580.2.2"
pytestmark = pytest.mark.parametrize("library", ["compiled"])


@pytest.fixture
def begin(kubelet, start, machine):
    """A daemon to which all GPUs are well, and that counts a call as hanging after so long."""

    def begin(call_timeout="1s", **health):
        health = {"callTimeout": call_timeout, **health}
        daemon = start(build_config(health=health))
        wait_healthy(kubelet, ALL)
        return daemon

    return begin


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # an orphan that nobody has reaped yet
    except psutil.NoSuchProcess:
        return False


def break_(kubelet, machine, rule):
    """Seconds from the first call that does not work to the list in which no GPU is Healthy."""
    known = len(machine.driver.trace)
    machine.tell("trace", rule)
    kubelet.wait_until(lambda: not healthy(kubelet), LIMIT_S, what="no Healthy GPU")
    by_design = "nvmlEventSetWait" if "hang" in rule else ""  # which waits as well where all is well
    first, *_ = (at for call, at in machine.driver.trace[known:] if call != by_design)
    return kubelet.messages(GPU)[-1].at - first


def test_all_gpus_are_unhealthy_soon_after_every_call_fails_or_hangs_and_well_again_with_the_driver(
    kubelet, begin, machine
):
    daemon = begin()
    child = daemon.child

    assert break_(kubelet, machine, "fail * 999") < 5
    assert "nvml" in daemon.log.wait_for("DriverLost")["msg"]
    assert daemon.wait_probe("/readyz", lambda probe: probe.status == 503).body["reason"] == "DriverLost"
    machine.tell()
    wait_healthy(kubelet, ALL)
    assert not child.is_running()

    after = len(daemon.log)
    assert break_(kubelet, machine, "hang *") < 2 * 1 + 2
    assert daemon.log.wait_for("DriverLost", after=after)["error"] == "CallTimeout"
    assert daemon.probe("/healthz").status == 200
    machine.tell()
    wait_healthy(kubelet, ALL)

    assert all(set(message.ids) == set(ALL) for message in kubelet.messages(GPU))
    assert len(kubelet.registrations) == 1


@pytest.mark.requirement(22)
@pytest.mark.parametrize(
    ("version", "call", "times"),
    [
        ("1.36", "nvmlInit", 1),
        ("1.36", "nvmlDeviceGetCount", 1),
        ("1.37", "nvmlDeviceGetMemoryInfo 2", 2),
        ("1.37", "nvmlEventSetWait", 1),
    ],
    ids=["a new session", "a scan", "a scan and then a probe", "the wait for events"],
)
def test_it_serves_and_stops_while_a_call_hangs(kubelet, begin, machine, call, times):
    daemon = begin(call_timeout="30s" if times == 1 else "1s")

    machine.tell("trace", f"hang {call}")
    daemon.look()
    wait_until(lambda: len(machine.driver.trace) >= times, what=f"a hang in {call}")

    assert set(kubelet.devices(GPU)) == set(ALL)
    with connect(kubelet) as client:
        assert client.allocate([ALL[0]]).container_responses
    assert daemon.probe("/healthz").status == 200
    children = daemon.children
    assert children
    ended = daemon.stop()
    assert (ended.code, ended.seconds < 5) == (0, True)
    wait_until(lambda: not any(map(is_alive, children)), what="the end of all children")


def find_users(directory: Path) -> list[str]:
    """What processes have mapped or opened of the files in a directory."""
    found = []
    for process in psutil.process_iter():
        place = Path("/proc", str(process.pid))
        try:
            found += [line.split()[-1] for line in (place / "maps").read_text().splitlines() if str(directory) in line]
            found += [link for fd in (place / "fd").iterdir() if str(directory) in (link := str(fd.readlink()))]
        except OSError:
            continue  # has ended meanwhile
    return [Path(name).name for name in found]


def test_a_driver_of_another_version_that_came_during_a_pause_is_used_by_a_resume_and_counts_as_a_reset(
    kubelet, begin, machine, root
):
    for name in ("nvidiactl", *(f"nvidia{number}" for number in range(4))):
        (machine.driver.directory / name).touch()
    machine.tell("vital 1 recovery -1")  # the driver does not say what it asks for
    daemon = begin(recovery={"holdOff": "200ms"})
    daemon.wait_scans(1)
    machine.change(events=[{"gpu": 1, "xid": 79}])
    wait_healthy(kubelet, [ALL[0], *ALL[2:]])
    assert {"nvidiactl", "nvidia0", "nvidia3", "libnvidia-ml.so.570.1.1"} <= {*find_users(machine.driver.directory)}

    assert send_order(root / "run", PAUSE_PATH, {"note": "new driver"}, timeout_s=LIMIT_S).done
    assert find_users(machine.driver.directory) == []
    machine.change(driver={"version": NEWER, "kernel": NEWER})
    assert send_order(root / "run", RESUME_PATH, {}, timeout_s=LIMIT_S).done

    assert f"driver {NEWER}" in daemon.log.wait_for("DriverReady", text=NEWER)["msg"]
    wait_healthy(kubelet, ALL)
    assert "XID 79" in daemon.log.wait_for("DeviceRecovered")["msg"]
    assert f"libnvidia-ml.so.{NEWER}" in find_users(machine.driver.directory)
    assert "libnvidia-ml.so.570.1.1" not in find_users(machine.driver.directory)
    assert all(set(message.ids) == set(ALL) for message in kubelet.messages(GPU))
    assert len(kubelet.registrations) == 1
