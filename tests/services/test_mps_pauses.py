"""When a pause of ``nvdp mps`` has lasted for long enough that all that pods were given before it is known."""

from __future__ import annotations

from nvdp.config.load import parse_config
from nvdp.model.pause import Pause
from nvdp.services.mps_pauses import SETTLED_S, Pauses

ORDER = Pause(by="nvdp pause", since=5.0)
PAUSED, WELL = (parse_config(f"devices: {{paused: {word}}}", name="file") for word in ("true", "false"))


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_it_settles_by_its_own_clock_and_anew_after_each_resume():
    clock = Clock()
    pauses = Pauses(clock=clock, wall=lambda: 7.0)
    assert (pauses.current, pauses.is_settled) == (None, False)

    pauses.order(ORDER)
    assert (pauses.current, pauses.is_settled) == (ORDER, False)
    clock.now += SETTLED_S
    assert pauses.is_settled

    pauses.order(None)
    assert (pauses.current, pauses.is_settled) == (None, False)
    pauses.order(ORDER)
    assert not pauses.is_settled


def test_a_pause_that_goes_on_for_another_reason_has_not_begun_anew():
    clock = Clock()
    pauses = Pauses(clock=clock, wall=lambda: 7.0)
    pauses.order(ORDER)
    clock.now += SETTLED_S
    pauses.follow(PAUSED)
    pauses.order(None)
    assert pauses.current == Pause(by="devices.paused of file", since=7.0)
    assert pauses.is_settled

    pauses.follow(None)
    assert pauses.current is None
    pauses.follow(PAUSED)
    pauses.follow(WELL)
    assert pauses.current is None
