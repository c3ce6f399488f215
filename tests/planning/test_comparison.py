"""The rehearsal of a move: ID by ID against what another plugin advertises."""

from __future__ import annotations

from hypothesis import given, settings

from nvdp.planning.comparison import Fate, HeldId, ResourceComparison, compare
from nvdp.planning.preview import Node, build_preview
from tests.planning.test_changes import preview_of, replicas
from tests.planning.test_preview import situations
from tests.planning.values import GPU, SHARED, ailment, holding, parse, sliced, uuid


def compared(resource, now, after, **others):
    known = {"same": 0, "unhealthy": 0, "fresh": 0, "gone": 0}
    return ResourceComparison(resource=resource, now=now, after=after, **(known | others))


def ids(*found):
    return frozenset(found)


def test_the_same_file_on_the_same_node_changes_nothing():
    preview = preview_of(sliced(4), 2, holding(f"{uuid(0)}::1"))
    comparison = compare(preview, {GPU: ids(*replicas(0, 4), *replicas(1, 4))})
    assert comparison.resources == (compared(GPU, 8, 8, same=8),)
    assert comparison.is_same
    assert (comparison.held, comparison.vanishing) == ((), ())


def test_a_shrink_takes_ids_from_pods_that_run_on():
    preview = preview_of(sliced(2), 1, *(holding(f"{uuid(0)}::{n}", f"pod-{n}") for n in (3, 5, 7)))
    comparison = compare(preview, {GPU: ids(*replicas(0, 10))})
    assert comparison.resources == (compared(GPU, 10, 2, same=2, gone=8),)
    (held,) = comparison.held
    assert held == HeldId(
        resource=GPU,
        device_id=f"{uuid(0)}::7",
        holder="team/pod-7",
        fate=Fate.GOES,
        text="listed as Unhealthy until the pod ends",
    )
    assert not comparison.is_same


def test_a_resource_that_vanishes_is_named():
    preview = preview_of(sliced(2, rename=True), 2, holding(uuid(0), "a"))
    comparison = compare(preview, {GPU: ids(uuid(0), uuid(1))})
    assert comparison.vanishing == (GPU,)
    assert comparison.resources == (compared(GPU, 2, 0, gone=2), compared(SHARED, 0, 4, fresh=4))
    assert [(one.device_id, one.fate) for one in comparison.held] == [(uuid(0), Fate.GOES)]


def test_a_held_card_that_is_cordoned_stays_under_its_id_and_takes_no_more():
    preview = preview_of(parse("devices: {cordon: [0]}"), 2, holding(uuid(0), "a"))
    comparison = compare(preview, {GPU: ids(uuid(0), uuid(1))})
    assert comparison.resources == (compared(GPU, 2, 2, same=1, unhealthy=1),)
    (held,) = comparison.held
    assert (held.fate, held.text) == (Fate.UNHEALTHY, "listed as Unhealthy: Cordoned, devices.cordon[0]")


def test_cards_that_ail_and_that_nobody_holds_are_not_called_new():
    preview = preview_of(parse(), 2, ailments={uuid(1): ailment()})
    comparison = compare(preview, {GPU: ids(uuid(0))})
    assert comparison.resources == (compared(GPU, 1, 1, same=1),)
    assert comparison.is_same


def test_a_cordoned_card_that_is_there_in_another_form_is_new_in_its_own():
    preview = preview_of(parse("devices: {cordon: [0]}"), 2)
    comparison = compare(preview, {GPU: ids(*replicas(0, 2), *replicas(1, 2))})
    assert comparison.resources == (compared(GPU, 4, 2, fresh=2, gone=4),)


def test_held_ids_count_even_while_they_are_unhealthy_now():
    preview = preview_of(parse(), 2, holding(uuid(1), "a"))
    comparison = compare(preview, {GPU: ids(uuid(0))})
    assert comparison.is_same
    assert comparison.resources == (compared(GPU, 2, 2, same=2),)


def test_other_plugins_devices_are_none_of_it():
    preview = preview_of(parse(), 1)
    others = {"nvidia.com/hostdev": ids("0000:3b:00.1"), "rdma/hca": ids("a", "b"), "intel.com/gpu": ids(uuid(9))}
    comparison = compare(preview, others | {GPU: ids(uuid(0))})
    assert [one.resource for one in comparison.resources] == [GPU]
    assert comparison.is_same


def test_devices_that_this_version_does_not_offer_go_and_are_named():
    mig = "MIG-3eb87630-93d5-b2b6-b8ff-9b359caf4ee2"
    preview = preview_of(parse(), 1, holding(mig, "a", "nvidia.com/mig-1g.10gb"))
    comparison = compare(preview, {"nvidia.com/mig-1g.10gb": ids(mig), GPU: ids(uuid(0))})
    assert comparison.vanishing == ("nvidia.com/mig-1g.10gb",)
    assert [(one.device_id, one.holder) for one in comparison.held] == [(mig, "team/a")]


def test_nothing_before_is_a_comparison_too():
    comparison = compare(preview_of(parse(), 2), {})
    assert comparison.resources == (compared(GPU, 0, 2, fresh=2),)
    assert not comparison.is_same


@given(situations())
@settings(max_examples=60)
def test_sums_agree_and_no_held_id_is_forgotten(situation):
    preview = build_preview(*situation)
    known = situation[1]
    idle = build_preview(situation[0], Node(inventory=known.inventory))
    now = {name: frozenset(listed.by_id) for name, listed in idle.plan.lists.items()}
    comparison = compare(preview, now)
    for one in comparison.resources:
        assert one.now == one.same + one.unhealthy + one.gone
        assert one.after == one.same + one.unhealthy + one.fresh
    fates = {(one.resource, one.device_id) for one in comparison.held}
    for resource, holdings in preview.holders.items():
        listed = preview.plan.lists[resource].by_id
        assert {device_id for device_id in holdings if not listed[device_id].healthy} == {
            device_id for name, device_id in fates if name == resource
        }
