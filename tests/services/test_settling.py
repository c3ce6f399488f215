"""A kubelet that has just started does not know its pods; its checkpoint does."""

from __future__ import annotations

from itertools import pairwise

import pytest

from nvdp.errors import HostError
from nvdp.model.held import Holding
from nvdp.services.settling import Settling


def recorded(device_id: str) -> Holding:
    return Holding(resource="nvidia.com/gpu", device_id=device_id, namespace="", pod="uid", container="main")


def named(device_id: str) -> Holding:
    return Holding(resource="nvidia.com/gpu", device_id=device_id, namespace="team-a", pod="pod", container="main")


class Checkpoint:
    def __init__(self, *holdings: Holding) -> None:
        self.holdings = holdings
        self.damaged = False

    def __call__(self) -> tuple[Holding, ...]:
        if self.damaged:
            raise HostError("not a checkpoint")
        return self.holdings


@pytest.mark.invariant(3)
def test_holders_that_a_new_kubelet_does_not_name_yet_count_as_holders():
    settling = Settling(Checkpoint(recorded("a"), recorded("b")))
    assert settling.complete((), kubelet=1, now=0.0) == (recorded("a"), recorded("b"))
    assert settling.complete((named("b"),), kubelet=1, now=1.0) == (recorded("a"), named("b"))


@pytest.mark.invariant(3)
def test_once_it_has_named_them_all_it_is_believed_whatever_the_file_says():
    settling = Settling(Checkpoint(recorded("a")))
    assert settling.complete((named("a"),), kubelet=1, now=0.0) == (named("a"),)
    assert settling.complete((), kubelet=1, now=1.0) == ()


@pytest.mark.invariant(3)
@pytest.mark.invariant(4)
def test_what_the_file_names_holds_for_as_long_as_it_does():
    """Without an API server a kubelet names no pod, however long that takes, and they run on."""
    checkpoint = Checkpoint(recorded("gone"), recorded("runs"))
    settling = Settling(checkpoint)
    for now in (100.0, 131.0, 1e5):
        assert settling.complete((), kubelet=1, now=now) == (recorded("gone"), recorded("runs"))
    checkpoint.holdings = (recorded("runs"),)
    assert settling.complete((), kubelet=1, now=1e5 + 1) == (recorded("runs"),)
    assert settling.complete((named("runs"),), kubelet=1, now=1e5 + 2) == (named("runs"),)
    assert settling.complete((), kubelet=1, now=1e5 + 3) == ()


def test_the_file_is_doubted_ever_more_rarely_while_it_names_others_than_the_kubelet():
    checkpoint = Checkpoint(recorded("a"))
    settling = Settling(checkpoint)
    doubts = []
    for now in range(3000):
        settling.complete((), kubelet=1, now=float(now))
        if settling.take_doubt(float(now)):
            doubts.append(now)
    assert doubts[:4] == [5, 15, 35, 75]
    assert {later - sooner for sooner, later in pairwise(doubts[-4:])} == {600}
    settling.complete((), kubelet=2, now=3000.0)
    assert [settling.take_doubt(now) for now in (3004.0, 3005.0, 3006.0)] == [False, True, False]
    assert settling.look_at == 3006.0, "the file is about to be written"
    settling.complete((), kubelet=2, now=3006.0)
    assert settling.look_at == 3015.0
    settling.complete((named("a"),), kubelet=2, now=3010.0)
    assert settling.look_at is None
    assert not settling.take_doubt(1e6)


@pytest.mark.invariant(3)
def test_each_new_kubelet_has_to_settle_again():
    settling = Settling(Checkpoint(recorded("a")))
    settling.complete((named("a"),), kubelet=1, now=0.0)
    assert settling.complete((), kubelet=2, now=1000.0) == (recorded("a"),)
    assert settling.complete((), kubelet=3, now=2000.0) == (recorded("a"),)


def test_a_checkpoint_that_cannot_be_read_adds_nothing():
    checkpoint = Checkpoint(recorded("a"))
    checkpoint.damaged = True
    assert Settling(checkpoint).complete((named("b"),), kubelet=1, now=0.0) == (named("b"),)


def test_the_file_is_not_read_once_the_kubelet_has_settled():
    checkpoint = Checkpoint()
    settling = Settling(checkpoint)
    settling.complete((), kubelet=1, now=0.0)
    checkpoint.holdings = (recorded("a"),)
    assert settling.complete((), kubelet=1, now=1.0) == ()


@pytest.mark.invariant(3)
@pytest.mark.invariant(4)
def test_an_answer_of_nobody_knows_whom_settles_no_kubelet():
    """One that was given just before a restart is whole; the new kubelet knows no pod yet all the same."""
    settling = Settling(Checkpoint(recorded("a")))
    for kubelet in ("first", None):
        assert settling.complete((named("a"),), kubelet=kubelet, now=0.0) == (named("a"),)
    assert settling.complete((), kubelet=None, now=0.0) == (recorded("a"),)
    assert settling.complete((), kubelet="second", now=0.1) == (recorded("a"),)
    assert settling.complete((named("a"),), kubelet="second", now=0.2) == (named("a"),)
    assert settling.complete((), kubelet="second", now=0.3) == ()
