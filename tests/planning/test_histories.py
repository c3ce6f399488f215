"""Random histories of edits, pods, restarts and losses: no GPU is promised twice, no ID leaves too early."""

from __future__ import annotations

import os
import random

import pytest

from tests.planning.histories import Node

WALKS = 400 if os.environ.get("NVDP_CAMPAIGN") == "full" else 8
STEPS = 1000
RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpu.shared")


def walk(node: Node, chance: random.Random) -> None:
    """One random step. Streams are read and answers come often, as on a node; the rest is trouble."""
    kubelet = node.kubelet
    steps = {
        node.take_lists: 14,
        lambda: kubelet.request_holders(node.now): 12,
        lambda: node.answer_holders(late=chance.random() < 0.5): 12,
        lambda: node.begin_allocate(chance.choice(RESOURCES), chance.randrange(24), chance.choice([1, 1, 1, 2])): 14,
        lambda: node.end_allocate(chance.randrange(10)): 12,
        lambda: kubelet.end_pod(chance.randrange(10)): 7,
        lambda: node.pass_time(chance.choice([0.05, 0.4, 1.1, 2.0, 3.0, 5.2])): 18,
        lambda: node.edit(chance.choice([1, 1, 2, 3, 5, 12]), rename=chance.random() < 0.3): 4,
        kubelet.unrecorded.clear: 3,
        lambda: node.lose(chance.randrange(10)): 1,
        node.forget: 1,
        lambda: node.plug_in(chance.randrange(4)): 1,
        node.find_again: 1,
        lambda: node.set_kubelet_up(up=chance.random() < 0.7): 1,
        lambda: node.set_readable(readable=chance.random() < 0.7): 1,
        node.restart_plugin: 1,
    }
    (step,) = chance.choices(list(steps), weights=list(steps.values()))
    step()
    node.check()


@pytest.mark.campaign
@pytest.mark.invariant(3)
@pytest.mark.invariant(4)
@pytest.mark.invariant(8)
@pytest.mark.parametrize("seed", range(WALKS))
def test_no_history_promises_a_gpu_twice_or_drops_an_id_too_early(seed):
    chance = random.Random(seed)
    node = Node()
    for _ in range(STEPS):
        walk(node, chance)
        if chance.random() < 0.01:
            node.end_everything()
            node.check_settled()
