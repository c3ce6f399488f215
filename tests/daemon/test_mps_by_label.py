"""``nvdp mps`` where the node's label chooses: it follows it as the plugin does, and never writes to the cluster."""

from __future__ import annotations

import pytest
import yaml

from nvdp.host.mps_report import load_report
from tests.cluster.server import ApiServer
from tests.daemon.cluster import Cluster
from tests.daemon.mps import MPS, build_mps
from tests.daemon.node import gpu_uuid
from tests.daemon.process import Daemon, wait_until
from tests.daemon.prompt import IMPATIENT, PROMPT

FIRST, SECOND = gpu_uuid(0), gpu_uuid(1)
TEXTS = {"one": yaml.safe_dump(build_mps({"devices": [0]})), "both": yaml.safe_dump(build_mps({"devices": [0, 1]}))}


@pytest.fixture
def cluster(root):
    with ApiServer() as server:
        yield Cluster(server, root)


@pytest.fixture
def follow(cluster, mps):
    """Starts ``nvdp mps`` with every option that there is of the cluster, as if both pods had the same environment."""

    def begin(launcher=PROMPT) -> Daemon:
        return mps.start(*cluster.all, by_label=True, launcher=launcher)

    return begin


def wait_gpus(mps, *gpus):
    """Until the control daemon has these; none: until there is no control daemon."""

    def look():
        report = load_report(mps.directory)
        if report is None:
            return False
        running = report.daemons[MPS].running if MPS in report.daemons else None
        return set(running.gpus if running is not None else ()) == set(gpus)

    wait_until(look, what=f"{len(gpus)} GPUs with a control daemon")


def test_it_follows_the_label_and_the_configmap_without_a_write_and_keeps_all_over_an_outage(cluster, mps, follow):
    cluster.edit(**TEXTS)
    cluster.label("one")
    keeper = follow()
    wait_gpus(mps, FIRST)
    cluster.label("both")
    wait_gpus(mps, FIRST, SECOND)
    pid = mps.find_pid()
    cluster.label("no-such")
    keeper.log.wait_for("ConfigUnknown", text="label nvidia.com/device-plugin.config=no-such")

    cluster.server.stop()
    keeper.kill()
    again = follow(IMPATIENT)
    again.log.wait_for("ConfigMissing", text="is not known yet")
    wait_gpus(mps, FIRST, SECOND)
    assert mps.find_pid() == pid, "clients of it would have ended"
    cluster.label("whole")
    cluster.server.start()
    again.look()
    wait_gpus(mps)

    assert cluster.writes == []
    assert {(entry.verb, entry.resource) for entry in cluster.server.journal.of()} <= {
        ("watch", "nodes"),
        ("watch", "configmaps"),
    }
