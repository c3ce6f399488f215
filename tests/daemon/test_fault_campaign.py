"""Faults of every kind, at random, on two machines: after each storm the kubelet sees what is true, by itself.

At length with ``make soak``. A failure tells its seed and its last steps, and the same seed draws the same steps again.
What the daemon does meanwhile hangs on time as well, so that it may take some tries.
"""

from __future__ import annotations

import os

import pytest

from tests.daemon.storms.campaign import Campaign
from tests.daemon.storms.machines import CompiledMachine, SimulatedMachine
from tests.daemon.storms.node import Node
from tests.daemon.storms.use import Use
from tests.daemon.storms.weather import draw_storms
from tests.nvml.conftest import compile_fake

STEPS_OF_A_SEED = 2000
TOTAL = int(os.environ.get("NVDP_SOAK_STEPS", "0"))
FIRST_SEED = int(os.environ.get("NVDP_SOAK_SEED", "1"))
STEPS = min(TOTAL, STEPS_OF_A_SEED) or 50
# Without a soak, two short lives with some of everything, on one machine each.
SEEDS = range(FIRST_SEED, FIRST_SEED + -(-TOTAL // STEPS)) if TOTAL else (874, 893)
# docs/performance.md states the same.
BOUNDS = Use(threads=40, files=40, children=4, daemon_mib=64, child_mib=32, growth_mib=10)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compile_fake(tmp_path_factory.mktemp("fake"), basic=False)


@pytest.fixture
def machine(request, root, seed):
    """Seeds take turns with machines, and pairs of seeds with kubelets."""
    return CompiledMachine(root, request.getfixturevalue("library")) if seed % 2 else SimulatedMachine(root)


@pytest.fixture
def version(seed):
    return "1.36" if seed // 2 % 2 else "1.37"


@pytest.fixture
def settings():
    return {"kubelet": {"topology_policy": "restricted"}}


@pytest.fixture
def node(root, kubelet, config_map, machine):
    found = Node(root, kubelet, machine, config_map)
    yield found
    found.kill()
    for daemon in found.daemons:
        print(f"the log of {daemon.pid}:", *daemon.log, *daemon.log.texts, sep="\n")  # noqa: T201 - pytest shows it if the test fails


@pytest.fixture
def campaign(node, seed):
    found = Campaign(node, bounds=BOUNDS, calm_s=150 if TOTAL else 40)
    yield found
    print(f"seed {seed}; again: make soak NVDP_SOAK_SEED={seed} NVDP_SOAK_STEPS={STEPS}")  # noqa: T201 - as above
    print(f"in use at most: {found.meter.most}")  # noqa: T201 - as above


@pytest.mark.campaign
@pytest.mark.invariant(5)
@pytest.mark.timeout(7200 if TOTAL else 120)
@pytest.mark.parametrize("seed", SEEDS)
def test_after_each_storm_of_faults_the_kubelet_sees_what_is_true(node, campaign, seed):
    campaign.live(draw_storms(seed, STEPS, patient=bool(TOTAL)))
    node.end()

    assert campaign.steps == STEPS
