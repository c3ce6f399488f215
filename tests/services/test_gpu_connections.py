"""What connects the GPUs, as the service that knows them tells it while calls fail, hang and crash."""

from __future__ import annotations

import pytest

from nvdp.model.status import DriverState
from nvdp.model.topology import Ancestor
from nvdp.nvml.children import NvmlChildren
from tests.services.gpu_bench import Bench, NodeFile, is_ready

CALL = "nvmlDeviceGetTopologyCommonAncestor"
LINKS = "nvlinks: [{gpus: [0, 2], links: 2}, {gpus: [1, 3], links: 2}]"


@pytest.fixture
def node(tmp_path) -> NodeFile:
    made = NodeFile(tmp_path)
    made.write(LINKS)
    return made


@pytest.fixture
def bench(node):
    made = Bench(NvmlChildren(simulated=str(node.path)))
    yield made
    made.service.stop()


def ancestors(post) -> set[Ancestor | None]:
    return {one.ancestor for one in post.inventory.connections}


def links(post) -> dict[tuple[str, str], int]:
    return {(one.a, one.b): one.nvlinks for one in post.inventory.connections if one.nvlinks}


@pytest.mark.invariant(5)
@pytest.mark.parametrize("fault", ["hang", "crash"])
def test_a_call_about_two_gpus_that_does_not_return_makes_neither_of_them_ail(bench, node, fault) -> None:
    node.write(LINKS, f"faults: [{{call: {CALL}, gpu: 2, {fault}: true}}]")
    if fault == "hang":
        bench.hurry(2.5)
    bench.service.start()
    post = bench.wait_healthy(4)
    assert ancestors(post) == {None}
    assert links(post) == {("GPU-one", "GPU-three"): 2, ("GPU-two", "GPU-zero"): 2}
    bench.wait_scans(2)
    assert {ailment for post in bench.posts for ailment in post.ailments} == set()
    assert bench.timeouts.total() + bench.errors.total() == 1, "it is not asked again"


def test_what_is_known_of_common_ancestors_stays_when_the_call_does_not_return_any_more(bench, node) -> None:
    bench.hurry(2.5)
    bench.service.start()
    before = bench.wait_healthy(4)
    assert ancestors(before) == {Ancestor.NODE, Ancestor.SYSTEM}
    node.write(LINKS, f"faults: [{{call: {CALL}, hang: true}}]")
    bench.service.look_now()  # in a new session, which has to ask anew
    bench.wait(lambda _: bench.timeouts.total() == 1)
    bench.wait_scans(2)
    assert bench.wait_healthy(4).inventory == before.inventory


def test_common_ancestors_are_asked_again_when_the_driver_was_away(bench, node) -> None:
    bench.hurry(2.5)
    node.write(LINKS, f"faults: [{{call: {CALL}, hang: true}}]")
    bench.service.start()
    assert ancestors(bench.wait_healthy(4)) == {None}
    node.write("driver: {state: not-loaded}")
    bench.wait(lambda post: post.driver.state is DriverState.LOST)
    node.write(LINKS)
    assert None not in ancestors(bench.wait(lambda post: is_ready(post) and not post.ailments))


def test_a_gpu_that_hangs_or_vanishes_keeps_its_connections_and_a_link_that_is_down_counts_no_more(bench, node) -> None:
    bench.hurry()
    bench.service.start()
    before = bench.wait_healthy(4).inventory.connections
    node.write(LINKS, "faults: [{call: nvmlDeviceGetName, gpu: 1, hang: true}]")
    assert bench.wait_causes(one="CallTimeout").inventory.connections == before
    node.write(LINKS, "removed: [1]")
    assert bench.wait_causes(one="Vanished").inventory.connections == before
    node.write(LINKS, "conditions: [{gpu: 0, linksDown: [1]}]")
    post = bench.wait(lambda post: is_ready(post) and links(post).get(("GPU-two", "GPU-zero")) == 1)
    assert links(post)["GPU-one", "GPU-three"] == 2
