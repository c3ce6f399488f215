"""What a plan makes of an edit while pods come and go: replicas that leave, GPUs that change their form."""

from __future__ import annotations

import dataclasses

import pytest

from nvdp.model.reasons import Cause
from nvdp.planning.assignment import Form
from nvdp.planning.plan import ModeChange, build_plan
from tests.planning.files import share_all
from tests.planning.stories import (
    allocate,
    answer_now,
    begin,
    end_pod,
    ids,
    kept_back,
    lose,
    on_offer,
    replicas,
    settle,
    share,
    started,
)
from tests.planning.values import (
    GPU,
    SHARED,
    ailment,
    answer,
    given_out,
    gpu,
    holding,
    inputs,
    listed,
    parse,
    sliced,
    uuid,
)

A, B = uuid(0), uuid(1)
WHOLE, SLICED, RENAMED = Form(GPU, shared=False), Form(GPU, shared=True), Form(SHARED, shared=True)


# shrinking and growing


@pytest.mark.invariant(3)
@pytest.mark.requirement(48)
def test_what_a_shrink_drops_is_unhealthy_first_and_leaves_later():
    node = started(gpus=2, replicas=3)
    share(node, 2)
    assert ids(node.plan) == [*replicas(A, 0, 1), *replicas(B, 0, 1), *replicas(A, 2), *replicas(B, 2)]
    assert kept_back(node) == dict.fromkeys((*replicas(A, 2), *replicas(B, 2)), (Cause.WITHDRAWING, "leaving"))
    assert node.plan.planned == {GPU: 4}
    assert node.plan.waiting
    node.take_lists()
    assert node.plan.check_at == pytest.approx(node.now + 5.1)
    node.pass_time(5.2)
    assert node.plan.ask_since == pytest.approx(node.now - 0.1)
    answer_now(node)
    assert ids(node.plan) == replicas(A, 0, 1) + replicas(B, 0, 1)
    assert not node.plan.waiting


@pytest.mark.invariant(3)
@pytest.mark.requirement(49)
def test_a_shrink_keeps_what_is_held_then_the_lowest_and_those_stay_after_the_pod():
    node = started(gpus=1, replicas=5)
    allocate(node, f"{A}::4")
    share(node, 2)
    assert on_offer(node) == replicas(A, 0, 4)
    end_pod(node)
    answer_now(node)
    settle(node)
    assert ids(node.plan) == replicas(A, 0, 4)
    share(node, 3)
    assert ids(node.plan) == replicas(A, 0, 1, 4)


@pytest.mark.invariant(3)
@pytest.mark.requirement(49)
def test_what_is_held_beyond_the_shrink_stays_listed_until_the_pod_ends():
    node = started(gpus=1, replicas=3)
    for number in range(3):
        allocate(node, f"{A}::{number}")
    share(node, 2)
    settle(node)
    settle(node, 60.0)
    assert kept_back(node) == {f"{A}::2": (Cause.WITHDRAWING, "held by team/pod-2")}
    end_pod(node, 2)
    answer_now(node)
    assert ids(node.plan) == replicas(A, 0, 1)


@pytest.mark.invariant(3)
def test_a_shrink_keeps_the_number_whose_allocate_is_on_its_way_or_not_yet_seen():
    node = started(gpus=1, replicas=5)
    begin(node, f"{A}::4")
    share(node, 2)
    assert on_offer(node) == replicas(A, 0, 4)
    node.end_allocate(0)
    answer_now(node)  # too early to show the holder for certain
    assert on_offer(node) == replicas(A, 0, 4)


def test_growing_gives_back_what_was_leaving():
    node = started(gpus=1, replicas=4)
    share(node, 2)
    node.take_lists()
    share(node, 3)
    assert on_offer(node) == replicas(A, 0, 1, 2)
    assert list(kept_back(node)) == replicas(A, 3)


# mode changes


@pytest.mark.invariant(4)
@pytest.mark.requirement(50)
@pytest.mark.parametrize(
    ("before", "after", "old", "new"),
    [
        ((1, False), (3, False), (GPU, [A]), (GPU, replicas(A, 0, 1, 2))),
        ((3, False), (1, False), (GPU, replicas(A, 0, 1, 2)), (GPU, [A])),
        ((1, False), (3, True), (GPU, [A]), (SHARED, replicas(A, 0, 1, 2))),
        ((3, False), (3, True), (GPU, replicas(A, 0, 1, 2)), (SHARED, replicas(A, 0, 1, 2))),
        ((3, True), (2, False), (SHARED, replicas(A, 0, 1, 2)), (GPU, replicas(A, 0, 1))),
    ],
)
def test_a_change_of_form_waits_for_the_pod_and_takes_no_new_ones(before, after, old, new):
    node = started(gpus=1)
    share(node, before[0], rename=before[1])
    settle(node)
    settle(node)
    (old_resource, old_ids), (new_resource, new_ids) = old, new
    allocate(node, old_ids[-1], old_resource)
    share(node, after[0], rename=after[1])
    for _ in range(3):
        assert on_offer(node, GPU) == on_offer(node, SHARED) == []
        held = kept_back(node, old_resource)[old_ids[-1]]
        waiting = {kept_back(node, new_resource)[one] for one in new_ids}
        assert held == (Cause.WITHDRAWING, "held by team/pod-0")
        assert waiting == {(Cause.HELD, f"held by team/pod-0 as {node.plan.changes[0].before}")}
        settle(node)
    assert node.plan.planned == {new_resource: len(new_ids)}
    end_pod(node)
    answer_now(node)
    assert on_offer(node, new_resource) == new_ids
    settle(node)
    settle(node)
    assert {name: ids(node.plan, name) for name in node.plan.lists} == {new_resource: new_ids}
    assert node.plan.changes == ()


@pytest.mark.invariant(4)
def test_on_an_idle_node_a_change_needs_no_more_than_one_answer():
    node = started(gpus=1)
    node.pass_time(1.0)
    share(node, 2, rename=True)
    assert on_offer(node, SHARED) == []
    assert node.plan.ask_since == node.now
    answer_now(node)
    assert on_offer(node, SHARED) == replicas(A, 0, 1)
    assert kept_back(node, GPU) == {A: (Cause.WITHDRAWING, "leaving")}


@pytest.mark.invariant(4)
def test_a_change_waits_for_an_allocate_on_its_way_and_2_s_longer():
    node = started(gpus=1)
    begin(node, A)
    share(node, 2)
    answer_now(node)
    assert on_offer(node) == []
    node.end_allocate(0)
    answer_now(node)
    assert (on_offer(node), node.plan.check_at) == ([], node.now + 2.0)
    end_pod(node)
    node.pass_time(2.0)
    assert on_offer(node) == []
    answer_now(node)
    assert on_offer(node) == replicas(A, 0, 1)


@pytest.mark.invariant(4)
def test_while_holders_are_unknown_the_new_form_waits_and_the_old_one_stays_listed():
    node = started(gpus=1)
    node.pass_time(1.0)
    node.set_readable(readable=False)
    share(node, 2)
    for _ in range(9):
        settle(node, 10.0)
    assert on_offer(node) == []
    assert kept_back(node)[A] == (Cause.WITHDRAWING, "leaving")
    node.set_readable(readable=True)
    answer_now(node)
    assert on_offer(node) == replicas(A, 0, 1)


@pytest.mark.invariant(4)
def test_each_gpu_changes_for_itself():
    node = started(gpus=2)
    allocate(node, B)
    share(node, 2)
    answer_now(node)
    assert on_offer(node) == replicas(A, 0, 1)
    assert node.plan.changes == (ModeChange(gpu_uuid=B, before=WHOLE, after=SLICED, holder="team/pod-0"),)


def test_an_edit_that_is_taken_back_gives_the_old_form_back_at_once_if_the_new_one_was_never_on_offer():
    node = started(gpus=1)
    allocate(node, A)
    share(node, 2)
    node.take_lists()
    share(node, 1)
    answer_now(node)
    assert on_offer(node) == [A]
    assert list(kept_back(node)) == replicas(A, 0, 1)


def test_what_ails_a_gpu_is_told_before_who_holds_it():
    given = {GPU: given_out(listed(GPU, A), at=50.0)}
    sick = {A: ailment(Cause.LOST, "off the bus")}
    plan = build_plan(inputs(sliced(2), gpu(0), given=given, held=answer(holding(A)), ailments=sick))
    assert {(one.cause, one.text) for one in plan.lists[GPU].devices if one.id != A} == {(Cause.LOST, "off the bus")}
    assert plan.changes


def test_a_gpu_with_two_old_forms_waits_for_both_and_names_the_first_that_is_held():
    given = {
        GPU: given_out(listed(GPU, A, unhealthy=(A,)), at=50.0),
        SHARED: given_out(listed(SHARED, f"{A}::0", unhealthy=(f"{A}::0",)), at=50.0),
    }
    held = answer(holding(f"{A}::0", resource=SHARED), at=60.0)
    plan = build_plan(inputs(sliced(2), gpu(0), given=given, held=held))
    assert plan.changes == (ModeChange(gpu_uuid=A, before=RENAMED, after=SLICED, holder="team/pod"),)
    both = answer(holding(f"{A}::0", resource=SHARED), holding(A, "first"), at=60.0)
    plan = build_plan(inputs(sliced(2), gpu(0), given=given, held=both))
    assert [(change.before, change.holder) for change in plan.changes] == [(WHOLE, "team/first"), (RENAMED, "team/pod")]
    assert plan.lists[GPU].by_id[f"{A}::0"].text == "held by team/first as nvidia.com/gpu (whole)"


@pytest.mark.invariant(4)
def test_a_change_that_is_made_at_once_leaves_what_is_held_listed_and_waits_again_where_waiting_is_asked_for():
    node = started(gpus=1)
    allocate(node, A)
    node.edit(dataclasses.replace(share_all(2), immediate=True).text)
    assert on_offer(node) == replicas(A, 0, 1)
    assert kept_back(node) == {A: (Cause.WITHDRAWING, "held by team/pod-0")}
    node.take_lists()
    allocate(node, f"{A}::1")
    settle(node)
    node.edit(dataclasses.replace(share_all(2), immediate=False).text)
    assert on_offer(node) == []
    assert kept_back(node)[f"{A}::0"] == (Cause.HELD, f"held by team/pod-0 as {WHOLE}")
    end_pod(node)
    settle(node)
    assert ids(node.plan) == on_offer(node) == replicas(A, 0, 1)


@pytest.mark.invariant(4)
def test_what_is_not_on_offer_any_more_leaves_when_free_and_comes_back_in_another_form_no_sooner():
    node = started(gpus=1)
    allocate(node, A)
    node.edit(dataclasses.replace(share_all(1), time_slicing=None, exclude=(A,)).text)
    settle(node)
    assert kept_back(node) == {A: (Cause.WITHDRAWING, "held by team/pod-0")}
    share(node, 3)
    settle(node)
    assert on_offer(node) == []
    node.edit(dataclasses.replace(share_all(1), time_slicing=None, exclude=(A,)).text)
    end_pod(node)
    settle(node)
    settle(node)
    assert node.given == {}
    share(node, 3)
    assert on_offer(node) == replicas(A, 0, 1, 2)


@pytest.mark.invariant(4)
def test_a_cordon_outlasts_a_change_and_hides_none():
    node = started(gpus=1)
    allocate(node, A)
    node.edit(dataclasses.replace(share_all(2), cordon=(A,)).text)
    assert [change.holder for change in node.plan.changes] == ["team/pod-0"]
    assert kept_back(node)[f"{A}::0"][0] is Cause.CORDONED
    end_pod(node)
    settle(node)
    assert (node.plan.changes, on_offer(node)) == ((), [])
    share(node, 2)
    assert on_offer(node) == replicas(A, 0, 1)


# resources that end


def test_the_last_empty_list_is_given_out_and_taken_before_a_resource_is_withdrawn():
    node = started(gpus=1)
    share(node, 2, rename=True)
    answer_now(node)
    node.take_lists()
    node.pass_time(5.2)
    answer_now(node)
    assert node.plan.lists[GPU].devices == ()
    assert node.given[GPU].taken_version < node.given[GPU].version
    assert node.plan.waiting
    node.pass_time(60.0)
    assert GPU in node.plan.lists
    node.take_lists()
    assert GPU not in node.plan.lists


def test_a_resource_of_which_nothing_was_ever_given_out_is_not_made_to_be_withdrawn():
    assert build_plan(inputs(parse("devices: {exclude: ['0000:10:00.0']}"), gpu(0))).lists == {}


@pytest.mark.invariant(3)
def test_a_gpu_that_is_withheld_leaves_in_two_phases():
    given = {GPU: given_out(listed(GPU, A, B), at=50.0)}
    config = parse("devices: {exclude: [0]}")
    plan = build_plan(inputs(config, gpu(0), gpu(1), given=given, pins={"devices.exclude=0": A}))
    assert [(one.id, one.cause) for one in plan.lists[GPU].devices] == [(B, None), (A, Cause.WITHDRAWING)]
    assert plan.withheld[A].reason == "Excluded"
    assert plan.planned == {GPU: 1}


@pytest.mark.invariant(3)
def test_a_gpu_that_is_gone_for_good_stays_listed_while_a_pod_holds_it():
    node = started(gpus=2)
    allocate(node, B)
    lose(node, 1)
    node.take_lists()
    assert kept_back(node) == {B: (Cause.VANISHED, "NVML does not count it any more")}
    node.pass_time(60.0)  # more than removeAfter
    answer_now(node)
    assert kept_back(node) == {B: (Cause.WITHDRAWING, "held by team/pod-0")}
    end_pod(node)
    answer_now(node)
    assert ids(node.plan) == [A]
