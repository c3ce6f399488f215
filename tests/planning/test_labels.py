"""The vectors of GPU Feature Discovery (C1 to C8, C11, C12), each as a node of ours."""

from __future__ import annotations

import re

import pytest

from nvdp.model.inventory import Driver, MigMode
from nvdp.model.traits import Traits, Vgpu
from tests.planning.labelling import (
    ARCH,
    GPU_X2,
    attributes,
    full,
    in_mig_mode,
    labelled,
    mig,
    of_nvidia,
    of_resources,
    resource,
    strategy,
)

INVALID = resource("MOCKMODEL-MIG-INVALID", count=0, replicas=0, sharing="", memory=0)
MANY = {"multiprocessors": 12, "copy_engines": 13, "decoders": 14, "encoders": 15, "jpeg_engines": 16}


@pytest.mark.parametrize(
    ("gpus", "sharing", "expected"),
    [
        ((), "", {}),
        ((full(),), "", ARCH | resource("MOCKMODEL", count=1, replicas=1, sharing="none", memory=300)),
        (
            (full(),),
            GPU_X2,
            ARCH | resource("MOCKMODEL-SHARED", count=1, replicas=2, sharing="time-slicing", memory=300),
        ),
        (
            (full(0), full(1)),
            GPU_X2,
            ARCH | resource("MOCKMODEL-SHARED", count=2, replicas=2, sharing="time-slicing", memory=300),
        ),
        ((in_mig_mode(0),), GPU_X2, resource("MOCKMODEL", count=1, replicas=0, sharing="none", memory=300)),
        (
            (in_mig_mode(0), in_mig_mode(1)),
            GPU_X2,
            resource("MOCKMODEL", count=2, replicas=0, sharing="none", memory=300),
        ),
        (
            (in_mig_mode(0), full(1)),
            GPU_X2,
            ARCH | resource("MOCKMODEL-SHARED", count=2, replicas=2, sharing="time-slicing", memory=300),
        ),
    ],
    ids=["none", "one", "shared", "two", "cut", "two cut", "cut and whole"],
)
def test_c1_without_mig_strategy(gpus, sharing, expected):
    labels = labelled(strategy("none", sharing), *gpus)
    assert of_resources(labels) == expected
    assert "mig.strategy" not in labels


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ((), {}),
        ((full(),), ARCH | resource("MOCKMODEL", count=1, replicas=1, sharing="none", memory=300)),
        ((full(0), full(1)), ARCH | resource("MOCKMODEL", count=2, replicas=1, sharing="none", memory=300)),
        (
            (in_mig_mode(0, mig(1, 2, 100)),),
            resource("MOCKMODEL-MIG-1g.100gb", count=1, replicas=1, sharing="none", memory=100) | attributes(1, 2),
        ),
        (
            tuple(in_mig_mode(number, mig(1, 2, 100, ofa_engines=17, **MANY)) for number in range(2)),
            resource("MOCKMODEL-MIG-1g.100gb", count=2, replicas=1, sharing="none", memory=100)
            | attributes(1, 2, 12, 13, 14, 15, 16, 17),
        ),
        ((in_mig_mode(0),), INVALID),
        ((in_mig_mode(0, mig(1, 2, 100), mig(3, 4, 100)),), INVALID),
        ((in_mig_mode(0, mig(1, 2, 100)), full(1)), INVALID | ARCH),
        ((in_mig_mode(0, mig(1, 2, 100)), full(1), in_mig_mode(2)), INVALID | ARCH),
    ],
    ids=["none", "one", "two", "cut", "two cut", "empty", "unequal", "cut and whole", "all of it"],
)
def test_c2_strategy_single(gpus, expected):
    labels = labelled(strategy("single"), *gpus)
    assert of_resources(labels) == expected
    assert labels.get("mig.strategy") == ("single" if gpus else None)


@pytest.mark.parametrize("way", ["timeSlicing", "mps"])
@pytest.mark.parametrize(
    ("entry", "replicas", "product"),
    [
        ("", 1, "MOCKMODEL"),
        ("{name: nvidia.com/other, replicas: 2}", 1, "MOCKMODEL"),
        ("{name: nvidia.com/gpu, replicas: 2}", 2, "MOCKMODEL-SHARED"),
        ("{name: nvidia.com/gpu, rename: nvidia.com/gpu.shared, replicas: 2}", 2, "MOCKMODEL"),
    ],
    ids=["unshared", "another", "shared", "renamed"],
)
def test_c3_a_whole_gpu(way, entry, replicas, product):
    text = f"sharing:\n  {way}:\n    resources:\n    - {entry}\n" if entry else ""
    word = {"timeSlicing": "time-slicing", "mps": "mps"}[way] if replicas > 1 else "none"
    expected = ARCH | resource(product, count=1, replicas=replicas, sharing=word, memory=300)
    assert of_resources(labelled(text, full(), driver=Driver(version="580.65.06", cuda_version="13.0"))) == expected


def test_c3_no_gpu_has_no_labels():
    assert labelled(GPU_X2) == {}


@pytest.mark.parametrize(
    ("entry", "replicas", "product"),
    [
        ("", 1, "MOCKMODEL-MIG-1g.300gb"),
        ("{name: nvidia.com/gpu, replicas: 2}", 2, "MOCKMODEL-MIG-1g.300gb-SHARED"),
        ("{name: nvidia.com/gpu, rename: nvidia.com/gpu.shared, replicas: 2}", 2, "MOCKMODEL-MIG-1g.300gb"),
    ],
    ids=["unshared", "shared", "renamed"],
)
def test_c4_a_mig_device_as_a_gpu(entry, replicas, product):
    text = f"sharing:\n  timeSlicing:\n    resources:\n    - {entry}\n" if entry else ""
    word = "time-slicing" if replicas > 1 else "none"
    labels = labelled(strategy("single", text), in_mig_mode(0, mig(1, 2, 300)))
    assert of_resources(labels) == attributes(1, 2) | resource(
        product, count=1, replicas=replicas, sharing=word, memory=300
    )


@pytest.mark.parametrize(
    ("rename", "product"),
    [("", "MOCKMODEL-MIG-1g.1gb-SHARED"), (", rename: nvidia.com/mig-small", "MOCKMODEL-MIG-1g.1gb")],
)
def test_c4_a_mig_device_under_its_own_name(rename, product):
    text = f"""\
sharing:
  timeSlicing:
    resources:
    - {{name: nvidia.com/gpu, rename: nvidia.com/gpu.shared, replicas: 2}}
    - {{name: nvidia.com/mig-1g.1gb, replicas: 2{rename}}}
"""
    found = labelled(strategy("mixed", text), in_mig_mode(0, mig(1, 2, 300, "1g.1gb")))
    group = {name: value for name, value in found.items() if name.startswith("mig-")}
    prefix = "mig-1g.1gb"
    assert group == attributes(1, 2, prefix=prefix) | resource(
        product, count=1, replicas=2, sharing="time-slicing", memory=300, prefix=prefix
    )


def test_c4_no_mig_device_has_no_group():
    assert not [name for name in labelled(strategy("mixed"), in_mig_mode(0)) if name.startswith("mig-")]


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ((), None),
        ((full(),), "false"),
        ((full(0), full(1)), "false"),
        ((full(mig=MigMode.DISABLED),), "true"),
        ((in_mig_mode(0),), "true"),
        ((full(0), in_mig_mode(1)), "true"),
    ],
)
def test_c6_mig_capable(gpus, expected):
    """A GPU that could be in MIG mode is capable of it too."""
    assert labelled("", *gpus).get("mig.capable") == expected


def sharing(way: str, replicas: int) -> str:
    return f"sharing:\n  {way}:\n    resources:\n    - {{name: nvidia.com/gpu, replicas: {replicas}}}\n"


@pytest.mark.parametrize(
    ("text", "gpu", "expected"),
    [
        ("", full(), "false"),
        (sharing("timeSlicing", 2), full(), "false"),
        (sharing("mps", 1), full(), "false"),
        (sharing("mps", 2), full(), "true"),
        (sharing("mps", 2), in_mig_mode(0), "false"),
    ],
    ids=["no sharing", "time-slicing", "one replica", "mps", "MIG"],
)
def test_c7_mps_capable(text, gpu, expected):
    """Where MPS is asked for on a GPU in MIG mode, all the other labels are there."""
    labels = labelled(text, gpu)
    assert labels["mps.capable"] == expected
    assert labels.keys() >= {"gpu.count", "gpu.product", "gpu.replicas", "gpu.machine", "mig.capable"}


def test_c7_without_a_configuration_nobody_knows():
    assert "mps.capable" not in labelled(None, full())


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([0x030000], "graphics"),
        ([0x030200], "compute"),
        ([0x068000], "unknown"),
        ([0x030200] * 3, "compute"),
        ([0x030000] * 3, "graphics"),
        ([0x030000, 0x030200, 0x030200], "unknown"),
        ([0x030200, None], "unknown"),
    ],
)
def test_c8_mode_by_pci_class(classes, expected):
    gpus = [full(number) for number in range(len(classes))]
    found = {gpu.pci: each for gpu, each in zip(gpus, classes, strict=True) if each is not None}
    assert labelled("", *gpus, traits=Traits(pci_classes=found))["gpu.mode"] == expected


def test_c11_strategy_none_counts_a_gpu_in_mig_mode():
    labels = labelled("", in_mig_mode(0, mig(3, 0, 20000), mig(3, 0, 20000)))
    assert (labels["gpu.count"], labels["gpu.product"], labels["gpu.memory"]) == ("1", "MOCKMODEL", "300")


def test_c11_single_without_mig_mode():
    """MIG devices of a GPU that is not in MIG mode are none."""
    listed = in_mig_mode(0, mig(3, 0, 20)).instances
    labels = labelled(strategy("single"), full(mig=MigMode.DISABLED, instances=listed))
    assert (labels["gpu.count"], labels["gpu.product"], labels["gpu.memory"]) == ("1", "MOCKMODEL", "300")
    assert labels["mig.strategy"] == "single"


def test_c11_single_counts_mig_devices():
    labels = labelled(strategy("single"), in_mig_mode(0, mig(3, 0, 20), mig(3, 0, 20)))
    assert (labels["gpu.count"], labels["gpu.product"], labels["gpu.memory"]) == ("2", "MOCKMODEL-MIG-3g.20gb", "20")


def test_c11_mixed_counts_both():
    labels = labelled(strategy("mixed"), in_mig_mode(0, mig(3, 0, 20), mig(1, 0, 5)))
    assert (labels["gpu.count"], labels["gpu.product"], labels["gpu.memory"]) == ("1", "MOCKMODEL", "300")
    assert (labels["mig-3g.20gb.count"], labels["mig-1g.5gb.count"]) == ("1", "1")
    assert labels["gpu.replicas"] == "0"


def test_c11_the_machine_is_named_without_the_end_of_its_line():
    assert labelled("", full(), traits=Traits(machine="product-name\n"))["gpu.machine"] == "product-name"
    assert labelled("", full())["gpu.machine"] == "unknown"


def test_c11_the_time_is_left_out_where_the_file_says_so():
    assert labelled("", full(), timestamp=1724632719)["gfd.timestamp"] == "1724632719"
    assert "gfd.timestamp" not in labelled("flags: {gfd: {noTimestamp: true}}", full(), timestamp=1724632719)
    assert "gfd.timestamp" not in labelled("", full())


VERSIONS = {
    *(f"cuda.driver.{part}" for part in ("major", "minor", "rev")),
    *(f"cuda.driver-version.{part}" for part in ("major", "minor", "revision", "full")),
    *(f"cuda.runtime.{part}" for part in ("major", "minor")),
    *(f"cuda.runtime-version.{part}" for part in ("major", "minor", "full")),
}
FACTS = {"product", "count", "replicas", "sharing-strategy", "memory"}
COMMON = (
    VERSIONS
    | {f"gpu.{fact}" for fact in FACTS}
    | {"gfd.timestamp", "gpu.machine", "gpu.mode", "gpu.family", "gpu.compute.major", "gpu.compute.minor"}
    | {"mig.capable", "mps.capable", "vgpu.present"}
)
REAL = {"compute_capability": "9.0"}
NODE = {
    "driver": Driver(version="580.65.06", cuda_version="13.0"),
    "traits": Traits(vgpu=Vgpu(present=False)),
    "timestamp": 1724632719,
}


@pytest.mark.parametrize(
    ("word", "gpu", "more"),
    [
        ("none", full(**REAL), set()),
        ("none", in_mig_mode(0, mig(1, 1, 5), **REAL), set()),
        ("single", in_mig_mode(0, mig(1, 1, 5), **REAL), {"mig.strategy", *attributes(1, 1)}),
        (
            "mixed",
            in_mig_mode(0, mig(1, 1, 5), **REAL),
            {"mig.strategy", *attributes(1, 1, prefix="mig-1g.5gb"), *(f"mig-1g.5gb.{fact}" for fact in FACTS)},
        ),
    ],
    ids=["whole", "none", "single", "mixed"],
)
def test_c12_no_label_is_missing_and_none_is_made_up(word, gpu, more):
    assert of_nvidia(labelled(strategy(word), gpu, **NODE)).keys() == COMMON | more


def test_c12_a_vgpu_guest_tells_of_its_host():
    vgpu = Vgpu(present=True, host_driver_version="460.16", host_driver_branch="r460_00")
    labels = labelled("", full(), traits=Traits(vgpu=vgpu))
    assert {name: value for name, value in labels.items() if name.startswith("vgpu")} == {
        "vgpu.present": "true",
        "vgpu.host-driver-version": "460.16",
        "vgpu.host-driver-branch": "r460_00",
    }


def test_versions_are_told_by_their_parts():
    labels = labelled("", full(), driver=Driver(version="550.107.02", cuda_version="12.5"))
    assert {name: value for name, value in labels.items() if name.startswith("cuda")} == {
        "cuda.driver.major": "550",
        "cuda.driver.minor": "107",
        "cuda.driver.rev": "02",
        "cuda.driver-version.major": "550",
        "cuda.driver-version.minor": "107",
        "cuda.driver-version.revision": "02",
        "cuda.driver-version.full": "550.107.02",
        "cuda.runtime.major": "12",
        "cuda.runtime.minor": "5",
        "cuda.runtime-version.major": "12",
        "cuda.runtime-version.minor": "5",
        "cuda.runtime-version.full": "12.5",
    }
    assert labelled("", full())["cuda.driver.rev"] == ""  # 400.300


@pytest.mark.parametrize("version", ["", "580", "580..06", "1.2.3.4", "?"])
def test_a_version_that_is_none_takes_no_other_label_with_it(version):
    labels = labelled("", full(), driver=Driver(version=version, cuda_version="12"))
    assert not [name for name in labels if re.match(r"cuda\.(driver\.|driver-version\.m|runtime)", name)]
    assert labels["gpu.product"] == "MOCKMODEL"
