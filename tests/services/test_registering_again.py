"""How a resource stays registered, against the kubelet's twin: the rules of design invariant 7."""

from __future__ import annotations

import itertools
import shutil
import socket
import time
from contextlib import ExitStack

import pytest

from nvdp.model.reasons import Reason
from nvdp.services.retrying import Timings
from tests.kubelet.lists import build_list
from tests.kubelet.plugin_client import PluginClient
from tests.services.node import (
    GPU,
    LIMIT_S,
    both_kubelets,
    register_only_kubelet,
    streaming,
    wait_for_foreign_streams_only,
)


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
    kubelet.wait_until(lambda: (kubelet.allocatable(GPU), kubelet.open_streams(GPU)) == (4, 1))
    assert observed.notes.of("stream_lost") == [(GPU,)]
    assert len(observed.logged(Reason.STREAM_LOST)) == 1


@pytest.mark.requirement(15)
@pytest.mark.invariant(7)
def test_a_stream_that_is_lost_again_and_again_is_followed_more_and_more_slowly(node):
    kubelet = node.kubelet()
    _, observed = node.actor()
    for number in range(1, 6):
        kubelet.wait_until(lambda number=number: len(kubelet.messages(GPU)) == number)
        node.wait(streaming(observed, number))  # one that ends before that may be another's, and is doubted for long
        kubelet.close_stream(GPU)
    kubelet.wait_until(lambda: len(kubelet.registrations) == 6)
    tries = kubelet.registrations
    gaps = [later.at - earlier.answered_at for earlier, later in itertools.pairwise(tries)]
    assert gaps[-1] > 2 * min(gaps)  # any of those before may be late on a busy machine


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


@pytest.mark.invariant(7)
def test_a_socket_that_is_deleted_before_anybody_saw_it_is_missed_all_the_same(node):
    kubelet = node.kubelet()
    _, observed = node.actor(timings=Timings(settle_s=0.1, look_again_s=0.3))
    node.wait(streaming(observed))
    node.own_socket().unlink()  # and nobody who watches the directory tells
    node.wait(streaming(observed, 2))
    assert node.own_socket().is_socket()
    kubelet.wait_until(lambda: kubelet.allocatable(GPU) == 4)


@pytest.mark.requirement(19)
@pytest.mark.invariant(7)
@both_kubelets
def test_a_restarted_kubelet_gets_a_new_socket_and_the_list(node, version):
    kubelet = node.kubelet(version)
    actor, observed = node.actor()
    node.wait(streaming(observed))
    kubelet.wait_until(lambda: kubelet.messages(GPU))
    before = node.own_socket()
    kubelet.restart()
    noticed_at = time.monotonic()
    actor.look()
    kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 2)
    assert kubelet.messages(GPU)[1].at - noticed_at < 1
    node.wait(streaming(observed, 2))
    assert node.own_socket() != before
    kubelet.wait_until(lambda: kubelet.allocatable(GPU) == 4)


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
    kubelet.wait_until(lambda: kubelet.allocatable(GPU) == 4)


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
        kubelet.wait_until(lambda: kubelet.allocatable(GPU) == 4)
        kubelet.wait_until(lambda: kubelet.open_streams(GPU) == 1)
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
    kubelet.wait_until(lambda: kubelet.allocatable(GPU) == 4)


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
def test_an_attempt_for_a_socket_that_is_gone_is_given_up_and_counts_as_nothing(node):
    kubelet = node.kubelet()
    kubelet.faults.register_delay_s = 60
    actor, observed = node.actor()
    kubelet.wait_until(lambda: kubelet.messages(GPU))
    kubelet.faults.register_delay_s = 0
    node.own_socket().unlink()
    actor.look()
    node.wait(streaming(observed))
    assert len(kubelet.registrations) == 2
    assert observed.results == ["success"]
    assert observed.logged(Reason.REGISTRATION_FAILED) == []


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


def test_a_look_at_what_is_as_it_was_changes_nothing(node):
    kubelet = node.kubelet()
    actor, observed = node.actor()
    node.wait(streaming(observed))
    actor.look()
    actor.feed.publish(build_list(replicas=3))
    kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 2)
    assert len(kubelet.registrations) == 1
    assert observed.last.registered


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
def test_without_a_stream_it_registers_again_whatever_the_kubelet_says_it_offers(node):
    """Up to 1.36 a list that comes with the end of its stream may make Healthy again what was just taken away."""
    kubelet = node.kubelet()
    kubelet.faults.register_delay_s = 0.5
    actor, observed = node.actor()
    kubelet.wait_until(lambda: kubelet.messages(GPU))
    kubelet.close_stream(GPU)
    node.wait(lambda: any("may have been the kubelet's" in line for line in observed.logged(Reason.STREAM_LOST)))
    actor.confirm(time.monotonic() + 1.0)
    kubelet.wait_until(lambda: (len(kubelet.registrations), kubelet.allocatable(GPU)) == (2, 4), LIMIT_S)
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


@pytest.mark.invariant(7)
def test_a_kubelet_that_never_names_us_is_registered_with_more_and_more_rarely(node):
    kubelet = node.kubelet()
    actor, observed = node.actor()

    def reclaims():
        return [line for line in observed.logged(Reason.STREAM_LOST) if "does not offer" in line]

    kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 1)
    node.wait(streaming(observed))
    actor.reclaim()
    node.wait(streaming(observed, 2))
    kubelet.wait_until(lambda: len(kubelet.messages(GPU)) == 2)

    actor.reclaim()  # it is said again, and too soon
    kubelet.close_stream(GPU)
    node.wait(streaming(observed, 3))
    assert len(reclaims()) == 1

    actor.confirm(time.monotonic())  # it names us: what comes now is new
    actor.reclaim()
    node.wait(streaming(observed, 4))
    assert len(reclaims()) == 2
