"""What each MPS control daemon shall do: by tables, and over random histories of a node."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdp.model.mps import DaemonSpec
from nvdp.planning.daemon_course import Stage, Standing, Surroundings, Wish, keep_all, plan_daemons

A, B, C, D = (f"GPU-{letter}" for letter in "abcd")
ALL = (A, B, C, D)
ONE, TWO = "nvidia.com/gpu", "nvidia.com/gpu.two"
WELL = Surroundings(present=ALL)


def spec(*gpus, resource=ONE, percent=25, **facts):
    return DaemonSpec(resource=resource, gpus=gpus, thread_percent=percent, memory_mib=dict.fromkeys(gpus, 9), **facts)


def wish(*gpus, **facts):
    known = {"wanted": spec(*gpus), "free": gpus}
    return Wish(**(known | facts))


def plan(a_wish, standing=None, surroundings=WELL):
    """The step of one resource that is alone on the node, and the claims."""
    standings = {ONE: standing} if standing is not None else {}
    course = plan_daemons({ONE: a_wish} if a_wish is not None else {}, standings, surroundings)
    return course.steps[ONE], course.claims


def around(**facts):
    return Surroundings(**({"present": ALL} | facts))


def test_a_daemon_is_started_once_nothing_is_in_the_way_and_its_gpus_have_the_compute_mode():
    step, claims = plan(wish(A, B))
    assert (step.stage, claims) == (Stage.CHECK, frozenset())

    step, claims = plan(wish(A, B), Standing(cleared={A, B}))
    assert (step.stage, claims) == (Stage.CLAIM, {A, B})

    step, claims = plan(wish(A, B), Standing(cleared={A, B}), around(claimed={A, B}))
    assert (step.stage, step.target, claims) == (Stage.START, spec(A, B), {A, B})


def test_what_is_looked_at_is_not_taken_before_and_not_given_back_meanwhile():
    assert plan(wish(A, B), Standing(), around(claimed={A}))[1] == {A}


@pytest.mark.parametrize(
    ("a_wish", "surroundings", "words"),
    [
        (wish(A, B, free=()), WELL, "pods hold it in another form"),
        (wish(A, B), around(present=()), "not counted by the driver"),
        (wish(A, B), around(unclaimable={A: "no permission", B: "no permission"}), "no permission"),
        (wish(A, B), around(paused="paused by nvdp pause"), "paused by nvdp pause"),
        (wish(A, B), around(obstacle="no shared memory"), "no shared memory"),
    ],
)
def test_a_daemon_that_cannot_be_started_waits_and_says_for_what(a_wish, surroundings, words):
    step, claims = plan(a_wish, Standing(cleared=ALL), surroundings)
    assert (step.stage, claims) == (Stage.WAIT, frozenset())
    assert words in step.text


def test_a_daemon_serves_what_of_its_gpus_can_be_had_and_says_what_is_missing():
    surroundings = around(present={A, B}, claimed=ALL)
    step, _ = plan(wish(A, B, C, free=(A, C)), Standing(cleared=ALL), surroundings)
    assert step.target == spec(A)
    assert f"{B}: not free yet" in step.text
    assert f"{C}: not counted" in step.text


def test_a_gpu_that_is_lost_is_not_taken_from_the_daemon_that_has_it():
    step, claims = plan(wish(A, B), Standing(running=spec(A, B)), around(present={A}, claimed={A, B}))
    assert (step.stage, step.text, claims) == (Stage.KEEP, "", {A, B})


def test_a_change_waits_for_the_end_of_the_pods_that_use_the_daemon():
    running = Standing(running=spec(A, percent=50), cleared=ALL)
    step, claims = plan(wish(A, B, is_in_use=True), running, around(claimed=ALL))
    assert (step.stage, claims) == (Stage.KEEP, {A})
    assert "pods still use it" in step.text


def test_a_change_of_a_daemon_that_nobody_uses_prepares_all_before_it_ends_it():
    running = Standing(running=spec(A))
    assert plan(wish(A, B), running, around(claimed={A}))[0].stage is Stage.CHECK

    cleared = msgspec.structs.replace(running, cleared={A, B})
    step, claims = plan(wish(A, B), cleared, around(claimed={A}))
    assert (step.stage, claims) == (Stage.CLAIM, {A, B})

    step, claims = plan(wish(A, B), cleared, around(claimed={A, B}))
    assert (step.stage, claims) == (Stage.END, {A, B})


def test_a_gpu_that_cannot_be_claimed_costs_the_daemon_that_runs_without_it_nothing():
    running = Standing(running=spec(A), cleared={A, B})
    step, claims = plan(wish(A, B), running, around(claimed={A}, unclaimable={B: "no permission"}))
    assert (step.stage, claims) == (Stage.KEEP, {A})
    assert "no permission" in step.text


def test_at_once_waits_neither_for_pods_of_the_daemon_nor_for_those_in_another_form():
    running = Standing(running=spec(A), cleared=ALL)
    step, _ = plan(wish(A, B, free=(), is_in_use=True, at_once=True), running, around(claimed=ALL))
    assert (step.stage, step.target) == (Stage.END, spec(A, B))


@pytest.mark.parametrize(("in_use", "stage"), [(True, Stage.KEEP), (False, Stage.END)])
def test_a_daemon_that_nobody_wants_stays_as_long_as_it_is_used(in_use, stage):
    step, claims = plan(Wish(is_in_use=in_use), Standing(running=spec(A)))
    assert (step.stage, claims) == (stage, {A})


def test_a_daemon_that_dies_is_started_again_for_those_who_hold_what_it_is_to_give_up():
    leaving = Wish(kept=spec(A), is_in_use=True)
    ready = Standing(cleared=ALL)
    step, claims = plan(leaving, ready, around(claimed=ALL))
    assert (step.stage, step.target, claims) == (Stage.START, spec(A), {A})
    assert plan(leaving, Standing(running=spec(A)))[0].stage is Stage.KEEP
    assert plan(leaving, ready, around(claimed=ALL, paused="paused"))[0].stage is Stage.WAIT

    partly = wish(A, B, free=(A,), kept=spec(A, B, C), is_in_use=True)
    assert plan(partly, ready, around(claimed=ALL))[0].target == spec(A, C)
    assert plan(partly, Standing(running=spec(A, C)))[0].stage is Stage.KEEP


@pytest.mark.parametrize(("in_use", "stage"), [(True, Stage.KEEP), (False, Stage.END)])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_pause_ends_what_nobody_uses_and_nothing_else(in_use, stage, at_once):
    a_wish = wish(A, is_in_use=in_use, at_once=at_once)
    assert plan(a_wish, Standing(running=spec(A)), around(paused="paused"))[0].stage is stage

    step, claims = plan(a_wish, Standing(running=spec(A)), around(paused="paused", is_pause_settled=False))
    assert (step.stage, claims) == (Stage.KEEP, {A})
    assert ("given out just before" in step.text) is not in_use


def test_a_daemon_without_multi_user_where_there_is_none_is_as_wanted_and_says_so():
    running = Standing(running=spec(A, multi_user=False), lacks_multi_user=True)
    step, _ = plan(wish(A), running)
    assert step.stage is Stage.KEEP
    assert "multiUser" in step.text


def test_the_order_of_gpus_is_no_change():
    assert plan(wish(B, A), Standing(running=spec(A, B)))[0].stage is Stage.KEEP


def test_what_is_in_the_way_is_said_while_it_is_looked_for():
    assert plan(wish(A), Standing(refused="another daemon, PID 7"))[0].text == "another daemon, PID 7"


def test_only_clients_that_count_make_an_end_gentle():
    assert plan(Wish(), Standing(running=spec(A)))[0].by_force
    assert not plan(Wish(counts_clients=True), Standing(running=spec(A)))[0].by_force
    assert plan(wish(B, counts_clients=True, at_once=True), Standing(running=spec(A)))[0].by_force


def test_a_gpu_of_another_daemon_is_waited_for_also_if_that_is_only_being_started():
    standings = {
        ONE: Standing(pledged={A}, cleared=ALL),
        TWO: Standing(cleared=ALL),
    }
    wishes = {TWO: Wish(wanted=spec(A, resource=TWO), free=(A,))}
    course = plan_daemons(wishes, standings, around(claimed=ALL))
    assert course.steps[TWO].stage is Stage.WAIT
    assert "another resource's daemon" in course.steps[TWO].text
    assert course.claims == {A}


def test_as_long_as_nobody_knows_what_is_wanted_all_stays_as_it_is():
    course = keep_all({ONE: Standing(running=spec(A)), TWO: Standing(pledged={B})}, text="not known")
    assert {name: step.stage for name, step in course.steps.items()} == {ONE: Stage.KEEP, TWO: Stage.WAIT}
    assert course.claims == {A, B}


RESOURCES = (ONE, TWO)
gpus = st.frozensets(st.sampled_from(ALL))


@st.composite
def allotments(draw):
    """Wishes for both resources, which share no GPU."""
    mine = draw(gpus)
    parts = {ONE: sorted(mine), TWO: sorted(draw(gpus) - mine)}
    return {
        resource: (draw(st.sampled_from((25, 50))), tuple(part), draw(gpus), draw(st.booleans()))
        for resource, part in parts.items()
        if draw(st.booleans())
    }


events = st.one_of(
    st.tuples(st.just("wishes"), allotments()),
    st.tuples(st.just("use"), st.frozensets(st.sampled_from(RESOURCES))),
    st.tuples(st.just("present"), gpus),
    st.tuples(st.just("unclaimable"), gpus),
    st.tuples(st.just("paused"), st.booleans()),
    st.tuples(st.just("dies"), st.sampled_from(RESOURCES)),
    st.tuples(st.just("turn"), st.just(None)),
)


class Node:
    """A node on which orders are carried out, some turns later or sooner."""

    def __init__(self):
        self.wishes, self.users, self.paused = {}, frozenset(), False
        self.present, self.unclaimable, self.claimed = frozenset(ALL), frozenset(), frozenset()
        self.running, self.cleared = {}, {}

    def happen(self, event, value):
        match event:
            case "wishes":
                self.wishes = value
            case "use":
                self.users = value
            case "present":
                self.present = value
            case "unclaimable":
                self.unclaimable = value
            case "paused":
                self.paused = value
            case "dies":
                self.running.pop(value, None)

    def build_wishes(self):
        wishes = {name: Wish(is_in_use=name in self.users) for name in self.running}
        for name, (percent, wanted, free, at_once) in self.wishes.items():
            wanted_spec = spec(*wanted, resource=name, percent=percent) if wanted else None
            in_use = name in self.users and name in self.running
            wishes[name] = Wish(wanted=wanted_spec, free=free, is_in_use=in_use, at_once=at_once)
        return wishes

    def turn(self):
        """Plan, hold the course against the rules, and carry it out."""
        wishes = self.build_wishes()
        surroundings = Surroundings(
            present=self.present,
            claimed=self.claimed,
            unclaimable=dict.fromkeys(self.unclaimable - self.claimed, "denied"),
            paused="paused" if self.paused else "",
        )
        standings = {
            name: Standing(running=self.running.get(name), cleared=self.cleared.get(name, ())) for name in RESOURCES
        }
        course = plan_daemons(wishes, standings, surroundings)
        for name, step in course.steps.items():
            self.hold_against_rules(name, step, wishes.get(name, Wish()))
        held = [gpu for running in self.running.values() for gpu in running.gpus]
        assert len(held) == len(set(held)), "a GPU in two daemons"
        assert course.claims.issuperset(held)
        self.claimed = (self.claimed & course.claims) | (course.claims & self.present - self.unclaimable)
        for name, step in course.steps.items():
            self.carry_out(name, step)
        return course

    def hold_against_rules(self, name, step, a_wish):
        if step.stage is Stage.END:
            assert name in self.running
            assert not a_wish.is_in_use or (a_wish.at_once and not self.paused), "ended while in use"
        if step.stage in {Stage.CLAIM, Stage.START}:
            had = self.running[name].gpus if name in self.running else ()
            assert set(step.target.gpus) - set(had) <= self.present
            assert a_wish.at_once or set(step.target.gpus) - set(had) <= set(a_wish.free), "taken while not free"
        if step.stage is Stage.START:
            assert name not in self.running
            assert not self.paused
            assert set(step.target.gpus) <= self.claimed & set(a_wish.wanted.gpus)

    def carry_out(self, name, step):
        match step.stage:
            case Stage.CHECK:
                self.cleared[name] = frozenset(step.target.gpus)
            case Stage.START:
                self.running[name] = step.target
                self.cleared[name] = frozenset()
            case Stage.END:
                del self.running[name]


@settings(max_examples=150, deadline=None)
@given(st.lists(events, max_size=30))
def test_whatever_happens_no_rule_is_broken_and_in_the_end_all_is_as_wanted_and_then_given_back(history):
    node = Node()
    for event, value in history:
        node.happen(event, value)
        node.turn()

    node.happen("present", frozenset(ALL))
    node.happen("unclaimable", frozenset())
    node.paused = False
    node.happen("use", frozenset())
    node.wishes = {name: (percent, wanted, ALL, False) for name, (percent, wanted, _, _) in node.wishes.items()}
    for _ in range(16):
        course = node.turn()
    wanted = {
        name: spec(*gpus, resource=name, percent=percent) for name, (percent, gpus, _, _) in node.wishes.items() if gpus
    }
    assert node.running == wanted
    assert all(step.stage in {Stage.KEEP, Stage.NOTHING} and not step.text for step in course.steps.values())

    node.wishes = {}
    for _ in range(3):
        node.turn()
    assert node.running == {}
    assert node.claimed == frozenset()
