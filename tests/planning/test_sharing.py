"""Which entry gets which card: lists, then counts, then all; and counts stay with their cards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.reasons import Cause
from nvdp.planning.allotment import resolve_pins
from tests.planning.allotting import allotted, numbers, shown
from tests.planning.values import ailment, gpu, parse, uuid

ABSENT = "(fine if other nodes share this file)"
FOUR = [gpu(number) for number in range(4)]
A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
NAMES = 'resources: {gpus: [{pattern: "*A100*", name: a100}, {pattern: "*H100*", name: h100}]}\n'
TWO_MODELS = [gpu(0, product=A100), gpu(1, product=H100), gpu(2, product=A100), gpu(3, product=H100)]


def share(*entries, block="timeSlicing", names="", exclude="[]", rename="s"):
    """A file with these entries, each its keys in YAML; what an entry does not say is the same in all."""
    known = {"name": "gpu", "rename": rename, "replicas": "2"}
    text = ""
    for entry in entries:
        said = dict(item.split(": ", 1) for item in entry.split("; "))
        text += "    - {" + ", ".join(f"{key}: {value}" for key, value in (known | said).items() if value) + "}\n"
    return f"{names}devices: {{exclude: {exclude}}}\nsharing:\n  {block}:\n    resources:\n{text}"


def given_to(text, gpus, pins=None, ailments=None):
    """The cards that entries take, by the place of each entry, with what is pinned before. And what is pinned then."""
    allotment = allotted(text, *gpus, before=pins, ailments=ailments)
    found = {}
    for one, assignment in allotment.assignments.items():
        found.setdefault(assignment.rule, []).append(one)
    return {int(rule.rpartition("[")[2][:-1]): numbers(uuids) for rule, uuids in found.items() if "sharing" in rule}


def pinned(text, gpus, before=None, ailments=None):
    return resolve_pins(parse(text), gpus, ailments or {}, before or {})


RULES = {
    "no entry": (lambda: "", [], {}),
    "all of a name": (share, ["devices: all"], {0: [0, 1, 2, 3]}),
    "all is what is meant without a word": (share, ["replicas: 2"], {0: [0, 1, 2, 3]}),
    "a list": (share, ["devices: [3, 1]"], {0: [1, 3]}),
    "a list in all spellings": (
        share,
        [f'devices: [0, {uuid(1)}, "0000:12:00.0", "00000000:13:00.0"]'],
        {0: [0, 1, 2, 3]},
    ),
    "a card twice in one list": (share, ['devices: [1, "0000:11:00.0"]'], {0: [1]}),
    "a count takes the lowest slots": (share, ["devices: 2"], {0: [0, 1]}),
    "counts in the order of the file": (share, ["devices: 1", "devices: 2"], {0: [0], 1: [1, 2]}),
    "lists come before counts": (share, ["devices: 2", "devices: [0]"], {0: [1, 2], 1: [0]}),
    "all comes last": (share, ["devices: all", "devices: 1", "devices: [0]"], {0: [2, 3], 1: [1], 2: [0]}),
    "a count of more than there are takes them all": (share, ["devices: 9"], {0: [0, 1, 2, 3]}),
    "a count after one that took all": (share, ["devices: 9", "devices: 1"], {0: [0, 1, 2, 3]}),
    "a count beyond all measure": (share, ["devices: 1000000000000"], {0: [0, 1, 2, 3]}),
}


@pytest.mark.parametrize(("make", "entries", "cards"), RULES.values(), ids=RULES)
def test_cards_are_given_to_lists_then_counts_then_all(make, entries, cards):
    assert given_to(make(*entries), FOUR) == cards


def test_excluded_cards_are_gone_before_anything_is_given():
    entries = ["devices: [0, 1]", "devices: 1", "devices: all"]
    assert given_to(share(*entries, exclude="[0, 2]"), [*FOUR, gpu(4)]) == {0: [1], 1: [3], 2: [4]}


def test_time_slicing_takes_its_counts_before_mps():
    text = share("devices: 1; rename: m", block="mps") + share("devices: 2").partition("sharing:\n")[2]
    assert shown(allotted(text, *FOUR)) == {0: "s/2", 1: "s/2", 2: "m%2", 3: "gpu"}


def test_entries_take_cards_of_their_own_name_alone():
    entries = ["name: a100; devices: all; rename: a", "name: h100; devices: 1; rename: h"]
    assert given_to(share(*entries, names=NAMES), TWO_MODELS) == {0: [0, 2], 1: [1]}


def test_several_entries_of_one_final_name_may_have_different_replicas():
    text = share("devices: [0]; replicas: 2", "devices: 1; replicas: 4", "devices: all; replicas: 8")
    assert shown(allotted(text, *FOUR)) == {0: "s/2", 1: "s/4", 2: "s/8", 3: "s/8"}


# What does not fit


def test_a_listed_card_of_another_resource_is_left_alone_and_told():
    text = share("name: a100; devices: [0, 1]; rename: a", "name: h100; devices: all; rename: h", names=NAMES)
    allotment = allotted(text, *TWO_MODELS)
    assert shown(allotment) == {0: "a/2", 1: "h/2", 2: "a100", 3: "h/2"}
    (said,) = allotment.unmatched
    assert said == (
        f"sharing.timeSlicing.resources[0].devices[1]: 1 is {uuid(1)}, which is nvidia.com/h100 here, "
        "not nvidia.com/a100; this entry leaves it alone"
    )


@pytest.mark.invariant(10)
def test_a_card_of_a_count_stays_though_another_resource_s_entry_lists_it():
    text = share(f"name: a100; devices: [{uuid(3)}]; rename: a", "name: h100; devices: 1; rename: h", names=NAMES)
    pins = pinned(text, [TWO_MODELS[0], TWO_MODELS[3]])
    assert given_to(text, TWO_MODELS, pins) == {1: [3]}


def test_a_listed_card_without_a_name_is_withheld_and_no_more_is_said():
    allotment = allotted(share("name: a100; devices: [0]; rename: a", names=NAMES), gpu(0, product=None))
    assert shown(allotment) == {0: "-NameUnknown"}
    assert allotment.unmatched == ()


def test_one_card_spelled_in_two_ways_stays_with_the_first_entry_and_the_later_one_is_withheld():
    text = share(f"devices: [{uuid(1)}, 0]", 'devices: [2, "0000:11:00.0", 0000:10:00.1]; rename: t').replace(
        "0000:10:00.1", '"0000:10:00.0"'
    )
    allotment = allotted(text, *FOUR)
    assert shown(allotment) == {0: "s/2", 1: "s/2", 2: "-EntryInvalid t/2", 3: "gpu"}
    held = allotment.withheld[uuid(2)]
    assert f"{held.path}: {held.text}" == (
        f"sharing.timeSlicing.resources[1].devices[1]: 0000:11:00.0 is {uuid(1)}, which is already shared by "
        "sharing.timeSlicing.resources[0] (line 5); one card can be shared in one way only"
    )


def test_a_card_named_by_its_uuid_is_introduced_once():
    text = share("devices: [1]", f"devices: [2, {uuid(1)}]; rename: t")
    assert allotted(text, *FOUR).withheld[uuid(2)].text.startswith(f"{uuid(1)} is already shared by ")


@pytest.mark.parametrize("devices", ["4", "3", "all", "[0]"])
def test_of_an_entry_that_has_what_it_asks_for_nothing_is_told(devices):
    assert allotted(share(f"devices: {devices}"), *FOUR).unmatched == ()


@pytest.mark.parametrize(("count", "here", "gpus"), [(5, 4, FOUR), (1, 0, [])])
def test_a_count_of_more_than_there_are_is_told(count, here, gpus):
    allotment = allotted(share(f"devices: {count}"), *gpus)
    path = "sharing.timeSlicing.resources[0].devices"
    assert allotment.unmatched == (f"{path}: {count} asked, {here} of nvidia.com/gpu here {ABSENT}",)


# Counts stay with their cards

TWO = share("devices: 2")


@pytest.mark.invariant(10)
def test_the_cards_of_a_count_stay_when_nvml_renumbers():
    pins = pinned(TWO, FOUR)
    renumbered = [gpu(3, index=0), gpu(1, index=1), gpu(0, index=2), gpu(2, index=3)]
    assert given_to(TWO, renumbered, pins) == {0: [0, 1]}


@pytest.mark.invariant(10)
def test_a_card_of_a_count_that_is_lost_is_not_replaced_and_comes_back():
    pins = pinned(TWO, FOUR)
    for left in ([gpu(0), gpu(2), gpu(3)], [gpu(2), gpu(3)]):
        assert given_to(TWO, left, pins) == ({0: [0]} if left[0].index == 0 else {})
        assert pinned(TWO, left, pins) == pins
    assert given_to(TWO, FOUR, pins) == {0: [0, 1]}
    (said,) = allotted(TWO, *FOUR[2:], before=pins).unmatched
    assert said == (
        f"sharing.timeSlicing.resources[0].devices: 2 asked, 0 of nvidia.com/gpu here; {uuid(0)}, {uuid(1)} are not on "
        "this node any more and are not replaced by a neighbour, change the entry to choose another"
    )


@pytest.mark.invariant(10)
def test_a_card_that_comes_below_those_of_a_count_stays_whole():
    pins = pinned(TWO, FOUR[1:])
    assert given_to(TWO, FOUR, pins) == {0: [1, 2]}


@pytest.mark.invariant(10)
def test_a_card_that_comes_fills_a_count_that_has_too_few():
    pins = pinned(TWO, [gpu(3)])
    assert given_to(TWO, [gpu(1), gpu(3)], pins) == {0: [1, 3]}


def test_a_vanished_card_is_not_chosen_anew():
    assert given_to(TWO, FOUR, ailments={uuid(0): ailment(Cause.VANISHED)}) == {0: [1, 2]}


@pytest.mark.parametrize("cause", [Cause.LOST, Cause.CALL_FAILED, Cause.CALL_TIMEOUT, Cause.DRIVER_LOST])
def test_a_count_takes_healthy_and_unhealthy_cards_alike(cause):
    assert given_to(TWO, FOUR, ailments={uuid(0): ailment(cause)}) == {0: [0, 1]}


BEFORE = "devices: 1; replicas: 3"
EDITS = {
    "an entry before it that takes a count": (share(BEFORE, "devices: 2"), {0: [0], 1: [2, 3]}),
    "an entry before it that takes the rest": (
        share("devices: all; replicas: 3", "devices: 2"),
        {0: [0, 1], 1: [2, 3]},
    ),
    "an entry of the same replicas and another count before it": (
        share("devices: 1", "devices: 2"),
        {0: [0], 1: [2, 3]},
    ),
    "more replicas": (share("devices: 2; replicas: 7"), {0: [2, 3]}),
    "a list of another card": (share("devices: [0]; replicas: 5", "devices: 2"), {0: [0], 1: [2, 3]}),
    "a cordon": (TWO.replace("exclude", "cordon: [2], exclude"), {0: [2, 3]}),
    "another way of choosing": (TWO + "allocation: {sharedPolicy: packed}", {0: [2, 3]}),
}


@pytest.mark.parametrize(("edited", "cards"), EDITS.values(), ids=EDITS)
def test_the_cards_of_a_count_stay_when_something_else_is_edited(edited, cards):
    pins = pinned(share("devices: 2", exclude="[0, 1]"), FOUR)  # so that it has not what it would get today
    assert given_to(edited, FOUR, pins) == cards


@pytest.mark.parametrize("edited", [share("devices: 3"), share("devices: 2", rename="t")], ids=["count", "name"])
def test_an_entry_that_is_edited_itself_chooses_anew(edited):
    pins = pinned(share("devices: 2", exclude="[0, 1]"), FOUR)
    assert given_to(edited, FOUR, pins)[0][:2] == [0, 1]


def test_of_two_entries_that_differ_in_replicas_the_one_that_is_left_keeps_its_cards():
    both = share("devices: 2; replicas: 4", "devices: 2; replicas: 8")
    pins = pinned(both, FOUR)
    assert given_to(both, FOUR, pins) == {0: [0, 1], 1: [2, 3]}
    assert given_to(share("devices: 2; replicas: 8"), FOUR, pins) == {0: [2, 3]}
    assert given_to(share("devices: 2; replicas: 8", "devices: 2; replicas: 4"), FOUR, pins) == {0: [2, 3], 1: [0, 1]}
    assert given_to(share("devices: 2; replicas: 4", "devices: 2; replicas: 9"), FOUR, pins) == {0: [0, 1], 1: [2, 3]}


TAKEN = {
    "excluded": share("devices: 2", exclude="[0]"),
    "excluded by its slot": share("devices: 2", exclude='["0000:10:00.0"]'),
    "in a list": share("devices: 2", "devices: [0]; rename: t"),
    "of another resource": share("devices: 2", names='resources: {gpus: [{pattern: "NVIDIA T4", name: t4}]}\n'),
}


@pytest.mark.parametrize("edited", TAKEN.values(), ids=TAKEN)
def test_a_card_that_the_file_gives_to_another_purpose_is_replaced(edited):
    gpus = [gpu(0, product="NVIDIA T4"), *FOUR[1:]]
    pins = pinned(TWO, gpus)
    assert given_to(TWO, gpus, pins) == {0: [0, 1]}
    assert given_to(edited, gpus, pins)[0] == [1, 2]


LOST = {
    "excluded": share("devices: 2", exclude=f"[{uuid(0)}]"),
    "in a list": share("devices: 2", f"devices: [{uuid(0)}]; rename: t"),
}


@pytest.mark.parametrize("edited", LOST.values(), ids=LOST)
@pytest.mark.invariant(10)
def test_a_lost_card_that_is_promised_elsewhere_is_replaced_by_the_edit_not_by_its_return(edited):
    left = [gpu(number, index=number - 1) for number in (1, 2, 3)]
    pins = pinned(edited, left, pinned(TWO, FOUR))
    assert given_to(edited, left, pins)[0] == [1, 2]
    assert given_to(edited, FOUR, pins)[0] == [1, 2]


@pytest.mark.invariant(10)
def test_a_lost_card_that_comes_back_into_a_slot_promised_elsewhere_moves_no_other():
    left = [gpu(number, index=number - 1) for number in (1, 2, 3)]
    edited = share("devices: 2", 'devices: ["0000:10:00.0"]; rename: t')
    pins = pinned(edited, left, pinned(TWO, FOUR))
    assert given_to(edited, left, pins) == {0: [1]}, "the edit cannot know which card the slot will have"
    pins = pinned(edited, FOUR, pins)
    assert given_to(edited, FOUR, pins) == {0: [1], 1: [0]}
    assert given_to(edited + "# edited again", FOUR, pins) == {0: [1, 2], 1: [0]}


@pytest.mark.invariant(10)
def test_a_lost_card_that_comes_back_with_another_name_moves_no_other():
    gpus = [gpu(0, product="NVIDIA T4"), *FOUR[1:]]
    edited = share("devices: 2", names='resources: {gpus: [{pattern: "NVIDIA T4", name: t4}]}\n')
    pins = pinned(edited, gpus[1:], pinned(TWO, gpus))
    assert shown(allotted(edited, *gpus, before=pins)) == {0: "t4", 1: "s/2", 2: "gpu", 3: "gpu"}


@pytest.mark.invariant(10)
def test_a_card_that_an_entry_of_another_resource_lists_keeps_its_place_when_it_is_lost():
    text = share(f"name: a100; devices: [{uuid(1)}]; rename: a", "name: h100; devices: 1; rename: h", names=NAMES)
    pins = pinned(text, TWO_MODELS)
    left = [TWO_MODELS[0], TWO_MODELS[2], TWO_MODELS[3]]
    assert given_to(text, TWO_MODELS, pins) == {1: [1]}
    assert given_to(text, left, pins) == {}
    assert given_to(text, TWO_MODELS, pinned(text, left, pins)) == {1: [1]}


@pytest.mark.invariant(10)
def test_an_index_that_comes_back_with_a_card_of_a_count_does_not_take_it_away():
    pins = pinned(share("devices: 2", exclude="[0, 1]"), FOUR)
    edited = share("devices: 2", exclude="[3]")
    pins = pinned(edited, FOUR[:3], pins)  # 3 is lost, so that no card has its index
    assert given_to(edited, FOUR, pins) == {0: [2, 3]}
    assert pinned(edited, FOUR[:3], pinned(edited, FOUR, pins)) == pinned(edited, FOUR, pins)


@pytest.mark.invariant(10)
def test_a_card_whose_product_cannot_be_read_for_a_while_keeps_its_place():
    text = share("name: a100; devices: 1; rename: a", names=NAMES)
    pins = pinned(text, TWO_MODELS)
    unread = [gpu(0, product=None), *TWO_MODELS[1:]]
    assert pinned(text, unread, pins) == pins
    assert given_to(text, TWO_MODELS, pinned(f"{text}# edited", unread, pins)) == {0: [0]}
    assert shown(allotted(text, *unread, before=pins)) == {0: "-NameUnknown", 1: "h100", 2: "a100", 3: "h100"}
    assert given_to(text, TWO_MODELS, pins) == {0: [0]}


# Properties


@given(counts=st.lists(st.integers(1, 4), max_size=3), cards=st.permutations(range(6)), take=st.integers(0, 6))
def test_counts_take_what_they_ask_for_or_all_there_is_whatever_the_order_of_the_cards(counts, cards, take):
    gpus = [gpu(number) for number in cards[:take]]
    text = share(*(f"devices: {count}; replicas: {place + 2}" for place, count in enumerate(counts))) if counts else ""
    found = given_to(text, gpus)
    left = sorted(cards[:take])
    for place, count in enumerate(counts):
        assert found.get(place, []) == left[:count]
        left = left[count:]
