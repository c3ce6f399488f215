"""References by index mean the cards that had these indices when the file was applied."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.reasons import Cause
from nvdp.planning.pins import find_unmatched, list_references, pin_indices
from tests.planning.allotting import numbers
from tests.planning.values import ailment, cut, device, gpu, mig_uuid, parse, uuid

pytestmark = pytest.mark.invariant(10)

EXCLUDE_1 = parse("devices: {exclude: [1]}")
KEY_1 = "devices.exclude=1"
MIG_UUID = "MIG-3eb87630-93d5-b2b6-b8ff-9b359caf4ee2"
ABSENT = "is not on this node (fine if other nodes share this file)"


def pin(config, gpus, ailments=None, before=None):
    return pin_indices(config, gpus, ailments or {}, before or {})


def concerned(config, gpus, pins):
    """The cards that any reference of the file names, by number."""
    named = (one for one in whole(gpus) if any(ref.matches(one, pins) for ref in list_references(config)))
    return numbers(one.uuid for one in named)


def whole(gpus):
    return [device(one) for one in gpus]


def unmatched(config, gpus, pins=None):
    return list(find_unmatched(config, whole(gpus), pin(config, gpus) if pins is None else pins))


# References


def test_every_reference_of_the_file_is_found_with_its_path():
    config = parse("""\
        devices: {exclude: [0], cordon: ["0000:11:00.0", 2]}
        sharing:
          timeSlicing:
            resources: [{name: gpu, rename: gpu.ts, devices: [3, 4], replicas: 2}]
          mps:
            resources:
            - name: gpu
              rename: gpu.mps
              devices: ["1:0"]
              replicas: 2
              defaultPerDevicePinnedMemoryLimit: {5: 1Gi, "0000:12:00.0": 2Gi}
        """)
    assert [(reference.path, str(reference.ref)) for reference in list_references(config)] == [
        ("devices.exclude[0]", "0"),
        ("devices.cordon[0]", "0000:11:00.0"),
        ("devices.cordon[1]", "2"),
        ("sharing.timeSlicing.resources[0].devices[0]", "3"),
        ("sharing.timeSlicing.resources[0].devices[1]", "4"),
        ("sharing.mps.resources[0].devices[0]", "1:0"),
        ("sharing.mps.resources[0].defaultPerDevicePinnedMemoryLimit.5", "5"),
        ('sharing.mps.resources[0].defaultPerDevicePinnedMemoryLimit."0000:12:00.0"', "0000:12:00.0"),
    ]


@pytest.mark.parametrize(
    ("ref", "cards"),
    [
        ("1", [1]),
        ('"01"', [1]),
        (uuid(1), [1]),
        (uuid(1).lower().replace("gpu-", "GPU-"), [1]),
        ('"0000:11:00.0"', [1]),
        ('"00000000:11:00.0"', [1]),
        ('"1:0"', []),  # a MIG device, and there is none
        (f"MIG-{uuid(1)}/1/0", []),
        (MIG_UUID, []),
        ("7", []),
        (uuid(7), []),
        ('"0000:99:00.0"', []),
    ],
)
def test_a_card_is_found_by_each_of_the_five_spellings(ref, cards):
    config = parse(f"devices: {{exclude: [{ref}]}}")
    gpus = [gpu(0), gpu(1), gpu(2)]
    assert concerned(config, gpus, pin(config, gpus)) == cards


@pytest.mark.parametrize("ref", [uuid(1), '"0000:11:00.0"', f"MIG-{uuid(1)}/1/0", MIG_UUID])
def test_uuids_and_slots_need_no_pin(ref):
    assert pin(parse(f"devices: {{exclude: [{ref}]}}"), [gpu(0), gpu(1)]) == {}


# Pins


def test_an_index_is_pinned_to_the_card_that_has_it():
    assert pin(EXCLUDE_1, [gpu(0), gpu(1)]) == {KEY_1: uuid(1)}


def test_a_mig_index_is_pinned_to_the_mig_device_that_has_it():
    config = parse('devices: {exclude: ["1:0"]}')
    pins = pin(config, [gpu(0), cut(1, "1g.5gb", "2g.10gb")])
    assert pins == {"devices.exclude=1:0": mig_uuid(1, 0)}
    renumbered = [gpu(0, index=1), cut(1, "1g.5gb", "2g.10gb", index=0)]
    assert pin(config, renumbered, before=pins) == pins
    without = [gpu(0), cut(1)]
    (said,) = unmatched(config, without, pin(config, without, before=pins))
    assert f"1:0 was {mig_uuid(1, 0)}, which is not on this node any more" in said


def test_a_mig_index_that_no_device_has_means_none_that_was_there_then():
    config = parse('devices: {exclude: ["1:1"]}')
    before = pin(config, [cut(0, "1g.5gb"), cut(1, "1g.5gb")])
    assert set(before.values()) == {mig_uuid(0, 0), mig_uuid(1, 0)}
    assert pin(config, [cut(0, "1g.5gb"), cut(1, "1g.5gb", "1g.5gb")], before=before) == {
        "devices.exclude=1:1": mig_uuid(1, 1)
    }


def test_a_pin_survives_a_renumbering():
    pins = pin(EXCLUDE_1, [gpu(0), gpu(1), gpu(2)])
    renumbered = [gpu(1, index=0), gpu(2, index=1)]
    assert pin(EXCLUDE_1, renumbered, before=pins) == pins
    assert concerned(EXCLUDE_1, renumbered, pins) == [1]


def test_a_card_that_is_gone_is_not_replaced_by_its_neighbour():
    pins = pin(EXCLUDE_1, [gpu(0), gpu(1), gpu(2)])
    left = [gpu(0), gpu(2, index=1)]
    assert pin(EXCLUDE_1, left, before=pins) == pins
    assert concerned(EXCLUDE_1, left, pins) == []
    (said,) = unmatched(EXCLUDE_1, left, pins)
    assert said == (
        f"devices.exclude[0]: 1 was {uuid(1)}, which is not on this node any more; "
        "it is not replaced by its neighbour, change the entry to choose another"
    )


@pytest.mark.parametrize("vanished_last", [True, False])
def test_a_new_pin_does_not_choose_a_vanished_card_by_its_stale_index(vanished_last):
    gpus = [gpu(1), gpu(2, index=1)]  # 1 has vanished, and 2 was renumbered into its place
    if vanished_last:
        gpus.reverse()
    assert pin(EXCLUDE_1, gpus, {uuid(1): ailment(Cause.VANISHED)}) == {KEY_1: uuid(2)}


@pytest.mark.parametrize("cause", [Cause.LOST, Cause.CALL_FAILED, Cause.CALL_TIMEOUT, Cause.DRIVER_LOST])
def test_a_card_that_ails_but_is_counted_still_has_its_index(cause):
    assert pin(EXCLUDE_1, [gpu(0), gpu(1)], {uuid(1): ailment(cause)}) == {KEY_1: uuid(1)}


def test_a_pin_of_a_vanished_card_stands():
    assert pin(EXCLUDE_1, [gpu(1)], {uuid(1): ailment(Cause.VANISHED)}, {KEY_1: uuid(1)}) == {KEY_1: uuid(1)}


def test_an_edit_of_other_entries_leaves_a_pin_and_a_removed_entry_takes_its_pin_along():
    pins = pin(EXCLUDE_1, [gpu(0), gpu(1), gpu(2)])
    renumbered = [gpu(1, index=0), gpu(2, index=1), gpu(3, index=2)]
    more = parse("devices: {exclude: [0, 1], cordon: [2]}")
    assert pin(more, renumbered, before=pins) == {
        "devices.exclude=0": uuid(1),
        KEY_1: uuid(1),
        "devices.cordon=2": uuid(3),
    }
    assert pin(parse(), renumbered, before=pins) == {}


ENTRIES = "sharing: {timeSlicing: {resources: [%s{name: gpu, rename: s, devices: [%s], replicas: %s}]}}"
EARLIER = "{name: gpu, rename: s, devices: [0], replicas: 3}, "


@pytest.mark.parametrize(
    "edited",
    [
        pytest.param(ENTRIES % (EARLIER, 1, 2), id="an entry of the same name before it"),
        pytest.param(ENTRIES % ("", "2, 1", 2), id="another card before it"),
        pytest.param(ENTRIES % ("", 1, 8), id="more replicas"),
    ],
)
def test_a_card_of_a_list_stays_what_else_is_edited(edited):
    config = parse(ENTRIES % ("", 1, 2))
    pins = pin(config, [gpu(0), gpu(1), gpu(2)])
    renumbered = [gpu(1, index=0), gpu(2, index=1)]
    again = pin(parse(edited), renumbered, before=pins)
    assert pins.items() <= again.items()


def test_an_entry_with_another_name_means_the_card_that_has_the_index_now():
    pins = pin(parse(ENTRIES % ("", 1, 2)), [gpu(0), gpu(1), gpu(2)])
    config = parse((ENTRIES % ("", 1, 2)).replace("rename: s", "rename: t"))
    renumbered = [gpu(1, index=0), gpu(2, index=1)]
    assert concerned(config, renumbered, pin(config, renumbered, before=pins)) == [2]


def test_an_index_means_the_same_card_throughout_an_entry():
    text = "sharing: {mps: {resources: [{name: gpu, devices: [1], rename: m, replicas: 2%s}]}}"
    pins = pin(parse(text % ""), [gpu(0), gpu(1), gpu(2)])
    limited = parse(text % ", defaultPerDevicePinnedMemoryLimit: {1: 1Gi, 0: 2Gi}")
    renumbered = [gpu(1, index=0), gpu(2, index=1)]
    again = pin(limited, renumbered, before=pins)
    assert concerned(limited, renumbered, again) == [1]
    assert pins.items() < again.items()


# An index that no card has yet


def test_an_index_that_no_card_has_is_pinned_once_one_comes():
    before = pin(EXCLUDE_1, [gpu(0)])
    assert concerned(EXCLUDE_1, [gpu(0)], before) == []
    assert pin(EXCLUDE_1, [gpu(0), gpu(1)], before=before) == {KEY_1: uuid(1)}


def test_a_card_that_was_there_before_is_not_taken_for_an_index_that_it_gets_later():
    before = pin(EXCLUDE_1, [gpu(1, index=0)])
    grown = [gpu(0, index=0), gpu(1, index=1)]  # a card was plugged in below it
    pins = pin(EXCLUDE_1, grown, before=before)
    assert concerned(EXCLUDE_1, grown, pins) == []
    (said,) = unmatched(EXCLUDE_1, grown, pins)
    assert said == (
        "devices.exclude[0]: no GPU had index 1 when this was applied, and none that was there then is taken for it "
        "now; write a UUID or a slot"
    )
    assert pin(EXCLUDE_1, [gpu(0, index=1)], before=pins) == pins, "nor is the one that came then"
    assert pin(EXCLUDE_1, [gpu(0), gpu(2, index=1)], before=pins) == {KEY_1: uuid(2)}


def test_another_reference_may_mean_a_card_that_an_index_without_a_card_cannot_mean():
    before = pin(EXCLUDE_1, [gpu(0)])
    config = parse("devices: {exclude: [0, 1]}")
    pins = pin(config, [gpu(0)], before=before)
    assert pins.items() > before.items()
    assert concerned(config, [gpu(0)], pins) == [0]


def test_a_pin_stands_whatever_a_later_reference_with_that_index_cannot_mean():
    pins = pin(EXCLUDE_1, [gpu(0), gpu(1)])
    config = parse('devices: {exclude: [1, "1:0"]}')
    for _ in range(2):
        pins = pin(config, [gpu(1, index=0)], before=pins)
        assert pins[KEY_1] == uuid(1)
        assert concerned(config, [gpu(0), gpu(1)], pins) == [1]


def test_nothing_is_kept_for_an_index_that_no_card_can_have():
    assert pin(parse(f"devices: {{exclude: {[*range(255, 1000)]}}}"), [gpu(0)]) == {}


def test_what_an_index_cannot_mean_is_forgotten_with_the_reference():
    before = pin(EXCLUDE_1, [gpu(0)])
    assert before
    assert pin(parse("devices: {exclude: [11]}"), [], before=before) == {}
    assert pin(parse(), [gpu(0)], before=before) == {}


# What names nothing


def test_references_that_name_nothing_here_are_told():
    config = parse(f"""\
        devices:
          exclude: [0, {uuid(9)}, "0000:99:00.0"]
          cordon: [7, "7:1", {MIG_UUID}]
        """)
    assert unmatched(config, [gpu(0), gpu(1)]) == [
        f"devices.exclude[1]: {uuid(9)} {ABSENT}",
        f"devices.exclude[2]: 0000:99:00.0 {ABSENT}",
        f"devices.cordon[0]: 7 {ABSENT}",
        f"devices.cordon[1]: 7:1 {ABSENT}",
        f"devices.cordon[2]: {MIG_UUID} {ABSENT}",
    ]


def test_a_limit_for_a_card_of_another_node_is_told():
    config = parse("""\
        sharing:
          mps:
            resources: [{name: gpu, replicas: 2, defaultPerDevicePinnedMemoryLimit: {0: 1Gi, 7: 1Gi}}]
        """)
    path = "sharing.mps.resources[0].defaultPerDevicePinnedMemoryLimit.7"
    assert unmatched(config, [gpu(0), gpu(1)]) == [f"{path}: 7 {ABSENT}"]


# Properties

LISTS = st.dictionaries(st.sampled_from(["exclude", "cordon"]), st.sets(st.integers(0, 9), min_size=1), min_size=1)


def parse_lists(lists):
    """Each card in one of the two lists at most, as the file demands."""
    cordon = lists.get("cordon", set()) - lists.get("exclude", set())
    return parse(f"devices: {{exclude: {sorted(lists.get('exclude', ()))}, cordon: {sorted(cordon)}}}")


def by_reference(config, gpus, pins):
    return {
        reference.key: numbers(one.uuid for one in whole(gpus) if reference.matches(one, pins))
        for reference in list_references(config)
    }


@given(
    lists=LISTS,
    first=st.sets(st.integers(0, 9)),
    stages=st.lists(st.tuples(st.sets(st.integers(0, 9)), st.randoms(use_true_random=False)), max_size=4),
)
def test_whatever_comes_and_goes_no_reference_ever_means_another_card_that_was_there(lists, first, stages):
    config = parse_lists(lists)
    gpus = [gpu(number, index=index) for index, number in enumerate(sorted(first))]
    pins = pin(config, gpus)
    assert all(
        int(key.rpartition("=")[2]) >= len(first) or meant for key, meant in by_reference(config, gpus, pins).items()
    )
    for here, random in stages:
        before, known = by_reference(config, gpus, pins), {one.uuid for one in gpus}
        order = sorted(here)
        random.shuffle(order)
        gpus = [gpu(number, index=index) for index, number in enumerate(order)]
        pins = pin(config, gpus, before=pins)
        for key, meant in by_reference(config, gpus, pins).items():
            stays = [number for number in before[key] if number in here]
            comes = [number for number in meant if uuid(number) not in known]
            assert meant == stays or (not before[key] and meant == comes), key
        assert pin(config, gpus, before=pins) == pins
