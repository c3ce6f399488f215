"""A node whose GPUs are cut and cut anew while it runs: what is listed, told, kept and shown."""

from __future__ import annotations

import pytest

from nvdp.commands.status_text import build_text, no_style
from nvdp.metrics import catalog
from nvdp.metrics.gauges import build_gauges
from nvdp.model.health import Ailment
from nvdp.model.inventory import Fault, MigMode, UnreadableInstance
from nvdp.model.reasons import Cause, Reason
from nvdp.planning.diagnosis import diagnose
from tests.planning.values import GPU, ailment, cut, gpu, mig_uuid, parse, uuid
from tests.virtual.node import VirtualNode

TEXT = "flags: {migStrategy: mixed}\n"
SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
A, B, M0, M1 = uuid(0), uuid(1), mig_uuid(0, 0), mig_uuid(0, 1)


@pytest.fixture
def node():
    found = VirtualNode()
    found.see_kubelet(found.kubelet)
    found.read(parse(TEXT), text=TEXT.encode())
    found.scan(cut(0, "1g.10gb", "1g.10gb"), gpu(1))
    found.run(10.0)
    return found


def changes_of(node):
    """What was told of layouts that changed."""
    return [text for text in node.record.texts(Reason.MIG_LAYOUT_CHANGED) if "→" in text]


def hold(node, uuid):
    """A pod has the MIG device, and that is known."""
    node.allocate("nb", uuid, SMALL)
    node.run(5.0)
    node.holders.ask()
    node.run(1.0)


def test_a_device_that_comes_is_on_offer_with_the_scan_and_no_other_resource_hears_of_it(node):
    lists = {resource: len(node.actor(resource).taken) for resource in (SMALL, GPU)}
    node.scan(cut(0, "1g.10gb", "1g.10gb", "2g.20gb"), gpu(1))
    node.run(0.1)
    assert node.healthy(LARGE) == [mig_uuid(0, 2)]
    assert {resource: len(node.actor(resource).taken) for resource in lists} == lists
    (text,) = changes_of(node)
    assert text == f"{A} (index 0, 0000:10:00.0): 2 × 1g.10gb → 2 × 1g.10gb, 1 × 2g.20gb"


@pytest.mark.invariant(3)
def test_what_vanishes_leaves_in_two_phases_and_the_pod_that_holds_it_is_named(node):
    hold(node, M0)
    node.scan(cut(0), gpu(1))
    node.run(1.0)
    assert node.healthy(SMALL) == []
    assert node.unhealthy(SMALL) == [M0, M1]
    node.run(10.0)
    assert node.unhealthy(SMALL) == [M0]
    assert changes_of(node)[-1].endswith(f"2 × 1g.10gb → no MIG devices; gone, and still held: {M0} by team/nb")
    assert "without MIG devices" in node.record.texts(Reason.MIG_INVALID)[-1]
    assert node.healthy(GPU) == [B]
    del node.pods["nb"]
    node.holders.ask()
    node.run(10.0)
    assert SMALL not in node.offers.actors


@pytest.mark.invariant(4)
def test_the_whole_gpu_waits_for_the_pod_of_a_mig_device_also_over_a_restart(node):
    hold(node, M0)
    node.scan(gpu(0), gpu(1))
    node.run(10.0)
    assert node.healthy(GPU) == [B]
    assert f"{A}: {SMALL} → {GPU} waits for team/nb" in node.record.texts(Reason.MODE_CHANGE_WAITING)
    node.restart_daemon(1.0)
    node.read(parse(TEXT), text=TEXT.encode())
    node.scan(gpu(0), gpu(1))
    node.run(10.0)
    assert node.healthy(GPU) == [B]
    assert node.unhealthy(SMALL) == [M0]
    del node.pods["nb"]
    node.holders.ask()
    node.run(10.0)
    assert node.healthy(GPU) == [A, B]


@pytest.mark.invariant(5)
def test_a_fault_of_one_mig_device_is_told_shown_and_counted_of_that_alone(node):
    fault = ailment(Cause.XID, "XID 94")
    node.scan(cut(0, "1g.10gb", "1g.10gb"), gpu(1), ailments={A: fault, M1: fault})
    node.run(0.1)
    assert (node.healthy(SMALL), node.unhealthy(SMALL)) == ([M0], [M1])
    (text,) = node.record.texts(Reason.DEVICE_UNHEALTHY)
    assert text == f"{M1} (index 0:1, 0000:10:00.0, 1g.10gb): XID 94; 1 devices of {SMALL} withdrawn"
    assert {one.place: one.healthy for one in node.status.devices} == {"0": True, "0:0": True, "0:1": False, "1": True}
    assert ("health", M1, "unhealthy") in node.record.counted
    assert not [one for one in node.record.counted if one[:2] == ("health", A)]
    node.scan(cut(0, "1g.10gb", "1g.10gb"), gpu(1))
    node.run(0.1)
    assert node.healthy(SMALL) == [M0, M1]
    assert [text.partition(" ")[0] for text in node.record.texts(Reason.DEVICE_RECOVERED)] == [M1]


def test_what_all_mig_devices_of_a_gpu_have_is_told_once_of_the_gpu(node):
    lost = dict.fromkeys((A, M0, M1), ailment(Cause.LOST, "off the bus"))
    hold(node, M0)
    node.scan(cut(0, "1g.10gb", "1g.10gb"), gpu(1), ailments=lost)
    node.run(0.1)
    (text,) = node.record.texts(Reason.DEVICE_UNHEALTHY)
    assert text == (f"{A} (index 0, 0000:10:00.0): off the bus; 2 devices of {SMALL} withdrawn; used by team/nb")
    assert [one.cause.partition(":")[0] for one in diagnose(node.status) if one.reason == "DeviceUnhealthy"] == [
        f"GPU 0 ({A}, 0000"
    ]
    node.scan(cut(0, "1g.10gb", "1g.10gb"), gpu(1))
    node.run(0.1)
    assert len(node.record.texts(Reason.DEVICE_RECOVERED)) == 1


def test_from_a_fault_of_one_to_one_of_all_and_back_each_change_is_told_once(node):
    def see(*uuids):
        before = len(node.record.told)
        node.scan(cut(0, "1g.10gb", "1g.10gb"), gpu(1), ailments=dict.fromkeys(uuids, ailment(Cause.XID, "x")))
        node.run(0.1)
        return [(reason.word, text.partition(" ")[0]) for reason, text in node.record.told[before:]]

    assert see(A, M1) == [("DeviceUnhealthy", M1)]
    assert see(A, M0, M1) == [("DeviceUnhealthy", A)]
    assert see(A, M1) == [("DeviceRecovered", M0)]
    assert see() == [("DeviceRecovered", M1)]


def test_what_the_driver_asks_for_is_told_once_of_whom_the_fault_was_told(node):
    def see(action, *uuids):
        before = len(node.record.told)
        fault = Ailment(cause=Cause.XID, text="XID 79", since=0.0, xid=79, action=action)
        node.scan(cut(0, "1g.10gb", "1g.10gb"), gpu(1), ailments=dict.fromkeys(uuids, fault))
        node.run(0.1)
        return [text.partition(" ")[0] for _, text in node.record.told[before:]]

    assert see("", A, M1) == [M1]
    assert see("GPUReset", A, M1) == [M1]
    assert see("", A, M0, M1) == [A]
    assert see("GPUReset", A, M0, M1) == [A]
    for action in ("", "GPUReset"):
        assert see(action, A, M0, M1) == []


def test_the_status_shows_each_gpu_with_its_mig_devices_under_it_and_a_mode_that_is_pending(node):
    node.scan(cut(0, "1g.10gb", "1c.2g.20gb"), gpu(1, mig=MigMode.DISABLED, mig_pending=MigMode.ENABLED))
    node.run(10.0)
    text = build_text(node.status, diagnose(node.status), style=no_style)
    shown = text[text.index("INDEX") :].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in shown[1:]] == ["0", "0:0", "0:1", "1"]
    assert "1g.10gb" in shown[2]
    assert shown[2].endswith(SMALL)
    assert "MIGInvalid" in shown[3]
    findings = {one.reason: one for one in diagnose(node.status)}
    assert "MIG device 0:1 is 1c.2g.20gb" in findings["MIGInvalid"].cause
    pending = findings["MIGLayoutChanged"]
    assert pending.cause == f"GPU 1 ({B}, 0000:11:00.0): MIG mode is enabled after a reset of the GPU, and not before"
    assert "needs a GPU reset: nvdp pause" in pending.remedy


def test_metrics_count_mig_devices_by_profile_and_know_the_health_of_each(node):
    node.scan(cut(0, "1g.10gb", "1g.10gb", "2g.20gb"), gpu(1), ailments={A: ailment(), M1: ailment()})
    node.run(10.0)
    found = {(metric.name, *labels): value for metric, labels, value in build_gauges(node.status)}
    assert found[catalog.MIG_INSTANCES.name, A, "1g.10gb"] == 2
    assert found[catalog.MIG_INSTANCES.name, A, "2g.20gb"] == 1
    assert found[catalog.DEVICE_HEALTHY.name, M0, "0"] == 1
    assert found[catalog.DEVICE_HEALTHY.name, M1, "0"] == 0
    assert found[catalog.DEVICE_HEALTHY.name, A, "0"] == 1
    assert [key for key in found if key[0] == catalog.GPU_INFO.name and key[1].startswith("MIG-")] == []


def test_an_excluded_mig_device_is_shown_and_nothing_is_told_of_it():
    node = VirtualNode()
    node.see_kubelet(node.kubelet)
    node.read(parse(f'{TEXT}devices: {{exclude: ["0:1"]}}'), text=b"x")
    node.scan(cut(0, "1g.10gb", "1g.10gb"))
    node.run(10.0)
    assert node.healthy(SMALL) == [M0]
    node.scan(cut(0, "1g.10gb", "1g.10gb"), ailments=dict.fromkeys((A, M1), ailment(Cause.XID)))
    node.run(1.0)
    assert node.healthy(SMALL) == [M0]
    assert node.record.texts(Reason.DEVICE_UNHEALTHY) == []
    assert {one.place: one.withheld for one in node.status.devices} == {"0": "", "0:0": "", "0:1": "Excluded"}


def test_while_the_driver_is_let_go_of_nothing_is_told_of_single_devices(node):
    paused = dict.fromkeys((A, B, M0, M1), ailment(Cause.DRIVER_PAUSED, "paused by nvdp pause"))
    node.scan(cut(0, "1g.10gb", "1g.10gb"), gpu(1), ailments=paused)
    node.run(0.1)
    assert node.unhealthy(SMALL) == [M0, M1]
    node.scan(cut(0, "1g.10gb", "1g.10gb"), gpu(1))
    node.run(0.1)
    assert node.record.texts(Reason.DEVICE_UNHEALTHY) == node.record.texts(Reason.DEVICE_RECOVERED) == []


def test_a_gpu_that_comes_or_that_cannot_be_read_has_no_layout_that_changed(node):
    node.scan(cut(0, "1g.10gb", "1g.10gb"), gpu(1), cut(2, "7g.80gb"))
    node.run(0.1)
    node.scan(cut(0, instances=None), gpu(1), cut(2, "7g.80gb"))
    node.run(0.1)
    assert changes_of(node) == []


@pytest.mark.invariant(4)
def test_under_single_the_name_stays_and_the_change_of_the_layout_is_told():
    node = VirtualNode()
    node.see_kubelet(node.kubelet)
    node.read(parse("flags: {migStrategy: single}"), text=b"x")
    node.scan(gpu(0))
    node.run(10.0)
    node.scan(cut(0, "1g.10gb", "1g.10gb"))
    node.run(1.0)
    assert node.healthy(GPU) == [M0, M1]
    assert f"{M0}, {M1}: {GPU} in the new MIG layout" in node.record.texts(Reason.MODE_CHANGED)


def test_a_cordoned_mig_device_is_listed_unhealthy_and_shown_as_such():
    node = VirtualNode()
    node.see_kubelet(node.kubelet)
    node.read(parse(f"{TEXT}devices: {{cordon: [{M1}]}}"), text=b"x")
    node.scan(cut(0, "1g.10gb", "1g.10gb"))
    node.run(10.0)
    assert (node.healthy(SMALL), node.unhealthy(SMALL)) == ([M0], [M1])
    (text,) = node.record.texts(Reason.DEVICE_CORDONED)
    assert text.startswith(f"{M1} (index 0:1, 0000:10:00.0, 1g.10gb): devices.cordon[0]")
    assert [(one.place, one.withheld) for one in node.status.devices][2] == ("0:1", "Cordoned")


def test_a_mig_device_without_a_uuid_is_shown_and_its_siblings_are_on_offer(node):
    fault = Fault(call="nvmlDeviceGetUUID", kind="Unknown", text="Unknown Error")
    node.scan(cut(0, "1g.10gb", unreadable_instances=(UnreadableInstance(index=4, fault=fault),)), gpu(1))
    node.run(10.0)
    assert node.healthy(SMALL) == [M0]
    (finding,) = [one for one in diagnose(node.status) if one.reason == "MIGInvalid"]
    assert finding.cause == "MIG device 0:4 has no UUID: Unknown Error; it cannot be on offer without"


def test_what_waits_for_a_pod_of_another_layout_is_shown_with_the_pod(node):
    hold(node, M0)
    node.scan(gpu(0), gpu(1))
    node.run(20.0)
    waits = {(one.gpu_uuid, one.before, one.after): one.holders for one in node.status.waits}
    assert waits == {(A, SMALL, GPU): ("team/nb",), (M0, SMALL, ""): ("team/nb",)}
    (finding,) = [one for one in diagnose(node.status) if one.reason == "ModeChangeWaiting"]
    assert finding.cause.startswith(f"GPU 0 ({A}, 0000:10:00.0): {SMALL} → {GPU} waits for team/nb")
