"""Node files: what they say, short or in full, and the one line that a mistake in them gets."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.errors import HostError
from nvdp.model.inventory import ComputeMode
from nvdp.nvml.simulated.models import MODELS
from nvdp.nvml.simulated.node import DriverState, MigState
from nvdp.nvml.simulated.nodefile import NODES, load_node, parse_node


def parse(text: str):
    return parse_node(text, name="node.yaml")


@pytest.mark.parametrize(
    ("name", "products", "numa", "mig"),
    [
        ("dgx-h100", ["NVIDIA H100 80GB HBM3"] * 8, [0] * 4 + [1] * 4, MigState.DISABLED),
        ("a100", ["NVIDIA A100-SXM4-80GB"] * 8, [0] * 4 + [1] * 4, MigState.DISABLED),
        ("a100-t400", ["NVIDIA T400 4GB"] + ["NVIDIA A100-SXM4-80GB"] * 8, [0] * 5 + [1] * 4, MigState.UNSUPPORTED),
        ("h200-mig", ["NVIDIA H200"] * 4, [0, 0, 1, 1], MigState.DISABLED),
        ("a10", ["NVIDIA A10"] * 4, [0, 0, 1, 1], MigState.UNSUPPORTED),
        ("t4", ["Tesla T4"], [None], MigState.UNSUPPORTED),
        ("mixed", ["NVIDIA A100-SXM4-80GB"] * 2 + ["NVIDIA L40S"] * 2, [0, 0, 1, 1], MigState.DISABLED),
    ],
)
def test_the_nodes_that_come_with_nvdp(name, products, numa, mig) -> None:
    node = load_node(name)
    assert [gpu.product for gpu in node.gpus] == products
    assert [gpu.numa for gpu in node.gpus] == numa
    assert node.gpus[0].mig is mig
    assert bool(node.gpus[0].nvswitch_links) == (name in {"dgx-h100", "a100", "h200-mig"})


def test_every_node_that_comes_along_is_listed_above() -> None:
    names = sorted(path.stem for path in NODES.glob("*.yaml"))
    assert names == ["a10", "a100", "a100-t400", "dgx-h100", "h200-mig", "mixed", "t4"]


def test_the_short_form_gives_each_card_a_name_and_a_slot_of_its_own() -> None:
    gpus = parse("gpus: [{model: t4, count: 40}]").gpus
    assert len({gpu.uuid for gpu in gpus}) == len({gpu.pci for gpu in gpus}) == 40
    assert [gpu.minor for gpu in gpus] == list(range(40))
    assert parse("gpus: [{model: t4, count: 40}]").gpus == gpus, "and always the same"


def test_every_fact_can_be_given_for_all_cards_or_for_each() -> None:
    node = parse(
        """
driver: {version: 570.1, cuda: 12.8, kernel: 570.2, state: not-loaded}
gpus:
- model: h100-sxm5-80gb
  count: 2
  uuid: [GPU-a, GPU-b]
  pci: [0000:17:00.0, "0001:65:00.0"]
  minor: [7, 3]
  numa: [1, null]
  memoryBytes: 1024
  product: Something else
  computeCapability: 9.1
  computeMode: [Prohibited, ExclusiveProcess]
  mig: enabled
  migPending: disabled
  instances: [{profile: 1g.10gb, gpuInstance: 9, computeInstance: 2}, {profile: 2c.3g.40gb+me}]
  nvswitchLinks: 4
  processes: [{pid: 42, memoryBytes: 512}]
lost: [GPU-a]
removed: ["0001:65:00.0"]
nvlinks: [{gpus: [0, 1], links: 2}]
pcieSwitches: [[0, GPU-b]]
faults:
- {call: nvmlDeviceGetName, gpu: 1, error: NVML_ERROR_GPU_IS_LOST}
- {call: "*", error: 999}
- {call: nvmlDeviceGetCount_v2, hang: true}
- {call: nvmlInit, crash: true}
"""
    )
    first, second = node.gpus
    assert (first.uuid, first.pci, first.minor, first.numa) == ("GPU-a", "0000:17:00.0", 7, 1)
    assert (second.uuid, second.pci, second.minor, second.numa) == ("GPU-b", "0001:65:00.0", 3, None)
    assert (first.product, first.memory_bytes, first.compute_capability) == ("Something else", 1024, "9.1")
    assert [(i.index, i.uuid[:4], i.profile.slices, i.gpu_instance, i.compute_instance) for i in first.instances] == [
        (0, "MIG-", 1, 9, 2),
        (1, "MIG-", 3, 153, 0),
    ]
    assert [gpu.compute_mode for gpu in node.gpus] == [ComputeMode.PROHIBITED, ComputeMode.EXCLUSIVE_PROCESS]
    assert (first.mig, first.mig_pending) == (MigState.ENABLED, MigState.DISABLED)
    assert (node.driver.version, node.driver.cuda, node.driver.kernel) == ("570.1", "12.8", "570.2")
    assert node.driver.state is DriverState.NOT_LOADED
    assert (node.lost, node.removed) == ({0}, {1})
    assert node.present == (first,)
    assert [(f.position, f.code, f.hang, f.crash) for f in node.faults] == [
        (1, 15, False, False),
        (None, 999, False, False),
        (None, None, True, False),
        (None, None, False, True),
    ]


def test_an_empty_file_is_a_machine_without_gpus() -> None:
    assert parse("").gpus == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "gpus: [{model: h100-sxm5-8gb}]",
            "gpus[0].model: there is no model h100-sxm5-8gb; did you mean h100-sxm5-80gb?",
        ),
        ("gpus: [{count: 2}]", "gpus[0]: model or product is missing; models are b200-sxm6-180gb, "),
        ("gpus: [{model: t4, count: 0}]", "gpus[0].count: must be 1 or more, not 0"),
        ("gpus: [{model: t4, cuont: 2}]", "gpus[0]: unknown key cuont"),
        ("gpu: []", "unknown key gpu"),
        (
            "gpus: [{model: t4, computeMode: Exclusive}]",
            "gpus[0].computeMode: Invalid enum value 'Exclusive'; there are Default, ExclusiveThread, Prohibited, ",
        ),
        ("gpus: [{model: t4, computeMode: [Default, Default]}]", "gpus[0].computeMode: 2 values for 1 cards"),
        ("gpus: 3", "gpus: Expected array, got str"),
        ("gpus: [{model: t4, count: two}]", "gpus[0].count: Expected int, got str"),
        ("ancestors: {bridge: []}", "ancestors.bridge: bridge is none of internal, single-switch, multiple-switches, "),
        (
            "gpus: [{model: t4, count: 3}]\nancestors: {node: [[0, 1, 2]], unknown: [[2, 1]]}",
            "ancestors.unknown[0]: cards [1, 2] have another one already",
        ),
        ("gpus: [{model: t4, count: 2, numa: [0]}]", "gpus[0].numa: 1 values for 2 cards"),
        ("gpus: [{model: t4, count: 2, uuid: GPU-1}]", "gpus[0].uuid: 2 cards cannot share it; give a list of 2"),
        ("gpus: [{model: t4, uuid: one}]", "gpus[0].uuid: one is no GPU UUID; write it like GPU-"),
        ("gpus: [{model: t4, pci: 17}]", "gpus[0].pci: 17 is no PCI address; write it like 0000:17:00.0"),
        (
            "gpus: [{model: t4, pci: 0000:17:00.0}, {model: l4, pci: 0000:17:00.0}]",
            "gpus: pci 0000:17:00.0 is used twice",
        ),
        ("gpus: [{model: t4, instances: [{profile: big}]}]", 'gpus[0].instances[0].profile: "big" is no MIG profile'),
        ("gpus: [{model: t4, instances: [[]]}]", "gpus[0].instances[0]: Expected"),
        (
            "gpus: [{model: a100-sxm4-80gb, instances: [1g.10gb, {profile: 1g.10gb, gpuInstance: 1}]}]",
            "gpus[0].instances[1]: GPU instance 1 has compute instance 0 already",
        ),
        (
            "gpus: [{model: a100-sxm4-80gb, count: 2, instances: [{profile: 1g.10gb, uuid: MIG-1}]}]",
            "gpus: instance MIG-1 is used twice",
        ),
        ("gpus: [{model: t4}]\nlayouts: [{gpu: 1}]", "layouts[0].gpu: there is no card 1; give its place in the file"),
        (
            "faults: [{call: nvmlDeviceGetUUID, instance: 0, error: 3}]",
            "faults[0].instance: say of which gpu",
        ),
        ("gpus: [{model: t4}]\nlost: [1]", "lost: there is no card 1; give its place in the file"),
        ("gpus: [{model: t4}]\nnvlinks: [{gpus: [0, 0], links: 1}]", "nvlinks[0].gpus: a link is between two cards"),
        ("faults: [{call: nvmlInit}]", "faults[0]: give one of error, hang: true and crash: true"),
        ("faults: [{call: nvmlInit, error: 3, hang: true}]", "faults[0]: give one of error"),
        (
            "faults: [{call: nvmlDeviceGetNam, hang: true}]",
            "faults[0].call: there is no call nvmlDeviceGetNam; did you mean",
        ),
        (
            "faults: [{call: nvmlInit, error: Broken}]",
            "faults[0].error: Broken is no NVML error; write it like GpuIsLost",
        ),
        ("events: [{gpu: 0, xid: 3}]", "events[0].gpu: there is no card 0; give its place in the file"),
        ("gpus: [{model: t4}]\nevents: [{gpu: 0}]", "events[0]: give one of xid and ecc: single or double"),
        ("gpus: [{model: t4}]\nevents: [{gpu: 0, xid: 3, ecc: single}]", "events[0]: give one of xid and ecc"),
        ("gpus: [{model: t4}]\nevents: [{gpu: 0, ecc: triple}]", "events[0].ecc: Invalid enum value 'triple'"),
        (
            "gpus: [{model: t4}]\nevents: [{gpu: 0, xid: 3, instance: 0}]",
            "events[0].instance: card 0 has no instance 0; give its place among them, or its UUID",
        ),
        (
            "gpus: [{model: t4}]\nconditions: [{gpu: 0, recoveryAction: Reset}]",
            "conditions[0].recoveryAction: Reset is none of None, GPUReset, NodeReboot, ",
        ),
        (
            "gpus: [{model: l40s, nvswitchLinks: 2}]\nconditions: [{gpu: 0, linksDown: [1, 2]}]",
            "conditions[0].linksDown: the card has no NVLink 2; it has 2",
        ),
        (
            "gpus: [{model: t4}]\nconditions: [{gpu: 0, fabric: {state: Ready}}]",
            "conditions[0].fabric.state: Ready is none of NotStarted, InProgress, Completed",
        ),
        (
            "gpus: [{model: t4}]\nconditions: [{gpu: 0, fabric: {faults: [Cold]}}]",
            "conditions[0].fabric.faults: Cold is none of DegradedBandwidth, ",
        ),
        (
            "gpus: [{model: t4}]\nconditions: [{gpu: 0, fabric: {status: Bad}}]",
            "conditions[0].fabric.status: Bad is neither Success nor an NVML error",
        ),
        ("gpus: [{model: t4}]\nconditions: [{gpu: 0, ecc: {ram: 1}}]", "conditions[0].ecc: unknown key ram"),
        ("driver: {state: gone}", "driver.state: Invalid enum value 'gone'; there are ready, missing, not-loaded"),
        ("platform: wls", "platform: Invalid enum value 'wls'; there are nvml, wsl, tegra"),
        ("gpus: [{model: t4, mig: on}]", "gpus[0].mig: Invalid enum value 'on'; there are unsupported, disabled"),
        ("gpus: [", ":2:1: "),
        ("gpus: [{model: t4}\nlost: []", ":2:1: "),
        ("a: \x00", "not YAML: "),
        ("[" * 3000, ""),
    ],
)
def test_a_mistake_is_one_line_that_names_file_and_place(text, message) -> None:
    with pytest.raises(HostError) as caught:
        parse(text)
    told = str(caught.value)
    assert told.startswith("node.yaml:")
    assert message in told
    assert "\n" not in told


@given(st.text(max_size=60))
def test_no_text_raises_anything_else(text) -> None:
    with contextlib.suppress(HostError):
        parse(text)


def test_a_name_that_is_neither_file_nor_node_lists_the_nodes() -> None:
    with pytest.raises(HostError, match=r"^dgx: there is no such node file, and no node of that name; there are a10, "):
        load_node("dgx")


def test_a_file_that_cannot_be_read_is_one_line_too(tmp_path) -> None:
    with pytest.raises(HostError, match=r"cannot be read: No such file or directory$"):
        load_node(str(tmp_path / "none.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"gpus: \xe9")
    with pytest.raises(HostError, match="cannot be read"):
        load_node(str(tmp_path / "latin.yaml"))


def test_the_example_of_the_documentation_is_good() -> None:
    page = (Path(__file__).parents[2] / "docs/nvml.md").read_text()
    node = parse(page.split("```yaml\n")[1].split("```")[0])
    assert len(node.gpus) == 9
    assert {rule.position for rule in node.events} == {3, 8}
    assert [len(gpu.instances) for gpu in node.gpus] == [0, 3, 0, 0, 0, 0, 0, 0, 0]
    assert node.gpus[2].condition.recovery_action == 1
    assert {rule.position for rule in node.faults} == {1, 2, 5, 6}
    assert all(f"`{path.stem}`" in page for path in NODES.glob("*.yaml"))
    assert all(model in page for model in MODELS)
