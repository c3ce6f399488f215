"""The check before a container starts, with real NVML children on a simulated node."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import msgspec
import psutil
import pytest
import yaml

from nvdp.errors import AllocationError
from nvdp.host.processes import NodeProcesses
from nvdp.model.listing import AllocationFacts, GpuFacts, ListedDevice, ResourceList
from nvdp.model.reasons import Cause, Reason
from nvdp.nvml.children import NvmlChildren
from nvdp.services.idle import IdleCheck

LIMIT_S = 15.0
UUIDS = [f"GPU-{number}" for number in range(3)]
ME = {"pid": os.getpid(), "memoryBytes": 5 << 20}
NOBODY = 2**31 - 2  # no kernel has as many processes
CALL = "nvmlDeviceGetComputeRunningProcesses"


class Scene:
    """A check, the node that it looks at, and what it logged and counted."""

    def __init__(self, tmp_path, *, sees_all: bool = True, children=NvmlChildren) -> None:
        self.path = tmp_path / "node.yaml"
        self.describe()
        self.children = children(simulated=str(self.path))
        self.lines: list[tuple[Reason, str, dict[str, object]]] = []
        self.timeouts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.check = IdleCheck(self.children, log=self.log, observer=self, processes=NodeProcesses(), sees_all=sees_all)

    def describe(self, processes=None, **described) -> None:
        """The GPUs with these processes, by number; in one rename."""
        gpus = [
            {"model": "a10", "uuid": uuid, "processes": (processes or {}).get(n, [])} for n, uuid in enumerate(UUIDS)
        ]
        fresh = self.path.with_suffix(".new")
        fresh.write_text(yaml.safe_dump({"gpus": gpus, **described}))
        fresh.replace(self.path)

    def hang(self, gpu: int | None, call: str = CALL, processes=None) -> None:
        self.describe(processes, faults=[{"call": call, "hang": True, **({} if gpu is None else {"gpu": gpu})}])

    def log(self, reason, msg, /, *, level=None, **fields) -> None:
        self.lines.append((reason, msg, fields))

    def nvml_failed(self, call: str, kind: str) -> None:
        self.errors[call, kind] += 1

    def nvml_timed_out(self, uuid: str) -> None:
        self.timeouts[uuid] += 1

    def start_container(self, *gpus: int, **options) -> bool:
        return self.check.begin(listed(**options), [UUIDS[gpu] for gpu in gpus]).wait()

    def wait_quiet(self) -> None:
        """Until nobody waits any more: then there is neither a thread nor a child."""
        wait_until(lambda: not child_pids() and not threads())


class Poisoned(NvmlChildren):
    """The first child that is asked for meets a defect."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.spawned = threading.Event()

    def spawn(self, *arguments):
        if not self.spawned.is_set():
            self.spawned.set()
            raise ValueError("a defect")
        return super().spawn(*arguments)


def listed(*, timeout_s: float = 20.0, call_s: float = 5.0, causes=None) -> ResourceList:
    causes = causes or {}
    return ResourceList(
        resource="nvidia.com/gpu",
        devices=tuple(
            ListedDevice(id=uuid, gpu_uuid=uuid, cause=causes.get(n), text="gone" if n in causes else "")
            for n, uuid in enumerate(UUIDS)
        ),
        facts=AllocationFacts(
            gpus=tuple(GpuFacts(uuid=uuid, index=str(n)) for n, uuid in enumerate(UUIDS)),
            pre_start_timeout_s=timeout_s,
            call_timeout_s=call_s,
        ),
    )


def child_pids() -> set[int]:
    return {child.pid for child in psutil.Process().children() if is_nvml_child(child)}


def is_nvml_child(child: psutil.Process) -> bool:
    try:
        return child.status() != psutil.STATUS_ZOMBIE and "nvdp.nvml.child" in child.cmdline()
    except psutil.Error:  # it goes just now
        return False


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == IdleCheck.THREAD]


def wait_until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.005)
    return found


@pytest.fixture
def scene(tmp_path):
    made = Scene(tmp_path)
    yield made
    made.children.close_all()
    made.wait_quiet()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(24) as made:
        yield made


def test_on_idle_gpus_a_container_starts_and_nothing_is_left_of_the_check(scene):
    assert scene.start_container(0, 2)
    assert scene.lines == []
    scene.wait_quiet()


def test_a_container_waits_until_the_last_process_of_another_is_gone(scene, pool):
    scene.describe({1: [ME]})
    wait = scene.check.begin(listed(), UUIDS)
    started = pool.submit(wait.wait)
    wait_until(lambda: [*wait.pending] == UUIDS[1:2] and wait.pending[UUIDS[1]])
    assert not started.done()
    scene.describe()
    assert started.result(LIMIT_S)
    assert scene.lines == []


def test_processes_that_stay_keep_the_container_from_starting_and_are_named(scene):
    own, draws = psutil.Process().name()[:15], {"pid": NOBODY, "graphics": True}
    scene.describe({0: [draws], 1: [ME, draws]})
    before = scene.check.begin(listed(), UUIDS)
    wait_until(lambda: before.pending[UUIDS[1]])  # there is a child by now, however busy the machine
    with pytest.raises(AllocationError) as caught:
        scene.start_container(0, 1, 2, timeout_s=2)
    before.end()
    after = "not idle after 2s (allocation.preStartTimeout): used by"
    why = "" if NodeProcesses().are_all_seen else " without hostPID"
    unseen = f"PID {NOBODY} (name unknown{why}, 0 MiB)"
    first, second = str(caught.value).removeprefix("nvidia.com/gpu: ").split("; ")
    assert first == f"{UUIDS[0]} (index 0) is {after} {unseen}"
    assert second.startswith(f"{UUIDS[1]} (index 1) is {after} PID {ME['pid']} ({own}, 5 MiB")
    assert second.endswith(f"), {unseen}")
    assert caught.value.reason == "not_idle"
    assert [(reason, fields["device"]) for reason, _, fields in scene.lines] == [
        (Reason.DEVICE_NOT_IDLE, UUIDS[0]),
        (Reason.DEVICE_NOT_IDLE, UUIDS[1]),
    ]
    (_, text, unnamed), (_, _, named) = scene.lines
    assert text == f"{after} {unseen}; a container was kept from starting"
    assert (unnamed["index"], unnamed["pid"], "process_name" in unnamed) == (0, NOBODY, False)
    assert (named["index"], named["pid"], named["process_name"]) == (1, ME["pid"], own)


def test_what_a_gpu_was_asked_before_a_container_came_is_nothing_to_it(scene, pool):
    scene.describe({0: [ME]})
    first = scene.check.begin(listed(), UUIDS[:1])
    started = pool.submit(first.wait)
    wait_until(lambda: first.pending[UUIDS[0]])
    second = scene.check.begin(listed(), UUIDS[:1])
    second.take(UUIDS[0], (), asked_at=time.monotonic() - 60)
    assert second.pending
    first.end()
    second.end()
    assert not started.result(LIMIT_S)


def test_many_containers_at_once_share_one_thread_and_one_child(scene, pool):
    scene.describe({0: [ME], 1: [ME]})
    waits = [scene.check.begin(listed(), [UUIDS[n % 2]]) for n in range(24)]
    started = [pool.submit(wait.wait) for wait in waits]
    wait_until(lambda: all(processes for wait in waits for processes in wait.pending.values()))
    assert (len(child_pids()), len(threads())) == (1, 1)
    scene.describe({1: [ME]})
    assert all(one.result(LIMIT_S) for one in started[::2])
    assert not any(one.done() for one in started[1::2])
    scene.describe()
    assert all(one.result(LIMIT_S) for one in started[1::2])


def test_a_wait_that_is_ended_returns_at_once_and_leaves_nothing(scene, pool):
    scene.describe({0: [ME]})
    wait = scene.check.begin(listed(), UUIDS[:1])
    started = pool.submit(wait.wait)
    wait_until(lambda: wait.pending[UUIDS[0]])
    wait.end()
    assert not started.result(LIMIT_S)
    scene.wait_quiet()
    assert scene.lines == []


def test_a_share_and_an_id_that_is_not_listed_are_not_asked_about(scene):
    scene.hang(None, "*")
    assert scene.check.begin(listed(), [f"{UUIDS[0]}::1", "GPU-elsewhere"]).wait()
    assert scene.lines == []
    assert child_pids() == set()


def test_a_gpu_that_the_list_calls_lost_is_not_asked_about_and_the_container_starts_with_a_warning(scene):
    scene.hang(None, "*")
    assert scene.start_container(0, causes={0: Cause.LOST})
    [(reason, text, _)] = scene.lines
    assert reason is Reason.DEVICE_NOT_IDLE
    assert text.startswith("GPU-0: nobody can tell whether a process is on it (gone); the container starts")


@pytest.mark.parametrize(
    ("described", "why"),
    [
        ({"lost": ["1"]}, "fallen off the bus"),
        ({"removed": ["1"]}, "it is not counted any more"),
        ({"driver": {"state": "missing"}}, "libnvidia-ml"),
        ({"faults": [{"call": CALL, "error": "NotSupported"}]}, "not support"),
    ],
    ids=["lost", "removed", "no driver", "unsupported"],
)
def test_what_cannot_be_found_out_keeps_no_container_from_starting(scene, described, why):
    scene.describe({0: [ME], 1: [ME], 2: [ME]}, **described)
    began = time.monotonic()
    assert scene.start_container(1)
    assert time.monotonic() - began < 10
    [(_, text, _)] = scene.lines
    assert why in text
    assert text.count("\n") == 0


def test_a_hanging_gpu_costs_one_limit_and_the_next_container_none(scene, pool):
    scene.hang(0, processes={0: [ME], 1: [ME]})
    hanging, busy = (scene.check.begin(listed(timeout_s=25, call_s=0.5), [uuid]) for uuid in UUIDS[:2])
    started = [pool.submit(wait.wait) for wait in (hanging, busy)]
    assert started[0].result(LIMIT_S)
    [(_, text, _)] = scene.lines
    assert f"{CALL} did not return within 0.5s" in text
    wait_until(lambda: busy.pending[UUIDS[1]])  # and the other GPU is asked about, by another child
    at = time.monotonic()
    assert scene.start_container(0, call_s=5.0)
    assert time.monotonic() - at < 4, "it waited for the call again"
    assert scene.timeouts == {UUIDS[0]: 1}
    busy.end()
    assert not started[1].result(LIMIT_S)


def test_a_gpu_that_hangs_on_the_way_to_another_is_left_out(scene, pool):
    scene.hang(0, "nvmlDeviceGetUUID", processes={1: [ME]})
    wait = scene.check.begin(listed(call_s=0.3), UUIDS[1:2])
    started = pool.submit(wait.wait)
    wait_until(lambda: wait.pending[UUIDS[1]])
    wait.end()
    assert not started.result(LIMIT_S)
    assert scene.lines == []


def test_a_driver_that_is_let_go_of_lets_containers_start_and_no_child_is_left(scene, pool):
    scene.describe({0: [ME]})
    wait = scene.check.begin(listed(), UUIDS[:1])
    started = pool.submit(wait.wait)
    wait_until(lambda: wait.pending[UUIDS[0]])
    scene.children.close_all()
    assert started.result(LIMIT_S)
    wait_until(lambda: scene.children.are_gone)
    assert "the driver is" in scene.lines[0][1]
    assert scene.start_container(0)
    assert "the driver is let go of" in scene.lines[1][1]


def test_where_other_namespaces_are_not_seen_that_is_told_once_and_stays_a_trouble(tmp_path):
    scene = Scene(tmp_path, sees_all=False)
    assert scene.check.trouble is None
    assert scene.start_container(0)
    assert scene.start_container(0)
    [(reason, text, _)] = scene.lines
    assert reason is Reason.DEVICE_NOT_IDLE
    assert text.endswith("set hostPID: true in its pod")
    assert scene.check.trouble == msgspec.structs.replace(scene.check.trouble, reason="DeviceNotIdle", text=text)
    scene.wait_quiet()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_after_a_crash_of_its_thread_the_check_goes_on_when_it_is_started_again(tmp_path, pool):
    scene = Scene(tmp_path, children=Poisoned)
    wait = scene.check.begin(listed(), UUIDS[:1])
    started = pool.submit(wait.wait)
    assert scene.children.spawned.wait(LIMIT_S)
    wait_until(lambda: not threads())
    assert not started.done()
    scene.check.start()
    assert started.result(LIMIT_S)
    scene.wait_quiet()
