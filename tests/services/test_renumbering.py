"""A node whose GPUs are handed out by index, from the Allocate to the end of the pod: what is kept, listed and told."""

from __future__ import annotations

import pytest

from nvdp.model.reasons import Cause, Reason
from nvdp.planning.diagnosis import diagnose
from nvdp.planning.findings import Gravity
from nvdp.services.events import AllocateAnswered
from tests.planning.values import GPU, gpu, parse, uuid
from tests.virtual.node import VirtualNode

pytestmark = pytest.mark.invariant(10)

TEXT = "flags: {plugin: {deviceIDStrategy: index}}\n"
A, B, C = uuid(0), uuid(1), uuid(2)


@pytest.fixture
def node():
    found = VirtualNode()
    found.recorded_s = 1.0
    found.see_kubelet(found.kubelet)
    found.read(parse(TEXT), text=TEXT.encode())
    count(found, 0, 1, 2)
    found.run(10.0)
    return found


def count(node, *order):
    """NVML counts the cards in this order."""
    node.scan(*(gpu(number, index=index) for index, number in enumerate(order)))


def test_what_a_pod_was_told_is_remembered_at_once_and_until_the_pod_is_gone(node):
    node.allocate("nb", B, GPU)
    node.run(0.001)
    assert node.record.indices == {GPU: {B: "1"}}
    node.run(100.0)
    node.holders.ask()
    node.run(1.0)
    assert node.record.indices == {GPU: {B: "1"}}
    del node.pods["nb"]
    node.holders.ask()
    node.run(1.0)
    assert node.record.indices == {}


def test_both_cards_take_no_new_pods_until_the_pod_is_gone_and_that_is_told_and_shown(node):
    node.allocate("nb", B, GPU)
    node.run(10.0)
    node.holders.ask()
    node.run(1.0)
    lists = len(node.actor(GPU).taken)
    count(node, 1, 0, 2)
    node.run(60.0)
    assert node.healthy(GPU) == [C]
    assert len(node.actor(GPU).taken) == lists + 1
    assert len(node.record.texts(Reason.DEVICE_UNHEALTHY)) == 2
    assert {one.uuid: (one.healthy, one.withheld) for one in node.status.devices} == {
        A: (True, Cause.HELD.value),
        B: (True, Cause.HELD.value),
        C: (True, ""),
    }
    (own,) = [one for one in diagnose(node.status) if one.cause.startswith(f"GPU 0 ({B}, 0000:11:00.0): ")]
    assert own.gravity is Gravity.DEGRADED
    assert own.reason == "DeviceUnhealthy"
    assert "Held: held by team/nb as index 1, and it is 0 now; no new pods since" in own.cause
    assert "deviceIDStrategy: uuid" in own.remedy
    assert own.remedy.endswith("kubectl -n team delete pod nb")

    del node.pods["nb"]
    node.run(1.5)  # it is asked every second
    assert node.healthy(GPU) == [A, B, C]
    assert node.status.waits == ()
    assert len(node.record.texts(Reason.DEVICE_RECOVERED)) == 2
    node.allocate("next", B, GPU)
    node.run(3.0)
    assert node.record.indices == {GPU: {B: "0"}}


def test_a_restart_forgets_nothing_and_keeps_both_cards_back_from_the_first_list_on(node):
    node.allocate("nb", B, GPU)
    node.run(10.0)
    node.restart_daemon(60.0)
    node.read(parse(TEXT), text=TEXT.encode())
    count(node, 1, 0, 2)
    node.run(10.0)
    assert [len(found.healthy_by_gpu[A]) for _, found in node.actor(GPU).taken] == [0]
    assert node.healthy(GPU) == [C]


def test_an_allocate_that_was_answered_from_the_list_before_the_new_numbering_counts_too(node):
    count(node, 1, 0, 2)
    with node.actor(GPU).feed.allocating([B]):
        node.run(0.5)
        assert node.healthy(GPU) == [A, B, C]
    node.clock.put(AllocateAnswered(resource=GPU))
    node.run(0.5)
    assert node.record.indices == {GPU: {B: "1"}}
    assert node.healthy(GPU) == [C]
    node.run(10.0)  # no pod comes of it
    assert node.healthy(GPU) == [A, B, C]
    assert node.record.indices == {}
