"""One object in sight over everything that a real server does to a watch."""

from __future__ import annotations

import json
import threading
from random import Random

import pytest

from nvdp.cluster.contact import Contact
from nvdp.cluster.watching import ObjectWatch
from nvdp.model.cluster import build_config_map_path, build_node_path
from nvdp.model.reasons import Reason
from nvdp.planning.following import note_heard
from tests.cluster.server import ApiServer, answer, garbage, slow, stream_error
from tests.daemon.process import wait_until

NODE = build_node_path("gpu-a3")
MAP = build_config_map_path("nvdp", "configs")


class Eager(Random):
    """Waits as short as may be."""

    def uniform(self, a: float, _b: float) -> float:
        return a / 10


class Sight:
    """What an ObjectWatch told, and what it logged."""

    def __init__(
        self, api, path=NODE, *, patience_s: float = 60.0, quiet_s: float = 0.3, random: Random | None = None
    ) -> None:
        self.seen: list = []
        self.logged: list = []
        self.contact = Contact(lambda reason, text, **_: self.logged.append((reason, text)), patience_s=patience_s)
        self.watch = ObjectWatch(
            api,
            path,
            name="node",
            on_seen=self.seen.append,
            contact=self.contact,
            quiet_s=quiet_s,
            random=random or Eager(),
        )

    @property
    def labels(self) -> dict | None:
        last = self.seen[-1] if self.seen else None
        return None if last is None or last.object is None else last.object["metadata"].get("labels")

    def wait_labels(self, **labels: str) -> None:
        wait_until(lambda: self.labels == labels, what=f"labels {labels}, last {self.seen[-1:]}")

    def wait_told(self, *reasons: Reason) -> list[tuple[Reason, str]]:
        """All lines, once they are so many: what is seen is passed on before it is told of."""
        wait_until(lambda: len(self.logged) >= len(reasons), what=f"{len(reasons)} lines")
        assert [reason for reason, _ in self.logged] == [*reasons]
        return self.logged


@pytest.fixture
def sight(api):
    """One that is not soon tired of waiting for the server's first word: each request is counted."""
    made = Sight(api, quiet_s=5.0)
    made.watch.start()
    yield made
    made.watch.stop()
    made.watch._thread.join(5)


def test_a_change_is_seen_and_costs_no_request(sight, server: ApiServer) -> None:
    sight.wait_labels(zone="b")
    server.store.label("gpu-a3", zone="c")
    sight.wait_labels(zone="c")
    assert len(server.journal.of()) == 1


def test_it_goes_on_from_the_last_version_when_the_server_ends_the_watch(sight, server: ApiServer) -> None:
    sight.wait_labels(zone="b")
    version = server.store.find("nodes", "gpu-a3")["metadata"]["resourceVersion"]
    server.end_watches()
    wait_until(lambda: len(server.journal.of(verb="watch")) == 2, what="another watch")
    assert server.journal.of()[-1].version == version
    server.store.label("gpu-a3", zone="c")
    sight.wait_labels(zone="c")
    assert len(server.journal.of()) == 2
    assert sight.logged == []


def test_an_object_that_is_not_there_is_told_and_seen_when_it_comes(api, server: ApiServer) -> None:
    sight = Sight(api, MAP)
    sight.watch.start()
    wait_until(lambda: sight.seen, what="that it is not there")
    assert sight.seen[0].object is None
    assert not sight.seen[0].problem
    server.store.put("configmaps", {"metadata": {"name": "configs", "namespace": "nvdp"}, "data": {"a": "b"}})
    wait_until(lambda: sight.seen[-1].object, what="the ConfigMap")
    server.store.remove("configmaps", "configs", namespace="nvdp")
    wait_until(lambda: sight.seen[-1].object is None, what="its end")
    assert [entry.verb for entry in server.journal.of()] == ["watch", "get"]
    sight.watch.stop()
    sight.watch._thread.join(5)


def test_an_outage_is_told_once_and_what_was_seen_stands(api, server: ApiServer) -> None:
    sight = Sight(api, patience_s=0.3)
    sight.watch.start()
    sight.wait_labels(zone="b")
    server.stop()
    wait_until(lambda: sight.seen[-1].problem, what="the problem")
    assert sight.labels == {"zone": "b"}
    wait_until(lambda: sight.logged, what="a line")
    server.store.label("gpu-a3", zone="c")
    server.start()
    sight.wait_labels(zone="c")
    assert not sight.seen[-1].problem
    sight.wait_told(Reason.API_SERVER_LOST, Reason.API_SERVER_REACHED)
    sight.watch.stop()
    sight.watch._thread.join(5)


def test_an_outage_without_a_change_ends_with_the_object_as_it_was(api, server: ApiServer) -> None:
    sight = Sight(api)
    sight.watch.start()
    sight.wait_labels(zone="b")
    server.stop()
    wait_until(lambda: sight.seen[-1].problem, what="the problem")
    server.start()
    wait_until(lambda: not sight.seen[-1].problem, what="the end of the problem")
    assert sight.labels == {"zone": "b"}
    assert sight.logged == []  # it was too short
    sight.watch.stop()
    sight.watch._thread.join(5)


@pytest.mark.parametrize("action", [answer(410, reason="Expired"), stream_error(410)])
def test_a_version_that_is_too_old_is_given_up_for_the_present_state(sight, server: ApiServer, action) -> None:
    sight.wait_labels(zone="b")
    server.faults.add(action, verb="watch", times=1)
    server.end_watches()
    wait_until(lambda: len(server.journal.of(verb="watch")) == 3, what="a third watch")
    server.store.label("gpu-a3", zone="c")
    sight.wait_labels(zone="c")
    assert [bool(entry.version) for entry in server.journal.of()] == [False, True, False]
    assert sight.logged == []


def test_a_compacted_history_costs_no_change(sight, server: ApiServer) -> None:
    sight.wait_labels(zone="b")
    server.faults.add(answer(503), verb="watch", times=1)
    server.end_watches()
    wait_until(lambda: server.journal.of(code=503), what="a refusal")
    server.store.label("gpu-a3", zone="c")
    server.store.forget()
    sight.wait_labels(zone="c")


def test_an_object_that_went_while_nobody_looked_is_seen_to_be_gone(api, server: ApiServer) -> None:
    sight = Sight(api)
    sight.watch.start()
    sight.wait_labels(zone="b")
    server.stop()
    server.store.remove("nodes", "gpu-a3")
    server.store.forget()
    server.start()
    wait_until(lambda: sight.seen[-1].object is None and not sight.seen[-1].problem, what="that it is gone")
    sight.watch.stop()
    sight.watch._thread.join(5)


def test_a_bookmark_moves_the_version(sight, server: ApiServer) -> None:
    sight.wait_labels(zone="b")
    server.store.put("configmaps", {"metadata": {"name": "x", "namespace": "y"}})
    server.store.bookmark()
    wait_until(lambda: sight.watch._state.version == str(server.store.version), what="the bookmark's version")
    assert len(sight.seen) == 1


def test_a_refusal_is_told_at_once_with_the_right_that_is_missing(api, server: ApiServer) -> None:
    server.faults.add(answer(403, "no"), verb="watch", times=2)
    sight = Sight(api)
    sight.watch.start()
    sight.wait_labels(zone="b")
    (_, text), _ = sight.wait_told(Reason.API_SERVER_LOST, Reason.API_SERVER_REACHED)
    assert "needs the right to watch nodes" in text
    assert sight.seen[0].problem
    sight.watch.stop()
    sight.watch._thread.join(5)


def test_what_is_told_of_another_object_is_not_ours(api, server: ApiServer) -> None:
    line = b'{"type": "ADDED", "object": {"metadata": {"name": "gpu-a4", "resourceVersion": "9", "labels": {}}}}\n'
    server.faults.add(garbage(line), verb="watch", times=1)
    sight = Sight(api)
    sight.watch.start()
    sight.wait_labels(zone="b")
    assert [seen.object for seen in sight.seen if seen.object and seen.object["metadata"]["name"] != "gpu-a3"] == []
    assert server.journal.of()[-1].version == ""
    sight.watch.stop()
    sight.watch._thread.join(5)


NO_NODES = {
    "no metadata": {"kind": "Status"},
    "other metadata": {"metadata": ["name"]},
    "no name": {"metadata": {"labels": {"zone": "x"}}},
    "a number for a name": {"metadata": {"name": 7}},
    "no labels": {"metadata": {"name": "gpu-a3", "labels": 0}},
    "a number for a label": {"metadata": {"name": "gpu-a3", "labels": {"zone": 7}}},
    "a list for an annotation": {"metadata": {"name": "gpu-a3", "annotations": {"a": []}}},
}


@pytest.mark.parametrize("found", NO_NODES.values(), ids=NO_NODES)
def test_what_is_no_object_is_told_once_and_what_was_seen_stands_until_there_is_one_again(
    api, server: ApiServer, found
) -> None:
    sight = Sight(api, patience_s=0.2)
    sight.watch.start()
    sight.wait_labels(zone="b")
    server.faults.add(garbage(write_event("MODIFIED", found)), verb="watch")
    server.end_watches()
    wait_until(lambda: sight.logged, what="a line")
    assert sight.labels == {"zone": "b"}
    ((reason, text),) = sight.logged
    assert reason is Reason.API_SERVER_LOST
    assert text.startswith("watch node gpu-a3: the API server sent something else than such an object. ")
    assert sight.seen[-1].problem in sight.contact.trouble.text
    server.faults.clear()
    server.store.label("gpu-a3", zone="c")
    sight.wait_labels(zone="c")
    assert (sight.seen[-1].problem, sight.contact.trouble) == ("", None)
    assert [reason for reason, _ in sight.logged] == [Reason.API_SERVER_LOST, Reason.API_SERVER_REACHED]
    sight.watch.stop()
    sight.watch._thread.join(5)


def test_a_look_does_not_wait_for_the_back_off(api, server: ApiServer) -> None:
    class Patient(Random):
        def uniform(self, _a: float, _b: float) -> float:
            return 3600.0

    server.faults.add(answer(500), verb="watch", times=1)
    sight = Sight(api, random=Patient())
    sight.watch.start()
    wait_until(lambda: sight.seen, what="a refusal")
    sight.watch.look()
    sight.wait_labels(zone="b")
    sight.watch.stop()
    sight.watch._thread.join(5)


def test_a_look_waits_as_long_as_the_server_asked_for_and_no_longer(api, server: ApiServer) -> None:
    class Patient(Random):
        def uniform(self, a: float, b: float) -> float:
            return a if b <= 1.0 else 3600.0

    server.faults.add(answer(429, retry_after="1"), verb="watch", times=1)
    sight = Sight(api, random=Patient())
    sight.watch.start()
    wait_until(lambda: sight.seen, what="a refusal")
    sight.watch.look()
    sight.watch.look()
    sight.wait_labels(zone="b")
    first, second = (entry.at for entry in server.journal.of())
    assert second - first >= 1.0
    sight.watch.stop()
    sight.watch._thread.join(5)


def test_stopping_does_not_wait_for_the_server(api, server: ApiServer) -> None:
    release = threading.Event()
    sight = Sight(api)
    sight.watch.start()
    sight.wait_labels(zone="b")
    sight.watch.stop()
    sight.watch._thread.join(5)
    assert not sight.watch._thread.is_alive()
    release.set()


def test_it_may_be_started_again_after_a_crash(api, server: ApiServer) -> None:
    crashes = []
    sight = Sight(api)
    good, sight.watch._on_seen = sight.watch._on_seen, lambda _: 1 / 0
    hook, threading.excepthook = threading.excepthook, crashes.append
    try:
        sight.watch.start()
        wait_until(lambda: crashes, what="a crash")
        sight.watch._thread.join(5)
    finally:
        threading.excepthook = hook
    assert crashes[0].thread.name == sight.watch.THREAD == "watch-node"
    sight.watch._on_seen = good
    sight.watch.start()
    sight.wait_labels(zone="b")
    sight.watch.stop()
    sight.watch._thread.join(5)


RESTORED = {"metadata": {"name": "gpu-a3", "labels": {"zone": "restored"}, "resourceVersion": "7"}}


def write_event(kind: str, found: object) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def write_stream(*events: bytes) -> bytes:
    """An answer that goes on after these events."""
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks


@pytest.mark.parametrize(
    "told",
    [
        write_event("BOOKMARK", {"kind": "Node", "metadata": {"resourceVersion": "7"}}),
        write_event("MODIFIED", RESTORED),
        write_event("DELETED", RESTORED),
    ],
    ids=["a bookmark", "a change", "a deletion"],
)
def test_a_server_that_goes_back_is_asked_for_the_present_state(sight, server: ApiServer, told: bytes) -> None:
    """Its etcd was restored, or it tells things out of order: neither is believed, and nothing is waited for."""
    sight.wait_labels(zone="b")
    server.faults.add(slow(b"", every_s=0.05, head=write_stream(told)), verb="watch", times=1)
    server.end_watches()
    wait_until(lambda: len(server.journal.of(verb="watch", code=200)) == 2, what="the present state")
    assert server.journal.of()[-1].version == ""
    assert {str(seen.object["metadata"]["labels"]) for seen in sight.seen} == {"{'zone': 'b'}"}
    server.store.label("gpu-a3", zone="c")
    sight.wait_labels(zone="c")
    assert sight.logged == []


def test_a_version_that_the_server_refuses_is_given_up(sight, server: ApiServer) -> None:
    sight.wait_labels(zone="b")
    sight.watch._state = note_heard(sight.watch._state, "no number")
    server.faults.add(answer(400, "invalid resource version"), verb="watch", times=1)
    server.end_watches()
    wait_until(lambda: server.journal.of(code=400), what="a refusal")
    server.store.label("gpu-a3", zone="c")
    sight.wait_labels(zone="c")
    assert [entry.version for entry in server.journal.of()] == ["", "no number", ""]


def test_what_is_looked_up_is_believed_only_if_it_is_what_was_asked_for(api, server: ApiServer) -> None:
    server.faults.add(slow(b"", every_s=0.05, head=write_stream()), verb="watch", times=1)
    server.faults.add(garbage(b'{"kind": "Status", "metadata": {}}'), verb="get", times=1)
    sight = Sight(api)
    sight.watch.start()
    sight.wait_labels(zone="b")
    assert all(seen.object is None or seen.object["kind"] == "Node" for seen in sight.seen)
    sight.watch.stop()
    sight.watch._thread.join(5)
