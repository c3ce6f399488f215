"""Requests to a real server over TLS: what is sent, what comes back, and what each failure is called."""

from __future__ import annotations

import threading
import time

import pytest

from nvdp import __version__
from nvdp.errors import ClusterError, ClusterFault
from nvdp.model.cluster import ObjectPath, build_config_map_path, build_node_path
from tests.cluster.server import answer

NODE = build_node_path("gpu-a3")
MAP = build_config_map_path("nvdp", "configs")


def test_a_node_is_read(api, server) -> None:
    assert api.read(NODE)["metadata"]["labels"] == {"zone": "b"}
    (entry,) = server.journal.of(verb="get", resource="nodes", name="gpu-a3", code=200)
    assert entry.agent == f"nvdp/{__version__}"


def test_an_object_is_made_replaced_patched_and_deleted(api, server) -> None:
    made = api.create(MAP, {"metadata": {"name": "configs"}, "data": {"a": "1"}})
    replaced = api.replace(MAP, {**made, "data": {"a": "2"}})
    with pytest.raises(ClusterError) as caught:
        api.replace(MAP, {**made, "data": {"a": "3"}})
    assert caught.value.fault is ClusterFault.CONFLICT
    assert api.patch(MAP, {"data": {"b": "3"}})["data"] == {"a": "2", "b": "3"}
    assert api.patch(MAP, [{"op": "remove", "path": "/data/b"}])["data"] == {"a": "2"}
    assert replaced["metadata"]["uid"] == made["metadata"]["uid"]
    api.delete(MAP)
    assert server.store.find("configmaps", "configs", namespace="nvdp") is None


def test_a_watch_tells_the_present_state_and_then_each_change(api, server) -> None:
    with api.watch(NODE) as watch:
        events = iter(watch)
        assert next(events).kind == "ADDED"
        server.store.put("nodes", {"metadata": {"name": "another"}})
        server.store.label("gpu-a3", x="y")
        changed = next(events)
        assert (changed.kind, changed.object["metadata"]["labels"]) == ("MODIFIED", {"zone": "b", "x": "y"})
        server.store.remove("nodes", "gpu-a3")
        assert next(events).kind == "DELETED"


def test_closing_a_watch_ends_a_read_under_way(api) -> None:
    watch = api.watch(NODE)
    seen = []
    reader = threading.Thread(target=lambda: seen.extend(watch))
    reader.start()
    while not seen:
        time.sleep(0.01)
    began = time.monotonic()
    watch.close()
    reader.join(5)
    assert not reader.is_alive()
    assert time.monotonic() - began < 1


def test_whether_a_watch_tells_something_is_known_without_taking_it(api, server) -> None:
    with api.watch(ObjectPath("nodes", "absent")) as watch:
        assert not watch.hears_within(0.05)
        server.store.put("nodes", {"metadata": {"name": "absent"}})
        assert watch.hears_within(5)
        assert next(iter(watch)).object["metadata"]["name"] == "absent"


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (400, ClusterFault.REFUSED),
        (404, ClusterFault.MISSING),
        (409, ClusterFault.CONFLICT),
        (410, ClusterFault.GONE),
        (422, ClusterFault.REFUSED),
        (429, ClusterFault.THROTTLED),
        (500, ClusterFault.FAILED),
        (503, ClusterFault.FAILED),
    ],
)
def test_each_refusal_has_its_fault_and_the_servers_words(api, server, code, fault) -> None:
    server.faults.add(answer(code, "so it is\nsaid", retry_after="7"))
    with pytest.raises(ClusterError, match=r"get node gpu-a3: .*: so it is said$") as caught:
        api.read(NODE)
    assert (caught.value.fault, caught.value.retry_after_s) == (fault, 7.0)


def test_what_an_admission_rule_refuses_is_not_told_as_a_right_that_is_missing(api, server) -> None:
    said = 'admission webhook "gate.example.com" denied the request: nodes are mine'
    server.faults.add(answer(403, said), verb="patch")
    with pytest.raises(ClusterError) as caught:
        api.patch(NODE, {"metadata": {"labels": {"a": "b"}}})
    assert str(caught.value) == f"patch node gpu-a3: an admission rule of the cluster refuses it (403): {said}"
