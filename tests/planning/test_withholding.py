"""Which GPUs are not on offer because the file says something of them that this version cannot do."""

from __future__ import annotations

import pytest

from nvdp.config.unbuilt import LATER, Outcome, find_unbuilt
from nvdp.model.inventory import MigMode
from nvdp.planning.pins import resolve_pins
from nvdp.planning.withholding import withhold
from tests.planning.values import gpu, parse, sliced, uuid

GPUS = [
    gpu(0),
    gpu(1),
    gpu(2, product="NVIDIA A100-SXM4-80GB", mig=MigMode.ENABLED),
    gpu(3, product="NVIDIA A100-SXM4-80GB", mig=MigMode.DISABLED),
]
ALL = [0, 1, 2, 3]
MIG_UUID = "MIG-3eb87630-93d5-b2b6-b8ff-9b359caf4ee2"


def withheld_by(text, gpus=None):
    config = parse(text)
    chosen = GPUS if gpus is None else gpus
    return withhold(config, chosen, resolve_pins(config, chosen, {}, {}))


def numbers(text):
    return sorted(int(one.rpartition("-")[2]) for one in withheld_by(text))


ENTRIES = """\
sharing:
  timeSlicing:
    resources: [{name: %s, replicas: 2}]
  mps:
    resources: [{name: nvidia.com/gpu, rename: nvidia.com/gpu.mps, replicas: 2, devices: %s}]
"""
CASES = {
    "nothing of the kind": ("", []),
    "time-slicing alone": ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}", []),
    "excluded by index": ("devices: {exclude: [1]}", [1]),
    "excluded by UUID and by slot": (f'devices: {{exclude: [{uuid(0)}, "0000:13:00.0"]}}', [0, 3]),
    "excluded, but not of this node": (f"devices: {{exclude: [{uuid(9)}, 9]}}", []),
    "a MIG device excluded by its place": ('devices: {exclude: ["2:0"]}', [2]),
    "a MIG device excluded by a UUID that does not tell its GPU": (f"devices: {{exclude: [{MIG_UUID}]}}", [2]),
    "a MIG device excluded by a UUID that tells its GPU": (f"devices: {{exclude: [MIG-{uuid(3)}/1/0]}}", [3]),
    "cordoned": ("devices: {cordon: [0, 3]}", [0, 3]),
    "paused": ("devices: {paused: true}", ALL),
    "MIG devices in place of GPUs in MIG mode": ("flags: {migStrategy: mixed}", [2]),
    "the same for single": ("flags: {migStrategy: single}", [2]),
    "CDI": ("flags: {plugin: {deviceListStrategy: [cdi-cri]}}", ALL),
    "CDI beside the environment": ("flags: {plugin: {deviceListStrategy: [envvar, cdi-annotations]}}", ALL),
    "environment and mounts": ("flags: {plugin: {deviceListStrategy: [envvar, volume-mounts]}}", []),
    "a name of their own": ('resources: {gpus: [{pattern: "NVIDIA A100*", name: nvidia.com/a100}]}', [2, 3]),
    "the first pattern wins": (
        'resources: {gpus: [{pattern: "*A100*", name: nvidia.com/gpu}, {pattern: "NVIDIA*", name: nvidia.com/x}]}',
        [0, 1],
    ),
    "the default name": ('resources: {gpus: [{pattern: "*", name: nvidia.com/gpu}]}', []),
    "time-slicing for some": (
        "sharing: {timeSlicing: {resources: [{name: gpu, rename: gpu.ts, replicas: 2, devices: [0, 3]}]}}",
        [0, 3],
    ),
    "time-slicing for so many": (
        "sharing: {timeSlicing: {resources: [{name: gpu, rename: gpu.ts, replicas: 2, devices: 2}]}}",
        ALL,
    ),
    "a new name": ("sharing: {timeSlicing: {resources: [{name: gpu, rename: gpu.ts, replicas: 2}]}}", ALL),
    "the name that it has anyway": ("sharing: {timeSlicing: {resources: [{name: gpu, rename: gpu, replicas: 2}]}}", []),
    "different GPUs for a container": (
        "sharing: {timeSlicing: {requireDistinctGPUs: true, resources: [{name: gpu, replicas: 2}]}}",
        ALL,
    ),
    "MPS": ("sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}", ALL),
    "MPS for some, time-slicing for the rest": (ENTRIES % ("gpu", "[1, 2]"), [1, 2]),
    "MPS for one by count: any may be meant": (ENTRIES % ("gpu", "1"), ALL),
    "MPS for all that time-slicing by list leaves": (
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, rename: gpu.ts, replicas: 2, devices: [0]}]}, "
            "mps: {resources: [{name: gpu, rename: gpu.mps, replicas: 2}]}}"
        ),
        ALL,
    ),
    "MPS for a name that no GPU has": ("sharing: {mps: {resources: [{name: nvidia.com/x, replicas: 2}]}}", []),
    "a Tegra system": ("flags: {deviceDiscoveryStrategy: tegra}", ALL),
    "IMEX required": ("imex: {channelIDs: [0], required: true}", ALL),
    "harmless keys": ("health: {profile: catalog}\nflags: {gfd: {oneshot: true}}", []),
}


@pytest.mark.parametrize(("text", "withheld"), CASES.values(), ids=CASES)
def test_the_devices_that_an_unbuilt_key_concerns_are_withheld(text, withheld):
    assert numbers(text) == withheld


def test_every_key_whose_loss_would_offer_a_device_is_among_these_cases():
    used = {unbuilt.path for text, _ in CASES.values() for unbuilt in find_unbuilt(parse(text))}
    for later in LATER:
        if later.outcome is Outcome.WITHHOLD:
            place = later.path.replace("[]", "[0]")
            assert place in used, f"{later.path} has no case"


def test_an_entry_is_not_taken_for_the_tenth_one_whose_number_begins_alike():
    others = "".join(f"{{name: nvidia.com/x{number}, replicas: 2}}, " for number in range(10))
    entry = "{name: gpu, rename: gpu.ts, replicas: 2, devices: [3]}"
    assert numbers(f"sharing: {{timeSlicing: {{resources: [{others}{entry}]}}}}") == [3]


def test_the_reason_is_a_word_and_the_text_says_what_would_have_been():
    withheld = withheld_by("devices: {exclude: [0], cordon: [1]}\nflags: {migStrategy: mixed}")
    assert {one: (held.reason, held.path) for one, held in withheld.items()} == {
        uuid(0): ("Excluded", "devices.exclude"),
        uuid(1): ("Cordoned", "devices.cordon"),
        uuid(2): ("Unsupported", "flags.migStrategy"),
    }
    assert withheld[uuid(0)].text == "not built yet (these devices would be left to others)"
    assert withheld_by("devices: {paused: true}")[uuid(3)].reason == "NotBuilt"


def test_of_several_reasons_the_first_of_the_list_counts():
    assert withheld_by("devices: {exclude: [0], paused: true}")[uuid(0)].reason == "Excluded"


def test_a_gpu_whose_product_could_not_be_read_may_have_a_name_of_its_own():
    text = 'resources: {gpus: [{pattern: "NVIDIA A100*", name: nvidia.com/a100}]}'
    assert list(withheld_by(text, [gpu(0, product=None)])) == [uuid(0)]


@pytest.mark.invariant(10)
def test_an_excluded_card_stays_withheld_when_nvml_renumbers():
    config = parse("devices: {exclude: [1]}")
    pins = resolve_pins(config, GPUS, {}, {})
    renumbered = [gpu(1, index=0), gpu(2, index=1)]
    assert list(withhold(config, renumbered, pins)) == [uuid(1)]


def test_replicas_alone_withhold_nothing():
    assert withhold(sliced(3, rename=True), GPUS, {}) == {}
