"""Labels where NVIDIA's plugin leaves them to chance, or gives none: several models, cards that ail, our own keys."""

from __future__ import annotations

import itertools
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.inventory import Driver, Fault, Inventory, MigMode
from nvdp.model.mig import MigAttributes
from nvdp.model.platforms import TEGRA_UUID, WSL_UUID, Platform
from nvdp.model.traits import Traits, Vgpu
from nvdp.planning.allotment import resolve_pins
from nvdp.planning.label_catalog import is_catalogued
from nvdp.planning.labels import build_labels
from nvdp.planning.node_facts import LabelFacts
from tests.planning.labelling import GPU_X2, full, in_mig_mode, labelled, mig, strategy
from tests.planning.test_label_text import VALUE
from tests.planning.values import gpu, mig_uuid, parse, uuid

LOST = Fault(call="nvmlDeviceGetName", kind="GpuIsLost", text="gone")
H200 = "NVIDIA H200"
NAME = re.compile(r"nvidia\.com/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def named(labels: dict[str, str]) -> tuple[str | None, ...]:
    return tuple(labels.get(f"gpu.{fact}") for fact in ("product", "count", "memory", "family"))


def test_the_most_numerous_model_names_the_node():
    t4 = {"product": "Tesla T4", "compute_capability": "7.5", "memory_bytes": 15360 << 20}
    l4 = {"product": "NVIDIA L4", "compute_capability": "8.9", "memory_bytes": 23034 << 20}
    labels = labelled("", full(0, **l4), full(1, **t4), full(2, **t4))
    assert named(labels) == ("Tesla-T4", "2", "15360", "turing")
    assert (labels["gpu.product.Tesla-T4.count"], labels["gpu.product.NVIDIA-L4.count"]) == ("2", "1")
    assert labels["gpu.memory.total"] == str(2 * 15360 + 23034)
    assert named(labelled("", full(0, **t4), full(1, **l4))) == ("NVIDIA-L4", "1", "23034", "ada-lovelace")


def test_a_model_of_which_cards_are_whole_comes_before_one_that_is_all_cut():
    """As with NVIDIA's, where the labels of whole cards are written over those of cut ones."""
    cards = [in_mig_mode(number, mig(1, 1, 5), product="NVIDIA A100") for number in range(3)]
    labels = labelled(strategy("mixed"), *cards, full(3, product="Tesla T4"))
    assert named(labels)[:2] == ("Tesla-T4", "1")
    assert (labels["gpu.product.NVIDIA-A100.count"], labels["mig-1g.5gb.count"]) == ("3", "3")


@pytest.mark.parametrize(("word", "prefix"), [("single", "gpu"), ("mixed", "mig-1g.5gb")])
def test_the_model_of_most_mig_devices_names_them(word, prefix):
    few = in_mig_mode(0, mig(1, 1, 5), product="NVIDIA A100")
    many = in_mig_mode(1, mig(1, 1, 5), mig(1, 1, 5), product="NVIDIA H100")
    nameless = in_mig_mode(2, mig(1, 1, 5), mig(1, 1, 5), mig(1, 1, 5), product=None, fault=LOST)
    labels = labelled(strategy(word), few, many, nameless)
    assert (labels[f"{prefix}.product"], labels[f"{prefix}.count"]) == ("NVIDIA-H100-MIG-1g.5gb", "2")


def test_a_card_of_which_the_model_is_not_known_names_no_node():
    labels = labelled("", full(0, product=None, fault=LOST), full(1, product=None, fault=LOST), full(2))
    assert named(labels)[:2] == ("MOCKMODEL", "1")
    labels = labelled("", full(0, product=None, fault=LOST))
    assert labels["gpu.count"] == "1"
    assert "gpu.product" not in labels


def test_cards_that_ail_count_with_what_is_known_of_them():
    assert labelled(GPU_X2, full(0), full(1, fault=LOST)) == labelled(GPU_X2, full(0), full(1))


def test_excluded_cards_have_no_labels():
    text = f"devices: {{exclude: [{uuid(1)}]}}\n"
    assert labelled(text + strategy("single"), in_mig_mode(0, mig(1, 1, 5)), full(1)) == labelled(
        strategy("single"), in_mig_mode(0, mig(1, 1, 5))
    )
    assert labelled(f"devices: {{exclude: [{uuid(0)}]}}", full(0)) == {}


def test_an_excluded_mig_device_is_not_counted():
    text = f"devices: {{exclude: [{mig_uuid(0, 1)}]}}\n"
    labels = labelled(text + strategy("mixed"), in_mig_mode(0, mig(1, 1, 5), mig(1, 1, 5)))
    assert (labels["mig-1g.5gb.count"], labels["gpu.count"]) == ("1", "1")


MANY_WAYS = f"""\
sharing:
  timeSlicing:
    resources:
    - {{name: nvidia.com/gpu, replicas: 4, rename: nvidia.com/gpu.few, devices: [{uuid(0)}]}}
    - {{name: nvidia.com/gpu, replicas: 10, rename: nvidia.com/gpu.many, devices: [{uuid(1)}, {uuid(2)}]}}
"""


def test_the_way_in_which_most_cards_are_shared_speaks_for_all():
    labels = labelled(MANY_WAYS, *map(full, range(4)))
    assert (labels["gpu.replicas"], labels["gpu.sharing-strategy"]) == ("10", "time-slicing")
    labels = labelled(MANY_WAYS, *map(full, range(6)))  # three of them are whole
    assert (labels["gpu.replicas"], labels["gpu.sharing-strategy"]) == ("1", "none")
    labels = labelled(MANY_WAYS, full(0), full(3))  # of as many the one with most replicas
    assert labels["gpu.replicas"] == "4"


def test_sharing_is_that_of_the_model_that_names_the_node():
    other = [full(number, product="Tesla T4") for number in (3, 4, 5, 6)]
    labels = labelled(MANY_WAYS, *map(full, range(3)), *other)
    assert (labels["gpu.product"], labels["gpu.replicas"]) == ("Tesla-T4", "1")


def test_replicas_are_told_where_they_are_renamed_by_default():
    text = GPU_X2.replace("timeSlicing:\n", "timeSlicing:\n    renameByDefault: true\n").replace("2}", "50}")
    labels = labelled(text, full())
    assert (labels["gpu.replicas"], labels["gpu.product"]) == ("50", "MOCKMODEL")


def test_patterns_of_resources_do_not_change_the_names_of_labels():
    text = """\
resources:
  gpus: [{pattern: "MOCK*", name: nvidia.com/mock}]
sharing:
  timeSlicing:
    resources: [{name: nvidia.com/mock, replicas: 3}]
"""
    labels = labelled(text, full())
    assert (labels["gpu.replicas"], labels["gpu.product"]) == ("3", "MOCKMODEL-SHARED")


def test_time_slicing_and_mps_on_one_node():
    text = f"""\
sharing:
  timeSlicing:
    resources: [{{name: nvidia.com/gpu, rename: nvidia.com/gpu.shared, replicas: 4}}]
  mps:
    resources: [{{name: nvidia.com/gpu, rename: nvidia.com/gpu.mps, replicas: 2, devices: [{uuid(2)}]}}]
"""
    labels = labelled(text, *map(full, range(3)))
    assert (labels["gpu.sharing-strategy"], labels["gpu.replicas"]) == ("time-slicing", "4")
    assert labels["mps.capable"] == "true"
    assert labelled(text, *map(full, range(2)))["mps.capable"] == "false"  # the card of MPS is on another node


def test_single_is_invalid_where_nothing_whole_would_be_offered():
    """A compute instance that shares its GPU instance is no GPU; NVIDIA's labels count it, and its plugin ends."""
    labels = labelled(strategy("single"), *[in_mig_mode(0, *[mig(3, 1, 20, "1c.3g.20gb")] * 3)])
    assert (labels["gpu.product"], labels["gpu.count"]) == ("MOCKMODEL-MIG-INVALID", "0")
    labels = labelled(strategy("mixed"), in_mig_mode(0, mig(3, 1, 20, "1c.3g.20gb"), mig(1, 1, 5)))
    assert {name.partition(".count")[0] for name in labels if name.endswith(".count")} >= {"gpu", "mig-1g.5gb"}
    assert not [name for name in labels if name.startswith("mig-1c")]


def test_single_does_not_ask_what_does_not_answer():
    """Neither a card nor a MIG device that nobody could read makes a node invalid that was well."""
    well = in_mig_mode(0, mig(1, 1, 5), mig(1, 1, 5))
    silent = full(1, mig=None, product=None, fault=LOST)
    unlisted = in_mig_mode(2, instances=None, fault=LOST)
    nameless = msgspec.structs.replace(mig(1, 1, 5), profile=None, attributes=None, fault=LOST)
    for other in (silent, unlisted, in_mig_mode(1, nameless)):
        labels = labelled(strategy("single"), well, other)
        assert (labels["gpu.product"], labels["gpu.count"]) == ("MOCKMODEL-MIG-1g.5gb", "2")


def test_a_mig_device_of_which_the_driver_does_not_tell_what_it_has():
    plain = msgspec.structs.replace(mig(1, 1, 5), attributes=None)
    labels = labelled(strategy("mixed"), in_mig_mode(0, plain, memory_bytes=None))
    assert labels["mig-1g.5gb.memory"] == "5"
    assert not [name for name in labels if "engines" in name or "slices" in name]
    assert "gpu.memory" not in labels


def test_plus_signs_of_profiles():
    """In names they are dots, as in the resource; in values, as with NVIDIA's, they are dropped."""
    labels = labelled(strategy("mixed"), in_mig_mode(0, mig(1, 1, 10, "1g.10gb+me")))
    assert labels["mig-1g.10gb.me.product"] == "MOCKMODEL-MIG-1g.10gbme"


def test_memory_in_mib():
    assert labelled("", full(memory_bytes=42505273344))["gpu.memory"] == "40536"
    assert "gpu.memory" not in labelled("", full(memory_bytes=0))
    labels = labelled("", full(0), full(1, memory_bytes=None, fault=LOST))
    assert labels["gpu.memory"] == "300"
    assert "gpu.memory.total" not in labels  # a part of it would be wrong
    assert labelled(strategy("single"), in_mig_mode(0, mig(1, 1, 5), mig(1, 1, 5)))["gpu.memory.total"] == "10"


@pytest.mark.parametrize(
    ("cliques", "expected"),
    [
        (("a.1", "a.1"), "a.1"),
        (("a.1", ""), "a.1"),
        (("a.1", None), "a.1"),
        (("a.1", "a.2"), None),
        (("a.1", "b.1"), None),
        (("", None), None),
    ],
)
def test_the_clique_is_told_where_there_is_one(cliques, expected):
    gpus = [full(number, clique=clique) for number, clique in enumerate(cliques)]
    assert labelled("", *gpus).get("gpu.clique") == expected


def test_a_node_of_which_only_pci_is_known():
    vgpu = Vgpu(present=False)
    assert labelled("", traits=Traits(vgpu=vgpu), timestamp=1) == {"gfd.timestamp": "1", "vgpu.present": "false"}
    assert "vgpu.present" not in labelled("", full())  # nobody could look


@pytest.mark.parametrize(
    ("platform", "one", "expected"),
    [
        (Platform.WSL, gpu(0, uuid=WSL_UUID, product="NVIDIA RTX A2000, NVIDIA T4", pci=None), "580"),
        (Platform.TEGRA, gpu(0, uuid=TEGRA_UUID, product="tegra", pci=None), "unknown"),
    ],
)
def test_systems_where_all_is_one_device(platform, one, expected):
    driver = Driver(version="580.65.06" if platform is Platform.WSL else "", cuda_version="")
    facts = LabelFacts(config=parse(GPU_X2), inventory=Inventory(driver=driver, platform=platform, gpus=(one,)))
    labels = build_labels(facts)
    assert labels["nvidia.com/cuda.driver-version.major"] == expected
    assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/gpu.replicas"]) == ("1", "2")
    assert not [name for name in labels if "runtime" in name or "family" in name or "memory" in name]


def test_without_a_configuration_the_hardware_is_told():
    labels = labelled(None, full(0), full(1))
    assert named(labels) == ("MOCKMODEL", "2", "300", "ampere")
    assert labels["nvdp.config-valid"] == "false"
    assert not labels.keys() & {"gpu.replicas", "gpu.sharing-strategy", "mps.capable", "mig.strategy"}
    assert labelled(GPU_X2, full())["nvdp.config-valid"] == "true"


CONFIGS = [
    parse(text)
    for text in (
        *(strategy(word, more) for word in ("none", "single", "mixed") for more in ("", GPU_X2)),
        MANY_WAYS,
        f"devices: {{exclude: [{uuid(0)}, {mig_uuid(1, 0)}]}}\n{strategy('mixed')}",
        strategy("none", GPU_X2.replace("timeSlicing", "mps")),
        strategy("single", GPU_X2.replace("2}", "3, rename: nvidia.com/gpu.shared, devices: 1}")),
    )
]
PROFILES = st.sampled_from(
    [
        None,
        "",
        "1g.5gb",
        "1g.10gb+me",
        "1c.3g.20gb",
        "3g.20gb",
        "no profile",
        f"1g.5gb+{'x' * 45}",
        f"1g.5gb+{'y' * 99}",
    ]
)
PRODUCTS = st.none() | st.sampled_from([H200, "NVIDIA TITAN X (Pascal)", "…", "x" * 90]) | st.text(max_size=99)
COUNTS = st.integers(min_value=0, max_value=9)


@st.composite
def _instances(draw, number: int):
    profiles = draw(st.lists(PROFILES, max_size=4))
    return tuple(
        msgspec.structs.replace(
            mig(1, 1, 5),
            uuid=mig_uuid(number, index),
            index=index,
            gpu_instance=index + 1,
            profile=profile,
            memory_bytes=draw(st.none() | COUNTS),
            attributes=draw(
                st.none() | st.builds(MigAttributes, **dict.fromkeys(MigAttributes.__struct_fields__, COUNTS))
            ),
        )
        for index, profile in enumerate(profiles)
    )


@st.composite
def _gpus(draw):
    gpus = []
    for number in range(draw(st.integers(min_value=0, max_value=4))):
        mode = draw(st.none() | st.sampled_from(MigMode))
        gpus.append(
            gpu(
                number,
                product=draw(PRODUCTS),
                pci=draw(st.sampled_from([None, f"0000:{number:02x}:00.0"])),
                memory_bytes=draw(st.none() | st.integers(min_value=0, max_value=1 << 40)),
                compute_capability=draw(st.none() | st.sampled_from(["0.0", "3.5", "8.9", "12.0"])),
                mig=mode,
                instances=draw(st.none() | _instances(number)) if mode is MigMode.ENABLED else None,
                clique=draw(st.none() | st.sampled_from(["", "c1.1", "c1.2", "-"])),
                fault=draw(st.none() | st.just(LOST)),
            )
        )
    return gpus


TRAITS = st.builds(
    Traits,
    machine=st.text(max_size=99),
    pci_classes=st.dictionaries(st.just("0000:00:00.0"), st.sampled_from([0x030200, 0x030000, 1])),
    vgpu=st.none()
    | st.builds(Vgpu, present=st.booleans(), host_driver_version=st.text(), host_driver_branch=st.text()),
)
DRIVERS = st.builds(
    Driver,
    version=st.sampled_from(["580.65.06", "", "535"]) | st.text(max_size=99),
    cuda_version=st.sampled_from(["13.1", "12.8", "8.0", ""]),  # made of a number by the child
)


@given(st.data(), _gpus(), DRIVERS, TRAITS, st.none() | st.sampled_from(CONFIGS))
def test_whatever_a_node_is_its_labels_are_valid_and_always_the_same(data, gpus, driver, traits, config):
    def build(order) -> dict[str, str]:
        pins = resolve_pins(config, order, {}, {}) if config is not None else {}
        inventory = Inventory(driver=driver, gpus=tuple(order))
        return build_labels(LabelFacts(config=config, inventory=inventory, pins=pins, traits=traits, timestamp=5))

    labels = build(gpus)
    for name, value in labels.items():
        assert NAME.fullmatch(name)
        assert VALUE.fullmatch(value)
        assert is_catalogued(name)
    assert build(data.draw(st.permutations(gpus))) == labels
    if any(name.startswith("nvidia.com/gpu.") for name in labels):  # one bad value never takes others with it
        known = {"gpu.machine", "gpu.count", "gpu.mode", "mig.capable", "nvdp.config-valid"}
        assert labels.keys() >= {f"nvidia.com/{name}" for name in known}


def test_ways_of_as_many_cards_do_not_depend_on_their_order():
    for order in itertools.permutations(map(full, (0, 1, 3))):
        labels = labelled(MANY_WAYS, *order)
        assert labels["gpu.replicas"] == "10"
