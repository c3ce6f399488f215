"""The plan itself: exact lists, their order, what a restart and a limit make of them, and what a plan waits for."""

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
from nvdp.planning.sizing import LIMIT_BYTES, most_replicas
from tests.planning.stories import ids, replicas
from tests.planning.values import (
    GPU,
    SHARED,
    ailment,
    answer,
    given_out,
    gpu,
    holding,
    inputs,
    list_bytes,
    listed,
    parse,
    sliced,
    uuid,
)

A, B, C = uuid(0), uuid(1), uuid(2)
WHOLE, SLICED = Form(GPU, shared=False), Form(GPU, shared=True)


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
    assert plan.lists[GPU].facts.replicas == (12,)


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


@pytest.mark.requirement(39)
@pytest.mark.requirement(49)
def test_what_a_pod_holds_of_a_gpu_that_went_while_nothing_ran_here_has_the_node_that_the_kubelet_remembers():
    held = answer(msgspec.structs.replace(holding(f"{uuid(9)}::1"), numa_node=1))
    for known in (restore(held, names=frozenset(), now=100.0), {}):
        plan = build_plan(inputs(sliced(2), gpu(0, numa_node=0), given=known, held=held))
        assert [device.id for device in plan.lists[GPU].devices] == [*replicas(uuid(0), 0, 1), f"{uuid(9)}::1"]
        assert nodes_of(plan) == [0, 0, 1]


def test_pieces_that_must_be_of_different_gpus_are_of_no_numa_node_for_the_kubelet_would_count_pieces():
    gpus = [gpu(number, numa_node=number % 2) for number in range(3)]

    def plan(*, one: str):
        entry = f"{{name: gpu, rename: gpu.shared, devices: [{uuid(0)}, {uuid(1)}], replicas: 2}}"
        limits = f"requireDistinctGPUs: true, failRequestsGreaterThanOne: {one}"
        return build_plan(inputs(parse(f"sharing: {{timeSlicing: {{{limits}, resources: [{entry}]}}}}"), *gpus))

    assert nodes_of(plan(one="false"), SHARED) == [None] * 4
    assert nodes_of(plan(one="false")) == [0]
    assert nodes_of(plan(one="true"), SHARED) == [0, 0, 1, 1]


@pytest.mark.invariant(4)
def test_what_pods_hold_under_a_name_of_the_file_counts_though_nobody_remembers_it():
    config = parse("""\
        resources: {gpus: [{pattern: "*", name: example.com/card}]}
        sharing: {timeSlicing: {resources: [{name: example.com/card, replicas: 2}]}}
        """)
    plan = build_plan(inputs(config, gpu(0), gpu(1), held=answer(holding(uuid(0), "old", "example.com/card"))))

    listed = plan.lists["example.com/card"]
    assert {device.id for device in listed.devices if device.healthy} == {f"{uuid(1)}::0", f"{uuid(1)}::1"}
    assert listed.by_id[uuid(0)].cause is Cause.WITHDRAWING
    assert listed.by_id[f"{uuid(0)}::0"].cause is Cause.HELD
