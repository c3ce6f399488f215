"""Who is who among GPUs that do not answer while NVML counts the others anew, with real NVML children."""

from __future__ import annotations

import pytest

from nvdp.model.deviceref import DeviceRef, RefKind
from nvdp.model.inventory import Driver, Gpu, GpuRef, Inventory
from nvdp.nvml.children import NvmlChildren
from nvdp.nvml.frames import Scanned
from nvdp.nvml.outcomes import Hung
from nvdp.services.roll_call import RollCall
from tests.daemon.node import FULL, at_length
from tests.services.gpu_bench import Bench, NodeFile

pytestmark = [pytest.mark.invariant(5), pytest.mark.invariant(10)]


@pytest.fixture
def node(tmp_path) -> NodeFile:
    return NodeFile(tmp_path)


@pytest.fixture
def bench(node):
    made = Bench(NvmlChildren(simulated=str(node.path)))
    made.hurry(LIMIT_S)
    made.service.start()
    made.wait_healthy(4)
    yield made
    made.service.stop()


LIMIT_S = 4.0 if FULL else 1.6  # a quarter is left for the others: one that counted as hanging too would leave doubts
ILL = ("events: [{gpu: 1, xid: 79}]", "conditions: [{gpu: 1, recoveryAction: Unsupported}]")
NO_HANDLE = "faults: [{call: nvmlDeviceGetHandleByIndex, gpu: 1, hang: true}]"


def clear_each(bench) -> list[str | None]:
    """Which GPU the operator means by each index."""
    found = (bench.service.clear(DeviceRef(RefKind.INDEX, str(index))) for index in range(4))
    return [one and one[0] for one in found]


@at_length
def test_a_gpu_that_hangs_is_the_same_when_its_neighbour_goes_and_was_not_reset(bench, node) -> None:
    node.write(*ILL)
    bench.wait_causes(one="XID")
    node.write(*ILL, NO_HANDLE)
    bench.wait_causes(one="CallTimeout")
    node.write(*ILL, NO_HANDLE, "removed: [0]")
    bench.wait_causes(zero="Vanished", one="CallTimeout")
    bench.configure(remove_after_s=0.5, call_timeout_s=LIMIT_S)
    post = bench.wait_causes(one="CallTimeout")
    assert [(gpu.uuid, gpu.index) for gpu in post.inventory.gpus] == [("GPU-one", 0), ("GPU-two", 1), ("GPU-three", 2)]
    node.write(*ILL)
    bench.wait(lambda post: len(post.inventory.gpus) == 4)
    bench.wait_causes(one="XID")
    bench.wait_scans(5)  # longer than the hold-off
    assert bench.wait_causes(one="XID").recoveries == {}


@at_length
def test_neither_is_gone_of_two_of_which_one_hangs_and_one_goes_at_once(bench, node) -> None:
    node.write(*ILL)
    bench.wait_causes(one="XID")
    bench.configure(remove_after_s=0.5, call_timeout_s=LIMIT_S)
    node.write(*ILL, NO_HANDLE, "removed: [0]")
    since = bench.wait_causes(zero="Vanished", one="Vanished").at
    post = bench.wait(lambda post: post.at > since + 1)
    assert [gpu.uuid for gpu in post.inventory.gpus] == [f"GPU-{name}" for name in node.NAMES]
    assert [gpu.index for gpu in post.inventory.unreadable] == [0]
    assert post.ailments["GPU-one"].text.startswith("NVML does not count it any more, or it is the GPU that cannot be")
    assert clear_each(bench) == [None, "GPU-two", "GPU-three", None]
    node.write(*ILL, "removed: [0]")
    bench.wait(lambda post: len(post.inventory.gpus) == 3)
    assert bench.wait_causes(one="XID").recoveries == {}
    bench.wait_scans(5)  # longer than the hold-off
    bench.wait_causes(one="XID")


def test_a_gpu_that_hangs_has_the_index_that_it_has_now(bench, node) -> None:
    hang = "faults: [{call: nvmlDeviceGetName, gpu: 2, hang: true}]"
    node.write(hang)
    bench.wait_causes(two="CallTimeout")
    node.write(hang, "removed: [0]")
    post = bench.wait_causes(zero="Vanished", two="CallTimeout")
    assert {gpu.uuid: gpu.index for gpu in post.inventory.gpus[1:]} == {"GPU-one": 0, "GPU-two": 1, "GPU-three": 2}
    assert clear_each(bench) == ["GPU-one", "GPU-two", "GPU-three", None]


def test_a_gpu_that_is_left_out_is_known_by_its_name_as_soon_as_that_is_told() -> None:
    gpus = tuple(Gpu(uuid=f"GPU-{n}", index=n, pci=f"0000:1{n}:00.0") for n in range(2))
    driver = Driver(version="580.65.06", cuda_version="13.0")
    roll = RollCall(remembered=None, clock=lambda: 0.0, wall=lambda: 0.0)
    roll.take(Scanned(inventory=Inventory(driver=driver, gpus=gpus), count=2))
    ref = GpuRef(index=0, count=3)
    blamed = roll.find_blamed(Hung(call="nvmlDeviceGetHandleByIndex", gpu=ref, limit_s=1.0))
    assert blamed is not None
    assert blamed.uuid is None, "of three it may be another than of two"
    roll.silence(blamed, show=True)
    new = Gpu(uuid="GPU-2", index=2, pci="0000:12:00.0")
    left = (Gpu(uuid="GPU-1", index=1, pci="0000:11:00.0"), new)
    roll.take(Scanned(inventory=Inventory(driver=driver, gpus=left), count=3, skipped=(ref,)))
    assert {key: (entry.uuid, entry.ref) for key, entry in roll.silenced.items()} == {"GPU-0": ("GPU-0", ref)}
