"""Watches whose other end is not there any more, while something between keeps the connection: they are left."""

from __future__ import annotations

import time

import pytest

from nvdp.cluster.api import Api
from nvdp.errors import ClusterError
from nvdp.model.cluster import build_node_path
from tests.cluster.server import ApiServer, slow

NODE = build_node_path("gpu-a3")
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
    with pytest.raises(ClusterError, match="no answer in time"):
        list(Impatient(access).watch(NODE))
    assert time.monotonic() - began < 2.0


def test_a_first_event_that_begins_with_half_a_chunk_ends_the_watch(server: ApiServer, access) -> None:
    server.faults.add(slow(b"0", every_s=0.05, head=CHUNKED), verb="watch", times=1)
    watch = Impatient(access).watch(NODE)
    assert watch.hears_within(1.0)
    began = time.monotonic()
    with pytest.raises(ClusterError, match="no answer in time"):
        list(watch)
    assert time.monotonic() - began < 2.0


def test_between_events_there_may_be_any_time(server: ApiServer, access) -> None:
    """Events that come in several pieces are as good as others, and the time for the next begins with it."""
    pieces = write_chunk(EVENT[:20]) + write_chunk(EVENT[20:])
    server.faults.add(slow(pieces, every_s=0.5, head=CHUNKED), verb="watch", times=1)
    with Impatient(access).watch(NODE) as watch:
        events = iter(watch)
        assert [next(events).kind for _ in range(4)] == ["ADDED"] * 4
