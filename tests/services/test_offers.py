"""All resources that are given out: started, updated and withdrawn, and what is known of the kubelet's side."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.kubelet.sockets import SocketIdentity
from nvdp.model.listing import AllocateTrace, AllocationFacts
from nvdp.model.reasons import Cause as Ailing
from nvdp.model.reasons import Reason
from nvdp.planning.ledger import Refusal
from nvdp.services.events import ResourceReport
from nvdp.services.list_times import Cause
from tests.planning.values import GPU, SHARED, answer, holding, listed, uuid
from tests.virtual.actor import STREAM_S
from tests.virtual.clock import Pause
from tests.virtual.node import VirtualNode

A, B = uuid(0), uuid(1)
OTHER_KUBELET = SocketIdentity(1, 300, 5)


class Scene:
    """Offers with actors whose streams are served; the supervisor does not run, the test reads its mail."""

    def __init__(self, *, kubelet=True):
        self.node = VirtualNode()
        self.offers, self.record = self.node.offers, self.node.record
        if kubelet:
            self.offers.kubelet_changed(self.node.kubelet, at=self.node.clock.now)
        else:
            self.node.kubelet = None

    def see_kubelet(self, identity, *, at):
        """As the supervisor does when something changed in the kubelet's directory."""
        changed = self.offers.kubelet_changed(identity, at=at)
        self.offers.look()
        return changed

    def give(self, *lists, cause=None):
        return self.offers.carry_out({one.resource: one for one in lists}, cause=cause)

    def cause(self, word="config"):
        return Cause(word, self.node.clock.now)

    def run(self, seconds=1.0):
        """Let time pass, and note every report."""
        clock = self.node.clock
        clock.until = clock.now + seconds
        try:
            while True:
                if isinstance(event := clock.get(), ResourceReport):
                    self.offers.note(event)
        except Pause:
            return

    @property
    def actor(self):
        return self.node.made[-1]


def ids(given):
    return [device.id for device in given.listed.devices]


def test_a_resource_is_started_updated_and_withdrawn():
    scene = Scene()
    assert scene.give(listed(GPU, A, B))
    scene.run()
    assert scene.offers.serving[GPU].registered
    assert ids(scene.offers.given[GPU]) == [A, B]
    assert scene.give(listed(GPU, A, B, unhealthy=(B,)))
    scene.run()
    assert scene.node.unhealthy(GPU) == [B]
    assert scene.give()
    assert scene.actor.stopped == "nothing is left of it"
    assert (scene.offers.given, scene.offers.actors, scene.offers.serving) == ({}, {}, {})


@pytest.mark.requirement(12)
def test_an_equal_list_is_not_given_out_again():
    scene = Scene()
    scene.give(listed(GPU, A))
    scene.run()
    assert not scene.give(listed(GPU, A))
    assert scene.offers.given[GPU].version == 1


@pytest.mark.requirement(43)
def test_resources_do_not_touch_each_other():
    scene = Scene()
    scene.give(listed(GPU, A), listed(SHARED, f"{B}::0"))
    scene.run()
    scene.give(listed(GPU, A), listed(SHARED, f"{B}::0", unhealthy=(f"{B}::0",)))
    scene.run()
    assert [len(actor.taken) for actor in scene.node.made] == [1, 2]
    scene.give(listed(SHARED, f"{B}::0", unhealthy=(f"{B}::0",)))
    assert list(scene.offers.actors) == [SHARED]


# what the kubelet knows


@pytest.mark.invariant(3)
def test_the_kubelet_knows_of_a_refusal_once_its_stream_has_taken_the_list():
    scene = Scene()
    scene.give(listed(GPU, A, B))
    scene.run()
    at = scene.node.clock.now
    scene.give(listed(GPU, A, B, unhealthy=(B,)))
    assert scene.offers.given[GPU].refusals == {B: Refusal(2, at)}
    scene.run(STREAM_S)
    assert scene.offers.given[GPU].refusals == {B: Refusal(2, at, at + STREAM_S)}
    assert scene.offers.given[GPU].taken_version == 2


@pytest.mark.invariant(3)
def test_where_no_stream_is_open_nobody_offers_what_is_refused():
    scene = Scene(kubelet=False)
    at = scene.node.clock.now
    scene.give(listed(GPU, A, unhealthy=(A,)))
    assert scene.offers.given[GPU].refusals == {A: Refusal(1, at, at)}
    assert scene.offers.given[GPU].taken_version == 1


@pytest.mark.invariant(3)
def test_a_stream_that_ends_takes_what_it_knew_with_it():
    scene = Scene()
    scene.give(listed(GPU, A))
    scene.run()
    scene.node.stream_s = 1e6
    scene.give(listed(GPU, A, unhealthy=(A,)))
    scene.run(10.0)
    assert scene.offers.given[GPU].refusals[A].known_at is None
    scene.actor.lose_stream()
    scene.run(0.0)
    assert scene.offers.given[GPU].refusals[A].known_at == scene.node.clock.now


@pytest.mark.invariant(3)
def test_what_pods_held_at_the_start_counts_as_given_out_by_the_predecessor():
    scene = Scene()
    scene.offers.restore(answer(holding(f"{A}::3")), names=frozenset())
    assert ids(scene.offers.given[GPU]) == [f"{A}::3"]
    at = scene.node.clock.now
    scene.give(listed(GPU, f"{A}::0", f"{A}::3", unhealthy=(f"{A}::3",)))
    assert scene.offers.given[GPU].refusals == {f"{A}::3": Refusal(0, at, at)}


def test_what_was_restored_and_is_not_wanted_is_withdrawn_without_an_actor():
    scene = Scene()
    scene.offers.restore(answer(holding(A)), names=frozenset())
    assert scene.give()
    assert (scene.offers.given, scene.node.made) == ({}, [])


@pytest.mark.invariant(3)
def test_allocate_calls_are_seen_as_they_are_when_asked():
    scene = Scene()
    scene.give(listed(GPU, A))
    with scene.actor.feed.allocating([A]):
        assert scene.offers.given[GPU].allocations[A].in_flight == 1
    trace = scene.offers.given[GPU].allocations[A]
    assert (trace.in_flight, trace.answered_at) == (0, scene.node.clock.now)


def test_reports_are_what_is_served():
    scene = Scene()
    scene.give(listed(GPU, A))
    assert not scene.offers.serving[GPU].registered
    scene.run(0.0)
    assert scene.offers.serving[GPU].missing == "no stream"
    scene.run()
    serving = scene.offers.serving[GPU]
    assert (serving.registered, serving.streams, serving.taken_version, serving.missing) == (True, 1, 1, None)


def test_the_last_word_of_a_withdrawn_actor_is_not_taken_for_its_successors():
    scene = Scene()
    scene.give(listed(GPU, A))
    scene.run()
    scene.node.clock.after(2 * STREAM_S, lambda: None)
    scene.give()
    scene.give(listed(GPU, B))
    scene.run()
    assert scene.offers.serving[GPU].registered
    scene.node.made[0]._report(stopped=True)
    scene.run(0.0)
    assert scene.offers.serving[GPU].registered
    assert ids(scene.offers.given[GPU]) == [B]


def test_actors_that_have_stopped_are_forgotten():
    scene = Scene()
    for _ in range(20):
        scene.give(listed(GPU, A))
        scene.run()
        scene.give()
        scene.run()
    assert scene.offers._stopping == []


# crashes


@pytest.mark.invariant(3)
def test_a_new_actor_takes_the_place_of_a_dead_one_with_the_list_and_the_memory():
    scene = Scene()
    scene.give(listed(GPU, A, B))
    scene.run()
    for unhealthy in ((A,), (), (B,)):
        scene.give(listed(GPU, A, B, unhealthy=unhealthy))
        scene.run()
    refusal = scene.offers.given[GPU].refusals[B]
    scene.actor.lose_stream()
    assert not scene.offers.restart("resource nvidia.com/other")
    assert scene.offers.restart("resource nvidia.com/gpu")
    assert [actor.stopped for actor in scene.node.made] == ["its thread died", ""]
    assert scene.actor.feed.current.listed == listed(GPU, A, B, unhealthy=(B,))
    given = scene.offers.given[GPU]
    assert given.version == 1
    assert (given.refusals[B].refused_at, given.refusals[B].known_at) == (refusal.refused_at, refusal.known_at)
    scene.give(listed(GPU, A, B, unhealthy=(A, B)))
    scene.run()
    assert scene.offers.given[GPU].refusals[A].known_at is not None


@pytest.mark.invariant(3)
def test_a_refusal_that_a_dead_actors_stream_never_took_is_known_with_its_end():
    scene = Scene()
    scene.give(listed(GPU, A))
    scene.run()
    scene.node.stream_s = 1e6
    for version in range(5):
        scene.give(listed(GPU, A, B, unhealthy=(A, B)[: 1 + version % 2]))
    scene.offers.restart("resource nvidia.com/gpu")
    assert scene.offers.given[GPU].refusals[A].known_at == scene.node.clock.now


# the kubelet


def test_actors_learn_of_a_kubelet_that_came_went_or_is_another():
    scene = Scene()
    scene.give(listed(GPU, A))
    scene.run()
    kubelet = scene.node.kubelet
    assert not scene.see_kubelet(kubelet, at=0.0)
    scene.node.kubelet = None
    assert scene.see_kubelet(None, at=0.0)
    scene.run()
    assert not scene.offers.serving[GPU].registered
    scene.node.kubelet = OTHER_KUBELET
    assert scene.see_kubelet(OTHER_KUBELET, at=scene.node.clock.now)
    scene.run()
    assert scene.offers.serving[GPU].registered


@pytest.mark.invariant(4)
def test_what_a_dead_actor_allocated_counts_for_the_one_in_its_place():
    scene = Scene()
    scene.give(listed(GPU, A, B))
    with scene.actor.feed.allocating([A]):
        pass
    answered_at = scene.node.clock.now
    scene.offers.restart("resource nvidia.com/gpu")
    assert scene.offers.given[GPU].allocations == {A: AllocateTrace(0, answered_at)}
    scene.offers.restart("resource nvidia.com/gpu")
    scene.run()
    with scene.actor.feed.allocating([A, B]):
        assert scene.offers.given[GPU].allocations == {A: AllocateTrace(1), B: AllocateTrace(1)}
    assert scene.offers.given[GPU].allocations[A].answered_at == scene.node.clock.now
    scene.give()
    scene.give(listed(GPU, A))
    assert scene.offers.given[GPU].allocations == {}


def test_the_first_kubelet_is_no_restart_whoever_was_there_first():
    scene = Scene(kubelet=False)
    scene.give(listed(GPU, A))
    scene.node.kubelet = OTHER_KUBELET
    scene.see_kubelet(OTHER_KUBELET, at=0.0)
    scene.run()
    assert scene.record.counted == []
    assert scene.record.told == []


def test_a_restart_of_the_kubelet_is_told_once_all_resources_are_registered_again():
    scene = Scene()
    scene.give(listed(GPU, A), listed(SHARED, f"{B}::0"))
    scene.run()
    scene.node.kubelet = None
    scene.see_kubelet(None, at=0.0)
    scene.run()
    assert scene.record.counted == []
    scene.node.kubelet = OTHER_KUBELET
    scene.see_kubelet(OTHER_KUBELET, at=scene.node.clock.now - 0.1)
    assert scene.record.counted == [("kubelet_restarted",)]
    assert scene.record.told == []
    scene.run()
    assert scene.record.told == [
        (Reason.KUBELET_RESTARTED, "kubelet.sock is new (inode 100 → 300); 2 resources registered again in 0.105s")
    ]
    assert scene.record.latencies == [("kubelet", 0.105), ("kubelet", 0.105)]
    scene.give(listed(GPU, A, unhealthy=(A,)), listed(SHARED, f"{B}::0"))
    scene.run()
    assert len(scene.record.told) == 1


def test_a_restart_is_told_though_resources_were_quicker_than_the_look_at_its_socket():
    """They see their streams end; on a node without notification the socket is looked at once a second."""
    scene = Scene()
    scene.give(listed(GPU, A), listed(SHARED, f"{B}::0"))
    scene.run()
    scene.node.kubelet = OTHER_KUBELET
    scene.offers.look()
    scene.run()
    assert scene.record.told == []
    scene.see_kubelet(OTHER_KUBELET, at=scene.node.clock.now)
    assert scene.record.counted == [("kubelet_restarted",)]
    (told,) = scene.record.texts(Reason.KUBELET_RESTARTED)
    assert "2 resources registered again" in told


def test_what_is_still_registered_with_the_old_kubelet_is_not_back():
    scene = Scene()
    scene.give(listed(GPU, A))
    scene.run()
    scene.offers.kubelet_changed(OTHER_KUBELET, at=scene.node.clock.now)
    scene.give(listed(GPU, A, unhealthy=(A,)))
    scene.run()
    assert scene.record.told == [], "the old one took a list at its end"
    scene.node.kubelet = OTHER_KUBELET
    scene.offers.look()
    scene.run()
    assert len(scene.record.told) == 1


def test_a_resource_that_is_withdrawn_is_not_waited_for_after_a_restart():
    scene = Scene()
    scene.give(listed(GPU, A), listed(SHARED, f"{B}::0"))
    scene.run()
    scene.node.kubelet = None
    scene.see_kubelet(None, at=0.0)
    scene.run()
    scene.see_kubelet(OTHER_KUBELET, at=scene.node.clock.now)
    scene.give(listed(GPU, A))
    scene.node.kubelet = OTHER_KUBELET
    scene.see_kubelet(None, at=0.0)
    scene.see_kubelet(OTHER_KUBELET, at=scene.node.clock.now)
    scene.run()
    (told,) = scene.record.texts(Reason.KUBELET_RESTARTED)
    assert "1 resource registered again" in told


def test_everyone_is_made_to_look():
    scene = Scene()
    scene.give(listed(GPU, A), listed(SHARED, f"{B}::0"))
    scene.offers.look()
    assert [actor.looks for actor in scene.node.made] == [1, 1]


def test_held_counts_reach_their_resource():
    scene = Scene()
    scene.give(listed(GPU, A), listed(SHARED, f"{B}::0"))
    scene.offers.set_held_elsewhere({GPU: {A: 2}})
    assert [dict(actor.feed.current.held_elsewhere) for actor in scene.node.made] == [{A: 2}, {}]


# what the kubelet offers


def offered_after(scene, seconds, resources=frozenset()):
    scene.offers.reclaim(resources, requested_at=scene.node.clock.now + seconds)
    return scene.actor.reclaims


def test_what_the_kubelet_took_a_while_ago_and_does_not_offer_is_registered_anew():
    scene = Scene()
    scene.give(listed(GPU, A))
    scene.run(0.5)
    assert offered_after(scene, 0.4) == 0  # it may not have taken it in
    assert offered_after(scene, 1.0, frozenset({GPU})) == 0
    assert offered_after(scene, 1.0) == 1


def test_what_was_not_taken_or_has_nothing_healthy_is_not_missed():
    scene = Scene()
    scene.give(listed(GPU, A))
    scene.run()
    scene.node.stream_s = 1e6
    scene.give(listed(GPU, A, B))
    assert offered_after(scene, 60.0) == 0
    scene = Scene()
    scene.give(listed(GPU, A, unhealthy=(A,), cause=Ailing.LOST))
    scene.run()
    assert offered_after(scene, 60.0) == 0


# times


def test_a_list_is_timed_from_its_cause_to_the_stream_that_takes_it():
    scene = Scene()
    scene.give(listed(GPU, A), cause=scene.cause("inventory"))
    scene.run()
    cause = scene.cause("health")
    scene.run(1.0)
    scene.give(listed(GPU, A, unhealthy=(A,)), cause=cause)
    scene.run()
    assert scene.record.latencies == [("inventory", STREAM_S), ("health", 1.0 + STREAM_S)]


def test_an_edit_is_applied_when_the_last_of_its_lists_is_taken():
    scene = Scene()
    scene.give(listed(GPU, A), listed(SHARED, f"{B}::0"))
    scene.run()
    late = scene.node.made[1]
    late._under_way = True  # its stream is busy
    scene.give(listed(GPU, A, unhealthy=(A,)), listed(SHARED, f"{B}::0", unhealthy=(f"{B}::0",)), cause=scene.cause())
    scene.run(2.0)
    assert scene.record.latencies == [("config", STREAM_S)]
    assert scene.record.counted == []
    late._take()
    scene.run(0.0)
    assert scene.record.latencies == [("config", STREAM_S), ("config", 2.0)]
    assert scene.record.counted == [("config_applied", 2.0)]


def test_a_list_that_a_newer_one_overtakes_is_timed_with_it():
    scene = Scene()
    scene.give(listed(GPU, A))
    scene.run()
    scene.actor._under_way = True  # its stream is busy
    scene.give(listed(GPU, A, unhealthy=(A,)), cause=scene.cause("health"))
    scene.run(1.0)
    scene.give(listed(GPU, A, B), cause=scene.cause())
    scene.run(2.0)
    assert scene.record.latencies == []
    scene.actor._take()
    scene.run(0.0)
    assert scene.record.latencies == [("health", 3.0), ("config", 2.0)]
    assert scene.record.counted == [("config_applied", 2.0)]


def test_of_the_lists_that_nobody_takes_a_bounded_number_is_remembered():
    scene = Scene()
    scene.give(listed(GPU, A))
    scene.run()
    scene.actor._under_way = True
    for turn in range(100):
        scene.give(listed(GPU, A, unhealthy=(A,) if turn % 2 else ()), cause=scene.cause("health"))
    scene.give(listed(GPU, A, B), cause=scene.cause())
    scene.actor._take()
    scene.run(0.0)
    assert scene.record.latencies == [("health", 0.0)] * 15 + [("config", 0.0)]


@pytest.mark.requirement(12)
def test_what_the_kubelet_cannot_see_is_neither_sent_nor_timed():
    scene = Scene()
    scene.give(listed(GPU, A))
    scene.run()
    facts = msgspec.structs.replace(listed(GPU, A), facts=AllocationFacts(replicas=5))
    assert scene.give(facts, cause=scene.cause())
    assert scene.actor.feed.current.listed == facts
    scene.run(60.0)
    scene.give(listed(GPU, A, unhealthy=(A,)))
    scene.run()
    assert len(scene.actor.taken) == 2
    assert scene.record.latencies == []


def test_what_no_event_caused_is_not_timed_nor_is_the_wait_for_a_kubelet():
    scene = Scene()
    scene.give(listed(GPU, A))
    scene.run()
    assert scene.record.latencies == []
    alone = Scene(kubelet=False)
    alone.give(listed(GPU, A), cause=alone.cause())
    alone.run(3600.0)
    alone.node.kubelet = OTHER_KUBELET
    alone.see_kubelet(OTHER_KUBELET, at=alone.node.clock.now)
    alone.run()
    assert alone.record.latencies == []


def test_a_list_that_a_restart_of_the_kubelet_overtook_is_not_timed_from_its_cause():
    scene = Scene()
    scene.give(listed(GPU, A))
    scene.run()
    scene.node.stream_s = 1e6
    scene.give(listed(GPU, A, unhealthy=(A,)), cause=scene.cause())
    scene.run(100.0)
    scene.node.kubelet = OTHER_KUBELET
    scene.see_kubelet(OTHER_KUBELET, at=scene.node.clock.now)
    scene.run()
    assert scene.record.latencies == [("kubelet", STREAM_S)]


@pytest.mark.requirement(22)
def test_all_actors_are_stopped_in_parallel_those_that_were_stopping_too():
    scene = Scene()
    scene.give(listed(GPU, A), listed(SHARED, f"{B}::0"))
    scene.give(listed(SHARED, f"{B}::0"))
    scene.offers.stop(timeout_s=1.0)
    assert [actor.stopped for actor in scene.node.made] == ["nvdp stops", "nvdp stops"]
