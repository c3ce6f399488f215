"""A compiled libnvidia-ml that fails, for one GPU or for all: whom it costs, how soon it is known, and that it ends."""

from __future__ import annotations

import time

import pytest

from nvdp.model.status import DriverState
from nvdp.nvml.children import NvmlChildren
from nvdp.services.events import GpusScanned
from tests.daemon.node import at_length
from tests.daemon.process import wait_until
from tests.nvml.conftest import FakeDriver
from tests.services.gpu_bench import CALL_TIMEOUT_S, Bench


def name(card: int) -> str:
    return f"GPU-{card:08x}-0000-0000-0000-000000000000"


# What a scan asks of each GPU: facts that it must have, and readings that it may have.
ASKED = (
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMigMode",
)
READ = (
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetMemoryErrorCounter",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemotePciInfo",
    "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetGpuFabricInfoV",
)


def break_(bench: Bench, fake_driver: FakeDriver, *rules: str) -> GpusScanned:
    """The post in which all four GPUs ail."""
    fake_driver.configure("cards 0 1 2 3", "trace", *rules)
    return bench.wait(lambda post: len(post.ailments) == 4)


@pytest.fixture
def bench(fake_driver):
    made = Bench(NvmlChildren(driver_root=str(fake_driver.root)))
    yield made
    made.service.stop()


@pytest.mark.parametrize(
    ("rules", "state"),
    [
        (("fail * 999",), DriverState.LOST),
        (("fail * 9",), DriverState.LOST),
        (("fail * 18",), DriverState.MISMATCH),
        (("abort nvmlDeviceGetCount",), DriverState.LOST),
        (("abort nvmlInit", "fail nvmlDeviceGetCount 999"), DriverState.LOST),
    ],
)
def test_a_library_that_fails_as_a_whole_is_lost_at_once_and_comes_back(bench, fake_driver, rules, state) -> None:
    fake_driver.install()
    bench.service.start()
    before = bench.wait_healthy(4).inventory
    post = break_(bench, fake_driver, *rules)
    assert post.at - fake_driver.trace[0][1] < 5
    assert (post.driver.state, post.inventory) == (state, before)
    assert {ailment.cause.value for ailment in post.ailments.values()} == {"DriverLost"}
    fake_driver.configure("cards 0 1 2 3")
    bench.wait_healthy(4)


@pytest.mark.parametrize(
    "rules",
    [
        ("hang nvmlDeviceGetHandleByIndex 0", "hang nvmlInit"),
        ("fail nvmlEventSetWait 999", "hang nvmlSystemGetDriverVersion", "hang nvmlInit"),
    ],
    ids=["first a GPU", "first the new session"],
)
def test_a_library_that_hangs_as_a_whole_is_lost_after_twice_the_limit_wherever_it_begins(
    bench, fake_driver, rules
) -> None:
    fake_driver.install()
    bench.configure(call_timeout_s=1.0)
    bench.service.start()
    before = bench.wait_healthy(4).inventory
    post = break_(bench, fake_driver, *rules)
    assert post.at - fake_driver.trace[0][1] < 2 * 1 + 6, "the rest is for the children's starts, on a busy machine"
    assert (post.driver.state, post.inventory) == (DriverState.LOST, before)
    fake_driver.configure("cards 0 1 2 3")
    bench.wait_healthy(4)


def test_a_probe_that_finds_no_driver_makes_the_next_scan_come_at_once(bench, fake_driver) -> None:
    sick = "fail nvmlDeviceGetName 999 1"
    fake_driver.install()
    fake_driver.configure("cards 0 1 2 3", sick)
    bench.configure(rescan_interval_s=60.0)
    bench.service.start()
    bench.wait(lambda post: len(post.ailments) == 1)
    post = break_(bench, fake_driver, "fail nvmlInit 999", "fail nvmlDeviceGetCount 999", sick)
    first, *_ = (at for call, at in fake_driver.trace if call == "nvmlInit")
    assert post.at - first < 5


@pytest.mark.invariant(5)
def test_gpus_that_all_hang_are_all_known_after_twice_the_limit(bench, fake_driver) -> None:
    fake_driver.install()
    bench.configure(call_timeout_s=1.0)
    bench.service.start()
    bench.wait_healthy(4)
    post = break_(bench, fake_driver, "hang nvmlDeviceGetMemoryInfo")
    waited = [float(one.text.rpartition("within ")[2].removesuffix("s")) for one in post.ailments.values()]
    assert sum(waited) <= 2 * 1.0, "the starts of children apart, which take as long as the machine does"
    assert {ailment.cause.value for ailment in post.ailments.values()} == {"CallTimeout"}
    assert post.driver.state is DriverState.READY


@at_length
def test_16_gpus_that_all_hang_are_all_known_within_twice_the_default_limit_and_2_s(bench, fake_driver) -> None:
    cards = f"cards {' '.join(map(str, range(16)))}"
    fake_driver.install()
    fake_driver.configure(cards)
    bench.service.start()
    bench.wait_healthy(16)
    fake_driver.configure(cards, "hang nvmlDeviceGetMemoryInfo")
    began = time.monotonic()
    post = bench.wait(lambda post: len(post.ailments) == 16, limit_s=60.0)
    assert post.at - began < 2 * CALL_TIMEOUT_S + 2.0


@pytest.mark.invariant(5)
@pytest.mark.parametrize(
    ("rule", "calls", "cause"),
    [
        ("fail {} 15", (*ASKED, *READ), "Lost"),
        ("fail {} 999", ASKED, "CallFailed"),
        ("fail {} 999", READ, ""),
        ("hang {}", ("nvmlDeviceRegisterEvents", "nvmlDeviceGetFieldValues"), "CallTimeout"),
    ],
)
def test_any_call_that_fails_is_the_problem_of_its_gpu_alone(bench, fake_driver, rule, calls, cause) -> None:
    cards = range(len(calls) + 2)
    facts = [f"cards {' '.join(map(str, cards))}", *(f"vital {card} links 2" for card in cards)]
    faults = [f"{rule.format(call)} {card}" for card, call in enumerate(calls)]
    fake_driver.install()
    fake_driver.configure(*facts)
    if "hang" in rule:
        bench.hurry()
    bench.service.start()
    before = bench.wait_healthy(len(cards)).inventory
    ill = {name(card): cause for card, _ in enumerate(calls) if cause}

    fake_driver.configure(*facts, *faults)
    bench.service.look_now()
    bench.wait_scans(2)
    bench.wait(lambda post: {uuid: ailment.cause.value for uuid, ailment in post.ailments.items()} == ill)

    assert {post.driver.state for post in bench.posts} == {DriverState.READY}
    assert all([gpu.uuid for gpu in post.inventory.gpus] == [gpu.uuid for gpu in before.gpus] for post in bench.posts)
    assert not any(post.ailments.keys() - ill.keys() for post in bench.posts) or "hang" in rule
    fake_driver.configure(*facts)
    bench.wait_healthy(len(cards))


@pytest.mark.invariant(5)
@pytest.mark.parametrize("event", [(), ("event 1 79",)], ids=["without an event", "with an event"])
def test_a_gpu_that_falls_off_the_bus_is_found_by_the_wait_that_fails_and_the_others_are_heard(
    bench, fake_driver, event
) -> None:
    fake_driver.install()
    bench.configure(rescan_interval_s=60.0)
    bench.service.start()
    bench.wait_healthy(4)
    lost = ("cards 0 1 2 3", "fail * 15 1", *event)
    fake_driver.configure(*lost)
    bench.wait(lambda post: {uuid: ailment.cause.value for uuid, ailment in post.ailments.items()} == {name(1): "Lost"})
    fake_driver.configure(*lost, "event 0 13")
    wait_until(lambda: (name(0), 13, "ignored") in bench.heard, what="an event of another GPU")
    assert {post.driver.state for post in bench.posts} == {DriverState.READY}


def test_a_driver_that_was_unloaded_and_came_in_another_version_is_used(bench, fake_driver) -> None:
    fake_driver.install_version("570.1.1")
    bench.service.start()
    assert bench.wait_healthy(4).driver.version == "570.1.1"
    fake_driver.configure("cards 0 1 2 3", "fail * 9")
    bench.wait(lambda post: post.driver.state is DriverState.LOST)
    fake_driver.install_version("580.2.2")
    fake_driver.configure("cards 0 1 2 3", "kernel 580.2.2")
    assert bench.wait_healthy(4).driver.version == "580.2.2"
