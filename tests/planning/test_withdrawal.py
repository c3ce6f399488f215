"""When an ID may leave, and when a GPU may change its form."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.model.held import Held
from nvdp.model.listing import AllocateTrace
from nvdp.planning.ledger import give, note_taken, our_holdings
from nvdp.planning.withdrawal import Verdict, Waiting, judge_unseen, may_change, may_leave
from tests.planning.values import GPU, answer, given_out, holding, listed, uuid

A, B = uuid(0), uuid(1)
KNOWN = 100.0  # when the kubelet learnt that the IDs are Unhealthy
RIPE = KNOWN + 5.1  # Unhealthy for 5 s, and the kubelet may be late by 0.1 s
REMOVE_AFTER = 300.0
UNHEALTHY = listed(GPU, A, B, unhealthy=(A, B))

pytestmark = pytest.mark.invariant(3)


def waiting(now, held):
    holders = our_holdings(held, names=frozenset())
    return Waiting(held=held, holders=holders, remove_after_s=REMOVE_AFTER, now=now)


def record(*, in_flight=0, answered_at=None, at=KNOWN):
    trace = {A: AllocateTrace(in_flight, answered_at)} if in_flight or answered_at is not None else {}
    return msgspec.structs.replace(given_out(UNHEALTHY, at=at), allocations=trace)


def unreadable(*holdings, since):
    return msgspec.structs.replace(answer(*holdings, at=KNOWN - 60), unreadable_since=since)


HELD = "team/pod"
LEAVING = {
    "free by an answer requested after 5 s": (record(), RIPE, answer(at=RIPE), Verdict(allowed=True)),
    "the answer is given later than it was requested": (record(), RIPE + 9, answer(at=RIPE), Verdict(allowed=True)),
    "an answer requested before the 5 s were over": (
        record(),
        RIPE + 9,
        answer(at=RIPE - 0.01),
        Verdict(allowed=False, ask_since=RIPE),
    ),
    "5 s are not over": (record(), RIPE - 0.01, answer(at=RIPE - 0.01), Verdict(allowed=False, at=RIPE)),
    "held": (record(), RIPE + 9, answer(holding(A), at=RIPE + 8), Verdict(allowed=False, holder=HELD)),
    "held by what an old answer says": (
        record(),
        RIPE + 9,
        answer(holding(A), at=KNOWN),
        Verdict(allowed=False, ask_since=RIPE, holder=HELD),
    ),
    "another ID is held": (record(), RIPE, answer(holding(B), at=RIPE), Verdict(allowed=True)),
    "an Allocate is in flight": (
        record(in_flight=1),
        RIPE + 9,
        answer(at=RIPE + 9),
        Verdict(allowed=False, at=RIPE + 10),
    ),
    "an Allocate was answered 1 s ago": (
        record(answered_at=RIPE),
        RIPE + 1,
        answer(at=RIPE + 1),
        Verdict(allowed=False, at=RIPE + 2),
    ),
    "asked before the last Allocate was 2 s old": (
        record(answered_at=RIPE),
        RIPE + 3,
        answer(at=RIPE + 1.9),
        Verdict(allowed=False, ask_since=RIPE + 2),
    ),
    "asked when the last Allocate was 2 s old": (
        record(answered_at=RIPE),
        RIPE + 3,
        answer(at=RIPE + 2),
        Verdict(allowed=True),
    ),
    "an Allocate before the refusal counts for nothing more": (
        record(answered_at=KNOWN - 1),
        RIPE,
        answer(at=RIPE),
        Verdict(allowed=True),
    ),
    "nothing was ever read": (record(), RIPE, Held(), Verdict(allowed=False, ask_since=RIPE)),
    "unreadable for less than removeAfter": (
        record(),
        RIPE + 9,
        unreadable(since=RIPE),
        Verdict(allowed=False, at=RIPE + REMOVE_AFTER),
    ),
    "unreadable throughout removeAfter": (
        record(),
        RIPE + REMOVE_AFTER,
        unreadable(since=RIPE),
        Verdict(allowed=True),
    ),
    "unreadable since long before it was Unhealthy": (
        record(),
        KNOWN + REMOVE_AFTER - 0.01,
        unreadable(since=0.0),
        Verdict(allowed=False, at=KNOWN + REMOVE_AFTER),
    ),
    "unreadable, and the last word was that it is held": (
        record(),
        RIPE + REMOVE_AFTER,
        unreadable(holding(A), since=KNOWN),
        Verdict(allowed=False, ask_since=RIPE, holder=HELD),
    ),
    "unreadable, while an Allocate is in flight": (
        record(in_flight=1),
        RIPE + REMOVE_AFTER,
        unreadable(since=KNOWN),
        Verdict(allowed=False, at=RIPE + REMOVE_AFTER + 1),
    ),
}


@pytest.mark.parametrize(("given", "now", "held", "verdict"), LEAVING.values(), ids=LEAVING)
def test_an_id_leaves_only_when_ripe_quiet_and_free(given, now, held, verdict):
    assert may_leave(given, A, waiting(now, held)) == verdict


def test_an_id_that_was_not_unhealthy_before_stays():
    given = given_out(listed(GPU, A), at=0.0)
    assert may_leave(given, A, waiting(900.0, answer(holding(A), at=900.0))) == Verdict(allowed=False, holder=HELD)


def test_an_id_that_the_kubelet_may_believe_healthy_stays_however_long_that_takes():
    given = given_out(listed(GPU, A, unhealthy=(A,)), at=0.0, taken=False)
    assert may_leave(given, A, waiting(900.0, answer(at=900.0))) == Verdict(allowed=False)


def test_while_the_kubelet_is_down_nothing_leaves_however_long():
    before_it_went = answer(at=KNOWN)
    assert not may_leave(record(), A, waiting(RIPE + 9 * REMOVE_AFTER, before_it_went)).allowed


def test_no_time_stands_in_for_an_answer_where_the_id_is_what_reminds_of_an_old_form():
    late = waiting(RIPE + 9 * REMOVE_AFTER, unreadable(since=KNOWN))
    assert may_leave(record(), A, late).allowed
    assert may_leave(record(), A, late, proof=True) == Verdict(allowed=False, ask_since=RIPE)


CHANGING = {
    "refused, and free by an answer requested after that": (
        record(),
        KNOWN + 0.01,
        answer(at=KNOWN),
        Verdict(allowed=True),
    ),
    "the answer is from before the refusal": (
        record(),
        KNOWN + 9,
        answer(at=KNOWN - 0.01),
        Verdict(allowed=False, ask_since=KNOWN),
    ),
    "one of the IDs is held": (
        record(),
        KNOWN + 9,
        answer(holding(B), at=KNOWN + 9),
        Verdict(allowed=False, holder=HELD),
    ),
    "an Allocate is in flight": (
        record(in_flight=1),
        KNOWN + 9,
        answer(holding(A), at=KNOWN + 9),
        Verdict(allowed=False, at=KNOWN + 10, holder=HELD),
    ),
    "an Allocate was answered 1 s ago": (
        record(answered_at=KNOWN),
        KNOWN + 1,
        answer(at=KNOWN + 1),
        Verdict(allowed=False, at=KNOWN + 2),
    ),
    "asked before the last Allocate was 2 s old": (
        record(answered_at=KNOWN),
        KNOWN + 3,
        answer(at=KNOWN + 1.9),
        Verdict(allowed=False, ask_since=KNOWN + 2),
    ),
    "unreadable for ever": (
        record(),
        KNOWN + 9 * REMOVE_AFTER,
        unreadable(since=KNOWN),
        Verdict(allowed=False, ask_since=KNOWN),
    ),
    "nothing was ever read": (record(), KNOWN + 9, Held(), Verdict(allowed=False, ask_since=KNOWN)),
}


@pytest.mark.invariant(4)
@pytest.mark.parametrize(("given", "now", "held", "verdict"), CHANGING.values(), ids=CHANGING)
def test_a_gpu_changes_its_form_only_when_its_old_ids_are_refused_quiet_and_free(given, now, held, verdict):
    assert may_change(given, [A, B], waiting(now, held)) == verdict


@pytest.mark.invariant(4)
def test_a_change_waits_for_the_list_that_refuses_the_old_form_and_is_looked_at_again_at_once():
    given = given_out(listed(GPU, A), at=0.0)
    assert may_change(given, [A], waiting(50.0, answer(at=50.0))) == Verdict(allowed=False, at=50.0)
    refusing = give(given, listed(GPU, A, unhealthy=(A,)), version=2, now=50.0)
    assert may_change(refusing, [A], waiting(50.0, answer(at=50.0))).allowed


@pytest.mark.invariant(4)
def test_a_change_need_not_wait_until_the_kubelet_knows():
    refusing = give(None, listed(GPU, A, unhealthy=(A,)), version=1, now=50.0)
    assert refusing.refusals[A].known_at is None
    assert may_change(refusing, [A], waiting(50.0, answer(at=50.0))).allowed


def test_an_id_that_is_refused_again_waits_anew():
    given = note_taken(give(record(), listed(GPU, A, B), version=2, now=200.0), version=2, now=200.0)
    given = note_taken(give(given, UNHEALTHY, version=3, now=201.0), version=3, now=201.0)
    assert may_leave(given, A, waiting(203.0, answer(at=203.0))) == Verdict(allowed=False, at=201.0 + 5.1)


UNSEEN = {
    "never allocated": (record(), answer(at=0.0), False),
    "in flight": (record(in_flight=1), answer(at=KNOWN), True),
    "in flight again after an answer that shows the last one": (
        record(in_flight=1, answered_at=10.0),
        answer(at=KNOWN),
        True,
    ),
    "the answer may be too early to show it": (record(answered_at=KNOWN), answer(at=KNOWN + 1.9), True),
    "the answer would show it": (record(answered_at=KNOWN), answer(at=KNOWN + 2), False),
    "nothing was ever read": (record(answered_at=KNOWN), Held(), True),
}


@pytest.mark.parametrize(("given", "held", "unseen"), UNSEEN.values(), ids=UNSEEN)
def test_an_allocate_is_unseen_until_an_answer_could_show_its_holder(given, held, unseen):
    assert judge_unseen(given, A, waiting(KNOWN + 10, held)).allowed is not unseen
