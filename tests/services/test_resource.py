"""The actor of one resource between its feed and the kubelet's twin."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import grpc
import psutil
import pytest

from nvdp.model.reasons import Reason
from nvdp.services.events import AllocateAnswered, ResourceReport
from nvdp.services.resource import ResourceActor
from nvdp.services.retrying import Timings
from nvdp.simulate.kubelet import KUBELET_FILES, Kubelet
from tests.kubelet.lists import build_list, replica
from tests.kubelet.plugin_client import Notes, PluginClient, stalled_reader

GPU = "nvidia.com/gpu"
LIMIT_S = 10
QUICK = Timings(settle_s=0.3, no_stream_s=0.4, grace_s=0.1)

both_kubelets = pytest.mark.parametrize("version", ["1.36", "1.37"])


class Observed:
    """What an actor counted and posted, as Notes: registration, stream_lost, rpc, allocation_refused, report, log."""

    def __init__(self) -> None:
        self.notes = Notes()

    def registration(self, resource, result):
        self.notes.add("registration", resource, result)

    def stream_lost(self, resource):
        self.notes.add("stream_lost", resource)

    def rpc(self, resource, method, code, seconds):
        self.notes.add("rpc", resource, method, code, seconds)

    def allocation_refused(self, resource, reason):
        self.notes.add("allocation_refused", resource, reason)

    def post(self, event):
        self.notes.add("report" if isinstance(event, ResourceReport) else type(event).__name__, event)

    def log(self, reason, msg, /, **fields):
        self.notes.add("log", reason, msg, fields)

    @property
    def results(self) -> list[str]:
        return [result for _, result in self.notes.of("registration")]

    def logged(self, reason: Reason) -> list[str]:
        return [msg for logged, msg, _ in self.notes.of("log") if logged is reason]

    @property
    def last(self) -> ResourceReport:
        reports = self.notes.of("report")
        return reports[-1][0] if reports else ResourceReport(resource="", registered=False, streams=0, taken_version=0)


class Node:
    """A directory with a twin and actors. ``wait`` waits for anything, with a deadline."""

    def __init__(self, stack: ExitStack) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
        stack.callback(shutil.rmtree, self.root, ignore_errors=True)
        self.directory = self.root / "device-plugins"
        self.directory.mkdir()
        self._stack = stack

    def kubelet(self, version: str = "1.36", **options) -> Kubelet:
        return self._stack.enter_context(Kubelet(self.root, version=version, **options))

    def actor(self, first=None, **options):
        """A started actor and what it observes."""
        observed = Observed()
        actor = ResourceActor(
            first if first is not None else build_list(),
            **{
                "directory": self.directory,
                "kubelet_socket": self.directory / "kubelet.sock",
                "post": observed.post,
                "log": observed.log,
                "observer": observed,
                "timings": QUICK,
                **options,
            },
        )
        actor.start()
        self._stack.callback(self.stop, actor)
        return actor, observed

    def stop(self, actor) -> None:
        actor.stop("the test is over")
        assert actor.join(LIMIT_S)

    def sockets(self) -> set[str]:
        return {path.name for path in self.directory.iterdir() if path.is_socket()} - KUBELET_FILES

    def own_socket(self) -> Path:
        [name] = self.sockets()
        return self.directory / name

    @staticmethod
    def wait(condition, *, limit_s: float = LIMIT_S):
        deadline = time.monotonic() + limit_s
        while not (found := condition()):
            assert time.monotonic() < deadline, "the condition did not come true in time"
            time.sleep(0.005)
        return found


@pytest.fixture
def node():
    with ExitStack() as stack:
        yield Node(stack)


def streaming(observed: Observed, registrations: int = 1):
    """Whether the resource is registered, with its list taken, after so many registrations."""
    return lambda: observed.results.count("success") >= registrations and observed.last.registered


# Registered


@pytest.mark.requirement(1)
@pytest.mark.requirement(2)
@pytest.mark.requirement(3)
@pytest.mark.invariant(6)
@both_kubelets
def test_it_serves_then_registers_and_the_capacity_appears(node, version):
    kubelet = node.kubelet(version)
    actor, observed = node.actor(build_list(gpus=2, replicas=3, unhealthy=[replica(0, 1)], numa_nodes=(0, 1)))
    kubelet.wait_until(lambda: kubelet.messages(GPU))
    assert (kubelet.capacity(GPU), kubelet.allocatable(GPU)) == (6, 5)
    [registration] = kubelet.registrations
    assert (registration.version, registration.resource, registration.error) == ("v1beta1", GPU, None)
    assert registration.endpoint == node.own_socket().name
    assert registration.options == registration.request_options
    node.wait(streaming(observed))
    assert observed.last == ResourceReport(resource=GPU, registered=True, streams=1, taken_version=1)
    assert observed.results == ["success"]
    assert observed.logged(Reason.RESOURCE_REGISTERED) == ["6 devices on 2 GPUs, 5 healthy"]
    assert actor.probe(LIMIT_S)


@pytest.mark.requirement(12)
@pytest.mark.requirement(13)
@both_kubelets
def test_a_published_change_is_one_whole_list_on_the_same_stream(node, version):
    kubelet = node.kubelet(version)
    actor, observed = node.actor()
    node.wait(streaming(observed))
    version = actor.feed.publish(build_list(unhealthy=[replica(1, 1)]))
    node.wait(lambda: observed.last.taken_version == version)
    actor.feed.publish(build_list(unhealthy=[replica(1, 1)]))
    actor.feed.publish(build_list())
    kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 3)
    messages = kubelet.messages(GPU)
    assert [len(message.healthy) for message in messages] == [4, 3, 4]
    assert {message.stream for message in messages} == {1}
    assert len(kubelet.registrations) == 1


@pytest.mark.requirement(44)
def test_a_resource_without_devices_is_registered_and_stays(node):
    kubelet = node.kubelet()
    _, observed = node.actor(build_list(gpus=0))
    node.wait(streaming(observed))
    assert (kubelet.capacity(GPU), kubelet.open_streams(GPU)) == (0, 1)


def test_an_allocate_reaches_the_supervisor_and_the_counters(node):
    kubelet = node.kubelet()
    actor, observed = node.actor()
    node.wait(streaming(observed))
    pod = kubelet.admit("team/job", {"main": {GPU: 2}})
    assert pod.ids(GPU) == {replica(0, 0), replica(1, 0)}
    observed.notes.wait_for("AllocateAnswered")
    assert observed.notes.of("AllocateAnswered") == [(AllocateAnswered(resource=GPU),)]
    assert set(actor.feed.allocations()) == pod.ids(GPU)
    assert [(resource, method, code) for resource, method, code, _ in observed.notes.of("rpc")].count(
        (GPU, "Allocate", "OK")
    ) == 1


def test_a_refused_allocate_is_counted_and_its_text_reaches_the_pod(node):
    node.kubelet()
    actor, observed = node.actor()
    node.wait(streaming(observed))
    with PluginClient(node.own_socket()) as client, pytest.raises(grpc.RpcError, match="GPU-nobody"):
        client.allocate(["GPU-nobody"])
    assert observed.notes.of("allocation_refused") == [(GPU, "unknown_device")]
    assert actor.feed.allocations() == {}


# Waiting for a kubelet, and one that does not want us


@pytest.mark.requirement(6)
@pytest.mark.invariant(7)
def test_a_missing_kubelet_is_waited_for_without_trying(node):
    actor, observed = node.actor()
    node.wait(lambda: observed.last.missing and "waiting for the kubelet" in observed.last.missing)
    assert not observed.last.registered
    with PluginClient(node.own_socket()) as client:
        assert client.options().get_preferred_allocation_available
    assert observed.results == []
    kubelet = node.kubelet()
    actor.look()
    node.wait(streaming(observed))
    assert len(kubelet.registrations) == 1
    assert len(observed.logged(Reason.REGISTRATION_FAILED)) == 1


@pytest.mark.requirement(5)
def test_a_dead_kubelets_socket_is_tried_again_with_growing_gaps(node):
    kubelet = node.kubelet()
    kubelet.stop()
    _, observed = node.actor()
    node.wait(lambda: len(observed.results) >= 4)
    assert set(observed.results) == {"failure"}
    assert "nobody listens" in observed.last.missing
    kubelet.start()  # the new socket is not even needed to be noticed: the next try finds it
    node.wait(streaming(observed))


@pytest.mark.requirement(5)
@pytest.mark.invariant(7)
@both_kubelets
def test_refusals_are_followed_by_tries_with_growing_gaps_under_new_names(node, version):
    kubelet = node.kubelet(version)
    kubelet.faults.refuse_registrations(5, "no, thanks")
    _, observed = node.actor()
    kubelet.wait_until(lambda: kubelet.messages(GPU), LIMIT_S)
    tries = kubelet.registrations
    assert [one.error for one in tries] == ["no, thanks"] * 5 + [None]
    gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(tries)]
    assert all(later > earlier for earlier, later in itertools.pairwise(gaps))
    assert len({one.endpoint for one in tries}) == 6
    node.wait(streaming(observed))
    assert observed.results == ["failure"] * 5 + ["success"]
    assert node.sockets() == {tries[-1].endpoint}
    assert all(
        text.startswith("the kubelet refuses: no, thanks") for text in observed.logged(Reason.REGISTRATION_FAILED)
    )


@pytest.mark.requirement(4)
def test_a_slow_register_blocks_nothing_and_is_not_given_up(node):
    kubelet = node.kubelet()
    kubelet.faults.register_delay_s = 1.0
    actor, observed = node.actor()
    kubelet.wait_until(lambda: kubelet.messages(GPU))
    with PluginClient(node.own_socket()) as client:
        assert client.allocate([replica(0, 0)]).container_responses
    actor.feed.publish(build_list(replicas=3))
    kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 2)
    assert observed.results == []
    node.wait(streaming(observed))
    assert len(kubelet.registrations) == 1


@pytest.mark.invariant(7)
def test_a_registration_without_a_stream_is_made_again(node):
    arrivals = []
    with register_only_kubelet(node.directory / "kubelet.sock", arrivals):
        _, observed = node.actor()
        node.wait(lambda: len(arrivals) >= 3)
    assert all(later - earlier >= QUICK.no_stream_s for earlier, later in itertools.pairwise(arrivals))
    assert not observed.last.registered
    assert any("no ListAndWatch" in text for text in observed.logged(Reason.REGISTRATION_FAILED))


# Lost, and found again


@pytest.mark.requirement(15)
@pytest.mark.invariant(7)
@both_kubelets
def test_a_stream_that_the_kubelet_ends_is_followed_by_a_registration(node, version):
    kubelet = node.kubelet(version)
    _, observed = node.actor()
    node.wait(streaming(observed))
    kubelet.wait_until(lambda: kubelet.messages(GPU))
    closed_at = time.monotonic()
    kubelet.close_stream(GPU)
    kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 2)
    assert kubelet.registrations[1].at - closed_at < 5
    node.wait(streaming(observed, 2))
    assert (kubelet.allocatable(GPU), kubelet.open_streams(GPU)) == (4, 1)
    assert observed.notes.of("stream_lost") == [(GPU,)]
    assert len(observed.logged(Reason.STREAM_LOST)) == 1


@pytest.mark.requirement(15)
@pytest.mark.invariant(7)
def test_a_stream_that_is_lost_again_and_again_is_followed_more_and_more_slowly(node):
    kubelet = node.kubelet()
    node.actor()
    for number in range(1, 6):
        kubelet.wait_until(lambda number=number: len(kubelet.messages(GPU)) == number)
        kubelet.close_stream(GPU)
    kubelet.wait_until(lambda: len(kubelet.registrations) == 6)
    tries = kubelet.registrations
    gaps = [later.at - earlier.answered_at for earlier, later in itertools.pairwise(tries)]
    assert all(later > earlier for earlier, later in itertools.pairwise(gaps))


@pytest.mark.requirement(16)
@both_kubelets
def test_a_plugin_of_the_same_resource_that_goes_does_not_take_the_node_with_it(node, version):
    kubelet = node.kubelet(version)
    older, older_observed = node.actor()
    node.wait(streaming(older_observed))
    _, observed = node.actor()
    node.wait(streaming(observed))
    left_at = time.monotonic()
    node.stop(older)
    if version == "1.36":  # it takes the older plugin's end for the newer one's
        node.wait(streaming(observed, 2))
    kubelet.wait_until(lambda: kubelet.open_streams(GPU) == 1 and kubelet.allocatable(GPU) == 4, LIMIT_S)
    assert time.monotonic() - left_at < LIMIT_S
    assert observed.last.registered
    assert len(kubelet.admit("a", {"main": {GPU: 4}}).ids(GPU)) == 4


@pytest.mark.requirement(19)
@pytest.mark.invariant(7)
@both_kubelets
def test_a_restarted_kubelet_gets_a_new_socket_and_the_list(node, version):
    kubelet = node.kubelet(version)
    actor, observed = node.actor()
    node.wait(streaming(observed))
    before = node.own_socket()
    kubelet.restart()
    noticed_at = time.monotonic()
    actor.look()
    kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 2)
    assert kubelet.messages(GPU)[1].at - noticed_at < 1
    node.wait(streaming(observed, 2))
    assert node.own_socket() != before
    assert kubelet.allocatable(GPU) == 4


@pytest.mark.requirement(19)
@pytest.mark.requirement(51)
@both_kubelets
def test_sockets_that_go_before_the_kubelet_comes_cost_no_wrong_try(node, version):
    kubelet = node.kubelet(version)
    actor, observed = node.actor()
    node.wait(streaming(observed))
    kubelet.stop()
    node.own_socket().unlink()
    (node.directory / "kubelet.sock").unlink()
    actor.look()
    node.wait(lambda: "waiting for the kubelet" in (observed.last.missing or ""))
    for path in node.directory.glob("*.sock"):
        path.unlink()  # the starting kubelet is not done with deleting
    kubelet.start()
    actor.look()
    node.wait(streaming(observed, 2))
    assert [one.error for one in kubelet.registrations] == [None, None]


@pytest.mark.requirement(20)
def test_a_directory_that_is_made_anew_is_served_again(node):
    kubelet = node.kubelet()
    actor, observed = node.actor()
    node.wait(streaming(observed))
    kubelet.recreate_directory()
    actor.look()
    node.wait(streaming(observed, 2))
    assert kubelet.allocatable(GPU) == 4


@pytest.mark.requirement(20)
def test_a_directory_that_is_missing_is_waited_for(node):
    shutil.rmtree(node.directory)
    actor, observed = node.actor()
    node.wait(lambda: "no such directory" in (observed.last.missing or ""))
    assert actor.probe(LIMIT_S)
    node.kubelet()
    actor.look()
    node.wait(streaming(observed))


@pytest.mark.invariant(7)
def test_a_kubelet_that_is_new_without_taking_our_socket_away_gets_us_on_the_same_one(node):
    arrivals = []
    with register_only_kubelet(node.directory / "kubelet.sock", arrivals):
        actor, _ = node.actor()
        node.wait(lambda: arrivals)
        before = node.sockets()
    arrivals.clear()
    with register_only_kubelet(node.directory / "kubelet.sock", arrivals):
        actor.look()
        node.wait(lambda: arrivals)
    assert node.sockets() == before


@pytest.mark.invariant(7)
@both_kubelets
@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_an_own_socket_that_is_lost_is_made_anew_and_the_old_stream_has_ended_before(node, version, replaced):
    kubelet = node.kubelet(version)
    actor, observed = node.actor()
    node.wait(streaming(observed))
    before = node.own_socket()
    before.unlink()
    with ExitStack() as stack:
        if replaced:
            foreign = stack.enter_context(socket.socket(socket.AF_UNIX))
            foreign.bind(str(before))
        actor.look()
        kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 2)
        node.wait(streaming(observed, 2))
        first, second = kubelet.registrations
        ended = [line for line in kubelet.journal if "stream 1" in line and "ended" in line]
        assert ended
        assert first.endpoint != second.endpoint
        assert kubelet.journal.index(ended[0]) < next(
            number for number, line in enumerate(kubelet.journal) if f"on {second.endpoint}" in line
        )
        assert kubelet.allocatable(GPU) == 4
        assert kubelet.open_streams(GPU) == 1
        assert before.exists() == replaced
        assert observed.notes.of("stream_lost") == []


@pytest.mark.requirement(51)
@pytest.mark.invariant(7)
def test_a_new_kubelet_is_not_kept_waiting_for_the_old_ones_streams(node):
    kubelet = node.kubelet()
    actor, observed = node.actor(timings=Timings(settle_s=60))
    node.wait(streaming(observed))
    node.own_socket().unlink()
    actor.look()
    node.wait(lambda: "was replaced" in (observed.last.missing or ""))
    assert len(kubelet.registrations) == 1
    kubelet.restart()
    actor.look()
    node.wait(streaming(observed, 2))
    assert kubelet.allocatable(GPU) == 4


@pytest.mark.requirement(51)
@pytest.mark.invariant(7)
def test_the_own_socket_is_checked_before_each_attempt(node):
    kubelet = node.kubelet()
    kubelet.stop()
    _, observed = node.actor()
    node.wait(lambda: len(observed.results) >= 2)
    node.own_socket().unlink()
    assert kubelet.socket.exists()
    kubelet.start()
    node.wait(streaming(observed))
    assert [one.error for one in kubelet.registrations] == [None]


@pytest.mark.requirement(51)
@pytest.mark.invariant(7)
def test_a_newer_kubelet_cancels_the_attempt_with_the_older_one(node):
    kubelet = node.kubelet()
    kubelet.faults.register_delay_s = 60
    actor, observed = node.actor()
    kubelet.wait_until(lambda: kubelet.registrations)
    kubelet.faults.register_delay_s = 0
    kubelet.restart()
    actor.look()
    node.wait(streaming(observed))
    assert [result for result in observed.results if result == "success"] == ["success"]


def test_news_that_are_older_than_what_was_seen_change_nothing(node):
    kubelet = node.kubelet()
    actor, observed = node.actor()
    node.wait(streaming(observed))
    actor.kubelet_changed(None)
    actor.feed.publish(build_list(replicas=3))
    kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 2)
    assert len(kubelet.registrations) == 1
    assert observed.last.registered


# Others


@pytest.mark.requirement(17)
@pytest.mark.campaign
def test_reconnects_leave_threads_and_files_flat_and_calls_answered(node):
    kubelet = node.kubelet("1.37")
    actor, observed = node.actor()
    node.wait(streaming(observed))
    cycles = 10_000 if os.environ.get("NVDP_CAMPAIGN") == "full" else 300
    process = psutil.Process()
    path = node.own_socket()
    wait_for_foreign_streams_only(node, kubelet)

    def cycle():
        with PluginClient(path) as client:
            stream = client.watch()
            next(stream)
            stream.cancel()

    for _ in range(100):  # grpc's own pool grows to its size first
        cycle()
    node.wait(lambda: actor.feed.streams == 1)
    threads, files, memory = process.num_threads(), process.num_fds(), process.memory_info().rss
    for _ in range(cycles):
        cycle()
    node.wait(lambda: actor.feed.streams == 1)
    node.wait(lambda: process.num_threads() <= threads + 6)
    assert process.num_fds() <= files + 6
    assert process.memory_info().rss - memory < 30 << 20
    observed.notes.wait_for("stream_lost", 100 + cycles)
    assert observed.last.registered
    assert len(kubelet.registrations) == 1
    with PluginClient(path) as client:
        assert client.allocate([replica(0, 0)]).container_responses


@pytest.mark.invariant(7)
def test_a_stream_of_another_that_ends_beside_the_kubelets_is_doubted_slowly(node):
    kubelet = node.kubelet()
    _, observed = node.actor()
    node.wait(streaming(observed))
    with PluginClient(node.own_socket()) as client:
        next(client.watch())  # so soon after Register that it may be the kubelet's
    observed.notes.wait_for("stream_lost")
    assert observed.last.registered
    kubelet.wait_until(lambda: len(kubelet.registrations) == 2)
    assert kubelet.registrations[1].at - kubelet.registrations[0].at > 0.8
    node.wait(streaming(observed, 2))


@pytest.mark.invariant(7)
def test_the_kubelets_stream_is_missed_at_once_though_another_one_is_open(node):
    kubelet = node.kubelet()
    _, observed = node.actor()
    node.wait(streaming(observed))
    wait_for_foreign_streams_only(node, kubelet)
    with PluginClient(node.own_socket()) as client:
        next(client.watch())
        kubelet.close_stream(GPU)
        kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 2)


def wait_for_foreign_streams_only(node, kubelet):
    """Until no new stream can be the kubelet's: it opens one at Register and never else."""
    answered_at = kubelet.registrations[-1].answered_at
    node.wait(lambda: time.monotonic() - answered_at > 1.1)


@pytest.mark.requirement(43)
@both_kubelets
def test_two_resources_have_a_socket_and_a_registration_each_and_one_fails_alone(node, version):
    kubelet = node.kubelet(version)
    _, plain = node.actor()
    node.wait(streaming(plain))
    kubelet.faults.refuse_registrations(3)
    _, shared = node.actor(build_list(resource="nvidia.com/gpu.shared", gpus=1))
    node.wait(lambda: "failure" in shared.results)
    assert plain.last.registered
    node.wait(streaming(shared))
    assert (kubelet.allocatable(GPU), kubelet.allocatable("nvidia.com/gpu.shared")) == (4, 2)
    assert len(node.sockets()) == 2
    assert plain.results == ["success"]


def test_a_peer_that_stopped_reading_does_not_hold_the_kubelets_list(node):
    kubelet = node.kubelet()
    actor, observed = node.actor(build_list(gpus=8, replicas=500))
    node.wait(streaming(observed))
    with stalled_reader(node.own_socket()):
        node.wait(lambda: actor.feed.streams == 2)
        actor.feed.publish(build_list(gpus=8, replicas=499))
        kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 2)
        assert observed.last.registered


def test_without_a_kubelet_socket_it_serves_and_does_not_register(node):
    kubelet = node.kubelet()
    actor, observed = node.actor(kubelet_socket=None)
    node.wait(lambda: "registration is off" in (observed.last.missing or ""))
    with PluginClient(node.own_socket()) as client:
        assert len(next(client.watch()).devices) == 4
    assert kubelet.registrations == ()
    assert actor.probe(LIMIT_S)


# The end


@pytest.mark.requirement(22)
@both_kubelets
def test_stopping_ends_the_stream_without_an_empty_list_removes_the_socket_and_does_not_register(node, version):
    kubelet = node.kubelet(version)
    actor, observed = node.actor()
    node.wait(streaming(observed))
    actor.stop("nvdp stops")
    assert actor.join(2)
    kubelet.wait_until(lambda: kubelet.open_streams(GPU) == 0)
    assert node.sockets() == set()
    assert [len(message.devices) for message in kubelet.messages(GPU)] == [4]
    assert len(kubelet.registrations) == 1
    assert observed.last.stopped
    assert not observed.last.registered
    assert observed.notes.of("stream_lost") == []
    assert observed.logged(Reason.RESOURCE_WITHDRAWN) == ["withdrawn: nvdp stops"]


@pytest.mark.requirement(22)
@pytest.mark.parametrize("state", ["registering", "waiting", "refused", "settling", "stalled"])
def test_it_stops_at_once_whatever_it_is_doing(node, state):
    with ExitStack() as stack:
        kubelet = Kubelet(node.root)
        if state != "waiting":
            stack.enter_context(kubelet)
        if state == "registering":
            kubelet.faults.register_delay_s = 60
        if state == "refused":
            kubelet.faults.refuse_registrations(99)
        actor, observed = node.actor(build_list(gpus=8, replicas=500), timings=Timings())
        reached = {
            "registering": lambda: kubelet.registrations,
            "waiting": lambda: "waiting for the kubelet" in (observed.last.missing or ""),
            "refused": lambda: len(observed.results) >= 3,
            "settling": streaming(observed),
            "stalled": streaming(observed),
        }
        node.wait(reached[state])
        if state == "settling":
            node.own_socket().unlink()
            actor.look()
            node.wait(lambda: "was replaced" in (observed.last.missing or ""))
        if state == "stalled":
            stack.enter_context(stalled_reader(node.own_socket()))
            node.wait(lambda: actor.feed.streams == 2)
        actor.stop("nvdp stops")
        started_at = time.monotonic()
        assert actor.join(4)
        assert time.monotonic() - started_at < 2
        assert node.sockets() == set()


@pytest.mark.invariant(1)
def test_a_defect_takes_the_server_down_and_leaves_the_thread_to_the_hook(node):
    kubelet = node.kubelet()
    caught = []
    hook, threading.excepthook = threading.excepthook, caught.append
    try:
        actor, observed = node.actor()
        node.wait(streaming(observed))
        actor.stream_opened(None)  # no stream at all: nobody calls it so
        assert actor.join(LIMIT_S)
    finally:
        threading.excepthook = hook
    [crash] = caught
    assert crash.thread.name == f"resource {GPU}"
    assert issubclass(crash.exc_type, AttributeError)
    kubelet.wait_until(lambda: kubelet.open_streams(GPU) == 0)
    assert node.sockets() == set()
    assert not observed.last.stopped
    _, again = node.actor()
    node.wait(streaming(again))
    node.wait(lambda: kubelet.allocatable(GPU) == 4)


class register_only_kubelet:  # noqa: N801 - used as a function
    """Accepts every Register, notes its time, and never opens a stream."""

    def __init__(self, path: Path, arrivals: list[float]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
        from nvdp.kubelet.protocol import REGISTER, REGISTRATION, build_service

        def register(_request, _context):
            arrivals.append(time.monotonic())
            return deviceplugin.Empty()

        self._server = grpc.server(ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers(
            [build_service(REGISTRATION, {REGISTER: REGISTER.unary_handler(register)})]
        )
        self._server.add_insecure_port(f"unix:{path}")

    def __enter__(self) -> None:
        self._server.start()

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait(LIMIT_S)
