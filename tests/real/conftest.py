"""What is real here, and on which condition."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.conftest import (  # noqa: F401 - pytest finds fixtures by their names here
    config_map,
    kubelet,
    library,
    machine,
    root,
    settings,
    start,
    unstarted_kubelet,
    version,
)
from tests.real.cluster import RealCluster
from tests.real.controlplane import ControlPlane

PROGRAMS = "NVDP_KUBERNETES"


@pytest.fixture(scope="session")
def programs() -> Path:
    """The directory of the programs of Kubernetes."""
    named = os.environ.get(PROGRAMS)
    if not named:
        pytest.skip(f"{PROGRAMS} names no directory with programs of Kubernetes: see .ci/kubernetes")
    found = Path(named).absolute()
    assert (found / "kube-apiserver").exists(), f"{PROGRAMS}={named}: there is no kube-apiserver"
    return found


@pytest.fixture
def control_plane(programs: Path, root: Path) -> Iterator[ControlPlane]:  # noqa: F811 - the fixture above
    """Runs from the start of the test."""
    (root / "control").mkdir()
    made = ControlPlane(programs, root / "control")
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def cluster(control_plane: ControlPlane, root: Path) -> RealCluster:  # noqa: F811 - as above
    """With the shipped manifests applied, and a Node."""
    return RealCluster(control_plane, root)
