"""When holders are asked for, of whom, and what is said when nobody can tell (invariants 3 and 4)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from nvdp.errors import HostError, KubeletError
from nvdp.model.held import Held, Holding, Source
from nvdp.model.reasons import Reason
from nvdp.services.events import HeldRead
from nvdp.services.held import HeldService

GPU = "GPU-11111111-2222-3333-4444-555555555555"


def holding(number: int, *, namespace: str = "team-a", pod: str = "pod") -> Holding:
    return Holding(
        resource="nvidia.com/gpu", device_id=f"{GPU}::{number}", namespace=namespace, pod=pod, container="main"
    )


class Kubelet:
    """Both sources and the registration socket, as told. ``asked`` are the moments of the questions."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.up = True
        self.pods: tuple[Holding, ...] | None = ()
        self.recorded: tuple[Holding, ...] | None = ()
        self.kubelet = "first"
        self.asked: list[float] = []
        self.free = threading.Event()
        self.free.set()
        self.closed = False
        self.defect: Exception | None = None

    def list(self, timeout_s: float) -> tuple[Holding, ...]:
        with self.changed:
            self.asked.append(time.monotonic())
            self.changed.notify_all()
        self.free.wait(timeout_s)
        if self.defect is not None:
            defect, self.defect = self.defect, None
            raise defect
        if self.closed or self.pods is None:
            raise KubeletError("/run/pod-resources.sock: nobody answers")
        return self.pods

    def close(self) -> None:
        self.closed = True
        self.free.set()

    def load_checkpoint(self) -> tuple[Holding, ...]:
        if self.recorded is None:
            raise HostError("/run/checkpoint: cannot be read")
        return self.recorded

    def wait_asked(self, count: int, timeout_s: float = 5.0) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(self.asked) >= count, timeout_s)


class Posted:
    """What the service posted and logged."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.answers: list[Held] = []
        self.up: list[bool] = []
        self.lines: list[tuple[Reason, str, dict[str, object]]] = []

    def post(self, event) -> None:
        assert isinstance(event, HeldRead)
        with self.changed:
            self.answers.append(event.held)
            self.up.append(event.podresources_up)
            self.changed.notify_all()

    def log(self, reason: Reason, msg: str, /, **fields: object) -> None:
        with self.changed:
            self.lines.append((reason, msg, fields))
            self.changed.notify_all()

    def wait(self, predicate: Callable[[Held], bool], timeout_s: float = 5.0) -> Held:
        with self.changed:
            assert self.changed.wait_for(lambda: any(map(predicate, self.answers)), timeout_s), self.answers
            return next(held for held in self.answers if predicate(held))

    def wait_up(self, up: list[bool], timeout_s: float = 5.0) -> None:
        """Wait until the events have said so, one after the other, of PodResources."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.up == up, timeout_s), self.up

    def said(self, reason: Reason) -> list[str]:
        with self.changed:
            return [msg for said, msg, _ in self.lines if said is reason]


@pytest.fixture
def kubelet():
    return Kubelet()


@pytest.fixture
def posted():
    return Posted()


@pytest.fixture
def service(kubelet, posted):
    held = HeldService(
        posted.post,
        pod_resources=kubelet,
        load_checkpoint=kubelet.load_checkpoint,
        kubelet_answers=lambda: kubelet.up,
        log=posted.log,
    )
    yield held
    held.stop()


def test_the_first_answer_comes_at_once_and_is_posted(service, kubelet, posted):
    kubelet.pods = (holding(0), holding(1))
    began = time.monotonic()
    service.start()
    first = service.first_answer(5.0)
    assert first is not None
    assert first.source is Source.POD_RESOURCES
    assert first.holdings == kubelet.pods
    assert first.requested_at >= began
    assert first.unreadable_since is None
    posted.wait_up([True])
    assert posted.answers == [first]


def test_ids_of_other_plugins_are_left_out(service, kubelet):
    kubelet.pods = (
        Holding(resource="intel.com/qat", device_id="qat-0", namespace="a", pod="b", container="c"),
        holding(0),
    )
    service.start()
    assert service.first_answer().holdings == (holding(0),)


def test_a_question_is_answered_at_once_by_an_answer_requested_later(service, kubelet, posted):
    service.start()
    posted.wait(lambda _: True)
    for _ in range(3):
        asked = time.monotonic()
        service.ask()
        answer = posted.wait(lambda held: held.requested_at >= asked)  # noqa: B023 - used at once
        assert answer.requested_at - asked < 0.5


def test_a_question_during_another_is_asked_again(service, kubelet, posted):
    kubelet.free.clear()
    service.start()
    assert kubelet.wait_asked(1)
    asked = time.monotonic()
    service.ask()
    kubelet.pods = (holding(7),)
    kubelet.free.set()
    assert posted.wait(lambda held: held.requested_at >= asked).holdings == (holding(7),)
    assert len(kubelet.asked) == 2


def test_many_questions_at_once_are_few_for_the_kubelet(service, kubelet, posted):
    service.start()
    posted.wait(lambda _: True)
    for _ in range(100):
        service.ask()
        asked = time.monotonic()
    service.ask()
    posted.wait(lambda held: held.requested_at >= asked)
    assert len(kubelet.asked) <= 4


def test_it_asks_every_second_while_something_waits_and_rarely_otherwise(service, kubelet):
    service.start()
    assert kubelet.wait_asked(1)
    assert not kubelet.wait_asked(2, 1.3)
    service.set_waiting(True)
    assert kubelet.wait_asked(4)
    gaps = [later - earlier for earlier, later in zip(kubelet.asked[1:-1], kubelet.asked[2:], strict=True)]
    assert all(0.9 <= gap < 1.6 for gap in gaps)
    service.set_waiting(False)
    assert not kubelet.wait_asked(len(kubelet.asked) + 2, 1.3)


def test_the_checkpoint_answers_where_pod_resources_does_not(service, kubelet, posted):
    kubelet.pods = None
    kubelet.recorded = (holding(3, namespace="", pod="uid"),)
    service.start()
    answer = service.first_answer()
    assert (answer.source, answer.holdings) == (Source.CHECKPOINT, kubelet.recorded)
    posted.wait_up([False])
    assert posted.said(Reason.HOLDERS_UNKNOWN) == []
    kubelet.pods = (holding(3),)
    service.ask()
    posted.wait(lambda held: held.source is Source.POD_RESOURCES)


@pytest.mark.invariant(3)
def test_while_the_kubelet_is_down_the_last_answer_stands(service, kubelet, posted):
    kubelet.pods = (holding(0),)
    service.start()
    first = service.first_answer()
    kubelet.pods, kubelet.up = None, False
    service.ask()
    posted.wait_up([True, False])
    assert posted.answers == [first, first]
    kubelet.pods, kubelet.up = (), True
    assert posted.wait(lambda held: held.requested_at > first.requested_at).holdings == ()
    posted.wait_up([True, False, True])


def test_at_start_the_checkpoint_of_a_kubelet_that_is_down_tells_who_holds(service, kubelet):
    kubelet.pods, kubelet.up = None, False
    kubelet.recorded = (holding(3, namespace="", pod="uid"),)
    service.start()
    assert service.first_answer().holdings == kubelet.recorded


def test_a_kubelet_that_comes_up_within_the_first_second_is_waited_for(service, kubelet):
    kubelet.pods, kubelet.recorded, kubelet.up = None, None, False
    service.start()
    assert kubelet.wait_asked(3)
    kubelet.pods, kubelet.up = (holding(0),), True
    assert service.first_answer(1.0).holdings == (holding(0),)


def test_without_any_source_the_first_answer_is_none_after_its_time(service, kubelet, posted):
    kubelet.pods, kubelet.recorded, kubelet.up = None, None, False
    service.start()
    began = time.monotonic()
    assert service.first_answer(0.3) is None
    assert 0.3 <= time.monotonic() - began < 1
    assert posted.answers == []


@pytest.mark.invariant(3)
def test_a_kubelet_that_is_up_and_tells_nothing_is_reported_once_with_the_moment(service, kubelet, posted):
    kubelet.pods = (holding(0),)
    service.start()
    first = service.first_answer()
    kubelet.pods, kubelet.recorded = None, None
    service.ask()
    unreadable = posted.wait(lambda held: held.unreadable_since is not None)
    assert (unreadable.source, unreadable.requested_at, unreadable.holdings) == (
        Source.POD_RESOURCES,
        first.requested_at,
        (holding(0),),
    )
    service.set_waiting(True)
    count = len(kubelet.asked)
    assert kubelet.wait_asked(count + 2)
    assert posted.answers == [first, unreadable]
    (line,) = posted.said(Reason.HOLDERS_UNKNOWN)
    assert "/run/pod-resources.sock: nobody answers" in line
    assert "/run/checkpoint: cannot be read" in line
    kubelet.recorded = ()
    readable = posted.wait(lambda held: held.source is Source.CHECKPOINT)
    assert readable.unreadable_since is None


@pytest.mark.invariant(3)
def test_a_kubelet_that_goes_down_interrupts_the_time_of_not_knowing(service, kubelet, posted):
    kubelet.pods, kubelet.recorded = None, None
    service.start()
    service.set_waiting(True)
    since = posted.wait(lambda held: held.unreadable_since is not None).unreadable_since
    kubelet.up = False
    with posted.changed:
        assert posted.changed.wait_for(lambda: posted.answers[-1].unreadable_since is None, 5)
    kubelet.up = True
    again = posted.wait(lambda held: held.unreadable_since is not None and held.unreadable_since > since)
    assert again.source is None
    assert len(posted.said(Reason.HOLDERS_UNKNOWN)) == 2


@pytest.mark.invariant(3)
def test_a_kubelet_that_has_just_restarted_is_not_believed_before_it_knows_its_pods(service, kubelet, posted):
    kubelet.pods, kubelet.recorded = (holding(0),), (holding(0, namespace="", pod="uid"),)
    service.start()
    first = service.first_answer()
    kubelet.kubelet, kubelet.pods = "second", ()
    service.ask()
    assert posted.wait(lambda held: held.requested_at > first.requested_at).holdings == kubelet.recorded
    kubelet.pods = (holding(0),)
    asked = time.monotonic()
    service.ask()
    assert posted.wait(lambda held: held.requested_at >= asked).holdings == (holding(0),)
    kubelet.pods = ()
    asked_later = time.monotonic()
    service.ask()
    assert posted.wait(lambda held: held.requested_at >= asked_later).holdings == ()


def test_a_new_holder_is_one_line_for_each_container(service, kubelet, posted):
    kubelet.pods = (holding(0), holding(1), holding(2, pod="other"))
    service.start()
    service.first_answer()
    asked = time.monotonic()
    service.ask()
    posted.wait(lambda held: held.requested_at >= asked)
    assert posted.said(Reason.ALLOCATION_SEEN) == [
        f"nvidia.com/gpu: {GPU}::0, {GPU}::1 held by team-a/pod",
        f"nvidia.com/gpu: {GPU}::2 held by team-a/other",
    ]


def test_a_kubelet_that_hangs_blocks_nobody_and_stopping_ends_it(service, kubelet, posted):
    kubelet.free.clear()
    service.start()
    assert kubelet.wait_asked(1)
    began = time.monotonic()
    service.ask()
    service.set_waiting(True)
    assert posted.answers == []
    assert service.first_answer(0.1) is None
    thread = service._thread
    service.stop()
    thread.join(2)
    assert not thread.is_alive()
    assert time.monotonic() - began < 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_after_a_defect_it_can_be_started_again(service, kubelet, posted):
    kubelet.defect = RuntimeError("a defect")
    service.start()
    assert kubelet.wait_asked(1)
    for thread in threading.enumerate():
        if thread.name == "held":
            thread.join(5)
    service.start()
    assert posted.wait(lambda held: held.source is Source.POD_RESOURCES)
    service.start()
    assert sum(thread.name == "held" for thread in threading.enumerate()) == 1


def test_who_asks_for_a_new_answer_gets_it_posted_or_is_told_in_time_that_there_is_none(service, kubelet, posted):
    service.start()
    assert service.first_answer()
    kubelet.pods = (holding(3),)
    assert service.refresh(5.0)
    assert posted.answers[-1].holdings == (holding(3),)
    kubelet.free.clear()
    assert not service.refresh(0.05)
    kubelet.free.set()
