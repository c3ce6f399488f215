"""What is remembered of what the kubelet was given."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.model.held import Held
from nvdp.model.listing import AllocateTrace
from nvdp.model.reasons import Cause
from nvdp.planning.assignment import Form
from nvdp.planning.ledger import (
    Refusal,
    begin_anew,
    find_known,
    find_leaving,
    give,
    note_taken,
    order_of_id,
    our_holdings,
    restore,
)
from tests.planning.values import GPU, SHARED, answer, given_out, holding, listed, uuid

A, B = uuid(0), uuid(1)


def test_an_id_is_refused_from_the_list_that_first_calls_it_unhealthy():
    first = give(None, listed(GPU, A, B), version=1, now=10.0)
    assert first.refusals == {}
    second = give(first, listed(GPU, A, B, unhealthy=(B,)), version=2, now=20.0)
    third = give(second, listed(GPU, A, B, unhealthy=(A, B)), version=3, now=30.0)
    assert third.refusals == {A: Refusal(3, 30.0), B: Refusal(2, 20.0)}


def test_an_id_that_was_healthy_in_between_is_refused_anew():
    record = give(None, listed(GPU, A, unhealthy=(A,)), version=1, now=10.0)
    record = give(record, listed(GPU, A), version=2, now=20.0)
    record = give(record, listed(GPU, A, unhealthy=(A,)), version=3, now=30.0)
    assert record.refusals == {A: Refusal(3, 30.0)}


def test_an_id_that_left_is_forgotten():
    record = give(None, listed(GPU, A, unhealthy=(A,)), version=1, now=10.0)
    assert give(record, listed(GPU), version=2, now=20.0).refusals == {}


def test_the_kubelet_knows_of_a_refusal_once_it_has_taken_that_list_or_a_later_one():
    record = give(None, listed(GPU, A, B, unhealthy=(A,)), version=1, now=10.0)
    record = give(record, listed(GPU, A, B, unhealthy=(A, B)), version=2, now=11.0)
    record = note_taken(record, version=1, now=12.0)
    assert record.refusals == {A: Refusal(1, 10.0, 12.0), B: Refusal(2, 11.0)}
    assert record.taken_version == 1
    record = note_taken(record, version=2, now=13.0)
    assert record.refusals == {A: Refusal(1, 10.0, 12.0), B: Refusal(2, 11.0, 13.0)}
    assert record.taken_version == 2


def test_taking_the_same_list_again_changes_nothing():
    record = given_out(listed(GPU, A, unhealthy=(A,)), at=10.0)
    assert note_taken(record, version=1, now=99.0) is record


def test_a_new_list_keeps_what_was_taken_and_the_trace_of_allocate_calls():
    record = given_out(listed(GPU, A), at=10.0)
    record = give(record, listed(GPU, A, unhealthy=(A,)), version=2, now=11.0)
    assert (record.version, record.taken_version) == (2, 1)
    trace = {A: AllocateTrace(1)}
    record = give(msgspec.structs.replace(record, allocations=trace), listed(GPU, A), version=3, now=12.0)
    assert record.allocations == trace


@pytest.mark.invariant(3)
def test_an_actor_that_begins_anew_has_no_old_list_with_anyone():
    record = given_out(listed(GPU, A, B, unhealthy=(A,)), at=10.0)
    record = give(record, listed(GPU, A, B, unhealthy=(A, B)), version=7, now=20.0)
    anew = begin_anew(record, now=30.0)
    assert (anew.version, anew.taken_version) == (0, 0)
    assert anew.refusals == {A: Refusal(0, 10.0, 10.0), B: Refusal(0, 20.0, 30.0)}
    again = give(anew, anew.listed, version=1, now=31.0)
    assert again.refusals == anew.refusals


@pytest.mark.invariant(3)
def test_after_a_restart_the_ids_that_pods_hold_were_given_out_and_are_on_offer_no_more():
    held = answer(holding(f"{A}::10"), holding(f"{A}::9"), holding(B, resource=SHARED), holding(A, resource="x.y/gpu"))
    given = restore(held, names=frozenset(), now=50.0)
    assert {name: [device.id for device in record.listed.devices] for name, record in given.items()} == {
        GPU: [f"{A}::9", f"{A}::10"],
        SHARED: [B],
    }
    for record in given.values():
        assert {device.cause for device in record.listed.devices} == {Cause.WITHDRAWING}
        assert set(record.refusals.values()) == {Refusal(0, 50.0, 50.0)}
        assert record.version == record.taken_version == 0
    assert given[GPU].listed.devices[0].gpu_uuid == A


def test_nothing_is_restored_where_nothing_could_be_read():
    assert restore(Held(), names=frozenset({GPU}), now=1.0) == {}


def test_ours_are_ids_in_our_format_under_our_domain_or_a_name_we_have_used():
    held = answer(
        holding(A),
        holding(f"{B}::3", resource="team.example/slice"),
        holding(A, resource="other.example/gpu"),
        holding("0000:65:00.0", resource="nvidia.com/vfio"),
        holding(f"{A}::03"),
        holding("nvidia0"),
    )
    found = our_holdings(held, names=frozenset({"team.example/slice"}))
    assert {name: set(ids) for name, ids in found.items()} == {GPU: {A}, "team.example/slice": {f"{B}::3"}}


def test_known_are_the_ids_given_out_and_those_held_by_gpu_and_form():
    given = {GPU: given_out(listed(GPU, f"{A}::1", B), at=0.0)}
    held = our_holdings(answer(holding(f"{A}::0"), holding(A), holding(f"{A}::1")), names=frozenset())
    known = find_known(given, held, {})
    assert known == {
        A: {Form(GPU, shared=True): [f"{A}::1", f"{A}::0"], Form(GPU, shared=False): [A]},
        B: {Form(GPU, shared=False): [B]},
    }
    assert find_known(given, held, {GPU: (B,), "nvidia.com/other": (A,)}) == known | {
        B: {Form(GPU, shared=False, mps=True): [B]}
    }


def test_ids_that_are_only_held_are_known_in_their_order():
    held = our_holdings(answer(holding(f"{A}::10", "a"), holding(f"{A}::9", "b")), names=frozenset())
    assert find_known({}, held, {}) == {A: {Form(GPU, shared=True): [f"{A}::9", f"{A}::10"]}}


def test_leaving_are_the_withdrawing_ids_not_those_that_ail():
    assert find_leaving(given_out(listed(GPU, A, B, unhealthy=(A,)), at=0.0)) == {A}
    assert find_leaving(given_out(listed(GPU, A, B, unhealthy=(A,), cause=Cause.LOST), at=0.0)) == frozenset()


def test_ids_are_ordered_by_device_then_by_number():
    ids = [f"{A}::10", f"{B}::0", f"{A}::9", A]
    assert sorted(ids, key=order_of_id) == [A, f"{A}::9", f"{A}::10", f"{B}::0"]
