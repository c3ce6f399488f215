"""What MPS needs of a card, and what each client may use of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.inventory import Driver, MigMode
from nvdp.model.platforms import TEGRA_UUID, WSL_UUID
from nvdp.model.quantity import Quantity
from nvdp.planning.allotment import resolve_pins
from nvdp.planning.entries import list_entries
from nvdp.planning.mps import ClientLimits, find_client_limits
from tests.planning.allotting import allotted, shown
from tests.planning.values import cut, device, gpu, mig_uuid, parse, uuid

GIB, MIB = 2**30, 2**20
CUDA_12, CUDA_13_0, CUDA_13_1 = (Driver(version="x", cuda_version=cuda) for cuda in ("12.4", "13.0", "13.1"))
PATH = "sharing.mps.resources[0]"
MIG_UUID = "MIG-3eb87630-93d5-b2b6-b8ff-9b359caf4ee2"


def mps(keys="", *, replicas=4, devices="[0, 1]"):
    entry = f"{{name: gpu, rename: m, devices: {devices}, replicas: {replicas}, {keys}}}"
    return f"sharing: {{mps: {{resources: [{entry}]}}}}"


def card(number, **facts):
    return gpu(number, **({"memory_bytes": 80 * GIB, "compute_capability": "8.0", "mig": MigMode.DISABLED} | facts))


def problem(text, *gpus, driver=CUDA_12):
    """What is said about the entry; None if it is as the file asks."""
    withheld = allotted(text, *(gpus or (card(0), card(1))), driver=driver).withheld.values()
    assert {held.reason for held in withheld} <= {"MPSUnsupported"}
    assert all(held.device and held.minimum for held in withheld)
    said = {f"{held.path}: {held.text}" for held in withheld}
    assert len(said) <= 1
    return next(iter(said), None)


LIMIT, PER_DEVICE = "defaultPinnedDeviceMemoryLimit", "defaultPerDevicePinnedMemoryLimit"
REST = "; for GPU 1 the whole entry is withheld, devices: [0] would share the rest"
REFUSED = {
    "MIG mode": (
        mps(),
        [card(0), card(1, mig=MigMode.ENABLED)],
        f"{PATH}: {uuid(1)} is in MIG mode; MPS on MIG is not supported" + REST,
    ),
    "a MIG device by its place": (
        mps(devices='[0, "1:0"]'),
        [card(0), cut(1, "1g.5gb")],
        f"{PATH}.devices[1]: 1:0 is a MIG device; MPS on MIG is not supported",
    ),
    "a MIG device by its UUID": (
        mps(devices=f"[0, {mig_uuid(1, 0)}]"),
        [card(0), cut(1, "1g.5gb")],
        f"{PATH}.devices[1]: {mig_uuid(1, 0)} is a MIG device; MPS on MIG is not supported",
    ),
    "a limit for a MIG device": (
        mps(f'{PER_DEVICE}: {{"1:0": 1Gi}}', devices="[0]"),
        [card(0), cut(1, "1g.5gb")],
        f"{PATH}.{PER_DEVICE}.1:0: 1:0 is a MIG device; MPS on MIG is not supported",
    ),
    "too old": (
        mps(),
        [card(0), card(1, product="Tesla P100", compute_capability="6.0")],
        f"{PATH}: Tesla P100 has compute capability 6.0; MPS needs 7.0" + REST,
    ),
    "too old, and its product is unknown": (
        mps(),
        [card(0), card(1, product=None, compute_capability="6.1")],
        f"{PATH}: {uuid(1)} has compute capability 6.1; MPS needs 7.0" + REST,
    ),
    "too many replicas": (
        mps(replicas=60),
        [],
        (
            f"{PATH}.replicas: 60 is more than the 48 clients that MPS allows here "
            "(compute capability 8.0, driver for CUDA 12.4)"
        ),
    ),
    "a limit above the card": (
        mps(f"{LIMIT}: 96Gi"),
        [card(0, memory_bytes=100 * GIB), card(1)],
        f"{PATH}.{LIMIT}: 96Gi is more than {uuid(1)} has (80 GiB)" + REST,
    ),
    "a limit above a card of which rounding would show as much": (
        mps(f"{LIMIT}: 80Gi"),
        [card(0), card(1, memory_bytes=81_919 * MIB)],
        f"{PATH}.{LIMIT}: 80Gi is more than {uuid(1)} has (79.9 GiB)" + REST,
    ),
    "a limit above a small card": (
        mps(f"{LIMIT}: 1Gi"),
        [card(0), card(1, memory_bytes=512 * MIB)],
        f"{PATH}.{LIMIT}: 1Gi is more than {uuid(1)} has (512 MiB)" + REST,
    ),
    "a limit of its own above the card, by index": (
        mps(f"{PER_DEVICE}: {{1: 96Gi}}"),
        [],
        f"{PATH}.{PER_DEVICE}.1: 96Gi is more than {uuid(1)} has (80 GiB)" + REST,
    ),
    "a limit of its own above the card, by slot": (
        mps(f'{LIMIT}: 1Gi, {PER_DEVICE}: {{"0000:11:00.0": 96Gi}}'),
        [],
        f'{PATH}.{PER_DEVICE}."0000:11:00.0": 96Gi is more than {uuid(1)} has (80 GiB)' + REST,
    ),
    "less than a MiB for each": (
        mps(replicas=48),
        [card(0), card(1, memory_bytes=47 * MIB)],
        f"{PATH}.replicas: {uuid(1)} has 47 MiB, which is less than 1 MiB for each of 48 clients" + REST,
    ),
    "no memory at all": (
        mps(),
        [card(0), card(1, memory_bytes=0)],
        f"{PATH}.replicas: {uuid(1)} has 0 MiB, which is less than 1 MiB for each of 4 clients" + REST,
    ),
    "WSL2": (
        mps(devices="all"),
        [card(0, uuid=WSL_UUID, product="NVIDIA GeForce RTX 4090", pci=None)],
        f"{PATH}: NVIDIA GeForce RTX 4090 is all that this system tells of its GPUs; MPS needs NVML",
    ),
    "Tegra": (
        mps(devices="all"),
        [card(0, uuid=TEGRA_UUID, product=None, pci=None)],
        f"{PATH}: {TEGRA_UUID} is all that this system tells of its GPUs; MPS needs NVML",
    ),
    "two limits for one card": (
        mps(f"{PER_DEVICE}: {{1: 20Gi, {uuid(1)}: 30Gi}}"),
        [],
        f"{PATH}.{PER_DEVICE}.{uuid(1)}: {uuid(1)} has 20Gi as 1 already; one limit for each device" + REST,
    ),
}


@pytest.mark.parametrize(("text", "gpus", "said"), REFUSED.values(), ids=REFUSED)
def test_an_entry_that_the_hardware_cannot_honour_is_withheld_and_says_why(text, gpus, said):
    assert problem(text, *gpus) == said


def test_every_card_that_is_unfit_is_named_with_what_it_lacks_and_what_would_be_left():
    p100, cut_up = {"product": "Tesla P100", "compute_capability": "6.0"}, {"mig": MigMode.ENABLED}
    said = problem(mps(devices="[0, 1, 2, 3]"), card(0, **p100), card(1), card(2, **p100), card(3, **cut_up))
    assert said == (
        f"{PATH}: {uuid(3)} is in MIG mode; MPS on MIG is not supported; Tesla P100 has compute capability 6.0; MPS "
        "needs 7.0; for GPUs 0, 2, 3 the whole entry is withheld, devices: [1] would share the rest"
    )


def test_of_many_problems_the_first_are_told_and_the_number_of_the_rest():
    small = [card(number, memory_bytes=GIB) for number in range(5)]
    said = problem(mps(f"{LIMIT}: 2Gi", devices="[0, 1, 2, 3, 4]"), *small)
    assert said.count("2Gi is more than") == 3
    assert said.endswith(f"{uuid(2)} has (1 GiB); and 2 more")


ALLOWED = {
    "the least capability": (mps(), [card(0, compute_capability="7.0"), card(1, compute_capability="7.5")]),
    "two digits are no decimal fraction": (
        mps(),
        [card(0, compute_capability="10.0"), card(1, compute_capability="12.1")],
    ),
    "as many replicas as clients": (mps(replicas=48), []),
    "MIG mode unknown or impossible": (mps(), [card(0, mig=None), card(1, mig=MigMode.UNSUPPORTED)]),
    "MIG mode of a card in no entry": (mps(devices="[0]"), [card(0), card(1, mig=MigMode.ENABLED)]),
    "an old card in no entry": (mps(devices="[0]"), [card(0), card(1, compute_capability="3.5")]),
    "a MIG device of another node": (mps(devices=f"[0, {MIG_UUID}]"), []),
    "a limit of the whole card": (mps(f"{LIMIT}: 80Gi"), []),
    "a limit that is the whole card in whole MiB": (mps(f"{LIMIT}: {80 * GIB + 7}"), []),
    "a limit above the card, and another for it": (
        mps(f"{LIMIT}: 80Gi, {PER_DEVICE}: {{1: 16Gi}}"),
        [card(0), card(1, memory_bytes=16 * GIB)],
    ),
    "a limit for a card of another node": (mps(f"{PER_DEVICE}: {{{uuid(7)}: 96Gi}}"), []),
    "a MiB for each": (mps(replicas=48), [card(0), card(1, memory_bytes=48 * MIB)]),
    "no memory to share, and a limit of its own": (mps(f"{LIMIT}: 1Mi"), [card(0), card(1, memory_bytes=MIB)]),
    "one limit in two spellings": (mps(f"{PER_DEVICE}: {{1: 20Gi, {uuid(1)}: 20Gi}}"), []),
    "overcommitment beyond the card": (mps("memoryOvercommitPercentage: 1000"), []),
    "all facts unknown": (
        mps(f"{LIMIT}: 96Gi", replicas=100),
        [gpu(0, product=None), gpu(1, product=None)],
    ),
}


@pytest.mark.parametrize(("text", "gpus"), ALLOWED.values(), ids=ALLOWED)
def test_what_the_hardware_can_do_and_what_is_unknown_objects_to_nothing(text, gpus):
    assert problem(text, *gpus) is None


@pytest.mark.parametrize(
    ("driver", "most"),
    [
        (CUDA_12, 48),
        (CUDA_13_0, 48),
        (CUDA_13_1, 60),
        (Driver(version="x", cuda_version="13.10"), 60),
        (Driver(version="x", cuda_version="14.0"), 60),
    ],
    ids=lambda value: getattr(value, "cuda_version", value),
)
def test_the_clients_of_a_card_are_a_matter_of_the_driver(driver, most):
    assert problem(mps(replicas=most), driver=driver) is None
    assert f"more than the {most} clients" in problem(mps(replicas=most + 1), driver=driver)


def test_a_driver_of_unknown_version_objects_to_no_number_of_replicas():
    assert problem(mps(replicas=1000), driver=Driver(version="", cuda_version="")) is None


def test_only_the_entry_with_the_problem_is_withheld_for_it():
    text = """\
        sharing:
          mps:
            resources:
            - {name: gpu, rename: m, devices: [0], replicas: 60}
            - {name: gpu, rename: n, devices: [1], replicas: 4}
        """
    assert shown(allotted(text, card(0), card(1), card(2), driver=CUDA_12)) == {
        0: "-MPSUnsupported m%60",
        1: "n%4",
        2: "gpu",
    }


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"mig": MigMode.ENABLED, "compute_capability": "6.0"}, "MIG mode"),
        ({"compute_capability": "6.0"}, "compute capability"),
        ({}, "clients"),
    ],
)
def test_of_several_problems_the_one_that_no_edit_of_a_figure_would_solve_comes_first(facts, said):
    assert said in problem(mps(f"{LIMIT}: 96Gi", replicas=60), card(0), card(1, **facts))


def test_one_replica_needs_a_daemon_and_so_a_card_that_can_do_mps():
    assert "compute capability 3.5" in problem(mps(replicas=1), card(0), card(1, compute_capability="3.5"))


# Limits of each client


def limits(text, one):
    config = parse(text)
    (entry,) = list_entries(config)
    return find_client_limits(entry, device(one), resolve_pins(config, [card(0), one], {}, {}))


FEW = "defaultActiveThreadPercentage: 50"
SHARES = {
    "nothing said": (mps(), {}, "25 % threads, 20 GiB per client"),
    "a third is rounded down": (mps(replicas=3), {}, "33 % threads, 26.6 GiB per client"),
    "whole MiB": (mps(replicas=7), {"memory_bytes": 15360 * MIB}, "14 % threads, 2.1 GiB per client"),
    "less than a GiB": (mps(replicas=48), {"memory_bytes": 15360 * MIB}, "2 % threads, 320 MiB per client"),
    "more replicas than percents": (mps(replicas=300), {}, "1 % threads, 273 MiB per client"),
    "said for all": (mps(f"{FEW}, {LIMIT}: 18Gi"), {}, "50 % threads, 18 GiB per client"),
    "said for this card": (
        mps(f"{LIMIT}: 18Gi, {PER_DEVICE}: {{1: 20Gi, 0: 5Gi}}"),
        {},
        "25 % threads, 20 GiB per client",
    ),
    "said for this card by its slot": (
        mps(f'{PER_DEVICE}: {{"0000:11:00.0": 500M}}'),
        {},
        "25 % threads, 476 MiB per client",
    ),
    "said for another card": (mps(f"{PER_DEVICE}: {{0: 5Gi}}"), {}, "25 % threads, 20 GiB per client"),
    "overcommitted": (mps("memoryOvercommitPercentage: 150"), {}, "25 % threads, 30 GiB per client"),
    "overcommitted beyond the card": (mps("memoryOvercommitPercentage: 1000"), {}, "25 % threads, 80 GiB per client"),
    "memory unknown": (mps(FEW), {"memory_bytes": None}, "50 % threads per client"),
    "memory unknown, a limit said": (mps(f"{LIMIT}: 18Gi"), {"memory_bytes": None}, "25 % threads, 18 GiB per client"),
}


@pytest.mark.parametrize(("text", "facts", "said"), SHARES.values(), ids=SHARES)
def test_a_client_has_its_share_or_what_the_file_says(text, facts, said):
    assert str(limits(text, card(1, **facts))) == said


def test_limits_are_figures_for_the_control_daemon():
    assert limits(mps(f"{LIMIT}: 1000000000"), card(1)) == ClientLimits(thread_percent=25, memory_mib=953)


@pytest.mark.parametrize(
    "text",
    [mps(replicas=1), "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}"],
    ids=["one replica", "time-slicing"],
)
def test_where_there_is_no_mps_there_are_no_limits(text):
    assert limits(text, card(1)) is None


@given(
    replicas=st.integers(2, 60), mib=st.integers(1024, 300_000), overcommit=st.one_of(st.none(), st.integers(100, 1000))
)
def test_equal_shares_never_add_up_to_more_than_the_file_allows(replicas, mib, overcommit):
    keys = "" if overcommit is None else f"memoryOvercommitPercentage: {overcommit}"
    found = limits(mps(keys, replicas=replicas), card(1, memory_bytes=mib * MIB))
    assert 1 <= found.thread_percent <= 100
    assert found.thread_percent * replicas <= 100
    assert found.memory_mib <= mib
    assert found.memory_mib * replicas * 100 <= mib * (overcommit or 100)
    assert found.memory_mib == mib or (found.memory_mib + 2) * replicas * 100 > mib * (overcommit or 100)


@given(limit=st.integers(1, 2**40), mib=st.integers(1, 2**18))
def test_a_limit_is_refused_exactly_if_it_is_more_than_the_card_has(limit, mib):
    said = problem(
        mps(f"{LIMIT}: {limit * 1024 + MIB}"), card(0, memory_bytes=mib * MIB), card(1, memory_bytes=mib * MIB)
    )
    assert (said is not None) is (Quantity(limit * 1024 + MIB).mib > mib)
