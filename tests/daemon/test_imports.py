"""What a daemon loads: nothing of the cluster, or for labels, unless an option asks for it."""

from __future__ import annotations

import pytest

from tests.cluster.server import ApiServer
from tests.daemon.cluster import Cluster
from tests.daemon.importing import build_launcher
from tests.daemon.node import build_config, gpu_uuid, wait_healthy

ALL = [gpu_uuid(number) for number in range(4)]
OF_THE_CLUSTER = (
    "nvdp.cluster",
    "nvdp.cluster.api",
    "nvdp.app.labelling",
    "nvdp.app.node_writers",
    "nvdp.app.selection",
    "nvdp.services.labelling",
    "nvdp.services.node_events",
    "nvdp.services.node_status",
    "nvdp.services.selection",
    "nvdp.services.startup_taint",
    "kubernetes",
)
FOR_LABELS = "nvdp.planning.label"  # how the names begin of what only labels take


def find_loaded(path) -> set[str]:
    """What of the above was looked for, by its first words."""
    names = path.read_text().split()
    loaded = {of for of in OF_THE_CLUSTER for name in names if f"{name}.".startswith(f"{of}.")}
    return loaded | {FOR_LABELS for name in names if name.startswith(FOR_LABELS)}


def test_without_an_option_of_the_cluster_nothing_of_it_is_loaded(kubelet, start, root):
    daemon = start(build_config(), "--node-name", "gpu-a3", launcher=build_launcher(root / "imports"))
    wait_healthy(kubelet, ALL)
    daemon.wait_ready()
    daemon.stop()
    assert "nvdp.app.cluster" in (root / "imports").read_text().split()
    assert find_loaded(root / "imports") == set()


@pytest.mark.parametrize(
    ("flags", "loaded"),
    [
        (
            ("--write-labels", "file"),
            {"nvdp.app.labelling", "nvdp.cluster", "nvdp.services.labelling", FOR_LABELS},
        ),
        (
            ("--node-condition", "example.com/Ready"),
            {
                "nvdp.app.node_writers",
                "nvdp.cluster",
                "nvdp.cluster.api",
                *(f"nvdp.services.{name}" for name in ("node_events", "node_status", "startup_taint")),
            },
        ),
    ],
    ids=["labels in a file", "condition"],
)
def test_an_option_brings_no_more_than_it_takes(kubelet, start, root, flags, loaded):
    with ApiServer() as server:
        access = Cluster(server, root).access
        daemon = start(build_config(), *access, *flags, launcher=build_launcher(root / "imports"))
        wait_healthy(kubelet, ALL)
        daemon.wait_ready()
        daemon.stop()
    assert find_loaded(root / "imports") == loaded
