"""The choice by node label with a real API server: what it tells is followed, what it does not tell changes nothing."""

from __future__ import annotations

import queue
import threading
import time
from random import Random

import pytest

from nvdp.app.selection import build_selection, find_config_map
from nvdp.cluster.access import ServiceAccountAccess
from nvdp.cluster.api import Api
from nvdp.cluster.contact import Contact
from nvdp.cluster.watching import ObjectWatch
from nvdp.config.options import parse_options
from nvdp.config.overrides import NO_OVERRIDES
from nvdp.model.cluster import build_node_path
from tests.cluster.server import ApiServer, garbage, hang
from tests.daemon.process import wait_until
from tests.host.test_config_directory import mount

KEY = "nvidia.com/device-plugin.config"
TEXTS = {"base": "version: v1\n", "mixed": "version: v1\nhealth: {}\n"}
SOON_S = 1.0


class Eager(Random):
    """Waits as short as may be."""

    def uniform(self, a: float, _b: float) -> float:
        return a / 10


class Scene:
    """A server, and one process's share of what follows it."""

    def __init__(self, server, account, **flags):
        self.server = server
        self.posted = queue.SimpleQueue()
        given = {"node-name": "gpu-a3", "config-map": "configs", "default-config": "base", **flags}
        options, _ = parse_options(given, {})
        service = self.service = build_selection(
            options, NO_OVERRIDES, post=self.posted.put, namespace="nvdp", first_delay_s=0.0, keeps_one=False
        )
        self.api = Api(ServiceAccountAccess(account, environ=server.environ))
        contact = Contact(lambda *_, **__: None)
        shared = {"contact": contact, "random": Eager()}
        node = build_node_path(options.node_name)
        self.watches = [ObjectWatch(self.api, node, name="node", on_seen=service.see_node, **shared)]
        config_map = find_config_map(options, namespace="nvdp")
        if config_map is not None:
            see = service.see_config_map
            self.watches.append(ObjectWatch(self.api, config_map, name="configmap", on_seen=see, **shared))
        watch = service.build_watch()
        if watch is not None:
            watch.look(time.monotonic())
        service.start()
        for watch in self.watches:
            watch.start()

    def label(self, value):
        self.server.store.label("gpu-a3", **{KEY: value})

    def edit(self, **texts):
        self.server.store.edit("configmaps", "configs", lambda found: found["data"].update(texts), namespace="nvdp")

    def reads(self, entry):
        return self.service._entries.texts[entry]

    def next(self):
        return self.posted.get(timeout=10)

    def time_change(self, change, entry):
        """How long it takes until this change brings the entry, in seconds."""
        changed_at = time.monotonic()
        change()
        found = self.next()
        assert found.chosen.entry == entry
        return time.monotonic() - changed_at

    def stop(self):
        for watch in self.watches:
            watch.stop()
        self.api.close()


@pytest.fixture
def server():
    with ApiServer() as started:
        started.store.put("nodes", {"metadata": {"name": "gpu-a3", "labels": {KEY: "mixed"}}})
        started.store.put("configmaps", {"metadata": {"name": "configs", "namespace": "nvdp"}, "data": TEXTS})
        yield started


@pytest.fixture
def start(server, tmp_path):
    scenes = []

    def make(**flags):
        account = server.write_service_account(tmp_path / "account")
        scenes.append(Scene(server, account, **flags))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.stop()


def test_label_and_edits_are_followed_within_a_second(start):
    scene = start()
    assert scene.next().chosen.entry == "mixed"
    times = []
    for number in range(3):
        times.append(scene.time_change(lambda: scene.label("base"), "base"))
        times.append(scene.time_change(lambda number=number: scene.edit(base=f"# {number}\n"), "base"))
        scene.edit(mixed=f"# {number}\n")  # nobody's here; each object is told by a watch of its own
        wait_until(lambda number=number: f"# {number}\n".encode() == scene.reads("mixed"), what="the edit of the other")
        times.append(scene.time_change(lambda: scene.label("mixed"), "mixed"))
    assert sorted(times)[len(times) // 2] < SOON_S  # others use this machine too
    assert scene.posted.empty()
    assert len(scene.server.journal.of()) == 2


def test_a_server_that_hangs_does_not_bring_the_default(start, server, tmp_path):
    mount(tmp_path / "configs", TEXTS, version="one")
    release = threading.Event()
    server.faults.add(hang(release), verb="watch", resource="nodes", times=1)
    scene = start(**{"config-dir": str(tmp_path / "configs")})
    wait_until(lambda: scene.service._sight.config_map is not None, what="the ConfigMap, before the node's label")
    release.set()
    assert scene.next().chosen.entry == "mixed"


def test_an_outage_changes_nothing_and_what_changed_meanwhile_is_followed(start, server):
    scene = start()
    scene.next()
    server.stop()
    server.start()
    scene.label("base")
    assert scene.next().chosen.entry == "base"
    server.stop()
    scene.edit(base="# edited\n")
    server.start()
    assert scene.next().text == b"# edited\n"
    assert scene.posted.empty()


def test_a_server_that_sends_something_else_changes_nothing(start, server):
    scene = start()
    scene.next()
    nonsense = b'{"type":"MODIFIED","object":{"kind":"Node","metadata":{}}}\n'
    server.faults.add(garbage(nonsense), verb="watch", times=2)
    server.faults.add(garbage(b"<html>", code=200), verb="watch", times=2)
    server.end_watches()
    scene.label("base")
    assert scene.next().chosen.entry == "base"
    assert scene.posted.empty()


def test_while_something_else_is_sent_of_the_node_its_label_stands_and_edits_are_followed(start, server):
    scene = start()
    assert scene.next().chosen.entry == "mixed"
    nonsense = b'{"type":"MODIFIED","object":{"metadata":{"name":"gpu-a3","labels":7}}}\n'
    server.faults.add(garbage(nonsense), verb="watch", resource="nodes")
    server.end_watches()
    wait_until(lambda: "something else" in scene.service._sight.node_problem, what="the problem")
    scene.edit(mixed="# edited\n")
    found = scene.next()
    assert (found.chosen.entry, found.text) == ("mixed", b"# edited\n")
    assert scene.posted.empty()


def test_a_config_map_that_is_not_there_is_said_to_be_missing_and_followed_when_it_comes(start, server):
    scene = start(**{"config-map": "later"})
    found = scene.next()
    assert (found.missing, found.source) == (True, "configmap nvdp/later")
    server.store.put("configmaps", {"metadata": {"name": "later", "namespace": "nvdp"}, "data": TEXTS})
    assert scene.next().chosen.entry == "mixed"
