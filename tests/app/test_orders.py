"""Orders: what is kept for a restart is what was ordered last, by the time of the answer."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from nvdp.app.orders import NodeOrders
from nvdp.host.pause_file import PauseFile
from nvdp.model.deviceref import DeviceRef
from nvdp.model.health import Ailment
from nvdp.model.pause import Pause
from nvdp.model.reasons import Cause
from nvdp.model.status import DriverState, DriverStatus, Status
from nvdp.services.events import PauseOrdered, Ping
from tests.planning.values import ailment

ROUNDS = 60


class Node:
    """Carries out each order as it is posted, at once, or not at all while it is ``stuck``.

    Its one GPU is well, but for what is ``left``; that its faults are cleared is kept as a whole or, ``full``, not.
    """

    def __init__(self) -> None:
        self.posted: list[Pause | None] = []
        self.stuck = self.full = False
        self.left: Ailment | None = None
        self.done: list[str] = []
        self._lock = threading.Lock()
        self._pause: Pause | None = None

    def post(self, event: object) -> None:
        if isinstance(event, Ping):
            self.done.append("posted")
            event.answered.set()
            return
        assert isinstance(event, PauseOrdered)
        with self._lock:
            self.posted.append(event.pause)
            if not self.stuck:
                self._pause = event.pause

    def is_released(self, pause: Pause) -> bool:
        return self._pause == pause

    def clear(self, _ref: DeviceRef) -> tuple[str, Ailment | None]:
        self.done.append("cleared")
        return "GPU-a", self.left

    def flush(self, _timeout_s: float) -> bool:
        self.done.append("kept")
        return not self.full

    def get_status(self) -> Status:
        state = DriverState.PAUSED if self._pause is not None else DriverState.READY
        return Status(pause=self._pause, driver=DriverStatus(state=state, version="580"))


@pytest.fixture
def node():
    return Node()


@pytest.fixture
def file(tmp_path):
    return PauseFile(tmp_path, boot_id="boot")


@pytest.fixture
def orders(node, file):
    return NodeOrders(file=file, post=node.post, gpus=node, get_status=node.get_status, flush=node.flush)


@pytest.fixture
def often_interrupted():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("often_interrupted")
def test_what_is_kept_is_what_was_ordered_last(node, file, orders):
    with ThreadPoolExecutor(4) as pool:
        for number in range(ROUNDS):
            gate = threading.Barrier(4)

            def give(which: int, gate=gate, number=number):
                gate.wait()
                return orders.resume() if which % 2 else orders.pause(f"{number}")

            answers = list(pool.map(give, range(4)))
            assert file.load() == node.posted[-1]
            if node.posted[-1] is None:
                assert any(answer.done for answer in answers[1::2])
            else:
                assert any(answer.done for answer in answers[0::2])


def test_a_pause_that_nobody_gets_to_does_not_blame_the_driver(node, file):
    node.stuck = True
    orders = NodeOrders(
        file=file, post=node.post, gpus=node, get_status=node.get_status, flush=node.flush, release_limit_s=0.1
    )
    answer = orders.pause("")
    assert not answer.done
    assert "nvdp status" in answer.text
    assert "dmesg" not in answer.text


def test_a_pause_that_is_overtaken_says_so_at_once(node, orders):
    node.stuck = True
    with ThreadPoolExecutor(1) as pool:
        pausing = pool.submit(orders.pause, "")
        while not node.posted:
            pass
        orders.resume()
        answer = pausing.result(2)
    assert not answer.done
    assert "resume" in answer.text


def test_a_pause_that_is_ordered_again_goes_on_as_it_was_unless_it_gets_a_new_note(node, file):
    times = iter([100.0, 200.0])
    orders = NodeOrders(
        file=file,
        post=node.post,
        gpus=node,
        get_status=node.get_status,
        flush=node.flush,
        wall=lambda: next(times, 300.0),
    )
    first = Pause(by="nvdp pause", note="driver 590", since=100.0)
    assert orders.pause("driver 590").done
    assert orders.pause("").done
    assert file.load() == first
    restarted = NodeOrders(file=file, post=node.post, gpus=node, get_status=node.get_status, flush=node.flush)
    assert restarted.pause("and firmware").done
    assert file.load() == msgspec.structs.replace(first, note="and firmware")
    restarted.resume()
    assert orders.resume().done
    assert orders.pause("").done
    assert file.load() == Pause(by="nvdp pause", since=200.0)


@pytest.mark.invariant(9)
def test_that_a_gpu_is_well_is_said_when_a_restart_would_say_so_too(node, orders):
    assert orders.clear("0").done
    assert node.done == ["cleared", "posted", "kept"], "what is kept is what the main thread has taken in"


@pytest.mark.invariant(9)
def test_that_a_gpu_is_well_is_not_carried_out_as_long_as_a_restart_would_bring_its_faults_back(node, orders):
    node.full = True
    answer = orders.clear("0")
    assert not answer.done
    assert "a restart of nvdp would bring it back" in answer.text
    node.full, node.left = False, ailment(Cause.XID)
    answer = orders.clear("0")
    assert not answer.done
    assert "still Unhealthy" in answer.text
    assert "restart" not in answer.text
