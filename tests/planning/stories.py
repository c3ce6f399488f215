"""What happens on a node, in the words of a story, and what its plan then shows."""

from __future__ import annotations

from tests.planning.files import share_all
from tests.planning.histories import Node
from tests.planning.values import GPU


def replicas(one, *numbers):
    return [f"{one}::{number}" for number in numbers]


def ids(plan, resource=GPU, *, healthy=None):
    devices = plan.lists[resource].devices if resource in plan.lists else ()
    return [device.id for device in devices if healthy is None or device.healthy is healthy]


def on_offer(node, resource=GPU):
    return ids(node.plan, resource, healthy=True)


def kept_back(node, resource=GPU):
    devices = node.plan.lists[resource].devices if resource in node.plan.lists else ()
    return {device.id: (device.cause, device.text) for device in devices if not device.healthy}


def answer_now(node):
    node.request_holders()
    node.answer_holders(late=False)


def settle(node, seconds=5.2):
    """The kubelet takes what there is, time passes, and an answer comes."""
    node.take_lists()
    node.pass_time(seconds)
    answer_now(node)
    node.take_lists()


def started(*, gpus=2, replicas=1):
    """A node whose lists the kubelet has taken."""
    node = Node(cards=gpus, text=share_all(replicas).text)
    node.take_lists()
    return node


def share(node, replicas, *, rename=False):
    """An edit: all GPUs in so many pieces."""
    node.edit(share_all(replicas, rename=rename).text)


def allocate(node, device_id, resource=GPU):
    """One pod gets exactly this ID, and PodResources shows it."""
    begin(node, device_id, resource)
    node.end_allocate(0)
    node.pass_time(2.0)
    answer_now(node)


def begin(node, device_id, resource=GPU):
    assert device_id in node.kubelet.find_free(resource)
    node.kubelet.choose(resource, [device_id], node.now)
    node.arrive(0)
    assert node.kubelet.in_flight


def end_pod(node, number=0):
    node.kubelet.end_pod(number, node.now)


def lose(node, slot):
    """The card is off the bus, and a scan finds that."""
    node.machine.pull(slot)
    node.scan()
