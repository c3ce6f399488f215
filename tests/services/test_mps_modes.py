"""Compute modes are taken and put back: the order of claims, failures, and who changes modes besides us."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from nvdp.errors import HostError, NvmlError
from nvdp.model.inventory import ComputeMode, Driver, Gpu, Inventory
from nvdp.services.mps_events import ModesSeen
from nvdp.services.mps_modes import ModeService
from tests.daemon.process import wait_until

A, B = "GPU-a", "GPU-b"
EXCLUSIVE, DEFAULT = ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT


class Node:
    """The driver's modes, and the disk; ``steps`` is what happened, in order."""

    def __init__(self):
        self.modes = {A: DEFAULT, B: EXCLUSIVE}
        self.steps = []
        self.kept = {}
        self.kinds = {}
        self.takeable = None
        self.stopped_s = 0.0
        self.passed_s = 0.0
        self.is_disk_full = False
        self.may_answer = threading.Event()
        self.may_answer.set()

    def set(self, modes):
        assert self.may_answer.wait(10)
        self.steps += [(uuid, mode) for uuid, mode in modes.items() if uuid not in self.kinds]
        self.modes |= {uuid: mode for uuid, mode in modes.items() if uuid not in self.kinds}
        return {uuid: NvmlError("denied", kind=self.kinds[uuid], call="x") for uuid in modes if uuid in self.kinds}

    def find_takeable(self):
        if isinstance(self.takeable, Exception):
            raise self.takeable
        return self.takeable

    def clock(self):
        return time.monotonic() + self.passed_s

    def keep(self, claims):
        self.passed_s += self.stopped_s
        self.stopped_s = 0.0
        if self.is_disk_full:
            raise HostError("no space left")
        self.steps.append(claims)
        self.kept = claims

    def inventory(self, *uuids):
        gpus = (Gpu(uuid=uuid, index=index, compute_mode=self.modes[uuid]) for index, uuid in enumerate(uuids))
        return Inventory(driver=Driver(version="580", cuda_version="13.0"), gpus=tuple(gpus))


class Bench:
    def __init__(self, node, claims):
        self.node = node
        self.posted = queue.SimpleQueue()
        self.seen = ModesSeen()
        self.told = []
        self.service = ModeService(
            node.set,
            node.keep,
            node.find_takeable,
            claims=claims,
            post=self.posted.put,
            log=lambda reason, msg, /, **fields: self.told.append((msg, fields)),
            clock=node.clock,
            first_delay_s=0.1,
        )
        self.service.start()

    def wait(self, predicate):
        while not predicate(self.seen):
            self.seen = self.posted.get(timeout=10)
        return self.seen

    def see(self):
        self.service.see(self.node.inventory(A, B))


@pytest.fixture
def node():
    return Node()


@pytest.fixture
def build(node):
    return lambda **claims: Bench(node, {f"GPU-{letter}": value for letter, value in claims.items()})


def test_a_claim_is_on_the_disk_before_the_mode_is_changed_and_the_mode_is_back_before_the_claim_goes(node, build):
    bench = build()
    bench.see()
    bench.service.want({A})
    assert bench.wait(lambda seen: A in seen.claimed).claims == {A: "Default"}
    assert node.steps == [{A: "Default"}, (A, EXCLUSIVE)]

    bench.service.want(set())
    bench.wait(lambda seen: not seen.claims)
    assert node.steps[2:] == [(A, DEFAULT), {}]
    assert node.modes[A] is DEFAULT


def test_what_is_wanted_is_followed_only_once_nothing_else_is_claimed_any_more(node, build):
    bench = build()
    node.may_answer.clear()
    bench.see()
    before = bench.service.want({A})
    assert bench.service.want({A}) == before
    bench.wait(lambda seen: seen.followed == before)
    wait_until(lambda: node.kept, what="the claim, on its way")
    after = bench.service.want(set())
    assert after > before
    assert bench.posted.empty()
    node.may_answer.set()
    assert bench.wait(lambda seen: seen.followed == after).claims == {A: "Default"}
    bench.wait(lambda seen: not seen.claims)


def test_a_gpu_that_was_exclusive_before_stays_so_afterwards(node, build):
    bench = build()
    bench.see()
    bench.service.want({B})
    assert bench.wait(lambda seen: B in seen.claimed).claims == {B: "ExclusiveProcess"}
    bench.service.want(set())
    bench.wait(lambda seen: not seen.claims)
    assert node.modes[B] is EXCLUSIVE


def test_what_an_earlier_process_claimed_is_put_back_but_not_before_it_is_known_what_is_wanted(node, build):
    node.modes[A] = EXCLUSIVE
    bench = build(a="Default")
    bench.see()
    assert bench.wait(lambda seen: seen.claims).claims == {A: "Default"}
    assert node.steps == []

    bench.service.want(set())
    bench.wait(lambda seen: not seen.claims)
    assert node.modes[A] is DEFAULT


def test_what_an_earlier_process_claimed_keeps_the_mode_that_it_had_before_that(node, build):
    node.modes[A] = EXCLUSIVE
    bench = build(a="Prohibited")
    bench.see()
    bench.service.want({A})
    assert bench.wait(lambda seen: A in seen.claimed).claims == {A: "Prohibited"}


def test_a_gpu_that_is_lost_is_put_back_when_it_returns(node, build):
    node.modes[A] = EXCLUSIVE
    bench = build(a="Default")
    bench.service.see(node.inventory(B))
    bench.service.want({B})
    assert bench.wait(lambda seen: B in seen.claimed).claims == {A: "Default", B: "ExclusiveProcess"}

    bench.see()
    bench.wait(lambda seen: A not in seen.claims)
    assert node.modes[A] is DEFAULT


def test_what_cannot_be_kept_is_not_changed(node, build):
    node.is_disk_full = True
    bench = build()
    bench.see()
    bench.service.want({A})
    seen = bench.wait(lambda seen: A in seen.unclaimable)
    assert "no space left" in seen.unclaimable[A]
    assert seen.claims == {}
    assert node.steps == []


@pytest.mark.parametrize(("kind", "claims"), [("NoPermission", {}), ("CallTimeout", {A: "Default"})])
def test_after_a_refusal_nothing_is_to_be_put_back_and_after_a_hang_it_is(node, build, kind, claims):
    node.kinds = {A: kind}
    bench = build()
    bench.see()
    bench.service.want({A, B})
    seen = bench.wait(lambda seen: B in seen.claimed and A in seen.unclaimable)
    assert seen.unclaimable == {A: "denied"}
    assert {uuid: mode for uuid, mode in seen.claims.items() if uuid != B} == claims
    assert node.kept == seen.claims
    assert bench.told[0] == ("denied", {"device": A})


@pytest.mark.parametrize("word", [frozenset(), frozenset({B}), HostError("mps.json: cannot be read")])
def test_what_was_given_away_since_it_was_wanted_is_not_taken(node, build, word):
    node.takeable = word
    bench = build()
    bench.see()
    bench.service.want({A})
    seen = bench.wait(lambda seen: A in seen.unclaimable)
    why = word if isinstance(word, HostError) else "the plugin has given the GPU away meanwhile"
    assert seen.unclaimable == {A: f"its compute mode is not changed: {why}"}
    assert (seen.claims, node.kept, node.modes[A]) == ({}, {}, DEFAULT)

    node.takeable = frozenset({A})
    bench.wait(lambda seen: A in seen.claimed)


def test_what_may_have_been_given_away_while_this_process_was_stopped_is_not_taken(node, build):
    node.stopped_s = 4.0
    bench = build()
    bench.see()
    bench.service.want({A})
    seen = bench.wait(lambda seen: A in seen.unclaimable)
    assert "was stopped for a while" in seen.unclaimable[A]
    assert seen.claims == {}
    bench.wait(lambda seen: A in seen.claimed)
    assert node.steps == [{A: "Default"}, {}, {A: "Default"}, (A, EXCLUSIVE)], "not taken at first, and then as usual"


def test_what_is_ours_already_is_set_again_whatever_the_plugin_says(node, build):
    node.takeable = frozenset()
    bench = build(a="Prohibited")
    bench.see()
    bench.service.want({A})
    assert bench.wait(lambda seen: A in seen.claimed).claims == {A: "Prohibited"}


def test_a_gpu_that_failed_may_be_wanted_again_after_a_while_and_then_works(node, build):
    node.kinds = {A: "NoPermission"}
    bench = build()
    bench.see()
    bench.service.want({A})
    bench.wait(lambda seen: A in seen.unclaimable)
    node.kinds = {}
    bench.wait(lambda seen: A in seen.claimed)
    assert bench.seen.unclaimable == {}


def test_the_mode_of_before_is_not_read_off_a_scan_that_began_before_ours_was_put_back(node, build):
    bench = build()
    bench.see()
    bench.service.want({A})
    bench.wait(lambda seen: A in seen.claimed)
    late = node.inventory(A, B)
    bench.service.want(set())
    bench.wait(lambda seen: not seen.claims)
    bench.service.see(late)
    bench.service.want({A})
    assert bench.wait(lambda seen: A in seen.claimed).claims == {A: "Default"}


def test_a_mode_that_somebody_takes_away_meanwhile_is_set_again(node, build):
    bench = build()
    bench.see()
    bench.service.want({A})
    bench.wait(lambda seen: A in seen.claimed)
    node.modes[A] = DEFAULT
    bench.see()
    bench.see()
    bench.see()
    wait_until(lambda: node.modes[A] is EXCLUSIVE, what="the mode again")
    wait_until(lambda: bench.told, what="a word about it")
    assert "became Default" in bench.told[0][0]
