"""The plan itself: exact lists, and the stories of an edit, a pod, a loss and a restart."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.held import Held
from nvdp.model.listing import AllocateTrace, ListedDevice
from nvdp.model.reasons import Cause
from nvdp.planning.assignment import Form
from nvdp.planning.ledger import give, restore
from nvdp.planning.plan import ModeChange, build_plan
from nvdp.planning.sizing import LIMIT_BYTES, list_bytes, most_replicas
from tests.planning.histories import Node
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

A, B, C = uuid(0), uuid(1), uuid(2)
WHOLE, SLICED, RENAMED = Form(GPU, shared=False), Form(GPU, shared=True), Form(SHARED, shared=True)


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
    node.kubelet.request_holders(node.now)
    node.answer_holders(late=False)


def settle(node, seconds=5.2):
    """The kubelet takes what there is, time passes, and an answer comes."""
    node.take_lists()
    node.pass_time(seconds)
    answer_now(node)
    node.take_lists()


def started(*, gpus=2, replicas=1):
    """A node whose lists the kubelet has taken."""
    node = Node(gpus=gpus, replicas=replicas)
    node.take_lists()
    return node


def allocate(node, device_id, resource=GPU):
    """One pod gets exactly this ID, and PodResources shows it."""
    begin(node, device_id, resource)
    node.end_allocate(0)
    node.pass_time(2.0)
    answer_now(node)


def begin(node, device_id, resource=GPU):
    node.begin_allocate(resource, node.kubelet.find_free(resource).index(device_id), 1)
    assert node.kubelet.in_flight


# lists


@pytest.mark.invariant(8)
def test_whole_gpus_are_listed_by_their_uuid_in_the_order_of_their_slots():
    plan = build_plan(inputs(parse(), gpu(2), gpu(0), gpu(1)))
    assert plan.lists[GPU].devices == tuple(ListedDevice(id=one, gpu_uuid=one) for one in (A, B, C))
    assert plan.planned == {GPU: 3}
    assert (plan.check_at, plan.ask_since, plan.waiting, plan.changes) == (None, None, False, ())


@pytest.mark.requirement(11)
def test_replicas_are_listed_gpu_by_gpu_in_the_order_of_their_numbers():
    plan = build_plan(inputs(sliced(12), gpu(0), gpu(1)))
    assert ids(plan) == replicas(A, *range(12)) + replicas(B, *range(12))
    assert plan.planned == {GPU: 24}
    assert plan.lists[GPU].facts.replicas == 12


def test_a_node_without_gpus_has_no_resource():
    plan = build_plan(inputs(sliced(3)))
    assert (plan.lists, plan.planned) == ({}, {})


@pytest.mark.invariant(5)
@pytest.mark.requirement(14)
def test_a_gpu_that_ails_keeps_its_place_and_says_what_ails_it():
    plan = build_plan(inputs(sliced(2), gpu(0), gpu(1), ailments={A: ailment(Cause.LOST, "off the bus")}))
    assert ids(plan) == replicas(A, 0, 1) + replicas(B, 0, 1)
    assert ids(plan, healthy=True) == replicas(B, 0, 1)
    assert {(one.cause, one.text) for one in plan.lists[GPU].devices if not one.healthy} == {
        (Cause.LOST, "off the bus")
    }
    assert plan.planned == {GPU: 4}


@pytest.mark.invariant(8)
@given(order=st.permutations(range(4)), replicas=st.integers(1, 4))
def test_the_order_in_which_gpus_are_found_makes_no_difference(order, replicas):
    config, gpus = sliced(replicas), [gpu(number, numa_node=number % 2) for number in range(4)]
    assert build_plan(inputs(config, *(gpus[number] for number in order))) == build_plan(inputs(config, *gpus))


# NUMA nodes


def nodes_of(plan, resource=GPU):
    return [device.numa_node for device in plan.lists[resource].devices]


@pytest.mark.requirement(39)
def test_every_device_has_the_node_of_its_gpu():
    assert nodes_of(build_plan(inputs(sliced(2), gpu(0, numa_node=0), gpu(1, numa_node=1)))) == [0, 0, 1, 1]


@pytest.mark.requirement(39)
def test_without_hints_or_where_one_gpu_has_no_node_none_is_told():
    gpus = [gpu(0, numa_node=0), gpu(1)]
    assert nodes_of(build_plan(inputs(parse(), *gpus))) == [None, None]
    hidden = parse("allocation: {numaHints: false}")
    assert nodes_of(build_plan(inputs(hidden, gpu(0, numa_node=0), gpu(1, numa_node=1)))) == [None, None]


@pytest.mark.requirement(39)
@pytest.mark.invariant(5)
def test_a_sick_gpu_whose_node_is_unknown_takes_none_from_the_others():
    gpus = [gpu(0, numa_node=0), gpu(1), gpu(2, numa_node=1)]
    assert nodes_of(build_plan(inputs(parse(), *gpus, ailments={B: ailment()}))) == [0, None, 1]


@pytest.mark.requirement(39)
def test_an_id_that_is_leaving_follows_the_others_in_whether_it_has_a_node():
    before = build_plan(inputs(sliced(2), gpu(0, numa_node=1))).lists[GPU]
    given = {GPU: given_out(before, at=99.0)}
    plan = build_plan(inputs(sliced(1), gpu(0, numa_node=1), given=given))
    assert nodes_of(plan) == [1, 1, 1]
    hidden = build_plan(inputs(sliced(1, more="allocation: {numaHints: false}"), gpu(0, numa_node=1), given=given))
    assert nodes_of(hidden) == [None, None, None]


# shrinking and growing


@pytest.mark.invariant(3)
@pytest.mark.requirement(48)
def test_what_a_shrink_drops_is_unhealthy_first_and_leaves_later():
    node = started(gpus=2, replicas=3)
    node.edit(2, rename=False)
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
    node.edit(2, rename=False)
    assert on_offer(node) == replicas(A, 0, 4)
    node.kubelet.end_pod(0)
    answer_now(node)
    settle(node)
    assert ids(node.plan) == replicas(A, 0, 4)
    node.edit(3, rename=False)
    assert ids(node.plan) == replicas(A, 0, 1, 4)


@pytest.mark.invariant(3)
@pytest.mark.requirement(49)
def test_what_is_held_beyond_the_shrink_stays_listed_until_the_pod_ends():
    node = started(gpus=1, replicas=3)
    for number in range(3):
        allocate(node, f"{A}::{number}")
    node.edit(2, rename=False)
    settle(node)
    settle(node, 60.0)
    assert kept_back(node) == {f"{A}::2": (Cause.WITHDRAWING, "held by team/pod-2")}
    node.kubelet.end_pod(2)
    answer_now(node)
    assert ids(node.plan) == replicas(A, 0, 1)


@pytest.mark.invariant(3)
def test_a_shrink_keeps_the_number_whose_allocate_is_on_its_way_or_not_yet_seen():
    node = started(gpus=1, replicas=5)
    begin(node, f"{A}::4")
    node.edit(2, rename=False)
    assert on_offer(node) == replicas(A, 0, 4)
    node.end_allocate(0)
    answer_now(node)  # too early to show the holder for certain
    assert on_offer(node) == replicas(A, 0, 4)


def test_growing_gives_back_what_was_leaving():
    node = started(gpus=1, replicas=4)
    node.edit(1 + 1, rename=False)
    node.take_lists()
    node.edit(3, rename=False)
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
    node.edit(before[0], rename=before[1])
    settle(node)
    settle(node)
    (old_resource, old_ids), (new_resource, new_ids) = old, new
    allocate(node, old_ids[-1], old_resource)
    node.edit(after[0], rename=after[1])
    for _ in range(3):
        assert on_offer(node, GPU) == on_offer(node, SHARED) == []
        held = kept_back(node, old_resource)[old_ids[-1]]
        waiting = {kept_back(node, new_resource)[one] for one in new_ids}
        assert held == (Cause.WITHDRAWING, "held by team/pod-0")
        assert waiting == {(Cause.HELD, f"held by team/pod-0 as {node.plan.changes[0].before}")}
        settle(node)
    assert node.plan.planned == {new_resource: len(new_ids)}
    node.kubelet.end_pod(0)
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
    node.edit(2, rename=True)
    assert on_offer(node, SHARED) == []
    assert node.plan.ask_since == node.now
    answer_now(node)
    assert on_offer(node, SHARED) == replicas(A, 0, 1)
    assert kept_back(node, GPU) == {A: (Cause.WITHDRAWING, "leaving")}


@pytest.mark.invariant(4)
def test_a_change_waits_for_an_allocate_on_its_way_and_2_s_longer():
    node = started(gpus=1)
    begin(node, A)
    node.edit(2, rename=False)
    answer_now(node)
    assert on_offer(node) == []
    node.end_allocate(0)
    answer_now(node)
    assert (on_offer(node), node.plan.check_at) == ([], node.now + 2.0)
    node.kubelet.end_pod(0)
    node.pass_time(2.0)
    assert on_offer(node) == []
    answer_now(node)
    assert on_offer(node) == replicas(A, 0, 1)


@pytest.mark.invariant(4)
def test_while_holders_are_unknown_the_new_form_waits_and_the_old_one_stays_listed():
    node = started(gpus=1)
    node.pass_time(1.0)
    node.set_readable(readable=False)
    node.edit(2, rename=False)
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
    node.edit(2, rename=False)
    answer_now(node)
    assert on_offer(node) == replicas(A, 0, 1)
    assert node.plan.changes == (ModeChange(gpu_uuid=B, before=WHOLE, after=SLICED, holder="team/pod-0"),)


def test_an_edit_that_is_taken_back_gives_the_old_form_back_at_once_if_the_new_one_was_never_on_offer():
    node = started(gpus=1)
    allocate(node, A)
    node.edit(2, rename=False)
    node.take_lists()
    node.edit(1, rename=False)
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


# resources that end


def test_the_last_empty_list_is_given_out_and_taken_before_a_resource_is_withdrawn():
    node = started(gpus=1)
    node.edit(2, rename=True)
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
    assert build_plan(inputs(parse("devices: {paused: true}"), gpu(0))).lists == {}


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
    node.lose(1)
    node.take_lists()
    assert kept_back(node) == {B: (Cause.VANISHED, "gone")}
    node.pass_time(60.0)
    node.forget()
    answer_now(node)
    assert kept_back(node) == {B: (Cause.WITHDRAWING, "held by team/pod-0")}
    node.kubelet.end_pod(0)
    answer_now(node)
    assert ids(node.plan) == [A]


# restarts


@pytest.mark.invariant(3)
def test_what_pods_hold_is_in_the_first_list_also_of_names_and_gpus_that_the_node_no_longer_has():
    gone = uuid(9)
    held = answer(
        holding(f"{A}::1"),
        holding(f"{A}::7", "shrunk"),
        holding(f"{gone}::10", "late"),
        holding(f"{gone}::9", "lost"),
        holding(B, "old", resource="nvidia.com/old"),
        holding("x", "foreign", resource="other.example/gpu"),
        at=100.0,
    )
    given = restore(held, names=frozenset(), now=100.0)
    plan = build_plan(inputs(sliced(2), gpu(0), gpu(1), held=held, given=given))
    assert ids(plan, healthy=True) == replicas(A, 1, 7)
    assert ids(plan, healthy=False) == [*replicas(B, 0, 1), *replicas(gone, 9, 10)]
    assert ids(plan, "nvidia.com/old") == [B]
    assert list(plan.lists) == [GPU, "nvidia.com/old"]


@pytest.mark.invariant(3)
def test_holders_that_become_known_only_after_the_first_lists_are_listed_then():
    first = build_plan(inputs(sliced(2), gpu(0), held=Held()))
    assert ids(first, healthy=True) == replicas(A, 0, 1)
    given = {GPU: given_out(first.lists[GPU], at=100.0)}
    held = answer(holding(f"{A}::10", "b"), holding(f"{A}::9", "a"), holding(A, "whole", resource=SHARED), at=101.0)
    plan = build_plan(inputs(sliced(2), gpu(0), held=held, given=given, names=frozenset({SHARED}), now=101.0))
    assert ids(plan) == replicas(A, 9, 10, 0, 1)
    assert ids(plan, SHARED) == [A]
    assert ids(plan, healthy=True) == []
    assert plan.waiting
    assert {change.before for change in plan.changes} == {Form(SHARED, shared=False)}


@pytest.mark.invariant(4)
def test_what_pods_hold_of_a_resource_that_was_never_ours_is_not_listed_but_keeps_its_gpu_from_being_offered():
    held = answer(holding(A, "theirs", resource="nvidia.com/theirs"), at=100.0)
    plan = build_plan(inputs(sliced(2), gpu(0), gpu(1), held=held, now=101.0))
    assert list(plan.lists) == [GPU]
    assert ids(plan, healthy=True) == replicas(B, 0, 1)


def test_held_ids_that_were_never_given_out_are_listed_in_their_order():
    held = answer(holding(f"{C}::10", "a"), holding(f"{C}::9", "b"), holding(f"{B}::0", "c"))
    assert ids(build_plan(inputs(sliced(2), gpu(0), held=held))) == [*replicas(A, 0, 1), f"{B}::0", *replicas(C, 9, 10)]


def test_a_held_form_that_was_never_given_out_is_free_when_its_pod_ends():
    config, now = sliced(2), 101.0
    held = answer(holding(A, "whole", resource=SHARED), at=100.0)
    plan = build_plan(inputs(config, gpu(0), held=held, now=now))
    assert ids(plan, healthy=True) == []
    assert ids(build_plan(inputs(config, gpu(0), held=answer(at=102.0), now=now)), healthy=True) == replicas(A, 0, 1)


def test_an_id_held_of_an_old_form_that_had_left_the_list_still_blocks_the_new_form():
    record = given_out(listed(GPU, f"{A}::0", unhealthy=(f"{A}::0",)), at=50.0)
    held = answer(holding(f"{A}::5"), at=60.0)
    plan = build_plan(inputs(parse(), gpu(0), given={GPU: record}, held=held))
    assert ids(plan, healthy=True) == []
    assert plan.changes == (ModeChange(gpu_uuid=A, before=SLICED, after=WHOLE, holder="team/pod"),)


# limits

NODE = [gpu(number) for number in range(3)]
MOST = most_replicas(tuple((one.uuid, None) for one in NODE))


@pytest.mark.invariant(8)
@pytest.mark.requirement(40)
def test_a_gpu_that_arrives_and_finds_no_room_is_withheld_and_the_others_stay():
    before = build_plan(inputs(sliced(MOST), *NODE)).lists[GPU]
    newcomer = gpu(7, pci="0000:01:00.0")
    plan = build_plan(inputs(sliced(MOST), *NODE, newcomer, given={GPU: given_out(before, at=50.0)}))
    assert plan.lists[GPU].devices == before.devices
    assert {one: held.reason for one, held in plan.withheld.items()} == {newcomer.uuid: "ListTooLarge"}
    assert plan.planned == {GPU: 3 * MOST}


@pytest.mark.invariant(8)
@pytest.mark.requirement(40)
def test_a_gpu_that_comes_back_displaces_none_that_took_its_room_though_some_of_its_ids_are_still_listed():
    successor = gpu(7)
    offered = build_plan(inputs(sliced(MOST), *NODE[:2], successor)).lists[GPU]
    old = ListedDevice(id=f"{C}::0", gpu_uuid=C, cause=Cause.WITHDRAWING, text="held by team/pod")
    listing = msgspec.structs.replace(offered, devices=(*offered.devices, old))
    held = answer(holding(old.id), at=99.0)
    plan = build_plan(inputs(sliced(MOST), *NODE, successor, given={GPU: given_out(listing, at=50.0)}, held=held))
    assert list(plan.withheld) == [C]
    assert plan.lists[GPU].devices == listing.devices


@pytest.mark.invariant(8)
@pytest.mark.requirement(40)
def test_while_a_full_list_leaves_new_ids_wait_for_their_room():
    full = build_plan(inputs(sliced(MOST), *NODE)).lists[GPU]
    given = {GPU: given_out(full, at=50.0)}
    plan = build_plan(inputs(parse(), *NODE, given=given, held=answer(at=100.0)))
    assert list_bytes(plan.lists[GPU].devices) <= LIMIT_BYTES
    assert len(plan.lists[GPU].devices) >= len(full.devices)
    given = {GPU: give(given[GPU], plan.lists[GPU], version=2, now=100.0)}
    refused = msgspec.structs.replace(
        given[GPU],
        refusals={one: msgspec.structs.replace(told, known_at=100.0) for one, told in given[GPU].refusals.items()},
    )
    plan = build_plan(inputs(parse(), *NODE, given={GPU: refused}, held=answer(at=106.0), now=106.0))
    assert ids(plan, healthy=True) == [A, B, C]


# what a plan asks for


def test_the_newest_answer_that_is_needed_is_asked_for_and_the_earliest_time_is_looked_at():
    record = given_out(listed(GPU, *replicas(A, 2, 3), unhealthy=tuple(replicas(A, 2, 3))), at=50.0)
    trace = {f"{A}::2": AllocateTrace(0, 97.0), f"{A}::3": AllocateTrace(0, 98.5)}
    given = {GPU: msgspec.structs.replace(record, allocations=trace)}
    plan = build_plan(inputs(parse(), given=given, held=answer(at=90.0), now=98.7))
    assert (plan.check_at, plan.ask_since) == (99.0, None)
    plan = build_plan(inputs(parse(), given=given, held=answer(at=90.0), now=100.0))
    assert (plan.check_at, plan.ask_since) == (100.5, 99.0)
    plan = build_plan(inputs(parse(), given=given, held=answer(at=90.0), now=102.0))
    assert (plan.check_at, plan.ask_since) == (None, 100.5)


def test_the_clock_may_begin_at_zero():
    record = given_out(listed(GPU, A, B, unhealthy=(A, B)), at=-9.0)
    trace = {A: AllocateTrace(0, -2.0), B: AllocateTrace(0, -5.0)}
    given = {GPU: msgspec.structs.replace(record, allocations=trace)}
    assert build_plan(inputs(parse(), given=given, held=answer(at=-9.0), now=0.0)).ask_since == 0.0
    assert build_plan(inputs(parse(), given=given, held=answer(at=-9.0), now=-1.0)).check_at == 0.0
