"""Watches whose other end is not there any more, while something between keeps the connection: they are left."""

from __future__ import annotations

import time

import pytest

from nvdp.cluster.api import Api
from nvdp.errors import ClusterError
from nvdp.model.cluster import build_node_path
from tests.cluster.server import ApiServer, slow
from tests.cluster.test_watching import Sight
from tests.daemon.process import wait_until

NODE = build_node_path("gpu-a3")
LATE = "no answer in time|no time left"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'{"type": "ADDED", "object": {"metadata": {"name": "gpu-a3"}}}\n'


def write_chunk(text: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text), text)


class Impatient(Api):
    """Its watches wait 0.3 s for the rest of an event, and end after 3 s, where those of others take an hour."""

    def watch(self, path, *, version=""):
        made = super().watch(path, version=version)
        made._event_s = 0.3
        made._ends_at = time.monotonic() + 3.0
        return made


@pytest.mark.parametrize("before", [b"", EVENT, EVENT + EVENT[:9]], ids=["first", "second", "with the one before"])
@pytest.mark.parametrize("drop", [write_chunk(b"x"), b""], ids=["drips", "stops"])
def test_an_event_that_does_not_come_to_its_end_ends_the_watch(server: ApiServer, access, before, drop) -> None:
    """Else nobody would follow anything for an hour, and nobody know of it."""
    head = CHUNKED + (write_chunk(before) if before else b"") + write_chunk(b"{")
    server.faults.add(slow(drop, every_s=0.05, head=head), verb="watch", times=1)
    began = time.monotonic()
    with pytest.raises(ClusterError, match=LATE):
        list(Impatient(access).watch(NODE))
    assert time.monotonic() - began < 2.0


def test_a_first_event_that_begins_with_half_a_chunk_ends_the_watch(server: ApiServer, access) -> None:
    server.faults.add(slow(b"0", every_s=0.05, head=CHUNKED), verb="watch", times=1)
    watch = Impatient(access).watch(NODE)
    assert watch.hears_within(1.0)
    began = time.monotonic()
    with pytest.raises(ClusterError, match=LATE):
        list(watch)
    assert time.monotonic() - began < 2.0


def test_between_events_there_may_be_any_time(server: ApiServer, access) -> None:
    """Events that come in several pieces are as good as others, and the time for the next begins with it."""
    pieces = write_chunk(EVENT[:20]) + write_chunk(EVENT[20:])
    server.faults.add(slow(pieces, every_s=0.5, head=CHUNKED), verb="watch", times=1)
    with Impatient(access).watch(NODE) as watch:
        events = iter(watch)
        assert [next(events).kind for _ in range(4)] == ["ADDED"] * 4


class Hearing(Api):
    """Its watches that go on from a version are left after 0.3 s of silence at a server that sends bookmarks."""

    def __init__(self, access):
        super().__init__(access)
        self.opened = []  # from which versions

    def watch(self, path, *, version=""):
        made = super().watch(path, version=version)
        if version:
            made._silence_s = 0.3
        self.opened.append(version)
        return made


class Deaf(Sight):
    """The Node is in sight; its clock may be put forward."""

    def __init__(self, server: ApiServer, access) -> None:
        self.server, self.api = server, Hearing(access)
        super().__init__(self.api, quiet_s=0.1)
        self.watch.start()
        self.wait_labels(zone="b")

    def fall_silent(self) -> None:
        """The next watch is accepted, and told nothing; the Node is changed meanwhile."""
        self.server.faults.add(slow(b"", every_s=0.05, head=CHUNKED), verb="watch", times=1)
        self.server.end_watches()
        wait_until(lambda: len(self.api.opened) == 2 and self.watch._is_well, what="a watch that is taken for well")
        self.server.store.label("gpu-a3", zone="c")

    def wait_found(self) -> None:
        """The change is known by the present state, for which nobody had to be told of anything."""
        self.wait_labels(zone="c")
        assert list(map(bool, self.api.opened)) == [False, True, False]
        assert self.logged == []
        assert not any(seen.problem for seen in self.seen)


@pytest.fixture
def deaf(server: ApiServer, access):
    made = Deaf(server, access)
    yield made
    made.watch.stop()
    made.watch._thread.join(5)


def test_a_server_that_sent_bookmarks_in_one_watch_is_not_waited_for_in_the_next(server: ApiServer, deaf) -> None:
    server.store.put("configmaps", {"metadata": {"name": "x", "namespace": "y"}})
    server.store.bookmark()
    wait_until(lambda: deaf.watch._state.version == str(server.store.version), what="the bookmark's version")
    deaf.fall_silent()
    deaf.wait_found()


def test_a_look_at_a_silent_watch_asks_for_the_present_state(deaf) -> None:
    deaf.fall_silent()
    later = time.monotonic() + 10.0
    deaf.watch._clock = lambda: later
    deaf.watch.look()
    deaf.wait_found()


def test_a_look_at_a_watch_that_has_just_told_something_asks_for_nothing(server: ApiServer, deaf) -> None:
    deaf.watch.look()
    server.store.label("gpu-a3", zone="c")
    deaf.wait_labels(zone="c")
    assert deaf.api.opened == [""]
