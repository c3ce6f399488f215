"""docs/labels.md: its table has all labels that there are, and no others."""

from __future__ import annotations

import re

import pytest

from nvdp.model.inventory import Driver
from nvdp.model.traits import Traits, Vgpu
from nvdp.planning.label_catalog import is_catalogued
from tests.docs.pages import ROOT
from tests.planning.labelling import GPU_X2, P, full, in_mig_mode, labelled, mig, strategy

PAGE = (ROOT / "docs/labels.md").read_text()
PROFILE, MODEL = "1g.18gb", "MOCKMODEL"
VGPU = Vgpu(present=True, host_driver_version="460.16", host_driver_branch="r460_00")


def list_rows() -> list[tuple[list[str], list[str]]]:
    """Names and examples of each row of the table."""
    rows = [line.split("|")[1:3] for line in PAGE.splitlines() if line.startswith("| `nvidia.com/")]
    return [(re.findall(r"`([^`]+)`", names), re.findall(r"`([^`]+)`", examples)) for names, examples in rows]


def list_documented() -> set[str]:
    names = [name for found, _ in list_rows() for name in found]
    assert len(names) == len(set(names))
    return {name.replace("PROFILE", PROFILE).replace("MODEL", MODEL) for name in names}


def list_labels() -> set[str]:
    """Those of nodes that have, together, all that can be told."""
    node = {
        "driver": Driver(version="580.65.06", cuda_version="13.0"),
        "traits": Traits(vgpu=VGPU),
        "timestamp": 1724632719,
    }
    gpus = {
        "none": full(compute_capability="9.0", clique="c1.1"),
        **dict.fromkeys(("single", "mixed"), in_mig_mode(0, mig(1, 1, 16384, PROFILE))),
    }
    return {P + name for word, gpu in gpus.items() for name in labelled(strategy(word, GPU_X2), gpu, **node)}


def test_the_table_has_all_labels_and_no_others():
    assert list_documented() == list_labels()


@pytest.mark.parametrize("name", sorted(list_documented()))
def test_what_the_table_has_is_ours_to_write(name):
    assert is_catalogued(name)


@pytest.mark.parametrize(("names", "examples"), list_rows(), ids=lambda each: each[0])
def test_each_label_has_an_example(names, examples):
    assert len(names) == len(examples)
