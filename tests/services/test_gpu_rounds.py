"""How the service that knows the GPUs goes about faults: with real NVML children, and time that can be let pass."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest

from nvdp.config.schema import HealthSettings
from nvdp.model.deviceref import parse_device_ref
from nvdp.model.pause import Pause
from nvdp.model.reasons import Cause, Reason
from nvdp.model.status import DriverState
from nvdp.nvml.children import NvmlChildren
from tests.services.gpu_bench import Bench, NodeFile, is_ready

HOLD_OFF_S = HealthSettings().recovery.hold_off.seconds
XID = "events: [{gpu: 1, xid: 48}]"
ASKS = "conditions: [{gpu: 1, recoveryAction: GPUReset}]"


class Clock:
    """Real time, from which some is left out."""

    def __init__(self) -> None:
        self._skipped_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._skipped_s

    def skip(self, seconds: float) -> None:
        self._skipped_s += seconds


@pytest.fixture
def node(tmp_path) -> NodeFile:
    return NodeFile(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bench(node, clock):
    made = Bench(NvmlChildren(simulated=str(node.path)), clock=clock)
    yield made
    made.service.stop()


def begin(bench, *, excluded=frozenset(), **health):
    bench.configure(health=HealthSettings(**health), excluded=excluded)
    bench.service.start()
    bench.wait_healthy(4)
    bench.wait_scans(1)  # every GPU is watched


def lose_driver(bench, node):
    """It is loaded as before, and answers nobody; and the end of that."""
    node.write(XID, "faults: [{call: nvmlDeviceGetCount, error: Unknown}]")
    bench.wait(lambda post: post.driver.state is DriverState.LOST)
    return lambda: node.write(XID)


def pause(bench, node):
    bench.service.pause(Pause(by="nvdp pause", since=0.0))
    bench.wait(lambda post: post.driver.state is DriverState.PAUSED)
    return bench.service.resume


@pytest.mark.parametrize("interrupt", [lose_driver, pause])
def test_no_gpu_recovers_while_nobody_can_tell_and_the_hold_off_begins_anew_afterwards(bench, node, clock, interrupt):
    begin(bench)
    node.write(XID)
    bench.wait_causes(one="XID")
    bench.wait_scans()
    clock.skip(HOLD_OFF_S - 10)
    bench.wait_scans()
    assert bench.posts[-1].ailments.keys() == {"GPU-one"}

    end = interrupt(bench, node)
    clock.skip(20)
    end()
    bench.wait(is_ready)
    bench.wait_scans()
    assert {uuid: one.cause for uuid, one in bench.posts[-1].ailments.items()} == {"GPU-one": Cause.XID}

    clock.skip(HOLD_OFF_S - 10)
    bench.wait_scans()
    assert bench.posts[-1].ailments.keys() == {"GPU-one"}
    clock.skip(10)
    bench.wait_healthy(4)


def test_who_computes_or_draws_is_asked_of_all_gpus_once_one_asks_for_a_reset_and_releasing_is_allowed(bench, node):
    begin(bench, release_for_reset=True)
    node.write(busy=[2])
    bench.wait_scans()
    assert bench.posts[-1].busy is None
    node.write(ASKS, busy=[2])
    bench.wait(lambda post: post.busy == ("GPU-two",))
    node.write(ASKS)
    bench.wait(lambda post: post.busy == ())
    node.write(ASKS, "faults: [{call: nvmlDeviceGetComputeRunningProcesses, gpu: 3, error: Unknown}]")
    bench.wait(lambda post: post.busy == ("GPU-three",))  # nobody knows
    bench.configure(health=HealthSettings())
    bench.wait(lambda post: post.busy is None)


@pytest.mark.invariant(5)
@pytest.mark.parametrize("fault", ["hang", "crash"])
def test_who_uses_a_gpu_may_be_asked_in_vain_and_neither_a_list_nor_an_event_waits_for_it(bench, node, fault):
    begin(bench, release_for_reset=True)
    unread = f"faults: [{{call: nvmlDeviceGetComputeRunningProcesses, gpu: 3, {fault}: true}}]"
    bench.configure(call_timeout_s=2.0, rescan_interval_s=60.0, health=HealthSettings(release_for_reset=True))
    node.write(ASKS, unread)
    bench.service.look_now()
    post = bench.wait(lambda post: "GPU-one" in post.ailments)
    assert post.busy is None
    node.write(ASKS, unread, "events: [{gpu: 0, xid: 48}]")
    post = bench.wait(lambda post: "GPU-zero" in post.ailments)
    assert post.ailments["GPU-zero"].cause is Cause.XID
    post = bench.wait(lambda post: post.busy is not None)
    assert post.busy == ("GPU-three",)
    assert post.ailments.keys() == {"GPU-zero", "GPU-one"}
    assert bench.timeouts.total() + bench.errors["nvmlDeviceGetComputeRunningProcesses", "Unknown"] >= 1
    assert post.driver.state is DriverState.READY


def test_an_excluded_gpu_is_not_asked_who_uses_it_and_asks_for_a_reset_in_vain(bench, node):
    begin(bench, release_for_reset=True, excluded=frozenset({"GPU-two"}))
    unread = "faults: [{call: nvmlDeviceGetComputeRunningProcesses, gpu: 2, hang: true}]"
    node.write(ASKS, unread, busy=[2, 3])
    bench.wait(lambda post: post.busy == ("GPU-three",))
    node.write(ASKS.replace("1", "2"), unread, busy=[2, 3])
    bench.wait(lambda post: post.busy is None)
    assert not bench.timeouts


def test_what_happens_to_an_excluded_gpu_is_remembered_and_neither_counted_nor_told(bench, node, clock):
    begin(bench, excluded=frozenset({"GPU-one"}))
    events = []
    for relapse in range(4):
        events += [{"gpu": number, "xid": 48} for number in (1, 2)]
        events += [{"gpu": number, "ecc": "single"} for number in (1, 2)]
        node.write(f"events: {json.dumps(events)}")
        bench.wait_causes(one="XID", two="XID")
        bench.wait_scans()
        clock.skip(HOLD_OFF_S * 2**relapse)
        bench.wait_healthy(4)
    bench.wait(lambda _: len(bench.heard) == 8)
    assert Counter(bench.heard) == {("GPU-two", 48, "fatal"): 4, ("GPU-two", "single"): 4}
    flapping = [fields["device"] for reason, _, fields in bench.lines if reason is Reason.DEVICE_FLAPPING]
    assert set(flapping) == {"GPU-two"}
    assert bench.posts[-1].records["GPU-one"].relapses == 3

    bench.configure(health=HealthSettings())  # it is ours again, and trusted as little as the other
    events.append({"gpu": 1, "xid": 48})
    node.write(f"events: {json.dumps(events)}")
    bench.wait_causes(one="XID")
    bench.wait(lambda _: len(bench.heard) == 9)
    assert bench.heard[-1] == ("GPU-one", 48, "fatal")
    assert bench.lines[-1][2]["device"] == "GPU-one"


def test_clearing_an_index_means_the_gpu_that_has_it_now_and_a_slot_also_one_that_is_gone(bench, node):
    begin(bench)
    node.write("events: [{gpu: 2, xid: 48}]")
    bench.wait_causes(two="XID")
    node.write("events: [{gpu: GPU-two, xid: 48}]", "removed: [1]")
    post = bench.wait(lambda post: {gpu.uuid: gpu.index for gpu in post.inventory.gpus}["GPU-two"] == 1)
    (gone,) = (gpu for gpu in post.inventory.gpus if gpu.uuid == "GPU-one")
    assert gone.index == 1

    uuid, left = bench.service.clear(parse_device_ref("1"))
    assert (uuid, left) == ("GPU-two", None)
    bench.wait_causes(one="Vanished")
    uuid, left = bench.service.clear(parse_device_ref(gone.pci))
    assert (uuid, left.cause) == ("GPU-one", Cause.VANISHED)
    assert bench.service.clear(parse_device_ref("3")) is None
