"""GPUs that were handed out by index, and that NVML counts anew: who takes no new pods, why, and for how long."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from nvdp.model.listing import AllocateTrace
from nvdp.model.reasons import Cause
from nvdp.planning.indices import BY_UUID, HandedOut, keep_indices, restore_indices
from nvdp.planning.ledger import give, note_taken, restore
from nvdp.planning.plan import build_plan
from nvdp.planning.response import VISIBLE_DEVICES, build_allocation
from nvdp.planning.waits import find_waits
from tests.planning.values import (
    GPU,
    ailment,
    answer,
    cut,
    given_out,
    gpu,
    holding,
    inputs,
    inventory,
    mig_uuid,
    parse,
    sliced,
    uuid,
)

pytestmark = pytest.mark.invariant(10)

BY_INDEX = "flags: {plugin: {deviceIDStrategy: index}}\n"
INDEX, PLAIN = parse(BY_INDEX), parse()
LONG_AGO = -1000.0


def cards(*order):
    """The cards with these numbers, as NVML counts them."""
    return [gpu(number, index=index) for index, number in enumerate(order)]


def known(**indices):
    """The indices by which pods know cards: ``_1="3"`` is card 1 as 3."""
    return {GPU: {uuid(int(card[1:])): HandedOut(index, LONG_AGO) for card, index in indices.items()}}


def plan(config, gpus, *held, indices=None, at=100.0, **others):
    """``held`` are the numbers of cards that pods have, by an answer of now."""
    holdings = [holding(uuid(number), pod=f"pod-{number}") for number in held]
    return build_plan(
        inputs(config, *gpus, held=answer(*holdings, at=at), indices=indices or {}, now=at, **{"given": {}, **others})
    )


def told(found):
    """The text of each card of the list that takes no new pods."""
    return {
        int(device.gpu_uuid[-12:]): (device.cause, device.text)
        for device in found.lists[GPU].devices
        if not device.healthy
    }


def test_who_keeps_its_index_and_whose_index_nobody_has_taken_is_left_alone():
    found = plan(INDEX, cards(0, 1, 2), 0, 2, indices=known(_0="0", _2="2"))
    assert told(found) == {}
    assert found.indices == known(_0="0", _2="2")
    assert not found.waiting


def test_a_held_card_with_another_index_and_the_card_that_has_it_now_take_no_new_pods():
    found = plan(INDEX, cards(1, 2, 3, 0), 3, indices=known(_3="3"))
    assert told(found) == {
        3: (Cause.HELD, "held by team/pod-3 as index 3, and it is 2 now"),
        0: (Cause.HELD, f"{uuid(3)} is held by team/pod-3 as index 3, which is this GPU now"),
    }
    assert found.renumbered[uuid(0)].pods == ("team/pod-3",)
    assert found.waiting
    assert {device.id for device in found.lists[GPU].devices} == {uuid(number) for number in range(4)}


def test_a_card_may_be_both():
    found = plan(INDEX, cards(1, 0), 0, 1, indices=known(_0="0", _1="1"))
    first = "held by team/pod-0 as index 0, and it is 1 now"
    second = f"{uuid(1)} is held by team/pod-1 as index 1, which is this GPU now"
    assert told(found)[0] == (Cause.HELD, f"{first}; {second}")


def test_the_index_of_a_card_that_is_gone_is_not_for_new_pods_while_a_pod_knows_its_card_by_it():
    gone = {uuid(0): ailment(Cause.VANISHED)}
    found = plan(INDEX, [gpu(0), *cards(1, 2)], 0, indices=known(_0="0"), ailments=gone)
    assert told(found) == {
        0: (Cause.VANISHED, "gone"),
        1: (Cause.HELD, f"{uuid(0)} is held by team/pod-0 as index 0, which is this GPU now"),
    }
    forgotten = plan(INDEX, cards(1, 2), 0, indices=known(_0="0"))
    assert told(forgotten)[1] == told(found)[1]


def test_a_mig_device_in_the_place_of_one_that_is_gone_takes_no_new_pods_while_a_pod_holds_that():
    name, old = "nvidia.com/mig-1g.10gb", mig_uuid(0, 0)
    new = msgspec.structs.replace(cut(0, "1g.10gb").instances[0], uuid="MIG-new")
    found = build_plan(
        inputs(
            parse("flags: {migStrategy: mixed, plugin: {deviceIDStrategy: index}}"),
            cut(0, instances=(new,)),
            held=answer(holding(old, resource=name), at=100.0),
            indices={name: {old: HandedOut("0:0", LONG_AGO)}},
        )
    )
    assert {device.id: device.text for device in found.lists[name].devices} == {
        old: "held by team/pod",
        new.uuid: f"{old} is held by team/pod as index 0:0, which is this MIG device now",
    }


def test_an_index_that_no_card_has_now_concerns_its_own_card_alone():
    gone = {uuid(0): ailment(Cause.VANISHED)}
    assert told(plan(INDEX, [gpu(0), gpu(1, index=0), gpu(2, index=1)], 2, indices=known(_2="2"), ailments=gone)) == {
        0: (Cause.VANISHED, "gone"),
        2: (Cause.HELD, "held by team/pod-2 as index 2, and it is 1 now"),
    }


def test_all_is_well_again_once_the_numbering_is_as_it_was():
    before = plan(INDEX, cards(1, 0), 0, indices=known(_0="0"))
    assert told(plan(INDEX, cards(0, 1), 0, indices=before.indices)) == {}


@pytest.mark.parametrize("text", ["devices: {{exclude: [{}]}}\n", "devices: {{cordon: [{}]}}\n"])
def test_what_the_file_says_of_a_card_goes_first_and_the_other_card_waits_all_the_same(text):
    config = parse(BY_INDEX + text.format(uuid(0)))
    found = plan(config, cards(1, 0), 0, indices=known(_0="0"))
    assert told(found)[0][0] in {Cause.WITHDRAWING, Cause.CORDONED}
    assert told(found)[1][0] is Cause.HELD


def test_under_uuids_nothing_is_kept():
    found = plan(PLAIN, cards(1, 0), 0, 1)
    assert found.indices == {}
    assert told(found) == {}


def test_what_was_handed_out_by_index_stays_so_when_the_file_says_uuid():
    found = plan(PLAIN, cards(1, 0), 0, indices=known(_0="0"))
    assert set(told(found)) == {0, 1}
    assert plan(PLAIN, cards(1, 0), indices=found.indices).indices == {}


def test_pods_that_know_their_card_by_its_uuid_are_no_concern_after_an_edit_to_index():
    record = {GPU: given_out(plan(PLAIN, cards(0, 1)).lists[GPU], at=10.0)}
    edited = plan(INDEX, cards(0, 1), 0, given=record)
    assert edited.indices == {GPU: {uuid(0): HandedOut(BY_UUID, 100.0)}}
    assert told(plan(INDEX, cards(1, 0), 0, indices=edited.indices)) == {}


def test_a_pod_of_which_nothing_is_known_is_taken_to_know_its_card_by_the_index_of_now():
    first = plan(INDEX, cards(0, 1), 0)
    assert first.indices == {GPU: {uuid(0): HandedOut("0", 100.0)}}
    assert set(told(plan(INDEX, cards(1, 0), 0, indices=first.indices))) == {0, 1}
    assert plan(INDEX, cards(1), 0).indices == {}  # nothing is known of that card at all


def test_each_pod_of_a_shared_card_is_told_by_what_it_was_given():
    config = sliced(3, more=BY_INDEX)
    ids = {f"{uuid(0)}::0": "0", f"{uuid(0)}::1": "1"}
    held = [holding(device_id, pod=f"pod-{index}") for device_id, index in ids.items()]
    indices = restore_indices({GPU: ids}, now=LONG_AGO)
    both = build_plan(inputs(config, *cards(2, 1, 0), held=answer(*held, at=100.0), indices=indices))
    assert both.lists[GPU].healthy_count == 0
    assert both.renumbered[uuid(0)].text == (
        "held by team/pod-0 as index 0, and it is 2 now; held by team/pod-1 as index 1, and it is 2 now"
    )
    one = build_plan(inputs(config, *cards(2, 0, 1), held=answer(held[1], at=100.0), indices=both.indices))
    assert one.lists[GPU].healthy_count == 9
    assert keep_indices(one.indices) == {GPU: {f"{uuid(0)}::1": "1"}}


def test_a_card_whose_old_form_is_held_under_another_index_waits_for_that_too():
    shared = sliced(2, rename=True, more=BY_INDEX)
    found = plan(shared, cards(1, 0), 0, indices=known(_0="0"))
    by_id = found.lists["nvidia.com/gpu.shared"].by_id
    assert {by_id[f"{uuid(number)}::0"].cause for number in (0, 1)} == {Cause.HELD}
    assert len(found.changes) == 1


def allocated(listed, number, *, at, in_flight=0, index=""):
    """On record: an Allocate of the card from the list, answered ``at``."""
    trace = AllocateTrace(in_flight, at, index)
    return {GPU: msgspec.structs.replace(given_out(listed, at=10.0), allocations={uuid(number): trace})}


def test_a_pod_counts_from_its_allocate_on_until_an_answer_is_new_enough_to_show_it():
    listed = plan(INDEX, cards(0, 1)).lists[GPU]
    fresh = plan(INDEX, cards(1, 0), at=101.0, given=allocated(listed, 0, at=100.0, index="0"))
    assert told(fresh)[0] == (Cause.HELD, "held by a pod that has just been admitted as index 0, and it is 1 now")
    assert (fresh.check_at, fresh.ask_since) == (102.0, None)

    held = answer(at=101.9)
    asked = build_plan(inputs(INDEX, *cards(1, 0), held=held, now=110.0, indices=fresh.indices))
    assert set(told(asked)) == {0, 1}
    assert (asked.check_at, asked.ask_since) == (None, 102.0)
    assert told(plan(INDEX, cards(1, 0), at=102.0, indices=asked.indices)) == {}


def test_an_allocate_in_flight_keeps_what_is_known_and_is_looked_after():
    listed = plan(INDEX, cards(0, 1)).lists[GPU]
    record = allocated(listed, 0, at=50.0, index="0", in_flight=1)
    found = plan(INDEX, cards(1, 0), given=record)
    assert set(told(found)) == {0, 1}
    assert found.check_at == 101.0


def test_a_restart_keeps_what_was_handed_out_until_an_answer_of_2_s_later():
    kept = restore_indices(keep_indices(known(_0="0")), now=100.0)
    assert set(told(plan(INDEX, cards(1, 0), at=100.0, indices=kept))) == {0, 1}
    assert set(told(plan(INDEX, cards(1, 0), 0, at=102.0, indices=kept))) == {0, 1}
    assert told(plan(INDEX, cards(1, 0), at=102.0, indices=kept)) == {}


class Life:
    """A node on which cards are counted anew, pods come and go, and the file is edited; the truth is in ``pods``."""

    def __init__(self):
        self.now = 1000.0
        self.by_index, self.replicas, self.is_exact = True, 2, True
        self.order = [0, 1, 2]
        self.seen, self.happened_at = {}, self.now  # the last Allocate, or restart
        self.pods = {}
        self.held = answer(at=self.now)
        self.indices, self.given = {}, {}
        self.turn()

    def count_anew(self, order):
        self.order = order
        self.turn()

    def count_anew_during_an_allocate(self, order, which):
        """The pod is answered from the old list, after the plan for the new numbering has read the record."""
        self.order, planned = order, self.plan()
        self.answer_allocate(which)
        self.carry_out(planned)
        self.turn()

    def admit(self, which):
        self.answer_allocate(which)
        self.turn()

    def answer_allocate(self, which):
        used = {device_id for device_id, *_ in self.pods.values()}
        free = [one.id for one in self.given[GPU].listed.devices if one.healthy and one.id not in used]
        if free:
            device_id = free[which % len(free)]
            record = self.given[GPU]
            name = build_allocation(record.listed, [device_id]).envs[VISIBLE_DEVICES]
            trace = AllocateTrace(0, self.now, record.listed.find_index(device_id))
            self.given[GPU] = msgspec.structs.replace(record, allocations={**record.allocations, device_id: trace})
            self.pods[f"pod-{self.now}"] = (device_id, name, self.now)
            self.happened_at = self.now

    def end(self, which):
        if self.pods:
            del self.pods[sorted(self.pods)[which % len(self.pods)]]

    def edit(self, by_index, replicas):
        self.by_index, self.replicas = by_index, replicas
        self.turn()

    def wait(self, seconds):
        """And then the kubelet answers; it shows a pod 1.5 s after its Allocate."""
        self.now += seconds
        shown = [(pod, device_id) for pod, (device_id, _, at) in self.pods.items() if self.now >= at + 1.5]
        self.held = answer(*(holding(device_id, pod=pod) for pod, device_id in shown), at=self.now)
        self.turn()

    def restart_as(self, by_index):
        """With another flag: of pods from before nothing is known then, and more may be kept back than need be."""
        self.is_exact = self.is_exact and by_index == self.by_index
        self.by_index = by_index
        self.restart()

    def restart(self):
        self.now += 1.6
        self.wait(0.0)
        self.happened_at = self.now
        self.indices = restore_indices(keep_indices(self.indices), now=self.now)
        self.given = restore(self.held, names=frozenset({GPU}), now=self.now)
        self.turn()

    def turn(self):
        self.now += 0.001
        self.carry_out(self.plan())
        self.carry_out(self.plan())  # what was new is old
        self.check()

    def plan(self):
        config = sliced(self.replicas, more=BY_INDEX if self.by_index else "")
        present = cards(*self.order)
        self.seen |= {one.uuid: one for one in present}
        gone = {one: ailment(Cause.VANISHED) for one in self.seen.keys() - {one.uuid for one in present}}
        gpus = [*present, *(self.seen[one] for one in gone)]
        found = build_plan(
            inputs(
                config,
                *gpus,
                ailments=gone,
                held=self.held,
                given=self.given,
                names=frozenset({GPU}),
                now=self.now,
                indices=self.indices,
            )
        )
        self.indices = found.indices
        return found

    def carry_out(self, found):
        for resource, listed in found.lists.items():
            before = self.given.get(resource)
            version = 1 if before is None else before.version + 1
            record = note_taken(give(before, listed, version=version, now=self.now), version=version, now=self.now)
            kept = {one: trace for one, trace in record.allocations.items() if self.now - trace.answered_at < 60}
            self.given[resource] = msgspec.structs.replace(record, allocations=kept)
        self.planned = found

    def check(self):
        """No card is on offer that a pod may lose or get at its restart; and nothing else is withheld for it."""
        expected = set()
        for device_id, name, _ in self.pods.values():
            own = device_id.partition("::")[0]
            for index, number in enumerate(self.order):
                is_misled = name.isdigit() and (int(name) == index) != (own == uuid(number))
                if is_misled:
                    expected.add(uuid(number))
        offered = {one.gpu_uuid for one in self.planned.lists[GPU].devices if one.healthy}
        assert not offered & expected
        is_known = {one.pod for one in self.held.holdings} == self.pods.keys()
        if self.is_exact and is_known and self.held.requested_at >= self.happened_at + 2.0:
            assert self.planned.renumbered.keys() == expected


numbers = st.integers(0, 5)
orders = st.permutations([0, 1, 2, 3]).flatmap(lambda order: st.integers(1, 4).map(lambda count: list(order[:count])))
steps = st.one_of(
    st.tuples(st.just("admit"), numbers),
    st.tuples(st.just("end"), numbers),
    st.tuples(st.just("count_anew"), orders),
    st.tuples(st.just("count_anew_during_an_allocate"), orders, numbers),
    st.tuples(st.just("edit"), st.booleans(), st.sampled_from([1, 2])),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 2.0, 70.0])),
    st.tuples(st.just("restart")),
    st.tuples(st.just("restart_as"), st.booleans()),
)


@examples(st.lists(steps, max_size=25))
def test_no_pod_can_lose_its_card_to_a_new_one_at_its_restart_and_no_other_card_is_kept_back(history):
    life = Life()
    for name, *facts in history:
        getattr(life, name)(*facts)
    life.pods.clear()
    for _ in range(3):
        life.wait(6.0)
    assert life.planned.renumbered == {}
    assert life.planned.indices == {}
    assert not any(one.cause is Cause.HELD for one in life.planned.lists[GPU].devices)


def test_at_once_means_two_plans_of_the_same_inputs_are_equal():
    given = inputs(INDEX, *cards(1, 0), held=answer(holding(uuid(0))), indices=known(_0="0"))
    assert build_plan(given) == build_plan(given)
    assert inventory(*cards(1, 0)) == given.inventory


def test_each_card_that_waits_is_shown_with_the_pods_since_when():
    found = plan(INDEX, cards(1, 0), 0, indices=known(_0="0"))
    waits = find_waits(found, (), wall=50.0)
    assert [(wait.gpu_uuid, wait.before, wait.after, wait.holders, wait.since) for wait in waits] == [
        (uuid(0), GPU, "", ("team/pod-0",), 50.0),
        (uuid(1), GPU, "", ("team/pod-0",), 50.0),
    ]
    assert [wait.text for wait in waits] == [found.renumbered[uuid(number)].text for number in (0, 1)]
    assert find_waits(found, waits, wall=60.0) == waits
