"""What others may see of the daemon: holders, waits, what is withheld and what is in trouble, in virtual time."""

from __future__ import annotations

import time

import msgspec
import pytest

from nvdp.model.held import Holding
from nvdp.model.inventory import Driver, Fault, Inventory, UnreadableGpu
from nvdp.model.listing import Strategy
from nvdp.model.status import DriverState, DriverStatus, Trouble, Wait, Withheld
from nvdp.services.events import GpusScanned
from tests.planning.values import GPU, SHARED, answer, gpu, holding, parse, sliced, uuid
from tests.virtual.node import VirtualNode

A, B = uuid(0), uuid(1)
TWO = (gpu(0), gpu(1))
WHOLE, SLICES = f"{GPU} (whole)", f"{GPU} (shared)"
MPS = "sharing: {mps: {resources: [{name: nvidia.com/gpu, rename: nvidia.com/gpu.mps, devices: [1], replicas: 2}]}}"


def started(config=None, *, gpus=TWO, **options):
    """A node that has been up for a minute; the clock says 1060."""
    node = VirtualNode(**options)
    node.see_kubelet(node.kubelet)
    node.read(config or parse(), text=b"version: v1")
    node.scan(*gpus)
    node.run(60.0)
    return node


def offered(status):
    return [(one.resource, one.replicas, one.strategy, one.withheld) for one in status.devices]


def test_a_gpu_is_shown_as_what_it_is_offered_as():
    node = started(sliced(3, rename=True))
    assert offered(node.status) == [(SHARED, 3, Strategy.TIME_SLICING, "")] * 2
    node.read(parse())
    node.run(20.0)
    assert offered(node.status) == [(GPU, 1, Strategy.NONE, "")] * 2


def test_who_holds_what_is_shown_from_the_newest_answer():
    node = started()
    node.pods |= {"first": (GPU, B), "other": ("example.com/x", "another-plugins-device")}
    node.holders.ask()
    node.run(2.0)
    assert node.status.holders == (holding(B, "first"),)
    del node.pods["first"]
    node.holders.ask()
    node.run(2.0)
    assert node.status.holders == ()


def test_a_mode_change_that_waits_names_both_forms_the_pods_and_its_beginning():
    node = started()
    node.allocate("nb-1", A, GPU)
    node.run(30.0)
    node.read(sliced(2))
    node.run(30.0)
    wait = Wait(gpu_uuid=A, before=WHOLE, after=SLICES, devices=1, holders=("team/nb-1",), since=1090.0)
    assert node.status.waits == (wait,)
    del node.pods["nb-1"]
    node.run(30.0)
    assert node.status.waits == ()


def test_a_change_of_name_is_shown_by_the_names():
    node = started(sliced(2))
    for number in range(2):
        node.allocate(f"nb-{number}", f"{A}::{number}", GPU)
    node.run(30.0)
    node.read(sliced(4, rename=True))
    node.run(30.0)
    (wait,) = node.status.waits
    assert (wait.before, wait.after, wait.devices, wait.holders) == (GPU, SHARED, 2, ("team/nb-0", "team/nb-1"))


def test_what_leaves_without_a_change_of_form_is_a_wait_of_its_own_with_the_pods_that_are_in_its_way():
    node = started(sliced(4))
    for number in (1, 2, 3):
        node.allocate(f"nb-{number}", f"{A}::{number}", GPU)
    node.run(30.0)
    node.read(sliced(1))
    node.run(30.0)
    assert [(one.gpu_uuid, one.before, one.after, one.holders) for one in node.status.waits] == [
        (A, SLICES, WHOLE, ("team/nb-1", "team/nb-2", "team/nb-3"))
    ]
    node.read(sliced(2))
    node.run(30.0)
    (wait,) = node.status.waits  # of the three that are held two stay
    assert (wait.before, wait.after, wait.devices, wait.holders, wait.since) == (GPU, "", 1, ("team/nb-3",), 1120.0)


def test_what_the_kubelet_is_only_given_time_to_forget_waits_for_nobody():
    node = started(sliced(4))
    node.read(sliced(2))
    node.run(1.0)
    assert [(one.gpu_uuid, one.devices, one.holders) for one in node.status.waits] == [(A, 2, ()), (B, 2, ())]
    node.run(10.0)
    assert node.status.waits == ()


def test_what_the_file_keeps_back_and_the_card_cannot_do_is_shown_with_its_place_in_the_file():
    old = gpu(1, compute_capability="6.1")
    node = started(parse(f"devices: {{exclude: [0]}}\n{MPS}"), gpus=(gpu(0), old))
    excluded, unfit = node.status.withheld
    assert excluded == Withheld(gpu_uuid=A, reason="Excluded", path="devices.exclude[0]", text="excluded")
    assert (unfit.gpu_uuid, unfit.reason, unfit.path) == (B, "MPSUnsupported", "sharing.mps.resources[0]")
    assert offered(node.status) == [("", 1, Strategy.NONE, "Excluded"), ("", 1, Strategy.NONE, "MPSUnsupported")]


def test_what_the_file_names_and_the_node_does_not_have_is_a_sentence_each():
    node = started(parse("devices: {cordon: [7]}"))
    assert node.status.unmatched == ("devices.cordon[0]: 7 is not on this node (fine if other nodes share this file)",)


def test_a_gpu_without_an_identity_is_shown_apart():
    node = started()
    fault = Fault(call="nvmlDeviceGetUUID", kind="GpuIsLost", text="nvmlDeviceGetUUID: GPU is lost")
    unreadable = UnreadableGpu(index=2, pci="0000:12:00.0", fault=fault)
    node.clock.put(
        GpusScanned(
            driver=DriverStatus(state=DriverState.READY),
            inventory=Inventory(driver=Driver(version="1", cuda_version="1"), gpus=TWO, unreadable=(unreadable,)),
            ailments={},
            at=node.clock.now,
            wall=node.clock.now,
        )
    )
    node.run(1.0)
    assert node.status.unreadable == (unreadable,)
    assert len(node.status.devices) == 2


def test_holders_that_cannot_be_read_are_a_trouble_with_its_beginning_until_they_can():
    node = started()
    node.readable = False
    node.holders.ask()
    node.run(10.0)
    (trouble,) = node.status.troubles
    assert (trouble.reason, trouble.since) == ("HoldersUnknown", pytest.approx(1060.0, abs=2))
    assert node.status.ready
    node.readable = True
    node.holders.ask()
    node.run(40.0)
    assert node.status.troubles == ()


def test_events_that_are_not_heard_are_a_trouble_while_there_is_a_driver_to_tell_them():
    node = started()
    trouble = Trouble(reason="WatchDegraded", text="no XID is heard")
    node.scan(*TWO, trouble=trouble)
    node.run(1.0)
    assert node.status.troubles == (trouble,)
    node.scan(*TWO, state=DriverState.PAUSED, trouble=trouble)
    node.run(1.0)
    assert node.status.troubles == ()


def test_a_service_that_crashed_is_a_trouble_for_ten_minutes():
    node = started()
    node.crash("watch")
    node.run(1.0)
    (trouble,) = node.status.troubles
    assert (trouble.reason, trouble.since) == ("ServiceRestarted", 1060.0)
    assert trouble.text.startswith("watch: ValueError: x")
    node.run(600.0)
    node.scan(*TWO)
    node.run(1.0)
    assert node.status.troubles == ()


def test_planning_that_fails_is_a_trouble_and_no_readiness():
    node = started()
    broken = msgspec.structs.replace(gpu(0), uuid=None)
    node.scan(broken)
    node.run(1.0)
    assert (node.status.ready, node.status.reason) == (False, "ServiceRestarted")
    (trouble,) = node.status.troubles
    assert trouble.text.startswith("planning failed, what was offered before stays: ")


def test_the_number_of_things_wrong_with_a_file_is_shown_with_the_first_of_them():
    node = started()
    node.read(None, "test.yaml:1:1: a: wrong", "test.yaml:2:1: b: wrong")
    node.run(1.0)
    assert (node.status.config.refused, node.status.config.problems) == ("test.yaml:1:1: a: wrong", 2)
    node.read(parse())
    node.run(1.0)
    assert (node.status.config.refused, node.status.config.problems) == (None, 0)


def test_the_status_is_cheap_where_8_gpus_have_8000_replicas_and_as_many_holders():
    gpus = tuple(gpu(number) for number in range(8))
    holdings = [
        Holding(resource=GPU, device_id=f"{one.uuid}::{number}", namespace="team", pod=f"p{number}", container="main")
        for one in gpus
        for number in range(1000)
    ]
    node = started(sliced(1000), gpus=gpus, held=answer(*holdings, at=1000.0))
    node.pods = {f"{one.pod} {one.device_id}": (GPU, one.device_id) for one in holdings}
    node.holders.ask()
    node.run(3.0)
    assert len(node.status.holders) == 8000
    build = node.supervisor._build_status
    times = []
    for _ in range(10):
        began = time.thread_time()
        build()
        times.append(time.thread_time() - began)
    assert min(times) < 0.001
