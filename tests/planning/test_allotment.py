"""What the file makes of each card of a node: the whole, from names and sharing to what is kept back."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nvdp.model.inventory import MigMode
from nvdp.model.listing import Strategy
from nvdp.model.reasons import Cause
from nvdp.planning.allotment import allot, find_untold, resolve_pins
from nvdp.planning.assignment import Assignment, Form
from nvdp.planning.devices import Device
from nvdp.planning.pins import list_references
from tests.planning.allotting import allotted, show, shown
from tests.planning.values import ailment, cut, gpu, inventory, mig_uuid, parse, uuid

A100, T400 = "NVIDIA A100-SXM4-80GB", "NVIDIA T400"
NINE = [gpu(0, product=T400), *(gpu(number, product=A100, compute_capability="8.0") for number in range(1, 9))]
MIXED = f"""\
version: v1
devices:
  exclude: ["0000:10:00.0"]
  cordon: [{uuid(8)}]
resources:
  gpus:
  - pattern: "*"
    name: nvidia.com/gpu
sharing:
  timeSlicing:
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      rename: nvidia.com/gpu.shared
      devices: ["0000:12:00.0", "0000:13:00.0"]
      replicas: 10
  mps:
    resources:
    - name: nvidia.com/gpu
      rename: nvidia.com/gpu.mps
      devices: ["0000:15:00.0"]
      replicas: 4
"""


def test_a_mixed_node_is_as_its_file_says():
    allotment = allotted(MIXED, *NINE)
    assert shown(allotment) == {
        0: "-Excluded",
        **dict.fromkeys((1, 4, 6, 7, 8), "gpu"),
        **dict.fromkeys((2, 3), "gpu.shared/10"),
        5: "gpu.mps%4",
    }
    assert allotment.cordoned == {uuid(8): "devices.cordon[0]"}
    assert allotment.unmatched == ()


def test_each_assignment_tells_its_rule():
    allotment = allotted(MIXED, *NINE)
    rules = {number: allotment.assignments[uuid(number)] for number in (1, 2, 5)}
    assert rules == {
        1: Assignment(form=Form("nvidia.com/gpu", shared=False), rule="resources.gpus[0]"),
        2: Assignment(
            form=Form("nvidia.com/gpu.shared", shared=True),
            replicas=10,
            strategy=Strategy.TIME_SLICING,
            rule="sharing.timeSlicing.resources[0]",
        ),
        5: Assignment(
            form=Form("nvidia.com/gpu.mps", shared=True, mps=True),
            replicas=4,
            strategy=Strategy.MPS,
            rule="sharing.mps.resources[0]",
        ),
    }
    assert allotment.withheld[uuid(0)].path == "devices.exclude[0]"
    assert allotted("", gpu(0)).assignments == {uuid(0): Assignment(form=Form("nvidia.com/gpu", shared=False))}


# Excluding and cordoning


@pytest.mark.parametrize("ref", ["1", uuid(1), '"0000:11:00.0"', '"00000000:11:00.0"'])
def test_an_excluded_card_is_not_ours_and_a_cordoned_one_is(ref):
    gpus = [gpu(0), gpu(1), gpu(2)]
    excluded = allotted(f"devices: {{exclude: [0, {ref}]}}", *gpus)
    assert shown(excluded) == {0: "-Excluded", 1: "-Excluded", 2: "gpu"}
    assert excluded.withheld[uuid(1)].path == "devices.exclude[1]"
    cordoned = allotted(f"devices: {{cordon: [{ref}]}}", *gpus)
    assert shown(cordoned) == {0: "gpu", 1: "gpu", 2: "gpu"}
    assert cordoned.cordoned == {uuid(1): "devices.cordon[0]"}


@pytest.mark.parametrize("ref", [uuid(1), '"0000:11:00.0"'])
def test_a_card_that_is_excluded_and_cordoned_in_two_spellings_is_excluded(ref):
    allotment = allotted(f"devices: {{exclude: [1], cordon: [{ref}, 0]}}", gpu(0), gpu(1))
    assert shown(allotment) == {0: "gpu", 1: "-Excluded"}
    assert allotment.cordoned == {uuid(0): "devices.cordon[1]"}


def test_a_cordoned_card_is_shared_as_the_file_says():
    slices = "sharing: {timeSlicing: {resources: [{name: gpu, rename: s, devices: [1], replicas: 3}]}}"
    allotment = allotted(f"devices: {{cordon: [1]}}\n{slices}", gpu(0), gpu(1))
    assert shown(allotment) == {0: "gpu", 1: "s/3"}
    assert [*allotment.cordoned] == [uuid(1)]


def test_a_withheld_card_is_not_cordoned():
    text = "devices: {cordon: [0]}\nsharing: {mps: {resources: [{name: gpu, replicas: 3}]}}"
    assert allotted(text, gpu(0, compute_capability="6.0")).cordoned == {}


def test_excluding_every_card_leaves_nothing_and_is_allowed():
    assert shown(allotted("devices: {exclude: [0, 1]}", gpu(0), gpu(1))) == {0: "-Excluded", 1: "-Excluded"}


def test_an_excluded_card_is_excluded_whatever_else_the_file_says_of_it():
    text = """\
        devices: {exclude: [0]}
        flags: {migStrategy: mixed}
        sharing: {mps: {resources: [{name: gpu, devices: [0], rename: m, replicas: 2}]}}
        """
    assert shown(allotted(text, gpu(0, mig=MigMode.ENABLED, product=None))) == {0: "-Excluded"}


def test_of_what_is_excluded_and_of_what_is_no_device_of_its_own_nothing_need_be_told():
    gpus = [gpu(0), gpu(1), cut(2, "1g.5gb", "2g.10gb"), cut(3, "1g.5gb")]
    small = [mig_uuid(2, 0), mig_uuid(2, 1)]
    for text, untold in {
        "devices: {exclude: [0]}": {uuid(0), *small, mig_uuid(3, 0)},
        "flags: {migStrategy: mixed}": set(),
        'flags: {migStrategy: mixed}\ndevices: {exclude: ["2:0", 3]}': {small[0], uuid(3), mig_uuid(3, 0)},
        'devices: {exclude: ["2:0"]}': {uuid(2), *small, mig_uuid(3, 0)},
    }.items():
        config = parse(text)
        assert find_untold(config, gpus, resolve_pins(config, gpus, {}, {})) == untold, text


# Names and ways of sharing


def test_a_card_whose_product_cannot_be_read_is_withheld_where_its_name_depends_on_it():
    text = 'resources: {gpus: [{pattern: "*A100*", name: a100}]}'
    allotment = allotted(text, gpu(0, product=None), gpu(1, product=A100))
    assert shown(allotment) == {0: "-NameUnknown", 1: "a100"}
    held = allotment.withheld[uuid(0)]
    assert (held.path, held.text) == (
        "resources.gpus",
        "its product name cannot be read, and the resource depends on it",
    )
    assert shown(allotted("", gpu(0, product=None))) == {0: "gpu"}


WAYS = {
    "shared under the plain name": ("replicas: 3", False, "gpu/3"),
    "renamed by default": ("replicas: 3", True, "gpu.shared/3"),
    "a rename wins over the default": ("replicas: 3, rename: gpu", True, "gpu/3"),
    "a name of its own": ("replicas: 3, rename: example.com/x", False, "example.com/x/3"),
    "one replica is a whole card under its plain name": ("replicas: 1", True, "gpu"),
    "one replica, renamed": ("replicas: 1, rename: one", True, "one"),
}


@pytest.mark.parametrize(("keys", "by_default", "form"), WAYS.values(), ids=WAYS)
def test_the_final_name_and_the_form_follow_from_rename_and_replicas(keys, by_default, form):
    text = (
        f"sharing: {{timeSlicing: {{renameByDefault: {str(by_default).lower()}, resources: [{{name: gpu, {keys}}}]}}}}"
    )
    allotment = allotted(text, gpu(0))
    assert shown(allotment) == {0: form}
    assignment = allotment.assignments[uuid(0)]
    assert assignment.form.shared is (assignment.strategy is not Strategy.NONE) is (assignment.replicas > 1)


def test_an_mps_entry_of_one_replica_is_no_whole_card_without_its_daemon():
    text = "sharing: {mps: {resources: [{name: gpu, rename: m, devices: [0], replicas: 1}]}}"
    allotment = allotted(text, gpu(0), gpu(1))
    assert shown(allotment) == {0: "m%1", 1: "gpu"}
    assert allotment.assignments[uuid(0)].form == Form("nvidia.com/m", shared=False, mps=True)
    assert allotment.limits == {}


def test_an_mps_entry_that_the_hardware_cannot_honour_is_withheld_with_all_its_devices():
    text = "sharing: {mps: {resources: [{name: gpu, rename: m, devices: [0, 1], replicas: 2}]}}"
    old, new = gpu(0, product="Tesla P100", compute_capability="6.0"), gpu(1, compute_capability="8.0")
    allotment = allotted(text, old, new, gpu(2))
    assert shown(allotment) == {0: "-MPSUnsupported m%2", 1: "-MPSUnsupported m%2", 2: "gpu"}
    assert allotment.withheld[uuid(1)].text == (
        "Tesla P100 has compute capability 6.0; MPS needs 7.0; for GPU 0 the whole entry is withheld, devices: [1] "
        "would share the rest"
    )
    assert (allotment.withheld[uuid(1)].device, allotment.withheld[uuid(1)].minimum) == (
        uuid(0),
        "compute capability 7.0",
    )
    assert shown(allotted(text, gpu(0), new, gpu(2))) == {0: "m%2", 1: "m%2", 2: "gpu"}


def test_a_card_in_two_entries_is_told_before_what_mps_needs():
    text = f"""\
        sharing:
          mps:
            resources:
            - {{name: gpu, rename: m, devices: [0], replicas: 2}}
            - {{name: gpu, rename: n, devices: [{uuid(0)}, 1], replicas: 2}}
        """
    allotment = allotted(text, gpu(0), gpu(1, compute_capability="6.0"))
    assert "already shared by" in allotment.withheld[uuid(1)].text


def test_what_is_named_in_vain_is_told_in_the_order_references_other_resources_counts():
    text = """\
        devices: {exclude: [8]}
        resources: {gpus: [{pattern: "*A100*", name: a100}]}
        sharing:
          timeSlicing:
            resources:
            - {name: gpu, rename: a, devices: 3, replicas: 2}
            - {name: gpu, rename: b, devices: [1], replicas: 2}
        """
    said = allotted(text, gpu(0), gpu(1, product=A100)).unmatched
    assert [sentence.partition(": ")[0] for sentence in said] == [
        "devices.exclude[0]",
        "sharing.timeSlicing.resources[1].devices[0]",
        "sharing.timeSlicing.resources[0].devices",
    ]


# Properties: files that are valid by construction, on nodes of two models

CARDS = 7
PRODUCTS = (A100, "NVIDIA A10")


def spell(draw, number):
    """Card ``number`` by UUID, slot or index; where all cards are there, these mean the same."""
    return draw(st.sampled_from([uuid(number), f"0000:{number + 16:02x}:00.0", str(number)]))


@st.composite
def files(draw):
    """Each card in one list at most; entries under names of their own, so that no name is two promises."""
    numbers_left = draw(st.permutations(range(CARDS)))
    lists = [[], []]
    for refs in lists:
        take = draw(st.integers(0, 2))
        refs += [spell(draw, number) for number in numbers_left[:take]]
        numbers_left = numbers_left[take:]
    names = draw(st.sampled_from([[], [("*A100*", "a100")], [("NVIDIA A10", "a10"), ("*", "rest")]]))
    possible = ["nvidia.com/gpu", *(f"nvidia.com/{name}" for _, name in names)]
    blocks = {"timeSlicing": [], "mps": []}
    alls = set()
    for at in range(draw(st.integers(0, 5))):
        block, name = draw(st.sampled_from([*blocks])), draw(st.sampled_from(possible))
        take = draw(st.integers(0, 3))
        devices = draw(st.sampled_from(["list", "count", "all"]))
        if devices == "list":
            chosen, numbers_left = numbers_left[:take], numbers_left[take:]
            if not chosen:
                continue
            devices = [spell(draw, number) for number in chosen]
        elif devices == "count":
            devices = take + 1
        elif name in alls:
            continue
        else:
            alls.add(name)
        entry = {"name": name, "rename": f"nvidia.com/e{at}", "devices": devices, "replicas": draw(st.integers(1, 3))}
        blocks[block].append(entry)
    return json.dumps(
        {
            "devices": {"exclude": lists[0], "cordon": lists[1]},
            "resources": {"gpus": [{"pattern": pattern, "name": name} for pattern, name in names]},
            "sharing": {block: {"resources": entries} for block, entries in blocks.items() if entries},
        }
    )


def node(present):
    """NVML numbers the cards that are there in the order of their slots."""
    return [gpu(number, index=index, product=PRODUCTS[number % 2]) for index, number in enumerate(sorted(present))]


def forms(config, gpus, pins):
    """What each card is, or would be, as an entry's or a plain one's."""
    allotment = allot(config, inventory(*gpus), pins)
    offered = {one: (assignment, "") for one, assignment in allotment.assignments.items()}
    return offered | {one: (held.intended, held.reason) for one, held in allotment.withheld.items()}


def has_disputed(config, pins):
    """Whether an index that was pinned late means a card that another entry names: then one of the two is withheld."""
    named = [
        one.uuid
        for reference in list_references(config)
        if reference.path.startswith("sharing")
        for one in node(range(CARDS))
        if reference.matches(Device(gpu=one), pins)
    ]
    return len(named) > len({*named})


PRESENT = st.sets(st.integers(0, CARDS - 1), min_size=1)


@given(text=files(), present=PRESENT)
def test_every_card_is_either_on_offer_or_withheld_and_every_entry_has_its_own(text, present):
    gpus = node(present)
    allotment = allotted(text, *gpus)
    assert allotment.assignments.keys() | allotment.withheld.keys() == {one.uuid for one in gpus}
    assert not allotment.assignments.keys() & allotment.withheld.keys()
    assert allotment.cordoned.keys() <= allotment.assignments.keys()
    if len(present) == CARDS:  # else an index may mean a card that another entry names
        assert not [held for held in allotment.withheld.values() if held.reason == "EntryInvalid"]
    places = {assignment.rule for assignment in allotment.assignments.values() if "sharing" in assignment.rule}
    for place in places:
        names = {assignment.form for assignment in allotment.assignments.values() if assignment.rule == place}
        assert len(names) == 1


@given(text=files(), order=st.permutations(range(CARDS)))
def test_the_order_in_which_cards_are_found_does_not_matter(text, order):
    gpus, config = node(range(CARDS)), parse(text)
    mixed = [gpus[number] for number in order]
    pins = resolve_pins(config, gpus, {}, {})
    assert resolve_pins(config, mixed, {}, {}) == pins
    one, other = allot(config, inventory(*gpus), pins), allot(config, inventory(*mixed), pins)
    assert one == other
    assert [*one.assignments] == [*other.assignments]


@given(text=files(), stages=st.lists(PRESENT, min_size=2, max_size=4), vanishing=st.booleans())
@pytest.mark.invariant(10)
def test_a_card_that_is_lost_or_added_moves_no_other(text, stages, vanishing):
    """``vanishing``: cards that are gone stay known for a while, under the index that they had."""
    config = parse(text)
    gpus = node(stages[0])
    pins = resolve_pins(config, gpus, {}, {})
    for present in stages[1:]:
        before, here = forms(config, gpus, pins), node(present)
        gone = [one for one in gpus if int(one.uuid.rpartition("-")[2]) not in present] if vanishing else []
        gpus = [*here, *gone]
        pins = resolve_pins(config, gpus, {one.uuid: ailment(Cause.VANISHED) for one in gone}, pins)
        assume(not has_disputed(config, pins))
        after = forms(config, gpus, pins)
        assert {one: after[one] for one in before if one in after} == {
            one: before[one] for one in before if one in after
        }
        assert resolve_pins(config, gpus, {one.uuid: ailment(Cause.VANISHED) for one in gone}, pins) == pins


@given(text=files(), first=PRESENT, second=PRESENT, random=st.randoms(use_true_random=False))
@pytest.mark.invariant(10)
def test_entries_in_another_order_mean_the_same_cards(text, first, second, random):
    config, edited = parse(text), json.loads(text)
    for block in edited["sharing"].values():
        random.shuffle(block["resources"])
    pins = resolve_pins(config, node(second), {}, resolve_pins(config, node(first), {}, {}))
    assume(not has_disputed(config, pins))
    reordered = parse(json.dumps(edited))
    again = resolve_pins(reordered, node(second), {}, pins)
    assert again.keys() == pins.keys()
    before, after = forms(config, node(second), pins), forms(reordered, node(second), again)
    assert {one: (show(meant), why) for one, (meant, why) in after.items()} == {
        one: (show(meant), why) for one, (meant, why) in before.items()
    }
