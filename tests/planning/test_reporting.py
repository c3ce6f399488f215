"""The daemon's state in words: what is ready, what is missing, and which device is withheld for what."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.model.inventory import MigMode
from nvdp.model.listing import AllocationFacts, Strategy
from nvdp.model.mps import DaemonReport, DaemonSpec, MpsView, Phase
from nvdp.model.reasons import Cause
from nvdp.model.status import (
    ConfigStatus,
    DeviceStatus,
    DriverState,
    DriverStatus,
    MpsDaemonStatus,
    MpsServerStatus,
    MpsStatus,
    ResourceStatus,
)
from nvdp.planning.allotment import resolve_pins
from nvdp.planning.assignment import Assignment, Form, Withheld
from nvdp.planning.plan import ModeChange, Plan, build_plan
from nvdp.planning.reporting import Serving, build_devices, build_resources, judge_ready
from nvdp.planning.reporting_mps import build_mps, find_withheld, list_needed
from tests.planning.values import GPU, SHARED, ailment, cut, gpu, inputs, inventory, listed, parse, uuid

A, B = uuid(0), uuid(1)


def plan(*lists, planned=None, withheld=None, assignments=None, **others):
    return Plan(
        devices=(),
        lists={one.resource: one for one in lists},
        planned=planned or {},
        assignments=assignments or {},
        withheld=withheld or {},
        **others,
    )


def test_a_resource_is_told_as_it_was_given_out_and_as_the_kubelet_has_it():
    facts = AllocationFacts(strategy=Strategy.TIME_SLICING, replicas=(2,))
    listing = msgspec.structs.replace(listed(GPU, f"{A}::0", f"{A}::1", f"{A}::5", unhealthy=(f"{A}::5",)), facts=facts)
    serving = {GPU: Serving(registered=True, streams=1, taken_version=3)}
    assert build_resources(plan(listing, planned={GPU: 2}), serving) == (
        ResourceStatus(
            name=GPU,
            planned=2,
            healthy=2,
            unhealthy=1,
            registered=True,
            streams=1,
            strategy=Strategy.TIME_SLICING,
            replicas=(2,),
        ),
    )


def test_a_resource_that_is_not_registered_says_what_is_missing():
    current = plan(listed(GPU, A), listed(SHARED, f"{B}::0"))
    found = build_resources(current, {SHARED: Serving(missing="no such socket")})
    assert [(one.name, one.registered, one.missing, one.planned) for one in found] == [
        (GPU, False, "not registered yet", 0),
        (SHARED, False, "no such socket", 0),
    ]


def test_devices_are_told_in_list_order_with_what_is_known_of_them():
    sick = ailment(Cause.LOST, "fallen off the bus", since=5.0)
    nodes = inventory(gpu(1, mig=MigMode.DISABLED, memory_bytes=2**30), gpu(0, product=None, pci=None), gpu(2, index=7))
    found = build_devices(nodes, {uuid(2): sick}, None, {uuid(2): 77.0})
    assert found == (
        DeviceStatus(
            uuid=B, index=1, pci="0000:11:00.0", product="NVIDIA A10", mig="disabled", memory_bytes=2**30,
            healthy=True, cause=None, text="", changed_at=0.0,
        ),
        DeviceStatus(
            uuid=uuid(2), index=7, pci="0000:12:00.0", product="NVIDIA A10", mig="", memory_bytes=None,
            healthy=False, cause=Cause.LOST, text="fallen off the bus", changed_at=77.0,
        ),
        DeviceStatus(
            uuid=A, index=0, pci="", product="", mig="", memory_bytes=None,
            healthy=True, cause=None, text="", changed_at=0.0,
        ),
    )  # fmt: skip


def test_a_device_that_is_not_on_offer_says_why():
    waits = ModeChange(gpu_uuid=B, before=Form(GPU, shared=False), after=Form(GPU, shared=True), holder="team/pod")
    current = plan(withheld={A: Withheld(reason="Excluded", path="devices.exclude", text="x")}, changes=(waits,))
    found = build_devices(inventory(gpu(0), gpu(1), gpu(2)), {}, current, {})
    assert [(one.withheld, one.healthy) for one in found] == [("Excluded", True), ("Held", True), ("", True)]


def test_a_cordoned_device_keeps_its_fault_and_not_that_of_the_driver():
    sick = msgspec.structs.replace(ailment(Cause.XID, "XID 79, fallen off the bus"), xid=79, action="GPUReset")
    asleep = ailment(Cause.DRIVER_PAUSED, "paused")
    config = parse("devices: {cordon: [0, 1]}")
    ailments = {A: sick, B: asleep}
    gpus = (gpu(0), gpu(1))
    current = build_plan(inputs(config, *gpus, ailments=ailments, pins=resolve_pins(config, gpus, {}, {})))
    told = build_devices(inventory(*gpus), ailments, current, {})
    assert [(one.cause, one.text, one.xid, one.action, one.fault) for one in told] == [
        (Cause.CORDONED, "devices.cordon[0]; XID 79, fallen off the bus", 79, "GPUReset", Cause.XID),
        (Cause.CORDONED, "devices.cordon[1]", None, "", None),
    ]


IN_FORCE = ConfigStatus(valid=True, hash="sha256:0")
REFUSED = ConfigStatus(valid=False, hash="sha256:0", refused="x")
READY = DriverStatus(state=DriverState.READY)


def resource(*, registered, planned=1, waits=False):
    return ResourceStatus(
        name=GPU,
        planned=planned,
        healthy=0,
        unhealthy=0,
        registered=registered,
        streams=0,
        strategy=Strategy.NONE,
        replicas=(1,),
        waits=waits,
    )


def driver(state):
    return DriverStatus(state=state)


CASES = {
    "all is well": ({}, (True, "")),
    "a node without GPUs": ({"resources": ()}, (True, "")),
    "the newest file is refused, the one before is in force": ({"config": REFUSED}, (True, "")),
    "nothing was read yet": ({"config": ConfigStatus()}, (False, "Starting")),
    "no configuration was ever good": ({"config": ConfigStatus(refused="x")}, (False, "ConfigRefused")),
    "there never was a file": ({"config": ConfigStatus(refused="x", missing=True)}, (False, "ConfigMissing")),
    "a label never named one": ({"config": ConfigStatus(refused="x", unknown=True)}, (False, "ConfigUnknown")),
    "nobody knows which": ({"config": ConfigStatus(waiting="x")}, (False, "ConfigMissing")),
    "nobody knows which, and the last one is in force": (
        {"config": msgspec.structs.replace(IN_FORCE, waiting="x")},
        (True, ""),
    ),
    "the driver was not asked yet": ({"driver": driver(DriverState.STARTING)}, (False, "Starting")),
    "the driver is missing": ({"driver": driver(DriverState.MISSING)}, (False, "DriverMissing")),
    "the driver is another one": ({"driver": driver(DriverState.MISMATCH)}, (False, "DriverMismatch")),
    "the driver is lost": ({"driver": driver(DriverState.LOST)}, (False, "DriverLost")),
    "the driver is missing, and need not be there": (
        {"driver": driver(DriverState.MISSING), "fail_on_init_error": False, "planned": False, "resources": ()},
        (True, ""),
    ),
    "it was not asked yet whether the driver is there, which it need not be": (
        {"driver": driver(DriverState.STARTING), "fail_on_init_error": False},
        (False, "Starting"),
    ),
    "nothing was planned yet": ({"planned": False}, (False, "Starting")),
    "a resource is not registered": ({"resources": (resource(registered=False),)}, (False, "NotRegistered")),
    "one of two is not": (
        {"resources": (resource(registered=True), resource(registered=False))},
        (False, "NotRegistered"),
    ),
    "one waits for pods to end, as the file wants it": (
        {"resources": (resource(registered=False, waits=True),)},
        (True, ""),
    ),
    "a resource that only leaves is not": ({"resources": (resource(registered=False, planned=0),)}, (True, "")),
}


@pytest.mark.parametrize(("changes", "expected"), CASES.values(), ids=CASES)
def test_ready_is_what_the_configuration_says_and_the_kubelet_has(changes, expected):
    known = {
        "config": IN_FORCE,
        "driver": READY,
        "resources": (resource(registered=True),),
        "planned": True,
        "fail_on_init_error": True,
    }
    assert judge_ready(**(known | changes)) == expected


def test_mig_devices_are_told_by_their_index_whatever_the_driver_numbers_them():
    parts = cut(0, "1g.10gb", "1g.10gb")
    assert parts.instances is not None
    crossed = tuple(msgspec.structs.replace(one, gpu_instance=9 - one.index) for one in parts.instances)
    node = msgspec.structs.replace(parts, instances=crossed)
    current = build_plan(inputs(parse("flags: {migStrategy: mixed}"), node))
    assert [one.place for one in build_devices(inventory(node), {}, current, {})] == ["0", "0:0", "0:1"]


BY_MPS = "nvidia.com/gpu.mps"
SHARE = Assignment(form=Form(BY_MPS, shared=True, mps=True), replicas=4, strategy=Strategy.MPS)
WHOLE = Assignment(form=Form(GPU, shared=False))
MPS_PLAN = plan(planned={BY_MPS: 4}, assignments={A: SHARE, B: WHOLE})
WHY = f"MPS control daemon does not answer on /mps/{BY_MPS}/pipe: nvdp mps does not run"


def daemon(phase=Phase.READY, gpus=(A,), **facts):
    running = DaemonSpec(resource=BY_MPS, gpus=gpus) if gpus else None
    return MpsView(daemons={BY_MPS: DaemonReport(phase=phase, running=running, **facts)})


def test_a_resource_whose_daemon_never_answered_is_planned_and_not_registered_and_says_why():
    current = msgspec.structs.replace(MPS_PLAN, missing={BY_MPS: WHY}, lists={"z": listed("z", B)})
    found, other = build_resources(current, {})
    assert other.name == "z"
    assert found == ResourceStatus(
        name=BY_MPS,
        planned=4,
        healthy=0,
        unhealthy=0,
        registered=False,
        streams=0,
        strategy=Strategy.MPS,
        replicas=(4,),
        missing=WHY,
    )


@pytest.mark.parametrize(("view", "waits"), [(MpsView(), True), (MpsView(problem="silent"), False), (None, False)])
def test_one_that_waits_for_pods_to_end_is_as_the_file_wants_it_while_nvdp_mps_answers(view, waits):
    change = ModeChange(gpu_uuid=A, before=Form(GPU, shared=False), after=SHARE.form, holder="team/pod")
    current = msgspec.structs.replace(MPS_PLAN, missing={BY_MPS: WHY}, changes=(change,))
    (found,) = build_resources(current, {}, view)
    assert found.waits is waits


# What is seen; then why A, which MPS shares, is not on offer. B is to be whole, and is kept from that.
WITHHELD = {
    "all is well": (daemon(), ""),
    "nobody looked": (None, ""),
    "no daemon": (MpsView(), "MPSDaemonFailed"),
    "a daemon that died": (daemon(Phase.FAILED), "MPSDaemonFailed"),
    "a daemon without the GPU": (daemon(gpus=(B,)), "MPSDaemonFailed"),
    "nvdp mps is silent": (msgspec.structs.replace(daemon(), problem="silent"), "MPSDaemonFailed"),
}


@pytest.mark.parametrize(("view", "reason"), WITHHELD.values(), ids=WITHHELD)
def test_a_device_that_is_not_on_offer_for_a_daemon_says_so_and_is_no_ill_gpu(view, reason):
    current = msgspec.structs.replace(MPS_PLAN, kept={B: "kept for MPS"})
    found = build_devices(inventory(gpu(0), gpu(1)), {}, current, {}, by_mps=find_withheld(view, current))
    assert [(one.withheld, one.healthy, one.cause) for one in found] == [(reason, True, None), ("Held", True, None)]


def test_that_a_device_is_held_comes_before_the_daemon():
    change = ModeChange(gpu_uuid=A, before=Form(GPU, shared=False), after=SHARE.form, holder="team/pod")
    current = msgspec.structs.replace(MPS_PLAN, changes=(change,))
    found = build_devices(inventory(gpu(0)), {}, current, {}, by_mps=find_withheld(MpsView(), current))
    assert [one.withheld for one in found] == ["Held"]


def test_the_daemons_that_the_plan_needs_are_told_with_all_that_is_known_of_them():
    view = daemon(pid=7, clients=2, servers={"9": "active"}, exit_code=1, last_lines=("x",), restarts=3)
    assert build_mps(view, MPS_PLAN).daemons == (
        MpsDaemonStatus(
            resource=BY_MPS,
            phase=Phase.READY,
            gpus=(A,),
            pid=7,
            restarts=3,
            clients=2,
            servers=(MpsServerStatus(pid=9, state="active"),),
            exit_code=1,
            last_lines=("x",),
        ),
    )


def test_a_daemon_that_no_plan_needs_is_told_while_it_answers():
    empty = plan()
    assert [one.resource for one in build_mps(daemon(), empty).daemons] == [BY_MPS]
    assert build_mps(daemon(Phase.STOPPING), empty).daemons == ()


def test_a_silence_is_told_only_where_daemons_are_needed_and_then_nothing_of_them():
    view = msgspec.structs.replace(daemon(), problem="silent")
    assert build_mps(view, plan()) == build_mps(None, MPS_PLAN) == MpsStatus()
    assert build_mps(view, MPS_PLAN) == MpsStatus(problem="silent", daemons=(MpsDaemonStatus(resource=BY_MPS),))


def test_the_resources_that_need_a_daemon_are_those_that_mps_shares():
    assert list_needed(None) == frozenset()
    assert list_needed(MPS_PLAN) == {BY_MPS}
