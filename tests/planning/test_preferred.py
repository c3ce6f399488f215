"""GetPreferredAllocation: NVIDIA's vectors, the contract's rules, and what each policy means."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.listing import AllocationFacts, GpuFacts, ListedDevice, ResourceList, SharedPolicy, Strategy
from nvdp.model.reasons import Cause
from nvdp.planning.preferred import choose_preferred

D, P, S = SharedPolicy.DISTRIBUTED, SharedPolicy.PACKED, SharedPolicy.SPREAD


def gpu(number):
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


def replicas(*numbers, policy=D, unhealthy=()):
    """A time-sliced list: ``replicas(4, 2)`` is four replicas of GPU 0 and two of GPU 1."""
    ids = [(gpu(index), f"{gpu(index)}::{n}") for index, count in enumerate(numbers) for n in range(count)]
    devices = tuple(
        ListedDevice(id=text, gpu_uuid=uuid, cause=Cause.LOST if text in unhealthy else None) for uuid, text in ids
    )
    facts = AllocationFacts(strategy=Strategy.TIME_SLICING, shared_policy=policy)
    return ResourceList(resource="nvidia.com/gpu", devices=devices, facts=facts)


def whole(count):
    devices = tuple(ListedDevice(id=gpu(index), gpu_uuid=gpu(index)) for index in range(count))
    return ResourceList(resource="nvidia.com/gpu", devices=devices)


def everything(listed):
    return [device.id for device in listed.devices]


def choose(listed, size, *, available=None, must_include=(), held_elsewhere=None):
    return choose_preferred(
        listed,
        held_elsewhere=held_elsewhere or {},
        available=everything(listed) if available is None else available,
        must_include=must_include,
        size=size,
    )


def per_gpu(answer):
    return sorted(Counter(text.partition("::")[0] for text in answer).values(), reverse=True)


@pytest.mark.parametrize(
    ("policy", "setup", "size", "expected"),
    [
        (D, (4, 4), 2, [1, 1]),
        (D, (2, 2, 2), 3, [1, 1, 1]),
        (D, (4, 4), 4, [2, 2]),
        (D, (4,), 1, [1]),
        (D, (2,), 5, []),
        (D, (4, 4, 4), 3, [1, 1, 1]),
        (P, (4, 4), 2, [2]),
        (P, (2, 2, 2), 3, [2, 1]),
        (P, (4, 4), 4, [4]),
        (P, (4, 4), 5, [4, 1]),
        (P, (4,), 1, [1]),
        (P, (2,), 5, []),
    ],
)
def test_counts_per_gpu_are_those_of_nvidias_vectors_b2(policy, setup, size, expected):
    assert per_gpu(choose(replicas(*setup, policy=policy), size)) == expected


def test_a_tie_goes_to_the_gpu_that_this_call_has_not_picked_yet():
    # B2's first vector and report B1: one slice of GPU 1 is taken, so after one pick from GPU 0 both have one in use.
    listed = replicas(2, 2)
    answer = choose(listed, 2, available=[f"{gpu(0)}::0", f"{gpu(0)}::1", f"{gpu(1)}::1"])
    assert answer == (f"{gpu(0)}::0", f"{gpu(1)}::1")


def test_distributed_takes_the_gpu_that_is_used_least():
    listed = replicas(4, 4)
    available = [text for text in everything(listed) if text not in {f"{gpu(0)}::1", f"{gpu(0)}::3"}]
    assert choose(listed, 1, available=available) == (f"{gpu(1)}::0",)


def test_packed_goes_on_with_the_gpu_that_is_used_most():
    listed = replicas(4, 4, policy=P)
    available = [text for text in everything(listed) if text != f"{gpu(1)}::2"]
    assert choose(listed, 1, available=available) == (f"{gpu(1)}::0",)


def test_spread_takes_the_most_free_replicas_first_and_gives_a_container_different_gpus():
    listed = replicas(4, 8, policy=S)
    available = [text for text in everything(listed) if text not in {f"{gpu(0)}::0", f"{gpu(1)}::0"}]
    assert choose(listed, 1, available=available) == (f"{gpu(1)}::1",)
    assert choose(listed, 2, available=available) == (f"{gpu(1)}::1", f"{gpu(0)}::1")


def test_four_requests_of_one_fill_one_gpu_when_packed_and_alternate_when_distributed():
    for policy, expected in ((P, [4]), (D, [2, 2]), (S, [2, 2])):
        listed = replicas(4, 4, policy=policy)
        free, given_out = set(everything(listed)), []
        for _ in range(4):
            (answer,) = choose(listed, 1, available=sorted(free))
            free.remove(answer)
            given_out.append(answer)
        assert per_gpu(given_out) == expected


@pytest.mark.invariant(2)
def test_ids_that_pods_hold_beyond_the_healthy_list_count_as_used():
    # After 10 -> 4 replicas three pods still sit on GPU 0's dropped numbers: GetPreferredAllocation never names those.
    assert choose(replicas(4, 4), 1, held_elsewhere={gpu(0): 3}) == (f"{gpu(1)}::0",)
    assert choose(replicas(4, 4, policy=P), 1, held_elsewhere={gpu(1): 3}) == (f"{gpu(1)}::0",)
    assert choose(replicas(4, 4, policy=S), 1, held_elsewhere={gpu(0): 3}) == (f"{gpu(1)}::0",)


def test_what_must_be_included_counts_as_used_and_as_picked():
    listed = replicas(4, 4)
    assert choose(listed, 2, must_include=[f"{gpu(0)}::2"]) == (f"{gpu(0)}::2", f"{gpu(1)}::0")
    packed = replicas(4, 4, policy=P)
    assert choose(packed, 3, must_include=[f"{gpu(1)}::2"]) == (f"{gpu(1)}::2", f"{gpu(1)}::0", f"{gpu(1)}::1")


def test_the_lowest_replica_number_comes_first_by_number_not_by_text():
    listed = replicas(12)
    available = [f"{gpu(0)}::{n}" for n in (11, 10, 2)]
    assert choose(listed, 2, available=available) == (f"{gpu(0)}::2", f"{gpu(0)}::10")


def test_whole_gpus_come_in_list_order_whatever_the_policy_or_the_holders():
    listed = whole(4)
    assert choose(listed, 2, available=[gpu(3), gpu(1), gpu(2)], held_elsewhere={gpu(1): 2}) == (gpu(1), gpu(2))
    assert choose(listed, 2, must_include=[gpu(3)]) == (gpu(3), gpu(0))


@pytest.mark.requirement(38)
@pytest.mark.parametrize(
    "request_",
    [
        {"size": 0},
        {"size": -1},
        {"size": 5},
        {"size": 1, "available": []},
        {"size": 1, "available": ["GPU-unknown"]},
        {"size": 1, "available": [f"{gpu(0)}::0", "GPU-unknown"]},
        {"size": 2, "must_include": ["GPU-unknown"]},
        {"size": 1, "available": [f"{gpu(0)}::0"], "must_include": [f"{gpu(0)}::1"]},
        {"size": 1, "must_include": [f"{gpu(0)}::0", f"{gpu(0)}::1"]},
        {"size": 2, "available": [f"{gpu(0)}::0", f"{gpu(0)}::0"]},
    ],
)
def test_an_impossible_request_gets_an_empty_answer(request_):
    assert choose(replicas(2, 2), **request_) == ()


def test_unhealthy_ids_are_not_chosen_unless_they_must_be_included():
    bad = f"{gpu(0)}::0"
    listed = replicas(2, unhealthy={bad})
    assert choose(listed, 1) == (f"{gpu(0)}::1",)
    assert choose(listed, 2) == ()
    assert choose(listed, 2, must_include=[bad]) == (bad, f"{gpu(0)}::1")


@st.composite
def requests(draw, *policies):
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    listed = replicas(*counts, policy=draw(st.sampled_from(policies)))
    ids = everything(listed)
    available = draw(st.lists(st.sampled_from(ids), unique=True, min_size=1))
    must_include = draw(st.lists(st.sampled_from(available), unique=True, max_size=2))
    size = draw(st.integers(max(1, len(must_include)), len(available)))
    held = draw(st.dictionaries(st.sampled_from([gpu(index) for index in range(len(counts))]), st.integers(0, 3)))
    return listed, available, must_include, size, held


def usage(listed, available, held):
    """GPU to (in use before the request, available) as the design defines it."""
    return {
        uuid: (sum(text not in available for text in ids) + held.get(uuid, 0), sum(text in available for text in ids))
        for uuid, ids in listed.healthy_by_gpu.items()
    }


@pytest.mark.requirement(37)
@given(requests(*SharedPolicy), st.randoms(use_true_random=False))
def test_any_possible_request_is_answered_with_exactly_what_it_allows(request_, rng):
    listed, available, must_include, size, held = request_
    answer = choose(listed, size, available=available, must_include=must_include, held_elsewhere=held)
    assert len(answer) == len(set(answer)) == size
    assert set(must_include) <= set(answer) <= set(available)

    shuffled, required = list(available), list(must_include)
    rng.shuffle(shuffled)
    rng.shuffle(required)
    again = choose(listed, size, available=shuffled, must_include=required, held_elsewhere=held)
    assert again == answer


@given(requests(D))
def test_distributed_is_as_even_as_any_choice_can_be(request_):
    listed, available, must_include, size, held = request_
    before = usage(listed, available, held)

    def unevenness(answer):
        picked = Counter(text.partition("::")[0] for text in answer)
        return sum((used + picked[uuid]) ** 2 for uuid, (used, _) in before.items())

    rest = [text for text in available if text not in must_include]
    best = min(
        unevenness([*must_include, *choice]) for choice in itertools.combinations(rest, size - len(must_include))
    )
    answer = choose(listed, size, available=available, must_include=must_include, held_elsewhere=held)
    assert unevenness(answer) == best


@given(requests(P))
def test_packed_opens_a_less_used_gpu_only_when_the_fuller_ones_have_nothing_left(request_):
    listed, available, must_include, size, held = request_
    before = usage(listed, available, held)
    answer = choose(listed, size, available=available, must_include=must_include, held_elsewhere=held)
    required = Counter(text.partition("::")[0] for text in must_include)
    picked = Counter(text.partition("::")[0] for text in answer)
    for opened, fuller in itertools.permutations(before, 2):
        if picked[opened] > required[opened] and before[opened][0] + required[opened] < (
            before[fuller][0] + required[fuller]
        ):
            assert picked[fuller] == before[fuller][1]


@given(requests(S))
def test_spread_gives_a_second_replica_of_a_gpu_only_when_no_other_gpu_has_one(request_):
    listed, available, must_include, size, held = request_
    before = usage(listed, available, held)
    answer = choose(listed, size, available=available, must_include=must_include, held_elsewhere=held)
    required = Counter(text.partition("::")[0] for text in must_include)
    picked = Counter(text.partition("::")[0] for text in answer)
    for more, fewer in itertools.permutations(before, 2):
        if picked[more] > required[more] and picked[more] > picked[fewer] + 1:
            assert picked[fewer] == before[fewer][1]


def test_eight_gpus_of_a_thousand_replicas_are_answered_in_well_under_ten_milliseconds():
    available = everything(replicas(*[1000] * 8))
    random.Random(1).shuffle(available)
    for policy in SharedPolicy:
        listed = replicas(*[1000] * 8, policy=policy)
        seconds = []
        for size in range(1, 9):
            request = [text.encode().decode() for text in available]  # strings without a cached hash, as off the wire
            start = time.thread_time()
            answer = choose(listed, size, available=request)
            seconds.append(time.thread_time() - start)
            assert len(answer) == size
        assert min(seconds) < 0.01


# MIG devices, each for itself


def parts(*numbers, policy=D, unhealthy=()):
    """A list of MIG devices: ``parts(3, 2)`` is three of GPU 0 and two of GPU 1."""
    facts = [(gpu(one), f"MIG-{one}-{place}") for one, count in enumerate(numbers) for place in range(count)]
    devices = tuple(
        ListedDevice(id=text, gpu_uuid=text, cause=Cause.XID if text in unhealthy else None) for _, text in facts
    )
    known = tuple(GpuFacts(uuid=text, index="0:0", parent_uuid=parent) for parent, text in facts)
    return ResourceList(
        resource="nvidia.com/mig-1g.10gb", devices=devices, facts=AllocationFacts(gpus=known, shared_policy=policy)
    )


def gpus_of(answer):
    return [int(text.split("-")[1]) for text in answer]


@pytest.mark.parametrize(
    ("policy", "free", "elsewhere", "size", "expected"),
    [
        (D, (3, 3), {}, 2, [0, 1]),
        (D, (3, 3), {}, 4, [0, 1, 0, 1]),
        (D, (1, 3), {}, 1, [1]),  # of three, two of GPU 0 are in use
        (D, (3, 3), {0: 1}, 1, [1]),  # a MIG device of another resource counts
        (P, (3, 3), {}, 2, [0, 0]),
        (P, (3, 1), {}, 1, [1]),
        (P, (3, 3), {1: 2}, 3, [1, 1, 1]),
        (P, (3, 1), {}, 3, [1, 0, 0]),
        (S, (2, 3), {}, 1, [1]),
        (S, (3, 3), {}, 2, [0, 1]),
        (S, (3, 3), {0: 1}, 1, [1]),
    ],
)
def test_of_mig_devices_packed_fills_one_gpu_and_the_others_use_all(policy, free, elsewhere, size, expected):
    listed = parts(3, 3, policy=policy)
    available = [f"MIG-{one}-{place}" for one, count in enumerate(free) for place in range(3 - count, 3)]
    held = {gpu(one): count for one, count in elsewhere.items()}
    answer = choose(listed, size, available=available, held_elsewhere=held)
    assert gpus_of(answer) == expected
    assert set(answer) <= set(available)
    assert len(set(answer)) == size


def test_what_must_be_included_of_mig_devices_counts_for_its_gpu():
    assert gpus_of(choose(parts(3, 3, policy=P), 2, must_include=["MIG-1-0"])) == [1, 1]
    assert gpus_of(choose(parts(3, 3, policy=D), 2, must_include=["MIG-1-0"])) == [1, 0]


def test_a_mig_device_that_is_unhealthy_is_not_chosen():
    listed = parts(2, 1, policy=P, unhealthy=("MIG-0-0",))
    assert choose(listed, 1, available=["MIG-0-0", "MIG-1-0"]) == ("MIG-1-0",)
    assert choose(listed, 3) == ()


@given(
    st.lists(st.integers(min_value=0, max_value=7), min_size=1, max_size=4),
    st.sampled_from(SharedPolicy),
    st.data(),
)
def test_an_answer_of_mig_devices_is_as_many_different_free_ones_as_asked_and_the_order_asked_in_does_not_matter(
    numbers, policy, data
):
    listed = parts(*numbers, policy=policy)
    available = data.draw(st.lists(st.sampled_from(everything(listed) or ["x"]), unique=True))
    size = data.draw(st.integers(min_value=1, max_value=len(available) + 1))
    required = available[: data.draw(st.integers(min_value=0, max_value=min(size, len(available))))]
    answer = choose(listed, size, available=available, must_include=required)
    assert answer == choose(listed, size, available=available[::-1], must_include=required[::-1])
    if "x" in available or size > len(available):
        assert answer == ()
        return
    assert len(set(answer)) == len(answer) == size
    assert set(required) <= set(answer) <= set(available)
    if policy is P and not required:
        opened = set(gpus_of(answer))
        free = Counter(gpus_of(available))
        full = [one for one in opened if Counter(gpus_of(answer))[one] == free[one]]
        assert len(opened) - len(full) <= 1, "two GPUs are begun where one would do"
