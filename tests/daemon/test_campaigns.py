"""The same things over and over: nothing may grow, and the kubelet must live. In full with ``make campaign``."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import threading
import time

import grpc
import psutil
import pytest

from nvdp.simulate.kubelet import AdmissionError
from tests.daemon.node import GPU, SHARED, build_config, connect, healthy, on_node, pci_address
from tests.daemon.process import LIMIT_S, wait_until
from tests.planning.files import Drawing, Spelled

QUICK = {"health": {"callTimeout": "1s"}}
FULL = os.environ.get("NVDP_CAMPAIGN") == "full"


@pytest.mark.campaign
@pytest.mark.requirement(17)
def test_reconnects_leave_threads_files_and_memory_as_they_were(kubelet, daemon):
    process = psutil.Process(daemon.pid)
    accepted_at = kubelet.registrations[0].answered_at
    wait_until(lambda: time.monotonic() > accepted_at + 1.1, what="that no new stream is taken for the kubelet's")

    def reconnect(times: int) -> None:
        for _ in range(times):
            with connect(kubelet) as client:
                stream = client.watch()
                assert len(next(iter(stream)).devices) == 16
                stream.cancel()

    reconnect(100)
    wait_until(lambda: daemon.metric("nvdp_kubelet_streams", resource=GPU) == 1, what="the end of all streams")
    threads, files, memory = process.num_threads(), process.num_fds(), process.memory_info().rss
    reconnect(10_000 if FULL else 100)

    wait_until(lambda: daemon.metric("nvdp_kubelet_streams", resource=GPU) == 1, what="the end of all streams")
    wait_until(lambda: process.num_threads() <= threads + 2, what=f"{threads} threads again")
    wait_until(lambda: process.num_fds() <= files + 2, what=f"{files} files again")
    assert process.memory_info().rss - memory < 5 * 2**20
    with connect(kubelet) as client:
        assert client.allocate([next(iter(healthy(kubelet)))])
    assert len(kubelet.registrations) == 1


@on_node(kubelet={"topology_policy": "best-effort"})
@pytest.mark.campaign
@pytest.mark.timeout(3600 if FULL else 60)
@pytest.mark.requirement(48)
@pytest.mark.requirement(49)
@pytest.mark.parametrize("seed", range(2 if FULL else 1))
@pytest.mark.parametrize("version", ["1.33", "1.36", "1.37"] if FULL else ["1.36"])
def test_shrinks_and_growths_while_pods_come_and_go_leave_the_kubelet_alive(kubelet, daemon, config_map, seed):
    dice = random.Random(seed)
    pods = []
    refused = 0
    for round_number in range(200 if FULL else 25):
        blocks = {"timeSlicing": {"renameByDefault": True}} if dice.random() < 0.2 else {}
        config_map.publish(build_config(share=dice.choice([1, 2, 3, 4, 8]), **blocks))
        for _ in range(dice.randrange(4)):
            resource = GPU if healthy(kubelet) else SHARED
            try:
                pods.append(kubelet.admit(f"team/{len(pods)}", {"main": {resource: dice.choice([1, 1, 2])}}))
            except AdmissionError:
                refused += 1
        for pod in dice.sample(pods, len(pods) // 3):
            kubelet.delete(pod)
            pods.remove(pod)
        if round_number % 8 == 7:
            kubelet.restart()
            kubelet.wait_until(lambda: not kubelet.readmissions_pending, LIMIT_S)
        # Long enough, now and then, for what is Unhealthy to leave.
        pause = threading.Event()
        pause.wait(dice.choice([0.0, 0.0, 0.1, 0.3, 6.0 if FULL and dice.random() < 0.2 else 0.3]))
        kubelet.assert_alive()

    held = [device for pod in pods for resource in (GPU, SHARED) for device in pod.ids(resource)]
    assert len(held) == len(set(held))
    listed = kubelet.devices(GPU).keys() | kubelet.devices(SHARED).keys()
    assert set(held) <= listed
    assert refused < 200
    assert daemon.running


class Day:
    """A day on which everything that can happen to a node happens, in an order that ``dice`` chooses.

    Files are edited over all of sharing: names, lists, counts, replicas, exclusions and cordons.
    """

    def __init__(self, kubelet, machine, config_map, start, dice) -> None:
        self._kubelet, self._machine, self._config_map, self._start, self._dice = (
            kubelet,
            machine,
            config_map,
            start,
            dice,
        )
        cards = [Spelled(slot, pci_address(slot), (uuid,)) for slot, uuid in enumerate(machine.uuids)]
        self._drawing = Drawing(dice, cards, more={**QUICK, "devices": {"rescanInterval": "1s", "removeAfter": "5m"}})
        self._pods: list = []
        self._events = (
            *(self.edit, self.edit, self.edit, self.break_file, self.admit, self.admit, self.admit, self.delete),
            *(self.wait, self.wait, self.trouble_gpu, self.heal_gpus, self.renumber, self.kill_child, self.lose_driver),
            *(self.restart_kubelet, self.close_stream, self.delete_socket, self.restart_daemon),
        )

    def live(self, events: int) -> None:
        for _ in range(events):
            self._dice.choice(self._events)()
            self._kubelet.assert_alive()
            self.check_promised_once()

    def check_promised_once(self) -> None:
        """All pods that run have a card in one form."""
        forms: dict[str, set[tuple[str, bool]]] = {}
        for pod in self._pods:
            for _, resource in dict(pod.allocations) if pod.phase == "Running" else ():
                for device in pod.ids(resource):
                    forms.setdefault(device.partition("::")[0], set()).add((resource, "::" in device))
        assert all(len(found) == 1 for found in forms.values()), f"a card is promised twice: {forms}"

    def end(self) -> None:
        """All is well again, and nobody holds anything."""
        for pod in self._pods:
            self._kubelet.delete(pod)
        self._machine.heal()
        self._config_map.publish(build_config(share=3, **QUICK))

    def edit(self) -> None:
        self._config_map.publish(self._drawing.draw().text)

    def break_file(self) -> None:
        self._config_map.publish(self._dice.choice(["sharing: [", "version: v9\n", "\0"]))

    def admit(self) -> None:
        names = sorted({found.resource for found in self._kubelet.registrations})
        resource = self._dice.choice([name for name in names if healthy(self._kubelet, name)] or names)
        with contextlib.suppress(AdmissionError):
            self._pods.append(self._kubelet.admit(f"team/{len(self._pods)}", {"main": {resource: 1}}))

    def delete(self) -> None:
        if self._pods:
            self._kubelet.delete(self._pods.pop(self._dice.randrange(len(self._pods))))

    def wait(self) -> None:
        threading.Event().wait(self._dice.choice([0.05, 0.3, 6.0 if FULL else 0.6]))

    def trouble_gpu(self) -> None:
        gpu = self._dice.randrange(4)
        effect = self._dice.choice([{"error": "GpuIsLost"}, {"hang": True}, {"crash": True}, None, "lost"])
        if effect is None:
            self._machine.change(removed=[str(gpu)])
        elif effect == "lost":
            self._machine.change(lost=[str(gpu)])
        else:
            self._machine.fault("nvmlDeviceGetName", gpu=gpu, **effect)

    def heal_gpus(self) -> None:
        self._machine.heal()

    def renumber(self) -> None:
        """NVML counts the cards in another order, as after a boot with another firmware."""
        order = list(range(len(self._machine.uuids)))
        self._dice.shuffle(order)
        self._machine.renumber(*order)

    def lose_driver(self) -> None:
        self._machine.change(driver={"state": self._dice.choice(["missing", "not-loaded"])})

    def kill_child(self) -> None:
        for child in self._daemon.children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(self._dice.choice([signal.SIGKILL, signal.SIGSTOP]))

    def restart_kubelet(self) -> None:
        self._kubelet.restart()

    def close_stream(self) -> None:
        with contextlib.suppress(LookupError):
            self._kubelet.close_stream(self._dice.choice(self._kubelet.registrations).resource)

    def delete_socket(self) -> None:
        for path in self._kubelet.directory.glob("nvdp-*.sock"):
            path.unlink(missing_ok=True)

    def restart_daemon(self) -> None:
        self._daemon.log.wait_for("Starting")  # before, signals are the interpreter's
        ended = self._daemon.stop(self._dice.choice([signal.SIGTERM, signal.SIGINT]))
        assert (ended.code, ended.seconds < 5) == (0, True)
        self._start()

    @property
    def _daemon(self):
        return self._start.daemons[-1]


@pytest.fixture
def day(kubelet, machine, config_map, start, seed):
    start(build_config(share=3, **QUICK), wait=True)
    return Day(kubelet, machine, config_map, start, random.Random(seed))


@on_node(
    kubelet={"topology_policy": "restricted"},
    machine={"products": ["NVIDIA A10", "NVIDIA A10", "NVIDIA L4", "NVIDIA L4"]},
)
@pytest.mark.campaign
@pytest.mark.timeout(3600 if FULL else 60)
@pytest.mark.parametrize("seed", range(6 if FULL else 1))
@pytest.mark.parametrize("version", ["1.36", "1.37"] if FULL else ["1.36"])
def test_after_any_day_all_devices_are_on_offer_again_by_themselves(kubelet, machine, start, day):
    day.live(400 if FULL else 40)
    day.end()

    kubelet.wait_until(
        lambda: (
            {device.partition("::")[0] for device in healthy(kubelet)} == set(machine.uuids)
            and len(healthy(kubelet)) == 12
            and not any(healthy(kubelet, found.resource) for found in kubelet.registrations if found.resource != GPU)
        ),
        120 if FULL else 45,
        what="12 devices",
    )
    start.daemons[-1].wait_ready()


@pytest.mark.campaign
def test_allocations_leave_memory_as_it_was(kubelet, daemon):
    process = psutil.Process(daemon.pid)
    ids = sorted(healthy(kubelet))

    def allocate(times: int) -> None:
        with connect(kubelet) as client:
            for number in range(times):
                client.allocate([ids[number % len(ids)]])
                client.prefer(available=ids, size=4)
                with contextlib.suppress(grpc.RpcError):
                    client.allocate([f"unknown {number}"])

    allocate(100)
    gc.collect()
    memory = process.memory_info().rss
    allocate(20_000 if FULL else 200)

    assert process.memory_info().rss - memory < 5 * 2**20
