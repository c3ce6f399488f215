"""A long chain of layout changes with pods in between: what there is is on offer, and nothing else loses its stream."""

from __future__ import annotations

import os
import random

import pytest

from tests.planning.files import File
from tests.planning.hardware import PROFILES
from tests.planning.histories import Node

CHANGES = 1000 if os.environ.get("NVDP_CAMPAIGN") == "full" else 300
SLOTS = 3


def change(node, chance):
    """Whoever does that cuts one GPU otherwise."""
    slot = chance.randrange(SLOTS)
    match chance.randrange(8):
        case 0:
            node.machine.switch(slot, on=chance.random() < 0.8)
        case 1 | 2:
            node.machine.destroy(slot, chance.randrange(3))
        case _:
            node.machine.make(slot, chance.choice(PROFILES))


def find_layout(node):
    """The devices that there are, each with what cannot be given out beside it."""
    for card in node.machine.cards.values():
        if card.parts is None:
            yield card.uuid, {part for part, gpu in node.machine.parents.items() if gpu == card.uuid}
        else:
            yield from ((part.uuid, {card.uuid}) for part in card.parts.values())


def find_healthy(node):
    return {one.id for given in node.given.values() for one in given.listed.devices if one.healthy}


def rest(node):
    """The kubelet reads its streams, and holders are asked for while something waits for them."""
    take_news(node)
    if node.plan.waiting:
        node.pass_time(1.2, "asking")
        take_news(node)


def take_news(node):
    """Each stream that has something new is read, and new ones are opened."""
    for resource in sorted(node.given):
        given = node.given.get(resource)
        if given is None or (given.version == given.taken_version and resource in node.kubelet.streams):
            continue
        node.take_list(sorted(node.given).index(resource))


@pytest.mark.campaign
@pytest.mark.invariant(3)
@pytest.mark.invariant(4)
def test_after_each_change_what_there_is_is_on_offer_but_for_what_pods_hold_in_another_layout():
    chance = random.Random(1)
    node = Node(cards=SLOTS, text=File(mig="mixed").text)
    rest(node)
    waited = 0
    for _ in range(CHANGES):
        before, lists = {name: given.version for name, given in node.given.items()}, dict(node.kubelet.lists)
        change(node, chance)
        node.scan()
        for name in before.keys() - {one for one, given in node.given.items() if given.version == before.get(one)}:
            assert node.given[name].listed != lists.get(name), f"{name} is sent anew though nothing changed"
        rest(node)
        held = {one for grant in node.kubelet.pods.values() for one in grant.device_ids}
        layout = dict(find_layout(node))
        free = {uuid for uuid, rivals in layout.items() if held.isdisjoint(rivals)}
        assert find_healthy(node) == free
        waited += len(layout) - len(free)
        assert node.kubelet.streams == node.given.keys(), "a resource that there is has lost its stream"
        if chance.random() < 0.5:
            node.choose(chance.randrange(3), chance.randrange(12), 1)
            node.arrive(0)
            node.end_allocate(0)
            node.pass_time(2.1, "busy")
        elif chance.random() < 0.5:
            node.kubelet.end_pod(chance.randrange(9), node.now)
    assert waited > CHANGES // 10, "and pods were in the way often enough"
