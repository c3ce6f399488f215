"""PreStartContainer with a check that waits: over a real socket, beside the other calls."""

from __future__ import annotations

import threading
import time

import grpc
import pytest

from nvdp.errors import AllocationError
from nvdp.kubelet.proto import deviceplugin_v1beta1_pb2 as deviceplugin
from nvdp.kubelet.starts import MAX_STARTS
from nvdp.model.reasons import Level
from tests.kubelet.lists import build_list, gpu_uuid
from tests.kubelet.plugin_client import LIMIT_S, Notes, visible_devices

ONE = [gpu_uuid(0)]


class Check:
    """A check whose waits end when the test says so: ``released``, or with ``error``; ``notes`` has begun, ended."""

    def __init__(self, *, error: Exception | None = None, released: bool = False) -> None:
        self.error = error
        self.notes = Notes()
        self.released = threading.Event()
        if released:
            self.released.set()

    def begin(self, listed, device_ids):
        self.notes.add("begun", listed, device_ids)
        return Wait(self)


class Wait:
    def __init__(self, check: Check) -> None:
        self._check = check
        self._over = threading.Event()
        self._ended = False
        self._waiter = threading.Thread(target=self._follow, daemon=True)
        self._waiter.start()

    def wait(self) -> bool:
        assert self._over.wait(LIMIT_S)
        if self._check.error is not None and not self._ended:
            raise self._check.error
        return not self._ended

    def end(self) -> None:
        self._check.notes.add("ended")
        self._ended = True
        self._over.set()

    def _follow(self) -> None:
        self._check.released.wait(LIMIT_S)
        self._over.set()


@pytest.fixture
def check():
    made = Check()
    yield made
    made.released.set()


def plain(**options):
    return build_list(replicas=1, **options)


def refusal(call) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


@pytest.mark.requirement(1)
def test_pre_start_is_asked_for_only_where_there_is_a_check(served, check):
    assert not served(plain()).client.options().pre_start_required
    checked = served(plain(), start_check=check.begin)
    assert checked.client.options().pre_start_required
    assert checked.client.options().get_preferred_allocation_available
    assert checked.plugin.pre_start_required


def test_a_container_starts_once_its_wait_is_over_and_is_judged_by_the_list_as_it_is_then(served, check):
    plugin = served(plain(), start_check=check.begin)
    plugin.feed.publish(plain(gpus=1))
    call = plugin.client.pre_start_later(ONE)
    [(listed, ids)] = check.notes.wait_for("begun")
    assert (len(listed.devices), ids) == (1, ONE)
    assert not call.done()
    check.released.set()
    assert call.result() == deviceplugin.PreStartContainerResponse()
    assert plugin.notes.of("refused") == []
    assert [observed[:2] for observed in plugin.notes.wait_for("rpc", 2)][-1] == ("PreStartContainer", "OK")


def test_a_refusal_reaches_the_kubelet_in_its_own_words_and_is_counted(served):
    check = Check(error=AllocationError("nvidia.com/gpu: not idle", reason="not_idle"), released=True)
    plugin = served(plain(), start_check=check.begin)
    error = refusal(lambda: plugin.client.pre_start(ONE))
    assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "nvidia.com/gpu: not idle")
    assert plugin.notes.of("refused") == [("not_idle",)]


def test_a_defect_of_the_check_is_logged_and_the_container_starts(served):
    plugin = served(plain(), start_check=Check(error=ValueError("broken"), released=True).begin)
    assert plugin.client.pre_start(ONE) == deviceplugin.PreStartContainerResponse()
    [(_, text, fields)] = plugin.notes.of("log")
    assert text == "PreStartContainer failed, which is a defect of nvdp"
    assert (fields["level"], fields["error"]) == (Level.ERROR, "ValueError: broken")


@pytest.mark.invariant(2)
def test_any_number_of_waits_keeps_no_other_call_waiting(served, check):
    plugin = served(plain(), start_check=check.begin)
    calls = [plugin.client.pre_start_later(ONE) for _ in range(MAX_STARTS + 8)]
    check.notes.wait_for("begun", MAX_STARTS)
    assert visible_devices(plugin.client.allocate(ONE)) == ONE
    assert plugin.client.prefer(available=ONE, size=1) == ONE
    assert plugin.client.options().pre_start_required
    check.released.set()
    assert all(call.result() is not None for call in calls)


def test_a_call_that_is_given_up_ends_its_wait(served, check):
    plugin = served(plain(), start_check=check.begin)
    call = plugin.client.pre_start_later(ONE)
    check.notes.wait_for("begun")
    call.cancel()
    check.notes.wait_for("ended")
    assert plugin.notes.of("refused") == []


def test_a_server_that_stops_ends_all_waits_at_once_and_counts_no_refusal(served, check):
    plugin = served(plain(), start_check=check.begin)
    calls = [plugin.client.pre_start_later(ONE) for _ in range(3)]
    check.notes.wait_for("begun", 3)
    at = time.monotonic()
    plugin.server.stop(grace_s=LIMIT_S)
    assert time.monotonic() - at < LIMIT_S / 2
    codes = {refusal(call.result).code() for call in calls}
    assert codes == {grpc.StatusCode.UNAVAILABLE}
    assert plugin.notes.of("refused") == []
