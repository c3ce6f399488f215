"""Which GPUs are not on offer because the file says something of them that this version cannot do."""

from __future__ import annotations

import pytest

from nvdp.config.unbuilt import LATER, Outcome, find_unbuilt
from nvdp.model.inventory import MigMode
from tests.planning.allotting import allotted, shown
from tests.planning.values import gpu, parse, uuid

GPUS = [
    gpu(0),
    gpu(1),
    gpu(2, product="NVIDIA A100-SXM4-80GB", mig=MigMode.ENABLED),
    gpu(3, product="NVIDIA A100-SXM4-80GB", mig=MigMode.DISABLED),
]
ALL = [0, 1, 2, 3]


def withheld(text, *gpus):
    """By number the cards that are withheld."""
    allotment = allotted(text, *(gpus or GPUS))
    return {
        number: allotment.withheld[uuid(number)] for number, text in shown(allotment).items() if text.startswith("-")
    }


MPS = "sharing: {mps: {resources: [{name: gpu, %s}]}}"
SLICES = "sharing: {timeSlicing: {resources: [{name: gpu, rename: s, replicas: 2, devices: %s}]}}"
CASES = {
    "nothing of the kind": ("", []),
    "time-slicing for all": ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}", []),
    "time-slicing for some": (SLICES % "[0, 3]", []),
    "time-slicing for so many": (SLICES % "2", []),
    "cordoned": ("devices: {cordon: [0, 3]}", []),
    "a MIG device of another node": ('devices: {exclude: ["9:0"]}', []),
    "names of their own": ('resources: {gpus: [{pattern: "NVIDIA A100*", name: nvidia.com/a100}]}', []),
    "different GPUs for a container": (
        "sharing: {timeSlicing: {requireDistinctGPUs: true, resources: [{name: gpu, replicas: 2}]}}",
        [],
    ),
    "every way of handing devices over": (
        "flags: {plugin: {deviceListStrategy: [envvar, volume-mounts, cdi-cri, cdi-annotations]}}",
        [],
    ),
    "MPS": (MPS % "replicas: 2", ALL),
    "MPS for some": (MPS % "rename: m, replicas: 2, devices: [1, 3]", [1, 3]),
    "MPS for so many": (MPS % "rename: m, replicas: 2, devices: 2", [0, 1]),
    "MPS for a name that no GPU has": (MPS.replace("name: gpu", "name: x") % "replicas: 2", []),
    "MPS with one replica, which needs its daemon too": (MPS % "rename: m, replicas: 1, devices: [1]", [1]),
    "a Tegra system": ("flags: {deviceDiscoveryStrategy: tegra}", []),
    "IMEX required": ("imex: {channelIDs: [0], required: true}", []),
    "paused": ("devices: {paused: true}\nhealth: {releaseForReset: true}", []),
    "harmless keys": ("flags: {gfd: {oneshot: true}}", []),
}


@pytest.mark.parametrize(("text", "numbers"), CASES.values(), ids=CASES)
def test_the_devices_that_an_unbuilt_key_concerns_are_withheld(text, numbers):
    assert [*withheld(text)] == numbers


def test_every_key_whose_loss_would_offer_a_device_is_among_these_cases():
    used = {unbuilt.path for text, _ in CASES.values() for unbuilt in find_unbuilt(parse(text))}
    for later in LATER:
        if later.outcome is Outcome.WITHHOLD:
            place = later.path.replace("[]", "[0]")
            assert place in used, f"{later.path} has no case"


def test_an_entry_is_not_taken_for_the_tenth_one_whose_number_begins_alike():
    others = "".join(f"{{name: nvidia.com/x{number}, replicas: 2}}, " for number in range(10))
    entry = "{name: gpu, rename: gpu.ts, replicas: 2, devices: [3]}"
    assert [*withheld(f"sharing: {{mps: {{resources: [{others}{entry}]}}}}")] == [3]


def test_the_reason_is_a_word_and_the_text_says_what_would_have_been():
    held = withheld(MPS % "replicas: 2", gpu(0))
    assert {(one.reason, one.path) for one in held.values()} == {("NotBuilt", "sharing.mps.resources[0]")}
    assert held[0].text == "not built yet (these devices would be shared through MPS)"


def test_replicas_alone_withhold_nothing():
    text = "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 3}]}}"
    assert withheld(text) == {}
