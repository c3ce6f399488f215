"""Services that die are started again: soon, then with back-off, never given up."""

from __future__ import annotations

from nvdp.services.restarts import FIRST_DELAY_S, FORGIVEN_S, MOST_DELAY_S, Restarts


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_service_is_due_after_its_delay_and_once():
    clock = Clock()
    restarts = Restarts(clock)
    assert restarts.next_at is None
    assert restarts.note_crash("gpus") == FIRST_DELAY_S
    assert restarts.next_at == 100.0 + FIRST_DELAY_S
    assert restarts.take_due() == []
    clock.now += FIRST_DELAY_S
    assert restarts.take_due() == ["gpus"]
    assert (restarts.take_due(), restarts.next_at) == ([], None)


def test_each_crash_doubles_the_delay_up_to_a_limit_for_ever():
    clock = Clock()
    restarts = Restarts(clock)
    delays = []
    for _ in range(3000):
        delays.append(restarts.note_crash("gpus"))
        clock.now += delays[-1]
    assert delays[:4] == [0.1, 0.2, 0.4, 0.8]
    assert set(delays[9:]) == {MOST_DELAY_S}


def test_a_service_that_ran_for_long_is_forgiven():
    clock = Clock()
    restarts = Restarts(clock)
    restarts.note_crash("gpus")
    clock.now += FORGIVEN_S - 1
    assert restarts.note_crash("gpus") == 2 * FIRST_DELAY_S
    clock.now += FORGIVEN_S
    assert restarts.note_crash("gpus") == FIRST_DELAY_S


def test_services_are_counted_apart_and_the_next_one_is_the_earliest():
    clock = Clock()
    restarts = Restarts(clock)
    restarts.note_crash("gpus")
    restarts.note_crash("gpus")
    clock.now += 0.05
    assert restarts.note_crash("held") == FIRST_DELAY_S
    assert restarts.next_at == clock.now + FIRST_DELAY_S
    clock.now += 1.0
    assert sorted(restarts.take_due()) == ["gpus", "held"]
