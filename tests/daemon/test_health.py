"""GPUs that fail and recover: what the kubelet is told, and what Allocate says meanwhile."""

from __future__ import annotations

import grpc
import pytest

from tests.daemon.node import GPU, both_libraries, build_config, connect, gpu_uuid, healthy, replicas, wait_healthy
from tests.daemon.process import LIMIT_S

QUICK = {"recovery": {"holdOff": "200ms", "maxHoldOff": "200ms"}}


@pytest.mark.requirement(12)
@pytest.mark.requirement(13)
@pytest.mark.requirement(14)
@pytest.mark.invariant(5)
@both_libraries
@pytest.mark.parametrize(
    "fault",
    [
        ("nvmlDeviceGetHandleByIndex*", "GpuIsLost", "Lost"),
        ("nvmlDeviceGetMemoryInfo", "Unknown", "CallFailed"),
    ],
)
def test_a_gpu_that_cannot_be_read_is_unhealthy_and_recovers(kubelet, start, machine, fault):
    daemon = start(build_config(share=4, health=QUICK))
    call, error, cause = fault
    others = set().union(*(replicas(number, 4) for number in (0, 2, 3)))
    wait_healthy(kubelet, others | replicas(1, 4))

    machine.fault(call, gpu=1, error=error)
    daemon.look()
    wait_healthy(kubelet, others)
    assert kubelet.devices(GPU).keys() == others | replicas(1, 4)  # marked, not dropped
    line = daemon.log.wait_for("DeviceUnhealthy")
    assert (line["device"], line["cause"]) == (gpu_uuid(1), cause)
    assert kubelet.capacity(GPU) == 16
    assert kubelet.allocatable(GPU) == 12

    machine.heal()
    daemon.look()
    wait_healthy(kubelet, others | replicas(1, 4))
    assert daemon.log.wait_for("DeviceRecovered")["device"] == gpu_uuid(1)
    assert len(kubelet.registrations) == 1


@pytest.mark.requirement(14)
@both_libraries
def test_a_gpu_that_is_not_counted_any_more_stays_listed(kubelet, daemon, machine):
    machine.change(removed=["3"])

    wait_healthy(kubelet, set().union(*(replicas(number, 4) for number in range(3))))
    daemon.look_again()

    assert len(kubelet.devices(GPU)) == 16
    labels = {"uuid": gpu_uuid(3), "gpu": "3", "reason": "Vanished", "xid": "", "action": ""}
    daemon.wait_metric(1, "nvdp_device_unhealthy_info", **labels)
    daemon.wait_metric(0, "nvdp_device_healthy", uuid=gpu_uuid(3), gpu="3")


@pytest.mark.invariant(3)
def test_a_gpu_that_went_stays_listed_over_a_restart_too(kubelet, daemon, machine, start):
    left = set().union(*(replicas(number, 4) for number in range(3)))
    daemon.wait_scans(1)
    assert daemon.stop().code == 0
    machine.change(removed=["3"])

    first = len(kubelet.messages(GPU))
    second = start()
    second.wait_scans(1)

    assert second.log.wait_for("DeviceUnhealthy")["cause"] == "Vanished"
    wait_healthy(kubelet, left)
    assert [set(message.ids) for message in kubelet.messages(GPU)[first:]] == [left | replicas(3, 4)]
    machine.heal()
    wait_healthy(kubelet, left | replicas(3, 4))


@pytest.mark.requirement(27)
@pytest.mark.requirement(52)
@pytest.mark.invariant(2)
@both_libraries
def test_allocate_refuses_what_the_last_list_does_not_call_healthy(kubelet, daemon, machine):
    machine.change(lost=["1"])
    daemon.look()
    wait_healthy(kubelet, set().union(*(replicas(number, 4) for number in (0, 2, 3))))

    with connect(kubelet) as client:
        with pytest.raises(grpc.RpcError) as refusal:
            client.allocate([f"{gpu_uuid(1)}::0"])
        assert client.allocate([f"{gpu_uuid(0)}::0"])

    assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    text = refusal.value.details()
    assert f"{gpu_uuid(1)}::0 is Unhealthy (Lost" in text
    assert "\n" not in text
    assert daemon.log.wait_for("AllocationRefused")["cause"] == "unhealthy"
    daemon.wait_metric(1, "nvdp_allocations_refused_total", resource=GPU, reason="unhealthy")


@pytest.mark.invariant(5)
@both_libraries
def test_all_gpus_lost_leave_the_daemon_up_and_the_capacity_as_it_was(kubelet, start, machine):
    daemon = start(build_config(share=4, health=QUICK))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)
    machine.change(lost=["0", "1", "2", "3"])
    kubelet.wait_until(lambda: not healthy(kubelet), LIMIT_S)
    assert kubelet.capacity(GPU) == 16
    assert daemon.probe("/healthz").status == 200

    machine.heal()
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)


def test_a_gpu_that_has_no_name_for_itself_does_not_hide_the_others(kubelet, start, machine):
    machine.fault("nvmlDeviceGetUUID", gpu=2, error="Unknown")
    daemon = start(build_config())
    wait_healthy(kubelet, [gpu_uuid(number) for number in (0, 1, 3)])

    machine.heal()
    wait_healthy(kubelet, [gpu_uuid(number) for number in range(4)])

    assert daemon.log.wait_for("DeviceAdded")["device"] == gpu_uuid(2)
