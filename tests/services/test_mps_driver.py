"""When ``nvdp mps`` lets go of the driver, and what it says about that."""

from __future__ import annotations

import pytest

from nvdp.model.pause import Pause
from nvdp.model.reasons import Reason
from nvdp.services.mps_driver import DriverUse

PAUSE = Pause(by="a test", since=0.0)


class Gpus:
    """Whether the driver is open."""

    is_open = False

    def configure(self, **_settings):
        raise AssertionError("nothing is configured here")

    def pause(self, _pause):
        self.is_open = False

    def resume(self):
        self.is_open = True


@pytest.fixture
def gpus():
    return Gpus()


@pytest.fixture
def told():
    return []


@pytest.fixture
def use(gpus, told):
    return DriverUse(gpus, log=lambda reason, text, /, **_fields: told.append((reason, text)))


@pytest.mark.parametrize(
    ("staying", "end"),
    [
        ((), "the driver is free"),
        (("nvidia.com/b", "nvidia.com/a"), "is not free: pods use the control daemons of nvidia.com/a, nvidia.com/b"),
    ],
)
def test_a_pause_says_that_the_driver_is_free_only_if_no_daemon_stays_for_its_pods(use, gpus, told, staying, end):
    use.consider(pause=None, is_needed=True, is_settled=True)
    assert gpus.is_open
    use.consider(pause=PAUSE, is_needed=True, is_settled=True, staying=staying)
    assert not gpus.is_open
    ((reason, text),) = told
    assert reason is Reason.DRIVER_PAUSED
    assert text.endswith(end)


def test_the_driver_is_let_go_of_only_once_compute_modes_are_put_back(use, gpus):
    use.consider(pause=None, is_needed=True, is_settled=True)
    use.consider(pause=PAUSE, is_needed=True, is_settled=False)
    assert gpus.is_open
    use.consider(pause=PAUSE, is_needed=True, is_settled=True)
    assert not gpus.is_open
