"""How a resource comes to be registered, whatever the kubelet does: against its twin."""

from __future__ import annotations

import itertools

import pytest

from nvdp.model.reasons import Reason
from nvdp.services.retrying import Retry
from tests.kubelet.lists import build_list, replica
from tests.kubelet.plugin_client import PluginClient
from tests.services.node import (
    GPU,
    LIMIT_S,
    QUICK,
    register_only_kubelet,
    streaming,
)


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
def test_refusals_are_followed_by_tries_with_growing_gaps_under_new_names(node):
    kubelet = node.kubelet()
    kubelet.faults.refuse_registrations(5, "no, thanks")
    _, observed = node.actor()
    kubelet.wait_until(lambda: kubelet.messages(GPU), LIMIT_S)
    tries = kubelet.registrations
    assert [one.error for one in tries] == ["no, thanks"] * 5 + [None]
    gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(tries)]
    assert all(gap >= 0.8 * Retry.REFUSED.first_s * 2**number for number, gap in enumerate(gaps))  # any may be late
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
    kubelet.faults.register_delay_s = 3.0
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
