"""All that is written to the own Node, by a real watch of it and with the rights of the manifests' kind."""

from __future__ import annotations

import subprocess
import sys
from random import Random

import pytest

from nvdp.app.cluster import build_event_log
from nvdp.app.node_writers import build_node_writers
from nvdp.cluster.access import ServiceAccountAccess
from nvdp.cluster.api import Api
from nvdp.cluster.contact import Contact
from nvdp.cluster.watching import ObjectWatch
from nvdp.config.options import parse_options
from nvdp.model.cluster import build_node_path
from nvdp.model.reasons import Reason
from nvdp.model.status import Status
from nvdp.planning.start_spread import StartDelays
from tests.cluster.server import ApiServer
from tests.cluster.test_node_status import GPU, KEY, KUBELETS, NODE, OTHERS, OURS, TYPE, advertised
from tests.cluster.timing import Lines, wait_ended
from tests.daemon.process import wait_until

ALL = {"events": "true", "node-condition": TYPE, "startup-taint": KEY}
AT_ONCE = StartDelays(ask_s=0.0, state_s=0.0, labels_s=0.0, events_s=0.0)


class Scene:
    """One process's share of what writes to the Node, with its own watch of it."""

    def __init__(self, server, account, **flags):
        self.server = server
        options, _ = parse_options({"node-name": NODE, "pod-name": "nvdp-x7k2p", **flags}, {})
        self.inner = Lines()
        self.lines = build_event_log(options, self.inner)
        self.log = self.lines or self.inner
        self.api = Api(ServiceAccountAccess(account, environ=server.environ))
        self.writers = build_node_writers(
            options, api=self.api, lines=self.lines, log=self.log, delays=AT_ONCE, rng=Random(7)
        )
        self.watch = ObjectWatch(
            self.api,
            build_node_path(NODE),
            name="node",
            on_seen=self.writers.see,
            contact=Contact(self.inner),
            random=Random(7),
        )
        for service in (*self.writers.services, self.watch):
            service.start()

    def stop(self):
        for service in (*self.writers.services, self.watch):
            service.stop()
        for service in (*self.writers.services, self.watch):
            wait_ended(service)
        self.api.close()

    @property
    def node(self):
        return self.server.store.find("nodes", NODE)

    @property
    def condition(self):
        return next((one for one in self.node["status"]["conditions"] if one["type"] == TYPE), {})

    @property
    def notes(self):
        return {one["reason"]: one for one in self.server.store.list("events")}


@pytest.fixture
def server():
    with ApiServer() as started:
        node = {"metadata": {"name": NODE}, "spec": {"taints": [OTHERS, OURS]}, "status": {"conditions": [KUBELETS]}}
        started.store.put("nodes", node)
        yield started


@pytest.fixture
def build(server, tmp_path):
    made = []

    def build_scene(**flags):
        made.append(Scene(server, server.write_service_account(tmp_path / "account"), **flags))
        return made[-1]

    yield build_scene
    for scene in made:
        scene.stop()


def test_a_node_comes_up(build, server):
    scene = build(**ALL)
    scene.writers.follow(Status())
    scene.log(Reason.DRIVER_READY, "driver 580.65.06, 4 GPUs")
    scene.writers.follow(advertised())
    server.store.edit("nodes", NODE, lambda node: node["status"].update(allocatable={GPU: "4"}))
    wait_until(lambda: scene.node["spec"]["taints"] == [OTHERS], what="that the taint goes")
    wait_until(lambda: scene.condition.get("status") == "True", what="the condition")
    wait_until(lambda: {"DriverReady", "StartupTaintRemoved"} <= scene.notes.keys(), what="the events")
    assert scene.notes["StartupTaintRemoved"]["regarding"]["uid"] == scene.node["metadata"]["uid"]
    assert scene.node["status"]["conditions"][0] == KUBELETS
    used = server.journal.verbs
    assert used == {
        ("watch", "nodes"),
        ("patch", "nodes"),
        ("patch", "nodes/status"),
        ("create", "events"),
    }, "as the manifests grant it, and no more"
    assert list(scene.writers.find_troubles()) == []
    assert len(server.journal.of()) == 5


def test_an_outage_changes_nothing_and_its_end_costs_what_has_changed(build, server):
    scene = build(**ALL)
    scene.writers.follow(advertised())
    wait_until(lambda: scene.condition.get("status") == "True", what="the condition")
    server.stop()
    scene.writers.follow(advertised(0))
    wait_until(lambda: scene.writers.services[1]._attempts.trouble, what="tries that failed")
    server.journal.clear()
    server.start()
    scene.writers.look()
    wait_until(lambda: scene.condition.get("reason") == "AllUnhealthy", what="the condition")
    assert len(server.journal.of(verb="patch", resource="nodes/status")) == 1
    assert scene.node["spec"]["taints"] == [OTHERS, OURS], "nothing healthy is on offer"


@pytest.mark.parametrize("flags", [{}, *({flag: value} for flag, value in ALL.items())], ids=lambda flags: str(*flags))
def test_each_is_there_only_if_it_is_asked_for(build, flags):
    scene = build(**flags)
    assert len(scene.writers.services) == len(flags)
    assert (scene.lines is not None) == ("events" in flags)


def test_nothing_of_the_cluster_is_loaded_before_it_is_asked_for():
    code = "import sys, nvdp.app.node_writers; print([name for name in sys.modules if name == 'nvdp.cluster.api'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
