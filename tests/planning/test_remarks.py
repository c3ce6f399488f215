"""Warnings and notes: each when it is due, and none where all is well."""

from __future__ import annotations

import re

import msgspec
import pytest

from nvdp.model.topology import Ancestor, Connection
from nvdp.planning.allotment import resolve_pins
from nvdp.planning.means import Means
from nvdp.planning.preview import Node, build_preview
from tests.planning.mps_values import card, mps_file
from tests.planning.values import ailment, cut, gpu, inventory, parse, sliced, uuid

A100 = "NVIDIA A100-SXM4-80GB"


def remarks(text, *gpus, **known):
    preview = build_preview(parse(text), Node(inventory=inventory(*gpus), **known))
    return list(preview.warnings), list(preview.notes)


def named(*patterns):
    rules = ", ".join(f'{{pattern: "{pattern}", name: nvidia.com/r{at}}}' for at, pattern in enumerate(patterns))
    return f"resources: {{gpus: [{rules}]}}"


def test_nothing_is_said_where_all_is_well():
    assert remarks("", gpu(0)) == ([], [])
    assert remarks(named("NVIDIA A10"), gpu(0)) == ([], [])


def test_a_key_that_only_a_new_process_follows_is_noted():
    assert remarks("allocation: {preStartCheck: idle}", gpu(0)) == (
        [],
        ["allocation.preStartCheck: an nvdp that starts with it uses it; one that runs keeps what it started with"],
    )


def test_a_pause_in_the_file_is_noted_since_it_changes_no_device_list():
    assert remarks("devices: {paused: true}", gpu(0)) == (
        [],
        ["devices.paused: nvdp lets go of the driver; pods that ask for a GPU stay Pending until it is false"],
    )


def test_a_pattern_that_names_a_part_of_a_product_is_told_what_to_write():
    assert remarks(named("A100"), gpu(0, product=A100)) == (
        [
            f'resources.gpus[0] "A100" matches none of: {A100}; patterns match the whole name, try "*A100*"',
        ],
        [],
    )


@pytest.mark.parametrize(
    ("pattern", "remedy"),
    [
        ("NVIDIA A100", 'patterns match the whole name, try "*NVIDIA A100*"'),
        ("A100*", 'patterns match the whole name, try "*A100*"'),
        ("nvidia a100*", "case counts"),
        ("a100", "case counts"),
    ],
)
def test_a_pattern_that_nearly_matches_gets_the_remedy_that_fits(pattern, remedy):
    (warning,) = remarks(named(pattern), gpu(0, product=A100), gpu(1, product="NVIDIA L4"))[0]
    assert warning == f'resources.gpus[0] "{pattern}" matches none of: {A100}, NVIDIA L4; {remedy}'


@pytest.mark.parametrize("pattern", ["NVIDIA A100*", "*"])
def test_a_pattern_that_matches_something_is_fine(pattern):
    assert remarks(named(pattern), gpu(0, product=A100)) == ([], [])


def test_a_pattern_that_matches_nothing_at_all_is_a_note():
    note = f'resources.gpus[0] "NVIDIA H100*" matches none of: {A100} (fine if other nodes share this file)'
    assert remarks(named("NVIDIA H100*"), gpu(0, product=A100)) == ([], [note])
    assert remarks(named("NVIDIA H100*")) == ([], [])


def test_names_of_mig_devices_that_are_not_offered_are_a_warning():
    text = "resources: {mig: [{pattern: 1g.10gb, name: small}]}"
    (warning,) = remarks(text, cut(0, "1g.10gb"))[0]
    assert warning.startswith("resources.mig: no effect while flags.migStrategy is none")
    assert remarks(f"flags: {{migStrategy: mixed}}\n{text}", cut(0, "1g.10gb")) == ([], [])


def test_a_pattern_that_would_match_an_excluded_card_alone_is_no_near_miss():
    text = 'devices: {exclude: ["0000:10:00.0"]}\n' + named("A100")
    assert remarks(text, gpu(0, product=A100), gpu(1))[0] == []


def test_a_pattern_that_lost_its_cards_to_an_earlier_one_is_no_near_miss():
    assert remarks(named("NVIDIA A100*", "*A100-SXM4*"), gpu(0, product=A100)) == ([], [])


def test_what_the_file_names_and_the_node_does_not_have_is_a_warning():
    (warning,) = remarks("devices: {cordon: [7]}", gpu(0))[0]
    assert warning == "devices.cordon[0]: 7 is not on this node (fine if other nodes share this file)"


def test_an_imex_channel_that_the_node_does_not_have_is_a_warning():
    text = "imex: {channelIDs: [0]}"
    path = "/dev/nvidia-caps-imex-channels/channel0"
    assert remarks(text, gpu(0)) == (
        [f"imex.channelIDs: {path} is not on this node; containers do without it"],
        [],
    )
    assert remarks(text, gpu(0), means=Means(imex_channels=(0,))) == ([], [])


def test_too_few_cards_for_a_count_are_a_warning():
    text = """\
sharing:
  timeSlicing:
    resources: [{name: nvidia.com/gpu, rename: nvidia.com/some, devices: 3, replicas: 2}]
"""
    (warning,) = remarks(text, gpu(0))[0]
    assert warning.startswith("sharing.timeSlicing.resources[0].devices: 3 asked, 1 of nvidia.com/gpu here")


def test_excluding_every_card_is_a_warning():
    assert remarks("devices: {exclude: [0, 1]}", gpu(0), gpu(1))[0] == [
        "devices.exclude: every GPU of this node is excluded"
    ]
    assert remarks("devices: {exclude: [0]}", gpu(0), gpu(1))[0] == []


def test_a_node_without_cards_is_no_warning():
    assert remarks("") == ([], [])


def test_what_the_file_itself_warns_of_comes_with_its_place():
    text = "sharing: {timeSlicing: {failRequestsGreaterThanOne: true, requireDistinctGPUs: true, resources: "
    text += "[{name: nvidia.com/gpu, replicas: 2}]}}"
    (warning,) = remarks(text, gpu(0))[0]
    assert warning.startswith("test.yaml:1:")
    assert "sharing.timeSlicing.requireDistinctGPUs: no effect" in warning


def test_a_key_that_withholds_nothing_here_is_no_warning():
    assert remarks("flags: {migStrategy: mixed, gfd: {noTimestamp: true}}", gpu(0))[0] == []


TWO = "flags: {migStrategy: mixed, plugin: {deviceListStrategy: %s}}"
ONE_ONLY = (
    "nvidia.com/gpu, nvidia.com/mig-1g.10gb: a container that asks for two of them sees the devices of one only, at "
    "random; flags.plugin.deviceListStrategy: volume-mounts or cdi-cri gives it both"
)


def slices():
    """A GPU with a MIG device whose capability nodes are known."""
    card = cut(0, "1g.10gb")
    (instance,) = card.instances
    return msgspec.structs.replace(card, instances=(msgspec.structs.replace(instance, nodes=("/dev/a", "/dev/b")),))


def cautions(text, *gpus):
    preview = build_preview(parse(text), Node(inventory=inventory(*gpus)))
    assert not preview.is_doubtful
    return list(preview.cautions)


def test_two_resources_that_set_the_same_variable_are_warned_of_though_the_file_is_not_in_doubt():
    assert cautions(TWO % "envvar", slices(), gpu(1)) == [ONE_ONLY]
    assert cautions(TWO % "envvar", gpu(0), gpu(1)) == []
    assert cautions(TWO % "envvar", cut(0, "1g.10gb", "1g.10gb")) == []


@pytest.mark.parametrize("ways", ["cdi-cri", "cdi-annotations", "[envvar, cdi-cri]"])
def test_where_each_resource_names_its_own_devices_there_is_nothing_to_warn_of(ways):
    assert remarks(TWO % ways, slices(), gpu(1)) == ([], [])
    assert cautions(TWO % ways, slices(), gpu(1)) == []


def test_several_shares_by_mps_are_noted_to_be_limits_that_a_container_can_change():
    several = mps_file("name: gpu, replicas: 4", more="failRequestsGreaterThanOne: false,")
    warnings, (note,) = remarks(several, card(0))
    assert warnings == []
    assert note == (
        "sharing.mps.failRequestsGreaterThanOne: false: the control daemon limits a process to all shares of a GPU, "
        "and a container to its own by variables that it can change: a fair share, no protection"
    )
    assert remarks(mps_file("name: gpu, replicas: 4"), card(0)) == ([], [])
    assert remarks(several.replace("replicas: 4", "replicas: 1"), card(0)) == ([], [])


@pytest.mark.parametrize("ways", ["envvar", "cdi-cri"])
def test_a_container_that_mps_and_something_else_would_serve_is_warned_of(ways):
    text = f"flags: {{plugin: {{deviceListStrategy: [{ways}]}}}}\n"
    (said,) = cautions(text + mps_file("name: gpu, rename: m, devices: [0], replicas: 4"), card(0), card(1))
    assert said == (
        "nvidia.com/m: a container that asks for one of them and for GPUs of any other resource reaches one MPS "
        "control daemon, and its GPUs alone; an admission policy can refuse it"
    )
    assert cautions(text + mps_file("name: gpu, replicas: 4"), card(0), card(1)) == []


@pytest.mark.parametrize("ways", ["volume-mounts", "[envvar, volume-mounts]"])
def test_what_the_toolkit_must_be_told_for_mounts_is_noted(ways):
    warnings, (note,) = remarks(TWO % ways, slices(), gpu(1))
    assert warnings == []
    assert note == (
        "flags.plugin.deviceListStrategy: volume-mounts needs accept-nvidia-visible-devices-as-volume-mounts = true "
        "in the NVIDIA container toolkit's config.toml"
    )


def test_both_ways_of_cdi_are_one_warning():
    (warning,) = remarks("flags: {plugin: {deviceListStrategy: [cdi-cri, cdi-annotations]}}", gpu(0))[0]
    assert warning.endswith("cdi-annotations and cdi-cri name the same devices; only cdi-cri is sent")


def test_different_replicas_under_one_name_are_pointed_out():
    text = """\
sharing:
  timeSlicing:
    resources:
    - {name: nvidia.com/gpu, devices: [0], replicas: 10}
    - {name: nvidia.com/gpu, replicas: 4}
"""
    warnings, (note,) = remarks(text, gpu(0), gpu(1))
    assert warnings == []
    assert note == "nvidia.com/gpu: a pod gets 1/4 or 1/10 of a GPU, as it happens; rename would keep them apart"


def test_an_entry_for_all_of_a_name_that_no_card_has_is_pointed_out():
    text = "sharing: {timeSlicing: {resources: [{name: nvidia.com/a100, replicas: 4}]}}"
    (note,) = remarks(text, gpu(0))[1]
    assert note.startswith("sharing.timeSlicing.resources[0]: shares nothing here: no GPU is nvidia.com/a100")


def test_an_index_that_another_card_has_by_now_is_pointed_out():
    text = "devices: {cordon: [0]}"
    pins = resolve_pins(parse(text), [gpu(0), gpu(1)], {}, {})
    (note,) = remarks(text, gpu(0, index=1), gpu(1, index=0), pins=pins)[1]
    assert note == (f"devices.cordon[0]: 0 is {uuid(0)} since it was applied, though {uuid(1)} has that index now")
    assert remarks(text, gpu(0), gpu(1), pins=pins)[1] == []


def test_a_resource_that_is_left_without_a_usable_card_is_pointed_out():
    note = "nvidia.com/gpu: all of its GPUs are cordoned or ailing; pods that ask for it stay Pending"
    assert remarks("devices: {cordon: [0]}", gpu(0), gpu(1), ailments={uuid(1): ailment()}) == ([], [note])
    assert remarks("devices: {cordon: [0]}", gpu(0), gpu(1)) == ([], [])


def test_health_is_no_matter_for_a_warning():
    preview = build_preview(sliced(2), Node(inventory=inventory(gpu(0)), ailments={uuid(0): ailment()}))
    assert preview.warnings == ()


def test_patterns_of_mig_devices_are_looked_at_by_their_profiles():
    text = "flags: {migStrategy: mixed}\nresources: {mig: [{pattern: 1g, name: small}]}"
    assert remarks(text, cut(0, "1g.10gb+me"))[0] == [
        'resources.mig[0] "1g" matches none of: 1g.10gb+me; patterns match the whole name, try "*1g*"'
    ]
    assert remarks(text, gpu(0))[0] == []


def test_whole_gpus_and_mig_devices_under_one_name_are_pointed_out():
    text = "flags: {migStrategy: mixed}\nresources: {mig: [{pattern: '*', name: gpu}]}"
    (note,) = remarks(text, cut(0, "1g.10gb"), gpu(1))[1]
    assert note.startswith("nvidia.com/gpu: a pod gets a whole GPU or a MIG device")


def test_a_node_of_which_every_mig_device_is_excluded_is_one_of_which_every_gpu_is():
    text = "flags: {migStrategy: mixed}\ndevices: {exclude: [0]}"
    assert remarks(text, cut(0, "1g.10gb"))[0] == ["devices.exclude: every GPU of this node is excluded"]


def ring(count):
    """GPUs of which each has NVLinks to the next two: no tree."""
    gpus = [gpu(number) for number in range(count)]
    pairs = {tuple(sorted((number, (number + step) % count))): 3 - step for number in range(count) for step in (1, 2)}
    links = tuple(
        Connection(a=uuid(a), b=uuid(b), ancestor=Ancestor.SYSTEM, nvlinks=nvlinks)
        for (a, b), nvlinks in sorted(pairs.items())
    )
    return msgspec.structs.replace(inventory(*gpus), connections=links)


def test_gpus_that_are_too_many_for_the_best_choice_are_told_with_what_is_certain():
    (note,) = build_preview(parse(), Node(inventory=ring(20))).notes
    found = re.fullmatch(r"nvidia.com/gpu: 20 GPUs .* one by one, .* at least (\d+) % for \d.* are certain", note)
    assert found is not None
    assert 50 < int(found[1]) < 100
    assert build_preview(parse(), Node(inventory=ring(16))).notes == ()
    assert build_preview(parse(), Node(inventory=inventory(*(gpu(number) for number in range(20))))).notes == ()
    assert build_preview(sliced(2), Node(inventory=ring(20))).notes == ()
