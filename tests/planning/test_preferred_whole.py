"""GetPreferredAllocation for whole GPUs: by what a scan told, as far as the list goes."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.listing import AllocationFacts, GpuFacts, ListedDevice, ResourceList
from nvdp.model.reasons import Cause
from nvdp.model.topology import Ancestor, Connection
from nvdp.planning.plan import build_plan
from nvdp.planning.preferred import choose_preferred
from tests.planning.machines import build, pairs
from tests.planning.values import GPU, ailment, cut, gpu, inputs, inventory, parse, sliced, uuid

PAIRS = tuple(
    Connection(a=uuid(a), b=uuid(b), ancestor=Ancestor.NODE, nvlinks=4 if a // 2 == b // 2 else 0)
    for a, b in itertools.combinations(range(8), 2)
)


def plan_of(*gpus, config=None, connections=PAIRS, **others):
    known = inputs(config or parse(), *gpus, **others)
    found = msgspec.structs.replace(inventory(*gpus), connections=connections)
    return build_plan(msgspec.structs.replace(known, inventory=found)).lists[GPU]


def node(count=8, **more):
    return plan_of(*(gpu(number) for number in range(count)), **more)


def listed(weights, *, unhealthy=(), unknown=()):
    """GPUs of these weights; the ``unknown`` are listed and nothing is known of them."""
    numbers = range(len(weights))
    devices = tuple(
        ListedDevice(id=uuid(n), gpu_uuid=uuid(n), cause=Cause.LOST if n in unhealthy else None)
        for n in (*numbers, *unknown)
    )
    facts = AllocationFacts(gpus=tuple(GpuFacts(uuid=uuid(n), index=str(n)) for n in numbers), weights=weights)
    return ResourceList(resource=GPU, devices=devices, facts=facts)


def choose(listing, size, *, available=None, must_include=()):
    """Numbers of GPUs."""
    free = [device.id for device in listing.devices] if available is None else [uuid(n) for n in available]
    chosen = choose_preferred(
        listing, held_elsewhere={}, available=free, must_include=[uuid(n) for n in must_include], size=size
    )
    return [int(text[-4:]) for text in chosen]


def test_four_pods_of_one_gpu_use_up_two_pairs_and_two_pods_of_two_get_the_others():
    listing, free = node(), set(range(8))
    taken = []
    for size in (1, 1, 1, 1, 2, 2):
        chosen = choose(listing, size, available=free)
        taken.append(chosen)
        free.difference_update(chosen)
    assert taken == [[0], [1], [2], [3], [4, 5], [6, 7]]


def test_a_gpu_that_must_be_included_comes_first_and_its_partner_with_it():
    assert choose(node(), 2, must_include=[5]) == [5, 4]
    assert choose(node(), 3, must_include=[6, 1]) == [1, 6, 0]


def test_the_gpus_come_in_list_order_whatever_the_order_of_the_request():
    listing = node()
    assert (
        choose(listing, 4, available=[7, 5, 6, 4, 2]) == choose(listing, 4, available=[2, 4, 5, 6, 7]) == [4, 5, 6, 7]
    )


def test_all_that_are_free_are_the_answer_without_weights_being_looked_at():
    listing = listed(())
    assert choose(msgspec.structs.replace(listing, devices=node().devices), 8) == list(range(8))
    broken = msgspec.structs.replace(node(3), facts=AllocationFacts(weights=((0,),)))
    assert choose(broken, 3) == [0, 1, 2]


def test_a_link_that_goes_down_changes_the_choice_and_not_the_list():
    down = (msgspec.structs.replace(PAIRS[0], nvlinks=0), *PAIRS[1:])
    before, after = node(), node(connections=down)
    assert choose(before, 2) == [0, 1]
    assert choose(after, 2) == [2, 3]
    assert before.devices == after.devices


def test_a_gpu_that_ails_is_given_only_if_it_must_be():
    listing = node(ailments={uuid(0): ailment()})
    assert choose(listing, 2) == [2, 3]
    assert choose(listing, 2, must_include=[0]) == [0, 1]


def test_one_that_must_be_included_and_is_on_its_way_out_takes_a_place_without_connections():
    listing = listed(pairs(4), unhealthy=[9], unknown=[9])
    assert choose(listing, 3, must_include=[9]) == [9, 0, 1]
    assert choose(listing, 2, must_include=[9]) == [9, 0]
    assert choose(listing, 1, must_include=[9]) == [9]


def test_of_gpus_of_which_nothing_is_known_the_first_ones_are_taken():
    assert choose(listed(pairs(4), unknown=[9]), 2, available=[1, 2, 3, 9]) == [1, 2]


def test_without_a_word_from_the_driver_the_numa_nodes_decide():
    listing = plan_of(*(gpu(number, numa_node=number // 2) for number in range(4)), connections=())
    assert choose(listing, 2, available=[1, 2, 3]) == [2, 3]


def test_shared_gpus_and_mig_devices_are_not_chosen_by_what_connects_them():
    assert node(config=sliced(2)).facts.weights == ()
    in_parts = plan_of(cut(0, "1g.5gb"), cut(1, "1g.5gb"), config=parse("flags: {migStrategy: single}"))
    assert len(in_parts.devices) == 2
    assert in_parts.facts.weights == ()


def test_gpus_that_another_resource_has_are_not_weighed():
    config = parse(f"""\
        sharing:
          timeSlicing:
            resources:
            - {{name: nvidia.com/gpu, rename: nvidia.com/gpu.shared, devices: [{uuid(0)}, {uuid(5)}], replicas: 2}}
        """)
    listing = node(config=config)
    assert [one.uuid for one in listing.facts.gpus] == [uuid(n) for n in (1, 2, 3, 4, 6, 7)]
    assert len(listing.facts.weights) == 6
    taken = choose(listing, 1)
    assert taken == [1], "whose partner is shared"


@pytest.mark.requirement(37)
@pytest.mark.requirement(38)
@given(st.data())
def test_any_request_gets_exactly_what_it_asks_for_or_nothing(data):
    count = data.draw(st.integers(1, 6))
    points = data.draw(st.lists(st.integers(0, 30), min_size=36, max_size=36))
    unhealthy = data.draw(st.sets(st.integers(0, count - 1)))
    listing = listed(build(count, lambda a, b: points[a * 6 + b]), unhealthy=unhealthy)
    available = data.draw(st.sets(st.integers(0, count)))
    must_include = data.draw(st.sets(st.sampled_from(sorted(available)))) if available else set()
    size = data.draw(st.integers(-1, count + 1))
    chosen = choose(listing, size, available=available, must_include=must_include)
    fit = must_include | {n for n in available if n not in unhealthy}
    possible = max(available, default=0) < count and max(1, len(must_include)) <= size <= len(fit)
    if not possible:
        assert chosen == []
        return
    assert len(chosen) == len(set(chosen)) == size
    assert must_include <= set(chosen) <= fit
