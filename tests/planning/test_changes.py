"""What an edit changes against what runs now, by the daemon's word and by the kubelet's."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings

from nvdp.model.listing import Strategy
from nvdp.model.reasons import Cause
from nvdp.model.status import DeviceStatus, ResourceStatus, Status
from nvdp.planning.assignment import Form
from nvdp.planning.changes import (
    CountChange,
    DeviceChange,
    How,
    Running,
    build_running,
    build_running_of_ids,
    find_changes,
)
from nvdp.planning.preview import Node, build_preview
from tests.planning.test_preview import situations
from tests.planning.values import GPU, SHARED, ailment, answer, gpu, holding, inventory, mig_uuid, parse, sliced, uuid

WHOLE, SLICED, RENAMED = Form(GPU, shared=False), Form(GPU, shared=True), Form(SHARED, shared=True)


def preview_of(config, count, *holdings, **known):
    held = answer(*holdings, at=50.0)
    return build_preview(config, Node(inventory=inventory(*map(gpu, range(count))), held=held, **known))


def offered(form, replicas, *numbers):
    """What runs: these GPUs, all in one form."""
    return Running(
        forms={uuid(number): (form, replicas) for number in numbers}, counts={form.resource: replicas * len(numbers)}
    )


def change(number, before, after, how, *holders):
    return DeviceChange(gpu_uuid=uuid(number), before=before, after=after, how=how, holders=holders)


def counts(changes):
    return {one.resource: (one.before, one.after) for one in changes.counts}


def replicas(number, count):
    return [f"{uuid(number)}::{replica}" for replica in range(count)]


def test_nothing_changes_where_the_file_says_what_runs():
    changes = find_changes(preview_of(sliced(4), 2, holding(f"{uuid(0)}::3")), offered(SLICED, 4, 0, 1))
    assert changes.devices == ()
    assert changes.counts == ()


def test_a_card_whose_new_form_waits_names_the_pods():
    preview = preview_of(sliced(10, rename=True), 2, holding(uuid(0), "train-7"))
    changes = find_changes(preview, offered(WHOLE, 1, 0, 1))
    assert changes.devices == (
        change(0, WHOLE, RENAMED, How.WAITS, "team/train-7"),
        change(1, WHOLE, RENAMED, How.AT_ONCE),
    )
    assert changes.counts == (
        CountChange(resource=GPU, before=2, after=0),
        CountChange(resource=SHARED, before=0, after=20),
    )


def test_all_pods_in_the_way_are_named_and_each_once():
    pods = [holding(f"{uuid(0)}::{n}", pod) for n, pod in enumerate(["b", "a", "b"])]
    changes = find_changes(preview_of(parse(), 1, *pods), offered(SLICED, 4, 0))
    assert changes.devices == (change(0, SLICED, WHOLE, How.WAITS, "team/a", "team/b"),)


def test_each_old_form_that_is_held_is_a_line_of_its_own():
    preview = preview_of(sliced(2, rename=True), 1, holding(uuid(0), "a"), holding(f"{uuid(0)}::1", "b"))
    changes = find_changes(preview, offered(RENAMED, 2, 0))
    assert changes.devices == (
        change(0, WHOLE, RENAMED, How.WAITS, "team/a"),
        change(0, SLICED, RENAMED, How.WAITS, "team/b"),
    )


def test_by_choice_it_is_offered_at_once_and_shared_with_who_holds_it():
    config = sliced(2, rename=True, more="allocation: {modeChange: immediate}")
    changes = find_changes(preview_of(config, 1, holding(uuid(0), "a")), offered(WHOLE, 1, 0))
    assert changes.devices == (change(0, WHOLE, RENAMED, How.SHARED_AT_ONCE, "team/a"),)


def test_a_card_that_is_given_up_stays_listed_for_who_holds_it():
    preview = preview_of(parse("devices: {exclude: [0, 1]}"), 3, holding(uuid(0), "a"))
    changes = find_changes(preview, offered(WHOLE, 1, 0, 1, 2))
    assert changes.devices == (
        change(0, WHOLE, None, How.LINGERS, "team/a"),
        change(1, WHOLE, None, How.AT_ONCE),
    )
    assert counts(changes) == {GPU: (3, 1)}


def test_a_shrink_names_pods_only_where_they_hold_more_than_what_is_left():
    pods = [holding(f"{uuid(0)}::{n}", f"pod-{n}") for n in (5, 7, 9)]
    changes = find_changes(preview_of(sliced(2), 2, *pods, holding(f"{uuid(1)}::9")), offered(SLICED, 10, 0, 1))
    assert changes.devices == (change(0, SLICED, SLICED, How.LINGERS, "team/pod-9"),)
    assert counts(changes) == {GPU: (20, 4)}


def test_growth_is_a_number_alone():
    changes = find_changes(preview_of(sliced(10), 2), offered(SLICED, 4, 0, 1))
    assert (changes.devices, counts(changes)) == ((), {GPU: (8, 20)})


def test_where_nothing_runs_yet_the_numbers_are_enough():
    changes = find_changes(preview_of(sliced(4), 2), Running())
    assert (changes.devices, counts(changes)) == ((), {GPU: (0, 8)})


def test_a_card_that_comes_to_others_is_named():
    changes = find_changes(preview_of(parse(), 2), offered(WHOLE, 1, 0))
    assert changes.devices == (change(1, None, WHOLE, How.AT_ONCE),)


def test_without_a_word_on_what_runs_pods_still_tell_what_waits():
    preview = preview_of(sliced(4, rename=True), 2, holding(uuid(0), "a"), holding(f"{uuid(1)}::9", "b", SHARED))
    changes = find_changes(preview, None)
    assert changes.counts is None
    assert changes.devices == (change(0, WHOLE, RENAMED, How.WAITS, "team/a"),)


def test_cards_that_left_the_node_linger_only_for_pods():
    changes = find_changes(preview_of(parse(), 1, holding(uuid(8), "a")), offered(WHOLE, 1, 0, 7, 8))
    assert changes.devices == (
        change(7, WHOLE, None, How.AT_ONCE),
        change(8, WHOLE, None, How.LINGERS, "team/a"),
    )


# who tells what runs


def status_device(number, **facts):
    known = {"index": number, "pci": "", "product": "", "mig": "", "memory_bytes": None, "healthy": True}
    return DeviceStatus(uuid=uuid(number), **(known | {"cause": None, "text": "", "changed_at": 0.0} | facts))


def status_resource(name, planned):
    return ResourceStatus(
        name=name,
        planned=planned,
        healthy=planned,
        unhealthy=0,
        registered=True,
        streams=1,
        strategy=Strategy.NONE,
        replicas=(1,),
    )


def test_the_daemon_tells_what_each_card_is_offered_as():
    devices = (
        status_device(0, resource=GPU),
        status_device(1, resource=SHARED, replicas=10, strategy=Strategy.TIME_SLICING),
        status_device(2, withheld="Excluded"),
    )
    resources = (status_resource(GPU, 1), status_resource(SHARED, 10), status_resource("nvidia.com/old", 0))
    assert build_running(Status(devices=devices, resources=resources)) == Running(
        forms={uuid(0): (WHOLE, 1), uuid(1): (RENAMED, 10)}, counts={GPU: 1, SHARED: 10}
    )


def test_the_kubelet_tells_what_is_healthy_and_what_is_held():
    preview = preview_of(sliced(4), 3, holding(uuid(2), "a"))
    ids = {GPU: frozenset([*replicas(0, 4), *replicas(1, 4)]), "nvidia.com/other": frozenset(["nic-3"])}
    running = build_running_of_ids(ids | {"rdma/hca": frozenset([uuid(0)])}, preview)
    assert running.forms == {uuid(0): (SLICED, 4), uuid(1): (SLICED, 4), uuid(2): (WHOLE, 1)}
    assert running.counts == {GPU: 9}
    assert running.is_partial


def test_a_card_that_is_healthy_in_one_form_and_held_in_another_is_offered_in_the_former():
    preview = preview_of(sliced(2, rename=True), 1, holding(uuid(0), "a"))
    running = build_running_of_ids({SHARED: frozenset(replicas(0, 2))}, preview)
    assert running.forms == {uuid(0): (RENAMED, 2)}
    assert running.counts == {SHARED: 2, GPU: 1}


def test_what_the_kubelet_cannot_tell_is_no_change():
    config = parse("devices: {cordon: [1]}")
    preview = preview_of(config, 4, holding(uuid(2), "a"), ailments={uuid(2): ailment(), uuid(3): ailment(Cause.LOST)})
    running = build_running_of_ids({GPU: frozenset([uuid(0)])}, preview)
    changes = find_changes(preview, running)
    assert (changes.devices, changes.counts) == ((), ())


def test_a_cordoned_card_that_the_kubelet_knows_in_another_form_counts():
    preview = preview_of(parse("devices: {cordon: [0]}"), 2, holding(f"{uuid(0)}::1", "a"))
    running = build_running_of_ids({GPU: frozenset([*replicas(0, 2), *replicas(1, 2)])}, preview)
    changes = find_changes(preview, running)
    assert counts(changes) == {GPU: (4, 2)}
    assert [one.how for one in changes.devices] == [How.WAITS, How.AT_ONCE]


def test_names_outside_of_nvidias_domain_count_once_the_file_or_the_past_has_them():
    ids = {"example.com/gpu": frozenset([uuid(0)])}
    assert build_running_of_ids(ids, preview_of(parse(), 1)).counts == {}
    known = preview_of(parse(), 1, names=frozenset({"example.com/gpu"}))
    assert build_running_of_ids(ids, known).counts == {"example.com/gpu": 1}
    named = parse('resources: {gpus: [{pattern: "*", name: example.com/gpu}]}')
    assert build_running_of_ids(ids, preview_of(named, 1)).counts == {"example.com/gpu": 1}


@given(situations())
@settings(max_examples=60)
def test_what_waits_in_the_plan_is_told_and_nothing_else_waits(situation):
    preview = build_preview(*situation)
    changes = find_changes(preview, None)
    told = {(one.gpu_uuid, one.before) for one in changes.devices if one.how is How.WAITS}
    assert told == {(one.gpu_uuid, one.before) for one in preview.plan.changes}
    assert all(one.holders for one in changes.devices if one.how is not How.AT_ONCE)


@given(situations())
@settings(max_examples=60)
def test_against_itself_an_idle_node_has_no_changes(situation):
    config, known = situation
    node = Node(inventory=known.inventory, ailments=known.ailments)
    by_mps = build_preview(config, node).plan.by_mps
    preview = build_preview(config, msgspec.structs.replace(node, by_mps=by_mps))
    ids = {
        name: frozenset(one.id for one in listed.devices if one.healthy) for name, listed in preview.plan.lists.items()
    }
    changes = find_changes(preview, build_running_of_ids(ids, preview))
    assert (changes.devices, changes.counts) == ((), ())


def test_a_gpu_whose_mig_device_a_pod_holds_waits_for_that_pod():
    config = parse("flags: {migStrategy: single}")
    held = answer(holding(mig_uuid(0, 0), "nb", GPU), at=5000.0)
    node = Node(inventory=inventory(gpu(0)), held=held, parents={mig_uuid(0, 0): uuid(0)})
    preview = build_preview(config, node)
    (change,) = [one for one in find_changes(preview, None).devices if one.gpu_uuid == uuid(0)]
    assert (change.how, change.holders) == (How.WAITS, ("team/nb",))
    assert change.before == change.after
