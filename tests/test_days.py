"""Whole days on a node in virtual time: after whatever happened, what the file says is on offer, by itself."""

from __future__ import annotations

import os
import random

import pytest

from nvdp.kubelet.sockets import SocketIdentity
from tests.planning.values import GPU, SHARED, ailment, gpu, sliced, uuid
from tests.virtual.node import VirtualNode

A, B = uuid(0), uuid(1)
TWO = (gpu(0), gpu(1))


def live(node, chance):
    """One thing that happens on a node."""
    resource = chance.choice([GPU, SHARED])
    free = []
    if resource in node.offers.actors and node.actor(resource).taken and node.kubelet is not None:
        held = set(node.pods.values())
        offered = node.actor(resource).feed.current.listed
        free = [one for one in node.healthy(resource) if (resource, one) not in held and offered.by_id.get(one)]
        free = [one for one in free if offered.by_id[one].healthy]
    if free and chance.random() < 0.5:
        node.allocate(f"pod-{node.clock.now}", chance.choice(free), resource)
        return
    what = chance.randrange(8)
    if what < 2 and node.pods:
        del node.pods[chance.choice(sorted(node.pods))]
    elif what < 4:
        node.read(sliced(chance.choice([1, 2, 3, 5]), rename=chance.random() < 0.4))
    elif what == 4:
        node.see_kubelet(None if chance.random() < 0.3 else SocketIdentity(1, 100, chance.randrange(10**6)))
    elif what == 5:
        node.scan(*TWO, ailments={A: ailment()} if chance.random() < 0.5 else {})
    elif what == 6:
        node.readable = chance.random() < 0.6
    elif node.offers.actors:
        name = chance.choice(sorted(node.offers.actors))
        node.actor(name).lose_stream()
        node.crash(f"resource {name}")


@pytest.mark.campaign
@pytest.mark.invariant(3)
@pytest.mark.invariant(4)
@pytest.mark.parametrize("seed", range(60 if os.environ.get("NVDP_CAMPAIGN") == "full" else 6))
def test_after_any_day_exactly_what_the_file_says_is_on_offer_by_itself(seed):
    chance = random.Random(seed)
    node = VirtualNode()
    node.see_kubelet(node.kubelet)
    node.read(sliced(2))
    node.scan(*TWO)
    node.run(60.0)
    for _ in range(150):
        live(node, chance)
        node.run(chance.choice([0.0, 0.004, 0.1, 1.0, 3.0, 7.0]))
        forms = {}
        for resource, device_id in node.pods.values():
            assert device_id in node.offers.given[resource].listed.by_id
            forms.setdefault(device_id.partition("::")[0], set()).add((resource, "::" in device_id))
        assert all(len(form) == 1 for form in forms.values()), f"a GPU is promised twice: {forms}"
    node.pods.clear()
    node.readable = True
    node.see_kubelet(SocketIdentity(1, 100, 10**7))
    node.scan(*TWO)
    for config in (sliced(1), sliced(3, rename=True)):  # in between no replica is left that could stay as it is
        node.read(config)
        node.run(60.0)
    assert list(node.offers.actors) == [SHARED]
    assert node.healthy(SHARED) == [f"{one}::{number}" for one in (A, B) for number in range(3)]
    assert node.unhealthy(SHARED) == []
    assert node.status.ready
    waits = node.clock.waits
    node.run(3600.0)
    assert node.clock.waits - waits <= 1
