"""References by index mean the cards that had these indices when the file was applied."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.deviceref import parse_device_ref
from nvdp.model.reasons import Cause
from nvdp.planning.pins import find_unmatched, matches, references, resolve_pins
from tests.planning.values import ailment, gpu, parse, uuid

pytestmark = pytest.mark.invariant(10)

EXCLUDE_1 = parse("devices: {exclude: [1]}")
KEY_1 = "devices.exclude=1"


def resolve(config, gpus, ailments=None, before=None):
    return resolve_pins(config, gpus, ailments or {}, before or {})


def excluded(config, gpus, pins):
    refs = list(references(config))
    return [one.uuid for one in gpus if any(matches(path, ref, one, pins) for path, ref in refs)]


def test_every_reference_of_the_file_is_found_with_its_path():
    config = parse("""\
        devices: {exclude: [0], cordon: ["0000:11:00.0", 2]}
        sharing:
          timeSlicing:
            resources: [{name: gpu, rename: gpu.ts, devices: [3, 4], replicas: 2}]
          mps:
            resources: [{name: gpu, rename: gpu.mps, devices: ["1:0"], replicas: 2}]
        """)
    assert [(path, str(ref)) for path, ref in references(config)] == [
        ("devices.exclude[0]", "0"),
        ("devices.cordon[0]", "0000:11:00.0"),
        ("devices.cordon[1]", "2"),
        ("sharing.timeSlicing.resources[0].devices[0]", "3"),
        ("sharing.timeSlicing.resources[0].devices[1]", "4"),
        ("sharing.mps.resources[0].devices[0]", "1:0"),
    ]


def test_an_index_is_pinned_to_the_card_that_has_it():
    assert resolve(EXCLUDE_1, [gpu(0), gpu(1)]) == {KEY_1: uuid(1)}


def test_a_pin_survives_a_renumbering():
    pins = resolve(EXCLUDE_1, [gpu(0), gpu(1), gpu(2)])
    renumbered = [gpu(1, index=0), gpu(2, index=1)]
    assert resolve(EXCLUDE_1, renumbered, before=pins) == pins
    assert excluded(EXCLUDE_1, renumbered, pins) == [uuid(1)]


def test_a_card_that_is_gone_is_not_replaced_by_its_neighbour():
    pins = resolve(EXCLUDE_1, [gpu(0), gpu(1), gpu(2)])
    left = [gpu(0), gpu(2, index=1)]
    assert resolve(EXCLUDE_1, left, before=pins) == pins
    assert excluded(EXCLUDE_1, left, pins) == []
    assert find_unmatched(EXCLUDE_1, left, pins) == ("devices.exclude[0]: 1",)


@pytest.mark.parametrize("vanished_last", [True, False])
def test_a_new_pin_does_not_choose_a_vanished_card_by_its_stale_index(vanished_last):
    gpus = [gpu(1), gpu(2, index=1)]  # 1 has vanished, and 2 was renumbered into its place
    if vanished_last:
        gpus.reverse()
    gone = {uuid(1): ailment(Cause.VANISHED)}
    assert resolve(EXCLUDE_1, gpus, gone) == {KEY_1: uuid(2)}


@pytest.mark.parametrize("cause", [Cause.LOST, Cause.CALL_FAILED, Cause.CALL_TIMEOUT, Cause.DRIVER_LOST])
def test_a_card_that_ails_but_is_counted_still_has_its_index(cause):
    assert resolve(EXCLUDE_1, [gpu(0), gpu(1)], {uuid(1): ailment(cause)}) == {KEY_1: uuid(1)}


def test_a_pin_of_a_vanished_card_stands():
    assert resolve(EXCLUDE_1, [gpu(1)], {uuid(1): ailment(Cause.VANISHED)}, {KEY_1: uuid(1)}) == {KEY_1: uuid(1)}


def test_an_index_that_no_card_has_is_pinned_once_one_comes():
    assert resolve(EXCLUDE_1, [gpu(0)]) == {}
    assert resolve(EXCLUDE_1, [gpu(0), gpu(1)]) == {KEY_1: uuid(1)}


def test_an_edit_of_other_entries_leaves_a_pin_and_a_removed_entry_takes_its_pin_along():
    pins = resolve(EXCLUDE_1, [gpu(0), gpu(1), gpu(2)])
    renumbered = [gpu(1, index=0), gpu(2, index=1), gpu(3, index=2)]
    more = parse("devices: {exclude: [0, 1], cordon: [2]}")
    assert resolve(more, renumbered, before=pins) == {
        "devices.exclude=0": uuid(1),
        KEY_1: uuid(1),
        "devices.cordon=2": uuid(3),
    }
    assert resolve(parse(), renumbered, before=pins) == {}


def test_a_mig_index_is_pinned_by_its_gpu():
    config = parse('devices: {exclude: ["1:0"]}')
    pins = resolve(config, [gpu(0), gpu(1)])
    assert pins == {"devices.exclude=1:0": uuid(1)}
    assert excluded(config, [gpu(0, index=1), gpu(1, index=0)], pins) == [uuid(1)]


@pytest.mark.parametrize(
    "ref",
    [uuid(1), '"0000:11:00.0"', '"00000000:11:00.0"', f"MIG-{uuid(1)}/1/0"],
)
def test_uuids_and_slots_need_no_pin(ref):
    config = parse(f"devices: {{exclude: [{ref}]}}")
    assert resolve(config, [gpu(0), gpu(1)]) == {}
    assert excluded(config, [gpu(0), gpu(1)], {}) == [uuid(1)]


def test_references_that_name_nothing_here_are_told_but_mig_devices_are_not_looked_up():
    config = parse(f"""\
        devices:
          exclude: [0, {uuid(9)}, "0000:99:00.0"]
          cordon: [7, "7:1", MIG-3eb87630-93d5-b2b6-b8ff-9b359caf4ee2]
        """)
    gpus = [gpu(0), gpu(1)]
    assert find_unmatched(config, gpus, resolve(config, gpus)) == (
        f"devices.exclude[1]: {uuid(9)}",
        "devices.exclude[2]: 0000:99:00.0",
        "devices.cordon[0]: 7",
    )


@given(
    chosen=st.sets(st.integers(0, 5), min_size=1),
    left=st.sets(st.integers(0, 7)),
    data=st.data(),
)
def test_whatever_comes_and_goes_a_reference_never_means_another_card(chosen, left, data):
    config = parse(f"devices: {{exclude: {sorted(chosen)}}}")
    pins = resolve(config, [gpu(number) for number in range(6)])
    order = data.draw(st.permutations(sorted(left)))
    now = [gpu(number, index=index) for index, number in enumerate(order)]
    again = resolve(config, now, before=pins)
    assert again == pins
    assert set(excluded(config, now, again)) == {uuid(number) for number in chosen & left}


def test_a_reference_is_read_once_and_compares_by_what_it_means():
    assert parse_device_ref("01") == parse_device_ref("1")
