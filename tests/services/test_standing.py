"""What the kubelet offers of ours, by its own word, and what follows from it."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pytest

from nvdp.errors import KubeletError
from nvdp.kubelet.feed import Feed
from nvdp.kubelet.podresources import PodResourcesClient
from nvdp.services.events import ResourceReport
from nvdp.services.offers import Offers
from nvdp.services.standing import StandingService
from nvdp.simulate.kubelet import Kubelet
from tests.kubelet.lists import build_list, gpu_uuid
from tests.kubelet.plugin_client import Notes
from tests.twin.reference_plugin import ReferencePlugin, devices

GPU = "nvidia.com/gpu"


class Answers:
    """A kubelet's answers, one after the other, the last one again and again; None is none."""

    def __init__(self, *answers: frozenset[str] | None) -> None:
        self.answers = list(answers)
        self.notes = Notes()

    def list_offered(self, timeout_s: float) -> frozenset[str]:
        self.notes.add("asked", time.monotonic())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise KubeletError("nobody answers")
        return answer

    def close(self) -> None:
        self.notes.add("closed")


def test_the_kubelet_is_asked_now_and_then_and_its_silence_says_nothing():
    answers, posted = Answers(None, frozenset({GPU})), Notes()
    service = StandingService(lambda event: posted.add("event", event), pod_resources=answers, idle_s=0.05)
    service.start()

    ((event,), *_) = posted.wait_for("event")
    service.stop()

    asked = [when for (when,) in answers.notes.of("asked")]
    assert event.resources == {GPU}
    assert asked[0] <= event.requested_at <= asked[1]


def test_a_change_of_the_directory_is_followed_by_two_questions_that_leave_the_kubelet_time():
    answers = Answers(frozenset())
    service = StandingService(lambda event: None, pod_resources=answers, soon_s=(0.1, 0.2))
    service.start()
    at = time.monotonic()
    service.ask_soon()

    asked = [when - at for (when,) in answers.notes.wait_for("asked", 2)]
    service.stop()

    assert asked[0] >= 0.1
    assert asked[1] >= 0.2
    assert len(answers.notes.of("closed")) == 1


@pytest.fixture
def root():
    path = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def test_a_real_kubelet_names_the_resources_that_pods_can_have(root):
    with (
        Kubelet(root) as kubelet,
        ReferencePlugin(kubelet.directory, name="a.sock", resource="nvidia.com/a") as plugin,
        ReferencePlugin(
            kubelet.directory, name="b.sock", resource="nvidia.com/b", listed=devices(2, health="x")
        ) as ill,
    ):
        plugin.register()
        ill.register()
        kubelet.wait_until(lambda: kubelet.messages("nvidia.com/a") and kubelet.messages("nvidia.com/b"))
        client = PodResourcesClient(kubelet.pod_resources_socket)
        assert client.list_offered(5) == {"nvidia.com/a"}

        plugin.stop()
        kubelet.wait_until(lambda: kubelet.allocatable("nvidia.com/a") == 0)
        assert client.list_offered(5) == frozenset()
        client.close()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class ActorOnRecord:
    """An actor that does nothing but remember that it was told to register anew."""

    def __init__(self, first) -> None:
        self.feed = Feed(first)
        self.reclaims = 0

    def start(self) -> None: ...

    def look(self) -> None: ...

    def confirm(self, requested_at) -> None: ...

    def reclaim(self) -> None:
        self.reclaims += 1

    def stop(self, reason) -> None: ...

    def join(self, timeout_s) -> bool:
        return True

    def probe(self, timeout_s) -> bool:
        return True


class Uncounted:
    def list_latency(self, cause, seconds) -> None: ...

    def config_applied(self, seconds) -> None: ...

    def kubelet_restarted(self) -> None: ...


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def offers(clock):
    made = Offers(ActorOnRecord, observer=Uncounted(), log=lambda *_, **__: None, clock=clock)
    made.carry_out({GPU: build_list(replicas=1)}, cause=None)
    report(made, registered=True)
    clock.now += 5
    return made


def report(offers, *, registered: bool, taken: int = 1) -> None:
    offers.note(ResourceReport(resource=GPU, registered=registered, streams=1, taken_version=taken))


def reclaimed(offers, offered: set[str], *, at: float) -> bool:
    before = offers.actors[GPU].reclaims
    offers.reclaim(frozenset(offered), requested_at=at)
    return offers.actors[GPU].reclaims > before


@pytest.mark.invariant(7)
def test_what_the_kubelet_took_and_does_not_offer_is_registered_anew(offers, clock):
    assert reclaimed(offers, {"nvidia.com/other"}, at=clock.now)
    assert not reclaimed(offers, {GPU}, at=clock.now)


@pytest.mark.invariant(7)
def test_an_answer_that_may_be_too_old_to_know_us_says_nothing(offers, clock):
    assert not reclaimed(offers, set(), at=clock.now - 4.5)
    report(offers, registered=False)
    assert not reclaimed(offers, set(), at=clock.now)
    report(offers, registered=True)
    assert not reclaimed(offers, set(), at=clock.now)


@pytest.mark.invariant(7)
def test_a_list_that_is_on_its_way_or_has_nothing_to_offer_is_not_missed(offers, clock):
    ill = build_list(unhealthy=[gpu_uuid(0), gpu_uuid(1)], replicas=1)
    offers.carry_out({GPU: ill}, cause=None)
    clock.now += 5
    assert not reclaimed(offers, set(), at=clock.now)

    report(offers, registered=True, taken=2)
    assert not reclaimed(offers, set(), at=clock.now)

    offers.carry_out({GPU: build_list(replicas=1)}, cause=None)
    clock.now += 5
    assert not reclaimed(offers, set(), at=clock.now)
    report(offers, registered=True, taken=3)
    assert reclaimed(offers, set(), at=clock.now)
