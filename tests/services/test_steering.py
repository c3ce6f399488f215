"""When the driver is let go of by ``health.releaseForReset``, and when it is taken back, in virtual time."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.model.reasons import Cause
from nvdp.model.status import DriverState, DriverStatus
from nvdp.services.events import GpusScanned
from nvdp.services.steering import RELEASE_KEY, Steering
from tests.planning.values import ailment, gpu, inventory, parse, uuid

ON = parse("health: {releaseForReset: true}")
OFF = parse()


def asking(*numbers, action="GPUReset"):
    return {uuid(number): msgspec.structs.replace(ailment(Cause.XID), action=action) for number in numbers}


class Steered:
    """One who steers, whom it commands, and time that passes by hand."""

    def __init__(self, config=ON):
        self.now = 1000.0
        self.scan = None
        self.held = False
        self.told = []  # what the service of the GPUs was told last: paused by whom, or None
        self.lines = []
        self.settings = {}
        self.steering = Steering(
            self,
            ordered=None,
            log=lambda reason, text, **_: self.lines.append((reason.word, text)),
            clock=lambda: self.now,
            wall=lambda: self.now,
        )
        self.steering.configure(config)
        self.told.clear()

    def configure(self, **settings):
        self.settings = settings

    def pause(self, pause):
        self.told.append(pause.by)

    def resume(self):
        self.told.append(None)

    def see(self, ailments, *, busy=(), state=DriverState.READY):
        self.scan = GpusScanned(
            driver=DriverStatus(state=state),
            inventory=inventory(gpu(0), gpu(1), gpu(2)),
            ailments=ailments,
            busy=busy,
            at=self.now,
            wall=self.now,
        )
        return self.consider()

    def see_nobody(self):
        """All are out of order, as they are while the driver is let go of."""
        return self.see({uuid(number): ailment(Cause.DRIVER_PAUSED) for number in range(3)}, state=DriverState.PAUSED)

    def consider(self):
        """What the service of the GPUs is told at this moment."""
        before = len(self.told)
        self.steering.consider(self.scan, held=self.held)
        return self.told[before:]


def test_it_is_taken_back_by_itself_after_a_minute_and_let_go_of_again_after_a_break():
    node = Steered()
    assert node.see(asking(1)) == [RELEASE_KEY]
    reason, text = node.lines[-1]
    assert reason == "DriverPaused"
    assert text.startswith("paused by health.releaseForReset (GPU 1 (0000:11:00.0) asks for a reset and all are idle,")
    assert text.endswith("it is taken back by itself, or by nvdp resume")
    assert node.steering.next_at == 1060.0  # the supervisor turns then, though nothing happens
    assert node.see_nobody() == []
    node.now = 1059.9
    assert node.consider() == []
    node.now = node.steering.next_at
    assert node.consider() == [None]
    assert node.lines[-1][0] == "DriverResumed"
    assert node.steering.next_at is None

    node.now += 299.0
    assert node.see(asking(1)) == []
    node.now += 1.0
    assert node.see(asking(1)) == [RELEASE_KEY]


def test_a_gpu_that_is_well_afterwards_and_asks_another_time_is_let_go_of_at_once():
    node = Steered()
    assert node.see(asking(1)) == [RELEASE_KEY]
    node.now = node.steering.next_at
    assert node.consider() == [None]
    assert node.see({}, busy=None) == []
    assert node.see(asking(1)) == [RELEASE_KEY]


def test_switched_off_meanwhile_it_is_taken_back_at_once():
    node = Steered()
    assert node.see(asking(1)) == [RELEASE_KEY]
    node.see_nobody()
    node.now += 10.0
    node.steering.configure(OFF)
    assert node.consider() == [None]
    assert node.steering.next_at is None
    assert node.steering.pause is None
    assert node.see(asking(1)) == []
    assert not node.steering.watches_holders
    node.steering.configure(ON)
    assert node.consider() == [RELEASE_KEY]  # as at first: no break is left of the time before


def test_holders_are_asked_often_while_they_keep_it_from_being_let_go_of_and_not_once_it_is_switched_off():
    node = Steered()
    node.held = True
    assert node.see(asking(1)) == []
    assert node.steering.watches_holders
    node.steering.configure(OFF)
    assert node.consider() == []
    assert not node.steering.watches_holders


@pytest.mark.parametrize("busy", [(uuid(1),), (uuid(2),), None], ids=["the one that asks", "another one", "unknown"])
def test_it_is_not_let_go_of_while_somebody_computes_on_any_gpu_or_may(busy):
    node = Steered()
    assert node.see(asking(1), busy=busy) == []
    node.now += 3600.0
    assert node.see(asking(1), busy=busy) == []
    assert node.see(asking(1)) == [RELEASE_KEY]


def test_the_files_pause_and_an_operators_outlast_it():
    node = Steered()
    assert node.see(asking(1)) == [RELEASE_KEY]
    node.steering.configure(parse("health: {releaseForReset: true}\ndevices: {paused: true}"))
    assert node.told[-1] == "devices.paused of test.yaml"
    node.now = node.steering.next_at
    assert node.consider() == []
    node.steering.configure(ON)
    assert node.told[-1] is None


def test_an_excluded_gpu_neither_asks_nor_keeps_others_waiting_also_before_the_next_scan():
    node = Steered()
    node.steering.exclude(frozenset({uuid(2)}))
    assert node.see(asking(2)) == []
    assert not node.steering.watches_holders
    assert node.see(asking(1, 2), busy=(uuid(2),)) == [RELEASE_KEY]
    assert "(GPU 1 (0000:11:00.0) asks for" in node.lines[-1][1]

    node = Steered()
    assert node.see(asking(1), busy=(uuid(0), uuid(2))) == []
    node.steering.exclude(frozenset({uuid(2)}))
    assert node.consider() == []  # GPU 0 is in use, too
    node.steering.exclude(frozenset({uuid(0), uuid(2)}))
    assert node.consider() == [RELEASE_KEY]


def test_while_nobody_knows_of_an_excluded_gpu_nobody_knows_of_the_others():
    node = Steered()
    node.steering.exclude(frozenset({uuid(2)}))
    assert node.see({**asking(1), uuid(2): ailment(Cause.DRIVER_LOST)}) == []
    assert not node.steering.watches_holders


def test_the_service_of_the_gpus_knows_who_is_excluded_under_whichever_configuration():
    node = Steered(config=None)
    node.steering.exclude(frozenset({uuid(2)}))
    assert node.settings == {}
    node.steering.configure(ON)
    assert node.settings["excluded"] == {uuid(2)}
    node.steering.exclude(frozenset())
    assert (node.settings["excluded"], node.settings["health"]) == (frozenset(), ON.health)
