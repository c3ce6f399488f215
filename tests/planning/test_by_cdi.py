"""What pods may have got by CDI: nothing is missed that they hold, and what they got otherwise since is let go."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from nvdp.model.listing import AllocateTrace, DeviceListStrategy
from nvdp.planning.by_cdi import has_unseen, keep_by_cdi, restore_by_cdi
from nvdp.planning.plan import build_plan
from tests.planning.values import GPU, answer, given_out, gpu, holding, inputs, parse, uuid

pytestmark = pytest.mark.requirement(46)

A, B = uuid(0), uuid(1)
CDI, ENVVAR = parse("flags: {plugin: {deviceListStrategy: [envvar, cdi-cri]}}"), parse()


def follow(config, *held, before=None, at=100.0, trace=None, listed=None):
    """What is known by a plan at ``at``. The list in force is of ``listed``, ``trace`` of the second card in it."""
    first = build_plan(inputs(listed or config, gpu(0), gpu(1), now=0.0)).lists[GPU]
    record = msgspec.structs.replace(given_out(first, at=0.0), allocations={B: trace} if trace else {})
    plan = build_plan(
        inputs(
            config,
            gpu(0),
            gpu(1),
            given={GPU: record},
            held=answer(*map(holding, held), at=at),
            by_cdi=restore_by_cdi({GPU: before or ()}, now=-1000.0),
            now=at,
        )
    )
    return keep_by_cdi(plan.by_cdi).get(GPU, ())


def test_under_cdi_all_that_is_held_counts_and_without_it_nothing_does():
    assert follow(CDI, A, B) == (A, B)
    assert follow(ENVVAR, A, B) == ()
    assert follow(ENVVAR, A, B, before=[B]) == (B,)
    assert follow(ENVVAR, A, before=[B]) == ()


def test_the_list_in_force_counts_whatever_the_file_says_by_now():
    assert follow(ENVVAR, B, listed=CDI) == (B,)
    assert follow(ENVVAR, listed=CDI, trace=AllocateTrace(1)) == (B,)
    assert follow(ENVVAR, trace=AllocateTrace(1)) == ()


@pytest.mark.parametrize(("at", "expected"), [(99.0, (B,)), (98.0, ())], ids=["unseen", "seen"])
def test_an_allocate_counts_until_an_answer_is_new_enough_to_show_its_pod(at, expected):
    assert follow(ENVVAR, trace=AllocateTrace(0, at, "", True)) == expected  # noqa: FBT003 - a struct of four facts
    assert follow(CDI, trace=AllocateTrace(0, at)) == expected


def test_an_id_that_was_handed_out_otherwise_since_is_let_go_once_no_allocate_of_it_is_under_way():
    assert follow(ENVVAR, B, before=[B], trace=AllocateTrace(0, 90.0)) == ()
    assert follow(ENVVAR, B, before=[B], trace=AllocateTrace(1, 90.0)) == (B,)


def test_what_may_be_forgotten_by_an_answer_is_what_no_pod_is_seen_with():
    holders = {GPU: {A: holding(A)}}
    assert not has_unseen({GPU: {A: 0.0}}, holders)
    assert has_unseen({GPU: {A: 0.0, B: 0.0}}, holders)
    assert has_unseen({GPU: {A: 0.0}}, {})


@examples(
    held=st.sets(st.sampled_from([A, B])),
    before=st.sets(st.sampled_from([A, B])),
    ways=st.sets(st.sampled_from(DeviceListStrategy), min_size=1),
)
def test_no_pod_that_is_held_and_was_known_or_is_handed_names_is_missed(held, before, ways):
    config = parse(f"flags: {{plugin: {{deviceListStrategy: [{', '.join(sorted(way.value for way in ways))}]}}}}")
    by_cdi = bool(ways & {DeviceListStrategy.CDI_CRI, DeviceListStrategy.CDI_ANNOTATIONS})
    assert set(follow(config, *held, before=before)) == (held if by_cdi else held & before)
