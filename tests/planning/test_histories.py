"""Random histories of edits, pods, restarts and losses: no GPU is promised twice, no ID leaves too early.

In full with ``make campaign``. A seed that is not fixed stands in the failure, with the history cut down to what it
takes.
"""

from __future__ import annotations

import os
import random

import pytest

from nvdp.planning.plan import build_plan
from tests.planning import list_checks
from tests.planning.defects import DEFECTS, DEFECTS_OF_MIG
from tests.planning.files import share_all
from tests.planning.histories import Node
from tests.planning.walks import draw_history, find_fault, tell

FULL = os.environ.get("NVDP_CAMPAIGN") == "full"
FIXED = range(200 if FULL else 1)
FRESH = 50 if FULL else 1
STEPS = 1000
# For a planted defect, until it is found: seeds, and how far to go; those before the range show them all.
SEARCHED = ((1, 100), (14, STEPS), (6, STEPS), *((seed, STEPS) for seed in range(20, 36)))
SEARCHED_FOR_MIG = ((5, STEPS), *SEARCHED)


def draw(seed, *, is_cut=False):
    """A node and its history."""
    chance = random.Random(seed)
    node = {"cards": chance.choice([2, 3, 4, 5]), "names_finished": chance.random() < 0.5}
    return draw_history(chance, steps=STEPS, is_cut=is_cut), node


def list_seeds(*, is_cut):
    """Half as many for nodes with MIG, unless all are wanted."""
    part = 1 if FULL or not is_cut else 2
    return [(seed, is_cut) for seed in [*FIXED, *(f"fresh {number}" for number in range(FRESH))][::part]]


@pytest.mark.campaign
@pytest.mark.invariant(3)
@pytest.mark.invariant(4)
@pytest.mark.invariant(8)
@pytest.mark.invariant(10)
@pytest.mark.parametrize(("seed", "is_cut"), [*list_seeds(is_cut=False), *list_seeds(is_cut=True)])
def test_no_history_promises_a_gpu_twice_or_drops_an_id_too_early(seed, is_cut):
    if isinstance(seed, str):
        seed = random.SystemRandom().randrange(10**9)
    steps, node = draw(seed, is_cut=is_cut)
    if find_fault(steps, **node) is not None:
        pytest.fail(f"seed {seed}: {tell(steps, **node)}")


@pytest.mark.campaign
@pytest.mark.invariant(8)
@pytest.mark.requirement(40)
@pytest.mark.parametrize("seed", range(1, 5 if FULL else 2))
def test_no_list_passes_its_limit_whatever_is_edited_and_plugged_in_and_what_is_on_offer_stays(seed):
    chance = random.Random(seed)
    node = Node(cards=2, text=share_all(11000).text)
    node.machine.plug(2)
    node.scan()
    assert [one.reason for one in node.plan.withheld.values()] == ["ListTooLarge"]
    for _ in range(100 if FULL else 6):
        offered = find_healthy(node)
        match chance.randrange(7):
            case 0:
                replicas = chance.choice([1, 2, 3000, 7000, 11000, 16000])
                node.edit(share_all(replicas, rename=chance.random() < 0.3).text)
            case 1 | 2:
                node.machine.plug(chance.randrange(6))
                node.scan()
                assert offered <= find_healthy(node)
            case 3:
                node.machine.pull(chance.randrange(6))
                node.scan()
            case 4:
                node.choose(chance.randrange(4), chance.randrange(20000), 1)
                node.arrive(0)
                node.end_allocate(0)
            case _:
                node.take_lists()
                node.pass_time(chance.choice([0.4, 5.2]), "busy")
                node.request_holders()
                node.answer_holders(late=False)
        list_checks.check_sizes(node)
    assert node.refused_edits or not FULL


def find_healthy(node):
    return {(name, one.id) for name, given in node.given.items() for one in given.listed.devices if one.healthy}


@pytest.mark.invariant(3)
@pytest.mark.invariant(4)
@pytest.mark.parametrize("defect", [*DEFECTS, *DEFECTS_OF_MIG])
def test_the_histories_find_that(defect):
    is_cut = defect in DEFECTS_OF_MIG
    for seed, most in SEARCHED_FOR_MIG if is_cut else SEARCHED:
        steps, node = draw(seed, is_cut=is_cut)
        if find_fault(steps[:most], plan_with=(DEFECTS | DEFECTS_OF_MIG)[defect], **node) is not None:
            return
    pytest.fail("no history shows it")


def test_a_failing_history_is_cut_down_to_what_it_takes():
    steps, node = draw(3)
    story = tell(steps, plan_with=DEFECTS["the new form does not wait for the old one"], **node)
    assert "is promised to" in story
    assert 3 < story.count("\n") < 60
    assert find_fault(steps, plan_with=build_plan, **node) is None
