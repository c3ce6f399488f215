"""Services that die are started again: soon, then with back-off, never given up."""

from __future__ import annotations

import pytest

from nvdp.model.reasons import Reason
from nvdp.services.events import ServiceCrashed
from nvdp.services.restarts import FIRST_DELAY_S, FORGIVEN_S, MOST_DELAY_S, Restarts


class Scene:
    """Restarts in a time of their own; ``started`` is who was started, ``lines`` what was told."""

    def __init__(self):
        self.now = 100.0
        self.started: list[str] = []
        self.counted: list[str] = []
        self.lines: list[str] = []
        self.fails = False
        self.restarts = Restarts(
            restart=self._restart, count=self.counted.append, log=self._log, clock=lambda: self.now
        )

    def crash(self, thread: str) -> float:
        """The delay until it is started again."""
        self.restarts.note(ServiceCrashed(thread=thread, error="ValueError: x", trace="..."))
        assert self.restarts.next_at is not None
        return self.restarts.next_at - self.now

    def _restart(self, thread: str) -> bool:
        if self.fails:
            raise RuntimeError("can't start new thread")
        self.started.append(thread)
        return thread != "stranger"

    def _log(self, reason: Reason, msg: str, /, **fields: object) -> None:
        assert reason is Reason.SERVICE_RESTARTED
        self.lines.append(msg)


def test_a_service_is_started_again_after_its_delay_and_once():
    scene = Scene()
    assert scene.restarts.next_at is None
    assert scene.crash("gpus") == pytest.approx(FIRST_DELAY_S)
    scene.restarts.start_due()
    assert scene.started == []
    scene.now += FIRST_DELAY_S
    scene.restarts.start_due()
    scene.restarts.start_due()
    assert scene.started == scene.counted == ["gpus"]
    assert scene.restarts.next_at is None
    assert scene.lines == ["gpus: ValueError: x; started again in 0.1s"]


def test_each_crash_doubles_the_delay_up_to_a_limit_for_ever():
    scene = Scene()
    delays = []
    for _ in range(3000):
        delays.append(scene.crash("gpus"))
        scene.now += delays[-1]
        scene.restarts.start_due()
    assert delays[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert delays[9:] == pytest.approx([MOST_DELAY_S] * 2991)
    assert len(scene.started) == 3000


def test_a_service_that_ran_for_long_is_forgiven():
    scene = Scene()
    scene.crash("gpus")
    scene.restarts.start_due()
    scene.now += FORGIVEN_S - 1
    scene.restarts.start_due()
    assert scene.crash("gpus") == pytest.approx(2 * FIRST_DELAY_S)
    scene.now += FORGIVEN_S
    scene.restarts.start_due()
    assert scene.crash("gpus") == pytest.approx(FIRST_DELAY_S)


def test_services_are_counted_apart_and_the_next_one_is_the_earliest():
    scene = Scene()
    scene.crash("gpus")
    scene.now += FIRST_DELAY_S
    scene.restarts.start_due()
    scene.crash("gpus")
    scene.now += 0.05
    assert scene.crash("held") == pytest.approx(FIRST_DELAY_S)
    scene.now += 1.0
    scene.restarts.start_due()
    assert sorted(scene.started) == ["gpus", "gpus", "held"]


def test_where_no_thread_can_be_started_it_is_tried_again_with_back_off():
    scene = Scene()
    scene.crash("gpus")
    scene.fails = True
    scene.now += FIRST_DELAY_S
    scene.restarts.start_due()
    assert scene.started == []
    assert scene.restarts.next_at == pytest.approx(scene.now + 2 * FIRST_DELAY_S)
    assert "can't start new thread; started again in 0.2s" in scene.lines[-1]
    scene.fails = False
    scene.now += 1.0
    scene.restarts.start_due()
    assert scene.started == ["gpus"]


def test_a_thread_of_no_service_is_told_and_left():
    scene = Scene()
    scene.crash("stranger")
    scene.now += FIRST_DELAY_S
    scene.restarts.start_due()
    assert scene.lines[-1] == "stranger: no service of that name; it stays away"
    assert scene.restarts.next_at is None
