"""How GPUs in MIG mode are offered under each strategy, and what is withheld for the way in which they are cut."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.inventory import Fault, MigInstance, MigMode
from nvdp.planning.allotment import allot, resolve_pins
from tests.planning.allotting import show
from tests.planning.values import cut, gpu, inventory, mig_uuid, parse, uuid

STRATEGIES = ("none", "single", "mixed")


def offered(strategy, *gpus, more=""):
    """By NVML's index what each device is offered as, or ``-reason``."""
    config = parse(f"flags: {{migStrategy: {strategy}}}\n{more}")
    allotment = allot(config, inventory(*gpus), resolve_pins(config, gpus, {}, {}))
    assert allotment.assignments.keys() ^ allotment.withheld.keys() == {one.uuid for one in allotment.devices}
    return {
        one.index: show(allotment.assignments[one.uuid])
        if one.uuid in allotment.assignments
        else f"-{allotment.withheld[one.uuid].reason}"
        for one in allotment.devices
    }


def texts(strategy, *gpus, more=""):
    config = parse(f"flags: {{migStrategy: {strategy}}}\n{more}")
    withheld = allot(config, inventory(*gpus), resolve_pins(config, gpus, {}, {})).withheld
    return {one: held.text for one, held in withheld.items()}


SMALL, LARGE = "1g.10gb", "2g.20gb"
BAD = "-MIGInvalid"
CASES = {
    "no GPU in MIG mode": ([gpu(0), gpu(1, mig=MigMode.DISABLED)], *[{"0": "gpu", "1": "gpu"}] * 3),
    "one layout": (
        [cut(0, SMALL, SMALL)],
        {"0": "gpu"},
        {"0:0": "gpu", "0:1": "gpu"},
        {"0:0": "mig-1g.10gb", "0:1": "mig-1g.10gb"},
    ),
    "whole GPUs and another layout": (
        [gpu(0), cut(1, SMALL)],
        {"0": "gpu", "1": "gpu"},
        {"0": BAD, "1:0": "gpu"},  # as many of each: MIG devices are what single is for
        {"0": "gpu", "1:0": "mig-1g.10gb"},
    ),
    "most are whole": (
        [gpu(0), gpu(1), cut(2, SMALL)],
        {"0": "gpu", "1": "gpu", "2": "gpu"},
        {"0": "gpu", "1": "gpu", "2:0": BAD},
        {"0": "gpu", "1": "gpu", "2:0": "mig-1g.10gb"},
    ),
    "as many GPUs of two kinds": (
        [cut(0, LARGE), cut(1, SMALL, SMALL)],
        {"0": "gpu", "1": "gpu"},
        {"0:0": "gpu", "1:0": BAD, "1:1": BAD},
        {"0:0": "mig-2g.20gb", "1:0": "mig-1g.10gb", "1:1": "mig-1g.10gb"},
    ),
    "unequal devices on one GPU": (
        [cut(0, SMALL, LARGE), cut(1, SMALL)],
        {"0": "gpu", "1": "gpu"},
        {"0:0": BAD, "0:1": BAD, "1:0": "gpu"},
        {"0:0": "mig-1g.10gb", "0:1": "mig-2g.20gb", "1:0": "mig-1g.10gb"},
    ),
    "MIG mode without devices": ([cut(0), gpu(1)], {"0": "gpu", "1": "gpu"}, *[{"0": BAD, "1": "gpu"}] * 2),
    "devices that cannot be listed": (
        [cut(0, instances=None), cut(1, SMALL)],
        {"0": "gpu", "1": "gpu"},
        {"0": BAD, "1:0": "gpu"},
        {"0": BAD, "1:0": "mig-1g.10gb"},
    ),
    "a part of a GPU instance": (
        [cut(0, "1c.2g.20gb", SMALL)],
        {"0": "gpu"},
        {"0:0": BAD, "0:1": "gpu"},
        {"0:0": BAD, "0:1": "mig-1g.10gb"},
    ),
    "every suffix, and a profile of next year": (
        [cut(0, "1g.10gb+me", "1g.24gb-me", "1g.24gb+me.all", "1g.24gb+gfx", "3g.99gb+neu.ab")],
        {"0": "gpu"},
        {f"0:{number}": BAD for number in range(5)},
        {
            "0:0": "mig-1g.10gb.me",
            "0:1": "mig-1g.24gb-me",
            "0:2": "mig-1g.24gb.me.all",
            "0:3": "mig-1g.24gb.gfx",
            "0:4": "mig-3g.99gb.neu.ab",
        },
    ),
    "a spelling that is none": ([cut(0, "odd", SMALL)], {"0": "gpu"}, {"0:0": BAD, "0:1": "gpu"}, None),
}


@pytest.mark.parametrize(("gpus", "none", "single", "mixed"), CASES.values(), ids=CASES)
def test_each_strategy_offers_what_it_is_for_and_nothing_ends_for_what_it_cannot(gpus, none, single, mixed):
    for strategy, expected in zip(STRATEGIES, (none, single, mixed), strict=True):
        if expected is not None:
            assert offered(strategy, *gpus) == expected, strategy


def test_what_is_withheld_says_which_gpu_it_is_how_it_is_cut_and_what_to_do():
    unequal = texts("single", cut(0, "1g.5gb", "2g.10gb"))
    (said,) = set(unequal.values())
    assert said == (
        f"GPU 0 ({uuid(0)}) has unequal MIG devices (1g.5gb, 2g.10gb); single offers one kind: make them alike, "
        "or set mixed"
    )
    assert texts("single", gpu(0), cut(1, SMALL)) == {
        uuid(0): f"GPU 0 ({uuid(0)}) is whole, and single offers one kind, here GPUs that are cut into 1g.10gb: "
        "make them alike, or set mixed"
    }
    assert texts("mixed", cut(0))[uuid(0)].endswith(
        "is in MIG mode without MIG devices; create some, or switch MIG off"
    )
    fault = Fault(call="nvmlDeviceGetMaxMigDeviceCount", kind="Unknown", text="Unknown Error")
    assert texts("mixed", cut(0, instances=None, fault=fault))[uuid(0)].endswith("cannot be listed: Unknown Error")
    assert texts("mixed", cut(0, "1c.3g.40gb"))[mig_uuid(0, 0)] == (
        "MIG device 0:0 is 1c.3g.40gb, smaller than its GPU instance; only a whole GPU instance can be offered"
    )
    endless = f"1g.10gb+{'x' * 60}"
    assert "makes no resource" in texts("mixed", cut(0, endless))[mig_uuid(0, 0)]
    bare = MigInstance(uuid="MIG-x", index=4, fault=fault)
    assert texts("mixed", cut(0, instances=(bare,)))["MIG-x"] == (
        "the profile of MIG device 0:4 is not known: Unknown Error"
    )


def test_what_is_excluded_does_not_count_when_devices_are_compared():
    more = 'devices: {exclude: ["0:1"]}'
    assert offered("single", cut(0, SMALL, LARGE), more=more) == {"0:0": "gpu", "0:1": "-Excluded"}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gpu_reference_means_the_gpu_and_all_its_mig_devices(strategy):
    found = offered(strategy, cut(0, SMALL, SMALL), gpu(1), more="devices: {exclude: [0]}")
    assert set(found.values()) == {"-Excluded", "gpu"}
    assert found["1"] == "gpu"


def test_names_of_the_file_come_before_the_profiles():
    rules = 'resources: {mig: [{pattern: "1g.*", name: small}, {pattern: "2g.20gb+me", name: media}]}'
    gpus = [cut(0, SMALL, "1g.10gb+me", "2g.20gb", "2g.20gb+me")]
    assert [*offered("mixed", *gpus, more=rules).values()] == ["small", "small", "mig-2g.20gb", "media"]
    assert [*offered("single", cut(0, SMALL), more=rules).values()] == ["small"]


# Vectors A9: the pattern, the profile, and whether it is the one
PATTERNS = [
    ("1g.24gb", "1g.24gb", True),
    ("1g.24gb", "2g.48gb", False),
    ("1g.24gb", "1g.24gb-me", False),
    ("1g.24gb", "1g.24gb+me.all", False),
    ("1g.24gb-me", "1g.24gb-me", True),
    ("1g.24gb+me*", "1g.24gb+me.all", True),
    ("*", "7g.80gb", True),
]


@pytest.mark.parametrize(("pattern", "profile", "matches"), PATTERNS)
def test_a_pattern_matches_the_whole_profile(pattern, profile, matches):
    (name,) = offered(
        "mixed", cut(0, profile), more=f'resources: {{mig: [{{pattern: "{pattern}", name: x}}]}}'
    ).values()
    assert (name == "x") is matches


def share(*entries, block="timeSlicing"):
    listed = ", ".join(f"{{{entry}}}" for entry in entries)
    return f"sharing: {{{block}: {{resources: [{listed}]}}}}"


LEGACY = f"MIG-{uuid(0)}/2/0"
SHARES = {
    "all": ("devices: all", [0, 1, 2, 3]),
    "a count": ("devices: 2; rename: s", [0, 1]),
    "by their indices": ('devices: ["0:1", "1:0"]; rename: s', [1, 2]),
    "by a UUID": (f"devices: [{mig_uuid(1, 1)}]; rename: s", [3]),
    "by an old UUID": (f"devices: [{LEGACY}]; rename: s", [1]),
    "by their GPU": ("devices: [1]; rename: s", [2, 3]),
}


@pytest.mark.parametrize(("how", "shared"), SHARES.values(), ids=SHARES)
def test_mig_devices_are_time_sliced_as_gpus_are(how, shared):
    entry = f"name: mig-1g.10gb, replicas: 3, {how.replace(';', ',')}"
    found = offered("mixed", cut(0, SMALL, SMALL), cut(1, SMALL, SMALL), more=share(entry))
    assert [number for number, text in enumerate(found.values()) if "/3" in text] == shared
    assert not [text for text in found.values() if text.startswith("-")]


def test_a_list_takes_of_a_gpu_only_what_has_the_entry_s_name_and_leaves_the_rest():
    entry = "name: mig-1g.10gb, replicas: 2, devices: [0], rename: s"
    assert [*offered("mixed", cut(0, SMALL, LARGE), more=share(entry)).values()] == ["s/2", "mig-2g.20gb"]


def test_one_device_in_two_entries_is_withheld_with_the_later_one():
    entries = [f"name: mig-1g.10gb, replicas: 2, devices: [{which}], rename: {name}" for which, name in
               (("0", "s"), (mig_uuid(0, 1), "t"), ('"1:0"', "u"))]  # fmt: skip
    found = offered("mixed", cut(0, SMALL, SMALL), cut(1, SMALL), more=share(*entries))
    assert found == {"0:0": "s/2", "0:1": "s/2", "1:0": "u/2"}


@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_mps_on_mig_devices_is_refused(strategy):
    name = "gpu" if strategy == "single" else "mig-1g.10gb"
    found = offered(strategy, cut(0, SMALL), gpu(1), more=share(f"name: {name}, replicas: 2", block="mps"))
    assert found["0:0"] == "-MPSUnsupported"


def test_a_mig_device_that_is_excluded_or_cordoned_keeps_its_whole_gpu_back_where_that_is_one_device():
    found = offered("none", cut(0, SMALL, SMALL), gpu(1), more='devices: {exclude: ["0:1"]}')
    assert found == {"0": "-Excluded", "1": "gpu"}
    config = parse(f"devices: {{cordon: [{mig_uuid(0, 0)}]}}")
    assert [*allot(config, inventory(cut(0, SMALL)), {}).cordoned] == [uuid(0)]


def test_a_list_of_mig_devices_where_gpus_are_offered_as_one_is_told():
    entry = 'name: gpu, replicas: 2, devices: ["0:0"], rename: s'
    config = parse(share(entry))
    (said,) = allot(config, inventory(cut(0, SMALL)), resolve_pins(config, [cut(0, SMALL)], {}, {})).unmatched
    assert said.endswith("0:0 is a MIG device, and flags.migStrategy is none: its GPU is offered as one")


@pytest.mark.invariant(10)
@pytest.mark.parametrize("how", ['devices: ["0:0"]', "devices: 1"])
def test_what_is_pinned_of_mig_devices_stays_with_them(how):
    config = parse("flags: {migStrategy: mixed}\n" + share(f"name: mig-1g.10gb, replicas: 2, {how}, rename: s"))
    first = [cut(0, SMALL, SMALL)]
    pins = resolve_pins(config, first, {}, {})

    def taken(*gpus):
        shown = allot(config, inventory(*gpus), resolve_pins(config, gpus, {}, pins))
        return [one for one, each in shown.assignments.items() if each.form.shared], shown.unmatched

    assert taken(*first) == ([mig_uuid(0, 0)], ())
    (another,) = cut(0, SMALL).instances
    renumbered = msgspec.structs.replace(cut(0, SMALL, SMALL).instances[0], index=5)
    grown = cut(0, instances=(msgspec.structs.replace(another, uuid="MIG-new", gpu_instance=9), renumbered))
    assert taken(grown)[0] == [mig_uuid(0, 0)], "its index is another one now"
    gone, said = taken(cut(0, instances=(msgspec.structs.replace(another, uuid="MIG-new"),)))
    assert gone == []
    assert "not replaced" in said[0]


PROFILES = st.lists(st.sampled_from([SMALL, "1g.10gb+me", LARGE, "1c.2g.20gb", "odd", "7g.80gb"]), max_size=7)
GPUS = st.lists(st.one_of(st.none(), PROFILES), max_size=5)


def build(layouts):
    return [gpu(number) if one is None else cut(number, *one) for number, one in enumerate(layouts)]


@given(GPUS, st.sampled_from(STRATEGIES))
def test_whatever_the_layout_single_offers_one_kind_and_one_bad_gpu_takes_nothing_from_another(layouts, strategy):
    gpus = build(layouts)
    found = offered(strategy, *gpus)
    on_offer = {index for index, text in found.items() if not text.startswith("-")}
    if strategy == "none":
        assert len(on_offer) == len(gpus)
    if strategy == "single":
        kinds = {layouts[int(index.partition(":")[0])][int(index.partition(":")[2])] if ":" in index else None
                 for index in on_offer}  # fmt: skip
        assert len(kinds) <= 1
        assert set(found.values()) <= {"gpu", BAD}
    if strategy == "mixed":
        for number, layout in enumerate(layouts):
            alone = offered("mixed", gpus[number])
            assert {index: text for index, text in found.items() if index.partition(":")[0] == str(number)} == alone
            whole = ["gpu"] if layout is None else [f"mig-{one.replace('+', '.')}" for one in layout if one[1] == "g"]
            assert [text for text in alone.values() if text != BAD] == whole


@given(GPUS, st.sampled_from(STRATEGIES), st.randoms())
def test_the_order_in_which_gpus_and_devices_are_found_does_not_matter(layouts, strategy, random):
    gpus = build(layouts)
    shuffled = [
        msgspec.structs.replace(one, instances=tuple(random.sample(one.instances, len(one.instances))))
        if one.instances
        else one
        for one in random.sample(gpus, len(gpus))
    ]
    assert [*offered(strategy, *gpus).items()] == [*offered(strategy, *shuffled).items()]


# What users report (D), as far as planning goes


def test_profiles_that_differ_by_a_suffix_alone_are_counted_apart():
    layout = [*["1g.10gb"] * 5, "1g.10gb+me", "1g.20gb"]
    found = [*offered("mixed", cut(0, *layout), cut(1, *layout)).values()]
    assert {name: found.count(name) for name in found} == {"mig-1g.10gb": 10, "mig-1g.10gb.me": 2, "mig-1g.20gb": 2}


def test_an_empty_gpu_in_mig_mode_after_a_reboot_leaves_the_others_and_is_offered_once_it_is_cut():
    assert offered("mixed", cut(0), gpu(1)) == {"0": BAD, "1": "gpu"}
    assert offered("mixed", cut(0, "7g.80gb"), gpu(1)) == {"0:0": "mig-7g.80gb", "1": "gpu"}


SILENT = Fault(call="nvmlDeviceGetMigMode", kind="Unknown", text="no answer")


def test_gpus_of_which_nobody_knows_how_they_are_cut_have_no_voice_and_are_not_called_whole():
    silent = [gpu(0, fault=SILENT), gpu(1, fault=SILENT)]
    assert offered("single", *silent, cut(2, SMALL, SMALL)) == {"0": BAD, "1": BAD, "2:0": "gpu", "2:1": "gpu"}
    assert "whether it is in MIG mode cannot be read" in texts("single", *silent, cut(2, SMALL))[uuid(0)]
    assert offered("single", *silent) == {"0": "gpu", "1": "gpu"}  # a node without MIG devices, as far as is known


def test_a_count_is_not_tied_to_a_gpu_that_may_be_cut():
    config = parse("""\
        flags: {migStrategy: mixed}
        sharing: {timeSlicing: {resources: [{name: gpu, rename: shared, devices: 2, replicas: 2}]}}
        """)
    gpus = [gpu(0, fault=SILENT), gpu(1), gpu(2), gpu(3)]
    first = resolve_pins(config, gpus, {}, {})
    assert {uuid(1), uuid(2)} <= {*first.values()}
    assert uuid(0) not in first.values()
    again = resolve_pins(config, [cut(0, SMALL), *gpus[1:]], {}, first)
    assert {uuid(1), uuid(2)} <= {*again.values()}


def test_an_index_that_names_nothing_is_remembered_by_no_more_than_what_is_there():
    config = parse('devices: {exclude: ["1:0"]}\nflags: {migStrategy: mixed}')
    pins = {}
    for number in range(50):
        made = cut(0, SMALL, SMALL)
        instances = tuple(msgspec.structs.replace(one, uuid=mig_uuid(number, one.index)) for one in made.instances)
        pins = resolve_pins(config, [msgspec.structs.replace(made, instances=instances), gpu(1)], {}, pins)
    assert len(pins) < 10
