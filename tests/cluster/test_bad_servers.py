"""Servers that are down, slow, broken or no API servers at all: each call ends in time, in one line, and in bounds."""

from __future__ import annotations

import resource
import socket
import threading
import time
from random import Random

import pytest

from nvdp.cluster.api import Api
from nvdp.cluster.watching import ObjectWatch
from nvdp.errors import ClusterError, ClusterFault
from nvdp.model.cluster import build_node_path
from tests.cluster.server import TOKEN, ApiServer, answer, cut_after, drop, garbage, hang, slow, stream_error
from tests.cluster.test_watching import Sight
from tests.daemon.process import wait_until

NODE = build_node_path("gpu-a3")
LIMIT_S = 0.4
LATE = "no time left|no answer in time"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def counted() -> list[tuple[str, str, str]]:
    return []


@pytest.fixture
def hasty(access, counted):
    """One that soon gives up: a server that answers may be slower than that on a busy machine."""
    made = Api(access, limit_s=LIMIT_S, count=lambda *words: counted.append(words))
    yield made
    made.close()


@pytest.fixture
def patient(access, counted):
    made = Api(access, count=lambda *words: counted.append(words))
    yield made
    made.close()


def fail(call, fault: ClusterFault = ClusterFault.UNREACHABLE) -> str:
    began = time.monotonic()
    with pytest.raises(ClusterError) as caught:
        call()
    assert time.monotonic() - began < LIMIT_S + 2.0  # a busy machine
    assert caught.value.fault is fault, caught.value
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return str(caught.value)


def drain(api) -> list:
    return list(api.watch(NODE))


ANSWERS = {
    "dropped": (drop(), "closed the connection"),
    "no-http": (garbage(b"SSH-2.0-OpenSSH_9.2\r\n", raw=True), "no HTTP"),
    "endless-head": (garbage(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000, raw=True), "no HTTP"),
    "one-line-head": (garbage(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000, raw=True), "no HTTP"),
    "cut-short": (garbage(b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"a"', raw=True), "no JSON object"),
    "bad-chunk": (garbage(CHUNKED + b"zz\r\n", raw=True), "no HTTP"),
    "no-json": (garbage(b"<html>gateway</html>"), "no JSON object"),
    "empty": (garbage(b""), "no JSON object"),
    "a-list": (garbage(b"[]"), "no JSON object"),
    "deep": (garbage(b"[" * 100_000), "no JSON object"),
    "bad-utf8": (garbage(b'{"a": "\xff\xfe"}'), "no JSON object"),
    "slow-head": (slow(b"X", every_s=0.05, head=b"HTTP/1.1 200 OK\r\nX: "), LATE),
    "slow-body": (slow(b"x", every_s=0.05), LATE),
    "slow-chunks": (slow(b"1\r\nx\r\n", every_s=0.05, head=CHUNKED), LATE),
    "slow-informing": (
        slow(b"HTTP/1.1 100 Continue\r\n\r\n", every_s=0.05, head=b""),
        LATE,
    ),
}


@pytest.mark.parametrize(("action", "told"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_is_none_ends_in_time(server: ApiServer, hasty, patient, action, told: str) -> None:
    server.faults.add(action, times=1)
    asking = hasty if told == LATE else patient
    text = fail(lambda: asking.read(NODE))
    assert any(part in text for part in told.split("|")), text
    asking._limit_s = patient._limit_s
    assert asking.read(NODE)["metadata"]["name"] == "gpu-a3"  # and the next one is right


def test_a_server_that_says_nothing_is_given_up(server: ApiServer, hasty, counted) -> None:
    release = threading.Event()
    server.faults.add(hang(release))
    try:
        fail(lambda: hasty.read(NODE))
        fail(lambda: hasty.patch(NODE, {"metadata": {"labels": {"a": "b" * 60}}}))
        fail(lambda: drain(hasty))
    finally:
        release.set()
    assert counted == [(verb, "nodes", "unreachable") for verb in ("get", "patch", "watch")]


def test_a_server_that_does_not_even_shake_hands_is_given_up(hasty, server: ApiServer) -> None:
    server.stop()
    with socket.create_server(("127.0.0.1", server.port)):
        assert "no answer in time" in fail(lambda: hasty.read(NODE))


def test_a_server_that_is_down_is_told_at_once(server: ApiServer, patient, counted) -> None:
    server.stop()
    assert "Connection refused" in fail(lambda: patient.read(NODE))
    assert counted == [("get", "nodes", "unreachable")]


def test_an_answer_that_is_too_large_is_not_read(server: ApiServer, access) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    server.faults.add(garbage(b'{"a": "' + b"x" * 50_000_000 + b'"}'), times=1)
    with pytest.raises(ClusterError, match="more than 4194304 bytes"):
        Api(access).read(NODE)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 150_000  # of which the server takes 100,000


def test_a_redirect_is_not_followed_with_our_token(server: ApiServer, patient) -> None:
    head = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    server.faults.add(garbage(head, raw=True), times=1)
    assert "307" in fail(lambda: patient.read(NODE), ClusterFault.REFUSED)


@pytest.mark.parametrize("retry_after", ["", "x", "-1", "Wed, 21 Oct 2026 07:28:00 GMT", "²"])
def test_a_wait_that_is_none_is_left_out(server: ApiServer, patient, retry_after: str) -> None:
    head = f"HTTP/1.1 429 No\r\nContent-Length: 2\r\nRetry-After: {retry_after}\r\n\r\n{{}}".encode()
    server.faults.add(garbage(head, raw=True), times=1)
    with pytest.raises(ClusterError) as caught:
        patient.read(NODE)
    assert (caught.value.fault, caught.value.retry_after_s) == (ClusterFault.THROTTLED, None)


def test_a_long_wait_is_two_minutes(server: ApiServer, patient) -> None:
    server.faults.add(answer(503, retry_after="99999999999999999999"))
    with pytest.raises(ClusterError) as caught:
        patient.read(NODE)
    assert caught.value.retry_after_s == 120.0


def test_a_message_of_the_server_is_one_short_line(server: ApiServer, patient) -> None:
    server.faults.add(answer(500, "a\x1b[31m\r\n" + "b" * 10_000))
    text = fail(lambda: patient.read(NODE), ClusterFault.FAILED)
    assert "\x1b" not in text


LINES = {
    "no-json": b"garbage\n",
    "no-event": b"{}\n",
    "no-object": b'{"type": "ADDED"}\n',
    "no-kind": b'{"type": "MOVED", "object": {}}\n',
    "kind-list": b'{"type": ["ADDED"], "object": {}}\n',
}


def test_a_token_that_the_server_repeats_is_not_told(server: ApiServer, patient) -> None:
    text = f"who is Bearer {TOKEN}?"
    server.faults.add(answer(403, text), times=1)
    with pytest.raises(ClusterError, match=r"who is Bearer …\?$"):
        patient.read(NODE)
    server.faults.add(stream_error(403, text), times=1)
    with patient.watch(NODE) as watch, pytest.raises(ClusterError, match=r"who is Bearer …\?$"):
        next(iter(watch))


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_an_event_that_is_none_ends_the_watch(server: ApiServer, patient, line: bytes) -> None:
    server.faults.add(garbage(line), verb="watch", times=1)
    assert "no JSON object of an API server" in fail(lambda: drain(patient))


def test_half_an_event_is_none(server: ApiServer, patient) -> None:
    server.faults.add(garbage(b'{"type": "ADDED", "object": {"metadata": {}}}\n{"type": "ADD'), verb="watch", times=1)
    assert [event.kind for event in drain(patient)] == ["ADDED"]


def test_a_hundred_megabytes_on_one_line_are_not_read(server: ApiServer, access) -> None:
    server.faults.add(garbage(b"x" * 100_000_000), verb="watch", times=1)
    with pytest.raises(ClusterError, match="an event of more than 4194304 bytes"):
        drain(Api(access))


@pytest.mark.parametrize(("code", "fault"), [(410, ClusterFault.GONE), (500, ClusterFault.FAILED)])
def test_an_error_in_the_stream_is_the_status_it_carries(server: ApiServer, patient, code, fault) -> None:
    server.faults.add(stream_error(code, "as said"), verb="watch", times=1)
    assert "as said" in fail(lambda: drain(patient), fault)


class Least(Random):
    """Waits as short as the back-off allows."""

    def uniform(self, a: float, b: float) -> float:
        return min(a, b)


def watch_thrice(server: ApiServer, api) -> Sight:
    """Each of three watches waits longer than the one before."""
    sight = Sight(api, random=Least())
    sight.watch.start()
    wait_until(lambda: len(server.journal.of()) >= 3, what="three watches")
    sight.watch.stop()
    sight.watch._thread.join(5)
    first, second, third, *_ = (entry.at for entry in server.journal.of(verb="watch"))
    assert second - first >= 0.45
    assert third - second >= 0.95
    return sight


def test_a_watch_that_is_cut_again_and_again_costs_ever_fewer_requests(server: ApiServer, api) -> None:
    server.faults.add(cut_after(0.05), verb="watch")
    sight = watch_thrice(server, api)
    assert sight.labels == {"zone": "b"}
    assert not sight.logged


def test_a_watch_of_garbage_is_a_problem_that_is_shown_and_costs_ever_fewer_requests(server: ApiServer, api) -> None:
    server.faults.add(garbage(b"garbage\n" * 1000), verb="watch")
    sight = watch_thrice(server, api)
    assert "no JSON object" in sight.seen[-1].problem
    assert len(sight.seen) == 1


def test_a_server_that_ends_each_watch_at_once_is_a_problem_that_is_shown(server: ApiServer, api) -> None:
    server.faults.add(garbage(b""), verb="watch")
    sight = Sight(api)
    sight.watch.start()
    wait_until(lambda: sight.seen, what="a problem")
    sight.watch.stop()
    sight.watch._thread.join(5)
    assert "ends it without a word" in sight.seen[0].problem


def test_a_server_that_went_silent_is_left_after_the_time_asked_for(server: ApiServer, access) -> None:
    """And much earlier where its machine is gone: then the kernel's keepalive ends the read."""

    class Short(Api):
        def watch(self, path, *, version=""):
            made = super().watch(path, version=version)
            made._ends_at = time.monotonic() + 0.3
            return made

    began = time.monotonic()
    with pytest.raises(ClusterError, match="no answer in time"):
        drain(Short(access))
    assert time.monotonic() - began < 3.0


def test_a_server_that_sends_bookmarks_no_more_is_left(server: ApiServer, access) -> None:
    """A proxy keeps the connection to a server that is gone, and the kernel has nothing to object."""

    class Impatient(Api):
        def watch(self, path, *, version=""):
            made = super().watch(path, version=version)
            made._silence_s = 0.3
            return made

    with Impatient(access).watch(NODE) as watch:
        events = iter(watch)
        assert next(events).kind == "ADDED"
        later = threading.Timer(0.6, server.store.bookmark)
        later.start()
        assert next(events).kind == "BOOKMARK", "before the first one silence says nothing"
        later.join()
        began = time.monotonic()
        with pytest.raises(ClusterError, match="no answer in time"):
            next(events)
        assert time.monotonic() - began < 3.0


def test_the_kernel_asks_a_silent_peer_for_a_sign_of_life(api) -> None:
    with api.watch(NODE) as watch:
        made = watch._connection._socket
        options = [
            made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            *(made.getsockopt(socket.IPPROTO_TCP, one) for one in (4, 5, 6)),
        ]
    assert options == [1, 30, 10, 3]


def test_many_threads_ask_at_once(server: ApiServer, api) -> None:
    server.store.put("configmaps", {"metadata": {"name": "x", "namespace": "nvdp"}})
    failures: list[Exception] = []

    def ask(number: int) -> None:
        try:
            for step in range(5):
                api.patch(NODE, {"metadata": {"labels": {f"t{number}": str(step)}}})
                assert api.read(NODE)["metadata"]["labels"][f"t{number}"] == str(step)
        except Exception as error:  # noqa: BLE001 - told by the test
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert server.store.find("nodes", "gpu-a3")["metadata"]["labels"] == {
        "zone": "b",
        **{f"t{number}": "4" for number in range(6)},
    }
    wait_until(lambda: server.connections <= 2, what="that only a few connections are kept")


def test_connections_are_used_again(server: ApiServer, api) -> None:
    for _ in range(4):
        api.read(NODE)
    assert len({entry.connection for entry in server.journal.of()}) == 1
    server.break_connections()
    api.read(NODE)
    assert [entry.code for entry in server.journal.of()] == [200] * 5


def test_a_service_that_watches_leaves_nothing_open(server: ApiServer, api) -> None:
    sight = Sight(api)
    assert isinstance(sight.watch, ObjectWatch)
    sight.watch.start()
    sight.wait_labels(zone="b")
    sight.watch.stop()
    sight.watch._thread.join(5)
    wait_until(lambda: server.connections == 0, what="no connection")
