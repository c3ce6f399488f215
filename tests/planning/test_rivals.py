"""One GPU, one promise between whole GPUs and their MIG devices."""

from __future__ import annotations

import pytest

from nvdp.model.held import Held
from nvdp.model.listing import AllocateTrace
from nvdp.model.reasons import Cause
from nvdp.planning.plan import build_plan
from nvdp.planning.rivals import find_parents
from tests.planning.values import (
    GPU,
    ailment,
    answer,
    cut,
    given_out,
    gpu,
    holding,
    inputs,
    listed,
    mig_uuid,
    parse,
    uuid,
)

pytestmark = pytest.mark.invariant(4)

SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
MIXED = parse("flags: {migStrategy: mixed}")
A, M0, M1, M2 = uuid(0), mig_uuid(0, 0), mig_uuid(0, 1), mig_uuid(0, 2)
CUT = cut(0, "1g.10gb", "1g.10gb", "2g.20gb")


def shown(plan):
    """By resource and ID the cause; empty: Healthy."""
    return {
        resource: {device.id: device.cause.value if device.cause else "" for device in one.devices}
        for resource, one in plan.lists.items()
    }


def given(resource, *ids, at=90.0, unhealthy=()):
    return {resource: given_out(listed(resource, *ids, unhealthy=unhealthy), at=at)}


def planned(*gpus, config=MIXED, **others):
    return build_plan(inputs(config, *gpus, **others))


def test_on_an_idle_node_mig_devices_are_on_offer_once_the_whole_gpu_is_refused_and_nobody_has_it():
    before = given(GPU, A)
    first = planned(CUT, given=before, held=answer(at=99.0))
    assert shown(first) == {
        GPU: {A: "Withdrawing"},
        SMALL: {M0: "Held", M1: "Held"},
        LARGE: {M2: "Held"},
    }
    refused = given(GPU, A, at=100.0, unhealthy=(A,))
    then = planned(CUT, given=refused, held=answer(at=100.5), now=101.0)
    assert shown(then)[SMALL] == {M0: "", M1: ""}
    assert shown(then)[GPU] == {A: "Withdrawing"}


def test_while_a_pod_has_the_whole_gpu_its_mig_devices_take_none_and_another_gpu_s_do():
    held = answer(holding(A, "train"), at=200.0)
    other = cut(1, "1g.10gb")
    plan = planned(CUT, other, given=given(GPU, A, unhealthy=(A,)), held=held, now=201.0)
    assert shown(plan)[SMALL] == {M0: "Held", M1: "Held", mig_uuid(1, 0): ""}
    assert plan.lists[SMALL].devices[0].text == "held by team/train as nvidia.com/gpu (whole)"
    assert {change.gpu_uuid for change in plan.changes} == {M0, M1, M2}
    assert shown(plan)[GPU] == {A: "Withdrawing"}


@pytest.mark.parametrize("sliced", [False, True])
def test_while_a_pod_has_a_mig_device_the_whole_gpu_takes_none_also_when_the_device_is_gone(sliced):
    device_id = f"{M1}::2" if sliced else M1
    held = answer(holding(device_id, "nb", SMALL), at=200.0)
    record = given(SMALL, device_id, unhealthy=(device_id,))
    plan = planned(gpu(0), given=record, held=held, now=201.0, parents={M1: A})
    assert shown(plan) == {GPU: {A: "Held"}, SMALL: {device_id: "Withdrawing"}}
    assert plan.parents == {M1: A}
    free = planned(gpu(0), given=record, held=answer(at=202.0), now=202.0, parents={M1: A})
    assert shown(free)[GPU] == {A: ""}


@pytest.mark.invariant(3)
def test_a_mig_device_that_is_gone_and_held_stays_listed_and_holds_no_new_ones_back():
    held = answer(holding(M0, "nb", SMALL), at=200.0)
    changed = cut(0, "2g.20gb", instances=(CUT.instances[2],))
    plan = planned(changed, given=given(SMALL, M0, M1), held=held, now=201.0, parents={M0: A, M1: A})
    assert shown(plan) == {SMALL: {M0: "Withdrawing", M1: "Withdrawing"}, LARGE: {M2: ""}}


def test_an_allocate_of_the_whole_gpu_that_is_under_way_holds_its_mig_devices_back():
    record = given_out(listed(GPU, A, unhealthy=(A,)), at=90.0)
    flying = type(record)(
        listed=record.listed,
        version=record.version,
        taken_version=record.taken_version,
        refusals=record.refusals,
        allocations={A: AllocateTrace(1)},
    )
    assert set(shown(planned(CUT, given={GPU: flying}, held=answer(at=99.0)))[SMALL].values()) == {"Held"}


def test_under_single_a_new_layout_waits_for_the_old_one_though_the_name_is_the_same():
    single = parse("flags: {migStrategy: single}")
    layout = cut(0, "1g.10gb", "1g.10gb")
    held = answer(holding(A, "train"), at=200.0)
    plan = planned(layout, config=single, given=given(GPU, A, unhealthy=(A,)), held=held, now=201.0)
    assert shown(plan) == {GPU: {M0: "Held", M1: "Held", A: "Withdrawing"}}


def test_a_mode_change_by_choice_at_once_is_that_here_too():
    config = parse("flags: {migStrategy: mixed}\nallocation: {modeChange: immediate}")
    held = answer(holding(A, "train"), at=200.0)
    plan = planned(CUT, config=config, given=given(GPU, A, unhealthy=(A,)), held=held, now=201.0)
    assert shown(plan)[SMALL] == {M0: "", M1: ""}


@pytest.mark.invariant(5)
def test_a_mig_device_ails_alone_and_with_its_gpu():
    alone = planned(CUT, ailments={A: ailment(Cause.XID), M1: ailment(Cause.XID)})
    assert shown(alone) == {SMALL: {M0: "", M1: "XID"}, LARGE: {M2: ""}}
    lost = {one: ailment(Cause.LOST) for one in (A, M0, M1, M2)}
    assert shown(planned(CUT, ailments=lost)) == {SMALL: {M0: "Lost", M1: "Lost"}, LARGE: {M2: "Lost"}}


@pytest.mark.invariant(3)
def test_while_nobody_can_be_asked_the_last_trace_of_a_gpu_in_its_other_form_stays():
    unread = answer(at=50.0)
    unread = type(unread)(source=unread.source, requested_at=50.0, unreadable_since=60.0)
    record = given(GPU, A, at=70.0, unhealthy=(A,))
    assert shown(planned(CUT, given=record, held=unread, now=9000.0))[GPU] == {A: "Withdrawing"}
    record = given(SMALL, M0, at=70.0, unhealthy=(M0,))
    plan = planned(gpu(0), given=record, held=unread, now=9000.0, parents={M0: A})
    assert shown(plan)[SMALL] == {M0: "Withdrawing"}
    assert shown(planned(gpu(1), given=record, held=unread, now=9000.0, parents={M0: A}))[SMALL] == {}


def test_parents_are_known_of_what_there_is_of_what_was_and_of_old_uuids():
    legacy = f"MIG-{uuid(3)}/2/0"
    known = {"MIG-gone": {}, "MIG-unknown": {}, legacy: {}}
    parents = {M0: A, M1: A, M2: A, "MIG-gone": uuid(1), "MIG-free": uuid(1), legacy: uuid(3)}
    assert find_parents([CUT, gpu(1)], known, {"MIG-gone": uuid(1), "MIG-free": uuid(1)}) == parents


def test_of_many_mig_devices_that_are_gone_and_free_only_the_last_are_remembered():
    before = {f"MIG-{number}": A for number in range(1000)}
    assert [*find_parents([], {"MIG-3": {}}, before)] == ["MIG-3", *(f"MIG-{number}" for number in range(744, 1000))]


def test_whose_gpu_a_held_mig_device_was_of_is_known_though_nobody_could_be_asked_at_the_start():
    unread = planned(gpu(0), held=Held(), parents={M0: A})
    plan = planned(gpu(0), held=answer(holding(M0, "nb", SMALL), at=100.0), parents=unread.parents)
    assert shown(plan)[GPU] == {A: "Held"}


@pytest.mark.invariant(3)
def test_what_was_held_before_a_start_is_in_the_first_list_though_the_layout_is_another():
    held = answer(holding(M0, "nb", SMALL), at=90.0)
    plan = planned(gpu(0), held=held, parents={M0: A})
    assert shown(plan)[GPU] == {A: "Held"}
    listed_now = planned(gpu(0), held=held, names=frozenset({SMALL}), parents={M0: A})
    assert shown(listed_now)[SMALL] == {M0: "Withdrawing"}
