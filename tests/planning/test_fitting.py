"""Lists stay within 2 MiB whatever comes and goes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdp.model.listing import ListedDevice
from nvdp.planning.assignment import Assignment, Form
from nvdp.planning.fitting import fit, withhold_excess
from nvdp.planning.sizing import LIMIT_BYTES, most_replicas
from tests.planning.values import GPU, SHARED, device, gpu, list_bytes, uuid

pytestmark = [pytest.mark.invariant(8), pytest.mark.requirement(40)]

FOUR = [device(gpu(number)) for number in range(4)]
FOR_THREE = most_replicas(tuple((uuid(number), None) for number in range(3)))


def assigned(gpus, replicas, resource=GPU):
    form = Form(resource, shared=replicas > 1)
    return {one.uuid: Assignment(form=form, replicas=replicas, rule="sharing.timeSlicing.resources[0]") for one in gpus}


def excess(gpus, assignments, offered=(), held=(), *, numa_hints=True):
    withheld = withhold_excess(gpus, assignments, offered=offered, held=held, numa_hints=numa_hints)
    return [int(one.rpartition("-")[2]) for one in withheld]


def test_nothing_is_withheld_while_there_is_room():
    assert excess(FOUR, assigned(FOUR, 1000)) == []


def test_the_gpu_for_which_there_is_no_room_is_withheld_whole_and_says_why():
    withheld = withhold_excess(FOUR, assigned(FOUR, FOR_THREE), offered=(), held=(), numa_hints=True)
    assert list(withheld) == [uuid(3)]
    assert (withheld[uuid(3)].reason, withheld[uuid(3)].path) == ("ListTooLarge", "sharing.timeSlicing.resources[0]")
    assert withheld[uuid(3)].text == f"its {FOR_THREE} replicas would make the list of nvidia.com/gpu larger than 2 MiB"


def test_a_gpu_that_arrives_in_a_lower_slot_displaces_none_that_is_on_offer():
    assert excess(FOUR, assigned(FOUR, FOR_THREE), offered={uuid(1), uuid(2), uuid(3)}) == [0]


def test_after_a_restart_gpus_that_pods_hold_come_first():
    assert excess(FOUR, assigned(FOUR, FOR_THREE), held={uuid(1), uuid(3)}) == [2]


def test_a_gpu_on_offer_comes_before_one_that_is_only_held():
    assert excess(FOUR, assigned(FOUR, FOR_THREE), offered={uuid(1), uuid(2), uuid(3)}, held={uuid(0)}) == [0]


def test_each_resource_has_room_of_its_own():
    assignments = assigned(FOUR[:2], FOR_THREE) | assigned(FOUR[2:], FOR_THREE, resource=SHARED)
    assert excess(FOUR, assignments) == []


def test_a_smaller_gpu_still_finds_room_after_a_larger_one_did_not():
    assignments = assigned(FOUR[:3], FOR_THREE) | assigned(FOUR[2:3], 3 * FOR_THREE) | assigned(FOUR[3:], FOR_THREE)
    assert excess(FOUR, assignments) == [2]


def test_numa_nodes_need_room_only_where_they_are_told():
    gpus = [gpu(number, numa_node=1) for number in range(3)]
    assert excess(gpus, assigned(gpus, FOR_THREE)) == [2]
    assert excess(gpus, assigned(gpus, FOR_THREE), numa_hints=False) == []


def test_gpus_without_an_assignment_need_no_room():
    assert excess(FOUR, {}) == []


def devices_of(ids):
    return {one: ListedDevice(id=one, gpu_uuid=one.partition("::")[0]) for one in ids}


def test_a_small_list_is_left_as_it_is():
    devices = devices_of([f"{uuid(0)}::{number}" for number in range(9000)])
    assert fit(devices, ()) == tuple(devices.values())


@settings(max_examples=12)
@given(new=st.integers(0, 40_000), old=st.integers(0, 40_000), old_first=st.booleans())
def test_new_ids_wait_while_old_ones_take_up_the_room(new, old, old_first):
    fresh = [f"{uuid(0)}::{number}" for number in range(new)]
    known = [f"{uuid(1)}::{number}" for number in range(old)]
    devices = devices_of([*known, *fresh] if old_first else [*fresh, *known])
    fitting = fit(devices, frozenset(known))
    kept = dict.fromkeys(device.id for device in fitting)
    assert list(kept) == [one for one in devices if one in kept]
    assert kept.keys() >= set(known)
    assert list_bytes(fitting) <= max(LIMIT_BYTES, list_bytes(tuple(devices[one] for one in known)))
    if len(kept) < len(devices):
        assert LIMIT_BYTES - list_bytes(fitting) < 70  # there is no room for one more
