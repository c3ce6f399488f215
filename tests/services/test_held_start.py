"""A start that waits with the driver, since the file may say ``devices.paused``, until it is known what it says."""

from __future__ import annotations

import itertools

import pytest

from nvdp.model.pause import Pause
from nvdp.model.reasons import Reason
from nvdp.services.steering import Steering
from tests.planning.values import parse
from tests.virtual.recorder import Recorder

PAUSED, OPEN = parse("devices: {paused: true}"), parse("devices: {paused: false}")
ORDERED = Pause(by="nvdp pause", since=1.0)


class Gpus:
    """``says`` is the last word that the service got: ``touch`` the driver, a pause, or nothing."""

    def __init__(self) -> None:
        self.says = ""

    def configure(self, **_settings) -> None: ...

    def pause(self, pause) -> None:
        self.says = str(pause)

    def resume(self) -> None:
        self.says = "touch"


@pytest.fixture
def gpus():
    return Gpus()


@pytest.fixture
def log():
    return Recorder()


@pytest.fixture(params=[None, ORDERED])
def steering(request, gpus, log):
    return Steering(
        gpus, ordered=request.param, is_held=True, log=log, clock=lambda: 5.0, wall=itertools.count().__next__
    )


def order_and_resume(steering):
    steering.order(ORDERED)
    steering.order(None)
    steering.order(None)


def test_an_order_to_resume_does_not_touch_the_driver_before_it_is_known_what_the_file_says(steering, gpus, log):
    order_and_resume(steering)
    assert len([text for text in log.texts(Reason.DRIVER_PAUSED) if "devices.paused (no" in text]) == 1
    assert gpus.says == "paused by devices.paused (no configuration is known yet that says otherwise)"
    assert str(steering.pause) == gpus.says
    steering.configure(OPEN)
    assert (gpus.says, steering.pause) == ("touch", None)


def test_what_the_file_says_takes_the_place_of_what_it_might_say(steering, gpus):
    order_and_resume(steering)
    steering.configure(PAUSED)
    assert gpus.says == "paused by devices.paused of test.yaml"
    order_and_resume(steering)
    assert gpus.says == "paused by devices.paused of test.yaml"


def test_once_it_is_known_an_order_to_resume_is_carried_out(steering, gpus):
    steering.configure(OPEN)
    order_and_resume(steering)
    assert (gpus.says, steering.pause) == ("touch", None)


def test_where_no_file_can_pause_an_order_to_resume_is_carried_out_without_a_configuration(gpus):
    steering = Steering(gpus, ordered=None, log=Recorder(), clock=lambda: 5.0, wall=lambda: 9.0)
    order_and_resume(steering)
    assert (gpus.says, steering.pause) == ("touch", None)
