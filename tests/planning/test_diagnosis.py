"""Causes and remedies out of the daemon's state, the gravest first."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.inventory import Fault, UnreadableGpu
from nvdp.model.listing import Strategy
from nvdp.model.mps import Phase
from nvdp.model.pause import Pause
from nvdp.model.reasons import Cause, Reason
from nvdp.model.status import (
    ConfigStatus,
    DeviceStatus,
    DriverState,
    DriverStatus,
    MpsDaemonStatus,
    MpsServerStatus,
    MpsStatus,
    ResourceStatus,
    Status,
    Trouble,
    Wait,
    Withheld,
)
from nvdp.planning import remedies
from nvdp.planning.diagnosis import diagnose
from nvdp.planning.findings import Gravity, join_some
from nvdp.planning.vitals import ACTIONS, NO_ACTION, UNSUPPORTED
from nvdp.planning.xids import Advice
from tests.planning.values import GPU, SHARED, holding, uuid

ROOT = Path(__file__).resolve().parents[2]
IN_FORCE = ConfigStatus(valid=True, hash="sha256:1f0c9a2e77b0", source="/config/mixed", applied_at=1000.0)
READY = DriverStatus(state=DriverState.READY, version="580.65.06", cuda_version="13.0")
WELL = Status(ready=True, reason="", config=IN_FORCE, driver=READY)


def well(**changes: object) -> Status:
    return msgspec.structs.replace(WELL, **changes)


def bad(reason: str, **changes: object) -> Status:
    return well(ready=False, reason=reason, **changes)


def device(number: int, cause: Cause | None = None, text: str = "", **facts: object) -> DeviceStatus:
    known = {"pci": f"0000:{number:02x}:00.0", "product": "NVIDIA A10", "mig": "", "memory_bytes": None}
    return DeviceStatus(
        uuid=uuid(number),
        index=number,
        healthy=cause is None,
        cause=cause,
        text=text,
        changed_at=0.0,
        **(known | facts),
    )


def resource(name: str = GPU, *, missing: str | None = None, planned: int = 1) -> ResourceStatus:
    return ResourceStatus(
        name=name,
        planned=planned,
        healthy=1,
        unhealthy=0,
        registered=missing is None,
        streams=1,
        strategy=Strategy.NONE,
        replicas=(1,),
        missing=missing,
    )


def config(**facts: object) -> ConfigStatus:
    return msgspec.structs.replace(IN_FORCE, **facts)


def driver(state: DriverState, text: str = "x", error: str = "") -> DriverStatus:
    return DriverStatus(state=state, text=text, error=error)


def paused(by: str, **facts: object) -> Status:
    pause = Pause(by=by, **({"since": 1795921927.0} | facts))
    devices = tuple(device(number, Cause.DRIVER_PAUSED, str(pause)) for number in range(8))
    return bad("DriverPaused", pause=pause, driver=driver(DriverState.PAUSED, str(pause)), devices=devices)


def missing(name: str, why: str = "MPS control daemon does not answer", **facts: object) -> ResourceStatus:
    """A resource that was not given out yet."""
    return msgspec.structs.replace(resource(name, missing=why), healthy=0, streams=0, **facts)


MPS = "nvidia.com/gpu.mps"
NOT_FREE = "GPU-1: not free yet: pods hold it in another form"
SILENT = MpsStatus(
    problem="nvdp mps does not answer: /mps/nvdp.json is older than 3.5s", daemons=(MpsDaemonStatus(resource=MPS),)
)


def mps(phase: Phase | None = Phase.READY, **facts: object) -> MpsStatus:
    return MpsStatus(daemons=(MpsDaemonStatus(resource=MPS, phase=phase, **facts),))


REFUSED = "/config/mixed:14:5: sharing.timeSlicing.resources[0].replica: unknown key; did you mean replicas?"
ONE = f"GPU 3 ({uuid(3)}, 0000:03:00.0)"
WAITS = Wait(gpu_uuid=uuid(3), before=GPU, after=SHARED, devices=1, holders=("team-a/train-7",), since=1795921927.0)
COUNTED_ANEW = msgspec.structs.replace(WAITS, after="", text="held by team-a/train-7 as index 2, and it is 3 now")

# What there is; then reason, gravity, and what cause and remedy must say.
CASES = {
    "no driver": (
        bad("DriverMissing", driver=driver(DriverState.MISSING, "libnvidia-ml.so.1 not found under /driver-root")),
        ("DriverMissing", Gravity.NOT_READY, "libnvidia-ml.so.1 not found under /driver-root", "runtimeClassName"),
    ),
    "the driver hangs": (
        bad("DriverMissing", driver=driver(DriverState.MISSING, "nvmlInit did not return within 60s", "CallTimeout")),
        ("DriverMissing", Gravity.NOT_READY, "did not return", "look for NVRM in dmesg on the node, and reboot"),
    ),
    "the driver's library crashes": (
        bad("DriverLost", driver=driver(DriverState.LOST, "the NVML child was killed by SIGSEGV", "ChildDied")),
        ("DriverLost", Gravity.NOT_READY, "SIGSEGV", "run nvidia-smi on the node"),
    ),
    "another kernel module": (
        bad("DriverMismatch", driver=driver(DriverState.MISMATCH, "kernel module 570, library 580")),
        ("DriverMismatch", Gravity.NOT_READY, "kernel module 570, library 580", "reload the kernel module, or reboot"),
    ),
    "the driver was lost where it need not be there": (
        well(driver=driver(DriverState.LOST), devices=(device(3, Cause.DRIVER_LOST),)),
        ("DriverLost", Gravity.DEGRADED, "x", "dmesg"),
    ),
    "a pause by an operator": (
        paused("nvdp pause", note="driver 580 to 590"),
        (
            "DriverPaused",
            Gravity.NOT_READY,
            "paused by nvdp pause (driver 580 to 590) since 2026-11-29T03:12:07Z: all devices Unhealthy, no new pods",
            "nvdp resume in nvdp's pod once",
        ),
    ),
    "a pause by the file": (
        paused("devices.paused of /config/mixed"),
        ("DriverPaused", Gravity.NOT_READY, "paused by devices.paused", "set devices.paused: false in /config/mixed"),
    ),
    "a pause for a reset": (
        paused("health.releaseForReset", note="a GPU asks for a reset"),
        ("DriverPaused", Gravity.NOT_READY, "(a GPU asks for a reset)", "reset the GPU now, or wait a minute"),
    ),
    "a pause by a file that is damaged": (
        paused("/run/nvdp/paused.json", note="which is damaged: x", since=0.0),
        ("DriverPaused", Gravity.NOT_READY, "(which is damaged: x): all devices Unhealthy", "nvdp resume"),
    ),
    "no driver on a node that needs none": (
        well(driver=driver(DriverState.MISSING)),
        ("DriverMissing", Gravity.NOTE, "x", "install the driver"),
    ),
    "a file that is refused, with one in force": (
        well(config=config(valid=False, refused=REFUSED, problems=3)),
        (
            "ConfigRefused",
            Gravity.DEGRADED,
            f"{REFUSED} (the first of 3 errors; sha256:1f0c9a2e77b0 stays in force)",
            "correct line 14 of /config/mixed; nvdp config check /config/mixed shows all. It is applied by itself",
        ),
    ),
    "a file that is refused, and none in force": (
        bad("ConfigRefused", config=ConfigStatus(refused=REFUSED, problems=1)),
        ("ConfigRefused", Gravity.NOT_READY, f"{REFUSED} (nothing is in force)", "correct line 14 of /config/mixed."),
    ),
    "a file that cannot be read": (
        well(config=config(refused="/config/mixed: cannot be read: Is a directory", problems=1)),
        ("ConfigRefused", Gravity.DEGRADED, "Is a directory", "correct the file. It is applied by itself"),
    ),
    "no file": (
        bad("ConfigMissing", config=ConfigStatus(refused="/config/mixed: there is no such file", missing=True)),
        ("ConfigMissing", Gravity.NOT_READY, "no such file (nothing is in force)", "create it"),
    ),
    "a label that names nothing, with one in force": (
        well(config=config(valid=False, refused="configs: label a=z names none; there is a", unknown=True)),
        ("ConfigUnknown", Gravity.DEGRADED, "there is a (sha256:1f0c9a2e77b0 stays in force)", "kubectl label node"),
    ),
    "a label that names nothing, and none in force": (
        bad("ConfigUnknown", config=ConfigStatus(refused="configs: label a=zzz names none", unknown=True)),
        ("ConfigUnknown", Gravity.NOT_READY, "names none (nothing is in force)", "kubectl label node"),
    ),
    "an API server that never answered": (
        bad("ConfigMissing", config=ConfigStatus(waiting="node a: not answered yet")),
        ("ConfigMissing", Gravity.NOT_READY, "node a: not answered yet (nothing is in force)", "APIServerLost"),
    ),
    "an API server that has not answered since the start": (
        well(config=config(waiting="node a: not answered yet")),
        ("ConfigMissing", Gravity.DEGRADED, "not answered yet (sha256:1f0c9a2e77b0 stays in force)", "by itself"),
    ),
    "an edit that waits": (
        well(config=config(pending="sha256:2", pending_until=1795921927.0)),
        ("ConfigApplied", Gravity.NOTE, "sha256:2 waits until 2026-11-29T03:12:07Z (--apply-jitter)", "kill -HUP 1"),
    ),
    "no kubelet": (
        bad("NotRegistered", resources=(resource(missing="/k.sock: no such socket; waiting for the kubelet"),)),
        ("RegistrationFailed", Gravity.NOT_READY, f"{GPU}: /k.sock: no such socket", "--kubelet-root"),
    ),
    "a kubelet that refuses": (
        bad("NotRegistered", resources=(resource(missing="the kubelet refuses: no"), resource(SHARED, missing="y"))),
        ("RegistrationFailed", Gravity.NOT_READY, f"{GPU}: the kubelet refuses: no", "journalctl"),
    ),
    "specs that cannot be written": (
        well(troubles=(Trouble(reason="CDIFailed", text="/var/run/cdi: read-only"),)),
        ("CDIFailed", Gravity.DEGRADED, "/var/run/cdi: read-only", "docs/troubleshoot.md#cdifailed has what to do"),
    ),
    "a part that died": (
        well(troubles=(Trouble(reason="ServiceRestarted", text="watch: KeyError", since=1795921927.0),)),
        ("ServiceRestarted", Gravity.DEGRADED, "watch: KeyError (since 2026-11-29T03:12:07Z)", "report"),
    ),
    "planning that fails": (
        bad("ServiceRestarted", troubles=(Trouble(reason="ServiceRestarted", text="planning failed: KeyError"),)),
        ("ServiceRestarted", Gravity.NOT_READY, "planning failed: KeyError", "report"),
    ),
    "a trouble that knows its remedy": (
        bad("DriverMissing", troubles=(Trouble(reason="DriverMissing", text="denied", remedy="a new container"),)),
        ("DriverMissing", Gravity.NOT_READY, "denied", "a new container"),
    ),
    "what cannot be otherwise on this node": (
        well(troubles=(Trouble(reason="WatchDegraded", text="no events of GPU 2", remedy="nothing", note=True),)),
        ("WatchDegraded", Gravity.NOTE, "no events of GPU 2", "nothing"),
    ),
    "a reason that this version does not know": (
        well(troubles=(Trouble(reason="Later", text="x"),)),
        ("Later", Gravity.DEGRADED, "x", "see Later in the log"),
    ),
    "a lost GPU with pods": (
        well(devices=(device(3, Cause.LOST, "fallen off the bus"),), holders=(holding(f"{uuid(3)}::1", "nb-1"),)),
        (
            "DeviceUnhealthy",
            Gravity.DEGRADED,
            f"{ONE}: Lost: fallen off the bus; no new pods there; used by team/nb-1",
            "drain the node and reboot it",
        ),
    ),
    "many lost GPUs": (
        well(devices=tuple(device(number, Cause.CALL_FAILED, "no") for number in range(16))),
        ("DeviceUnhealthy", Gravity.DEGRADED, "GPUs 0, 1, 2, 3, 4 and 11 more: CallFailed: no", "nvidia-smi -q -i 0"),
    ),
    "a GPU without identity": (
        well(unreadable=(UnreadableGpu(index=3, fault=Fault(call="c", kind="k", text="GetUUID: GPU is lost")),)),
        ("DeviceUnhealthy", Gravity.DEGRADED, "GPU 3 has no UUID", "nvidia-smi -q -i 3"),
    ),
    "an entry that the card cannot do": (
        well(
            devices=(device(3, withheld="MPSUnsupported"),),
            withheld=(Withheld(gpu_uuid=uuid(3), reason="MPSUnsupported", path="sharing.mps.resources[0]", text="no"),),
        ),
        (
            "MPSUnsupported",
            Gravity.DEGRADED,
            f"sharing.mps.resources[0]: no; not on offer: {ONE}",
            "correct sharing.mps.resources[0] in /config/mixed, or share these GPUs by sharing.timeSlicing",
        ),
    ),
    "an entry that is withheld for another reason": (
        well(devices=(device(3),), withheld=(Withheld(gpu_uuid=uuid(3), reason="Later", path="a.b", text="x"),)),
        ("EntryWithheld", Gravity.DEGRADED, "a.b: x", "correct a.b in /config/mixed"),
    ),
    "a mode change that waits": (
        well(devices=(device(3),), waits=(WAITS,)),
        (
            "ModeChangeWaiting",
            Gravity.NOTE,
            f"{ONE}: {GPU} → {SHARED} waits for team-a/train-7 since 2026-11-29T03:12:07Z",
            "kubectl -n team-a delete pod train-7",
        ),
    ),
    "IDs that wait": (
        well(devices=(device(3),), waits=(msgspec.structs.replace(WAITS, after="", devices=7, holders=("some-uid",)),)),
        ("Withdrawing", Gravity.NOTE, f"{ONE}: 7 of {GPU} leave, and wait for some-uid since", "once they have ended"),
    ),
    "a GPU that a pod knows by an index that it has no more": (
        well(devices=(device(3, Cause.HELD),), waits=(COUNTED_ANEW,)),
        (
            "DeviceUnhealthy",
            Gravity.DEGRADED,
            f"{ONE}: Held: held by team-a/train-7 as index 2, and it is 3 now; no new pods since",
            "kubectl -n team-a delete pod train-7",
        ),
    ),
    "the same of a pod that has just been admitted": (
        well(waits=(msgspec.structs.replace(COUNTED_ANEW, holders=()),)),
        ("DeviceUnhealthy", Gravity.DEGRADED, f"{uuid(3)}: Held: held by", "once they have ended"),
    ),
    "a wait on a GPU that is gone": (
        well(waits=(WAITS,)),
        ("ModeChangeWaiting", Gravity.NOTE, f"{uuid(3)}: {GPU} → {SHARED}", "kubectl"),
    ),
    "a reference to nothing": (
        well(unmatched=("devices.cordon[0]: 7 is not on this node (fine if other nodes share this file)",)),
        ("ConfigReferenceUnmatched", Gravity.NOTE, "devices.cordon[0]: 7 is not on this node", "compare with"),
    ),
    "a cordoned GPU": (
        well(devices=(device(3, Cause.CORDONED, "devices.cordon[0]", withheld="Cordoned"),)),
        ("DeviceCordoned", Gravity.NOTE, f"{ONE}: no new pods there, as devices.cordon[0] says", "take it out of"),
    ),
    "a cordoned GPU with a fault": (
        well(devices=(device(3, Cause.CORDONED, "devices.cordon[0]; XID 79", fault=Cause.XID, action="GPUReset"),)),
        ("DeviceCordoned", Gravity.NOTE, f"{ONE}: no new pods there, as devices.cordon[0] says", "take it out of"),
    ),
    "no nvdp mps": (
        bad("NotRegistered", mps=SILENT, resources=(missing(MPS),)),
        (
            "MPSDaemonFailed",
            Gravity.NOT_READY,
            f"{MPS}: nvdp mps does not answer: /mps/nvdp.json is older than 3.5s; no new pods there",
            "is there a pod of the DaemonSet nvdp-mps on this node? kubectl get pods",
        ),
    ),
    "no nvdp mps any more": (
        well(mps=SILENT, resources=(resource(MPS),)),
        ("MPSDaemonFailed", Gravity.DEGRADED, f"{MPS}: nvdp mps does not answer", "kubectl logs of nvdp-mps's pod"),
    ),
    "nvdp mps reads another file": (
        bad("NotRegistered", mps=mps(None), resources=(missing(MPS),)),
        ("MPSDaemonFailed", Gravity.NOT_READY, f"{MPS}: nvdp mps does not know", "the same configuration file"),
    ),
    "a control daemon that died": (
        well(mps=mps(Phase.FAILED, text="next try in 2 s", exit_code=1, last_lines=("a", "no CUDA"))),
        (
            "MPSDaemonFailed",
            Gravity.DEGRADED,
            f"{MPS}: MPS control daemon failed: next try in 2 s; exit code 1; its log ends with: no CUDA; no new pods",
            "it is started again by itself; kubectl logs",
        ),
    ),
    "a control daemon of somebody else": (
        bad("NotRegistered", mps=mps(Phase.REFUSED, text="PID 99 has /tmp/nvidia-mps"), resources=(missing(MPS),)),
        (
            "MPSUnsupported",
            Gravity.NOT_READY,
            f"{MPS}: MPS control daemon refused: PID 99 has /tmp/nvidia-mps; no new pods there",
            "end what is in the way, or take the GPUs out of sharing.mps in /config/mixed",
        ),
    ),
    "a control daemon that starts": (
        bad("NotRegistered", mps=mps(Phase.STARTING), resources=(missing(MPS),)),
        ("MPSDaemonFailed", Gravity.NOT_READY, f"{MPS}: MPS control daemon starting; no new pods", "a matter of"),
    ),
    "a control daemon that waits for its GPUs": (
        well(mps=mps(Phase.WAITING, text=NOT_FREE, waits=True), resources=(missing(MPS, waits=True),)),
        ("ModeChangeWaiting", Gravity.NOTE, f"not started yet: {NOT_FREE}", "once they have ended"),
    ),
    "a control daemon that is about to be started": (
        well(mps=mps(Phase.WAITING, waits=True), resources=(missing(MPS, waits=True),)),
        ("MPSDaemonFailed", Gravity.NOTE, "not started yet; no new pods there", "a matter of seconds"),
    ),
    "a control daemon without a driver in its container": (
        well(mps=mps(Phase.WAITING, text="the driver is not there: libnvidia-ml.so.1 not found")),
        ("MPSDaemonFailed", Gravity.DEGRADED, "not started yet: the driver is not there", "runtimeClassName: nvidia"),
    ),
    "a control daemon without its program": (
        well(mps=mps(Phase.FAILED, text="nvidia-cuda-mps-control: not found; the NVIDIA runtime brings it")),
        ("MPSDaemonFailed", Gravity.DEGRADED, "failed: nvidia-cuda-mps-control: not found", "runtimeClassName: nvidia"),
    ),
    "a control daemon whose container may not do what it takes": (
        well(mps=mps(Phase.WAITING, text="GPU-1: nvmlDeviceSetComputeMode: NoPermission")),
        ("MPSUnsupported", Gravity.DEGRADED, "GPU-1: nvmlDeviceSetComputeMode: NoPermission", "must be privileged"),
    ),
    "a control daemon that hangs while pods compute": (
        well(mps=mps(Phase.FAILED, text="no answer within 2 s; pods may use it, so that it gets 30 s")),
        ("MPSDaemonFailed", Gravity.DEGRADED, "pods may use it", "its containers compute on, and have lost nothing"),
    ),
    "a control daemon that waits for something that nobody thought of": (
        well(mps=mps(Phase.WAITING, text="the moon is not full")),
        ("MPSDaemonFailed", Gravity.DEGRADED, "not started yet: the moon is not full", "kubectl logs of nvdp-mps's"),
    ),
    "a control daemon that waits with a change": (
        well(mps=mps(text="a change waits: pods still use it", pending="GPU 1 leaves it", holders=("team-a/a",))),
        (
            "ModeChangeWaiting",
            Gravity.NOTE,
            f"{MPS}: MPS control daemon stays as it is while pods have shares (team-a/a); then GPU 1 leaves it",
            "kubectl cordon",
        ),
    ),
    "a control daemon that waits for pods of which nothing is known": (
        well(mps=mps(text="a change waits: pods still use it")),
        ("ModeChangeWaiting", Gravity.NOTE, f"{MPS}: MPS control daemon stays as it is: a change waits", "ended"),
    ),
    "a control daemon without a GPU that is lost": (
        well(mps=mps(text="GPU-1: not counted by the driver")),
        ("MPSUnsupported", Gravity.NOTE, "stays as it is: GPU-1: not counted by the driver", "see nvdp devices"),
    ),
    "a driver that serves one user": (
        well(mps=mps(text="multiUser: the control daemon of this driver does not know it", multi_user=False)),
        ("MPSUnsupported", Gravity.NOTE, "this driver serves one user at a time", "set multiUser: false in /config/"),
    ),
    "an MPS server with a fault": (
        well(mps=mps(servers=(MpsServerStatus(pid=7, state="active"), MpsServerStatus(pid=8, state="fault")))),
        ("MPSDaemonFailed", Gravity.DEGRADED, "MPS server in FAULT, which refuses new clients (PID 8)", "dmesg"),
    ),
    "containers of several users where the driver serves one": (
        well(mps=mps(waiting_users=(1000, 1001))),
        ("MPSUnsupported", Gravity.DEGRADED, "clients of user 1000, 1001 wait", "the same runAsUser: this driver's"),
    ),
    "containers of several users where the file has one": (
        well(mps=mps(waiting_users=(1000,), multi_user=False)),
        ("MPSUnsupported", Gravity.DEGRADED, "clients of user 1000 wait", "take multiUser: false out of the entry in"),
    ),
    "a start": (
        bad("Starting", driver=DriverStatus()),
        ("Starting", Gravity.NOT_READY, "nvdp is asking the driver for the first time", "wait"),
    ),
    "the very start": (Status(), ("Starting", Gravity.NOT_READY, "nvdp is reading the configuration", "wait")),
}  # fmt: skip


@pytest.mark.parametrize(("status", "expected"), CASES.values(), ids=CASES)
def test_the_first_finding_names_cause_and_remedy(status, expected):
    finding = diagnose(status)[0]
    reason, gravity, cause, remedy = expected
    assert (finding.reason, finding.gravity) == (reason, gravity)
    assert cause in finding.cause
    assert remedy in finding.remedy


NOTHING = {
    "all is well": WELL,
    "an excluded card is ill": well(
        devices=(device(3, Cause.LOST, withheld="Excluded"),),
        withheld=(Withheld(gpu_uuid=uuid(3), reason="Excluded", path="devices.exclude[0]", text="excluded"),),
    ),
    "a resource only leaves": well(resources=(resource(missing="x", planned=0),)),
    "the kubelet is given time to forget": well(waits=(msgspec.structs.replace(WAITS, holders=()),)),
    "a GPU waits for pods, which is told of the change": well(devices=(device(3, withheld="Held"),)),
    "a control daemon answers": well(mps=mps(clients=3, restarts=1, exit_code=1)),
}


@pytest.mark.parametrize("status", NOTHING.values(), ids=NOTHING)
def test_what_is_as_it_should_be_is_no_finding(status):
    assert diagnose(status) == ()


def test_the_gravest_come_first_and_the_rest_in_the_order_of_the_rules():
    status = bad(
        "NotRegistered",
        config=config(refused=REFUSED, problems=1),
        resources=(resource(missing="x"),),
        devices=(device(3, Cause.LOST),),
        unmatched=("a", "b"),
        troubles=(Trouble(reason="PortTaken", text="x"),),
    )
    assert [finding.reason for finding in diagnose(status)] == [
        "RegistrationFailed",
        "ConfigRefused",
        "PortTaken",
        "DeviceUnhealthy",
        "ConfigReferenceUnmatched",
        "ConfigReferenceUnmatched",
    ]


def test_what_a_daemon_of_mps_waits_for_is_told_of_its_gpus_where_pods_are_in_the_way():
    waits = (msgspec.structs.replace(WAITS, after=MPS), msgspec.structs.replace(WAITS, after=f"{MPS} (MPS)"))
    for wait in waits:
        (found,) = diagnose(well(mps=mps(Phase.WAITING, waits=True), devices=(device(3),), waits=(wait,)))
        assert f"{GPU} → {wait.after} waits for team-a/train-7" in found.cause


def test_a_gpu_that_waits_for_the_pods_of_a_daemon_is_told_of_that_daemon_alone():
    kept = {uuid(1): "still with the MPS control daemon"}
    daemon = MpsDaemonStatus(
        resource=MPS,
        phase=Phase.READY,
        text="a change waits: pods still use it",
        gpus=(uuid(0), uuid(1)),
        pending="GPU 1 leaves it",
        holders=("team-a/a",),
    )
    status = well(mps=MpsStatus(daemons=(daemon,), kept=kept), devices=tuple(device(number) for number in range(2)))
    (found,) = diagnose(status)
    assert "stays as it is while pods have shares (team-a/a); then GPU 1 leaves it" in found.cause


def test_what_waits_for_nvdp_mps_before_it_is_offered_otherwise_is_told_once_for_all_of_it():
    kept = {uuid(number): f"kept for MPS: nvidia-smi -i {uuid(number)} -c DEFAULT" for number in (1, 3)}
    status = well(mps=MpsStatus(kept=kept), devices=tuple(device(number) for number in range(4)))
    (found,) = diagnose(status)
    assert found.cause == "GPUs 1, 3: Held: kept for MPS: nvidia-smi -i 1,3 -c DEFAULT; no new pods there"


def test_a_resource_whose_daemon_is_down_may_lack_the_kubelet_as_well():
    resources = (resource(MPS, missing="/k.sock: no such socket"),)
    found = diagnose(bad("NotRegistered", mps=mps(Phase.FAILED), resources=resources))
    assert [one.reason for one in found] == ["RegistrationFailed", "MPSDaemonFailed"]


def test_while_the_driver_is_not_usable_nothing_is_told_of_mps():
    status = paused("nvdp pause")
    (found,) = diagnose(msgspec.structs.replace(status, mps=mps(Phase.FAILED)))
    assert found.reason == "DriverPaused"


def test_a_fault_of_a_cordoned_gpu_is_told_beside_the_cordon():
    fault = {"fault": Cause.XID, "xid": 79, "action": "GPUReset"}
    cordoned = device(3, Cause.CORDONED, "devices.cordon[0]; XID 79, fallen off the bus", **fault)
    _, found = diagnose(well(devices=(cordoned,)))
    assert (found.reason, found.gravity) == ("DeviceUnhealthy", Gravity.NOTE)
    assert found.cause.startswith(f"{ONE}: XID: XID 79, fallen off the bus; cordoned")
    assert "nvidia-smi --gpu-reset -i 3" in found.remedy


def test_a_pause_by_command_and_by_the_file_names_both():
    status = paused("nvdp pause", note="x")
    (found,) = diagnose(msgspec.structs.replace(status, config=config(paused=True)))
    assert "since 2026-11-29T03:12:07Z, and by devices.paused of /config/mixed: all" in found.cause
    assert found.remedy.startswith("nvdp resume ")
    assert found.remedy.endswith(", and devices.paused: false in /config/mixed")
    by_file = paused("devices.paused of /config/mixed")
    (alone,) = diagnose(msgspec.structs.replace(by_file, config=config(paused=True)))
    assert "and" not in alone.cause.partition(":")[0]


def test_a_lost_driver_is_told_once_and_not_of_each_of_its_gpus():
    status = bad(
        "DriverLost",
        driver=driver(DriverState.LOST),
        devices=tuple(device(number, Cause.DRIVER_LOST) for number in range(8)),
    )
    assert [finding.reason for finding in diagnose(status)] == ["DriverLost"]


def test_resources_that_miss_the_same_are_told_together():
    status = bad("NotRegistered", resources=(resource(missing="x"), resource(SHARED, missing="x")))
    (finding,) = diagnose(status)
    assert finding.cause == f"{GPU}, {SHARED}: x"


def test_what_happens_to_many_in_the_same_way_is_told_once():
    devices = tuple(device(number) for number in range(4))
    waits = tuple(
        msgspec.structs.replace(WAITS, gpu_uuid=one.uuid, holders=(f"a/{one.index}",), since=1000.0 - one.index)
        for one in devices
    )
    (finding,) = diagnose(well(devices=devices, waits=waits))
    assert finding.cause == (
        f"GPUs 0, 1, 2, 3: {GPU} → {SHARED} waits for a/0, a/1, a/2, a/3 since 1970-01-01T00:16:37Z"
    )


def test_every_state_of_the_driver_has_a_remedy_and_no_remedy_is_left_over():
    assert set(remedies.DRIVER) == set(DriverState) - {DriverState.READY, DriverState.STARTING, DriverState.PAUSED}
    assert set(remedies.TROUBLE) <= {reason.word for reason in Reason}


OF_THE_DRIVER = {Cause.DRIVER_LOST, Cause.DRIVER_PAUSED}
OF_ITS_OWN = set(Cause) - OF_THE_DRIVER - {Cause.CORDONED, Cause.HELD, Cause.WITHDRAWING}


@pytest.mark.parametrize("cause", sorted(OF_ITS_OWN, key=str))
def test_every_cause_of_a_devices_own_is_told_with_a_remedy(cause):
    (finding,) = diagnose(well(devices=(device(3, cause, "text"),)))
    assert finding.cause == f"{ONE}: {cause.value}: text; no new pods there"
    assert finding.remedy == remedies.DEVICE[cause].format(index=3)
    assert "{" not in finding.remedy


def test_every_cause_and_every_action_has_its_row_and_no_row_is_left_over():
    assert set(remedies.DEVICE) == set(Cause) - OF_THE_DRIVER
    assert set(remedies.ADVICE) == set(Advice)
    assert {*remedies.ACTION, UNSUPPORTED} == {*ACTIONS, NO_ACTION, UNSUPPORTED} == find_documented_actions()


def find_documented_actions() -> set[str]:
    """The words of docs/observability.md."""
    text = (ROOT / "docs/observability.md").read_text()
    (line,) = re.findall(r"^`None` .*$", text, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", line))


RESET = "nvdp pause in nvdp's pod, nvidia-smi --gpu-reset -i 3 on the node, then nvdp resume"
BY_ITSELF = "nvdp health clear 3 in nvdp's pod"

# Cause, XID, the driver's word; then what the remedy must say.
REMEDIES = [
    (Cause.XID, 79, "", "drain the node and reboot it; replace the card"),
    (Cause.XID, 79, "Unsupported", "drain the node and reboot it; replace the card"),
    (Cause.XID, 79, "GPUReset", RESET),  # the driver's word is about this very case
    (Cause.XID, 79, "None", BY_ITSELF),
    (Cause.XID, 95, "Unsupported", RESET),
    (Cause.XID, 95, "NodeReboot", "drain the node and reboot it"),
    (Cause.XID, 13, "Unsupported", "restart what caused it; it takes pods again after health.recovery.holdOff"),
    (Cause.XID, 74, "Unsupported", "nvidia-smi nvlink -e -i 3"),
    (Cause.XID, 54, "Unsupported", "power cables"),
    (Cause.XID, 9999, "Unsupported", "NVIDIA's catalogue"),
    (Cause.XID, 9999, "Later", "nvidia-smi -q -i 3 on the node shows what the driver asks for"),
    (Cause.ECC, None, "", f"{RESET}; replace the card"),
    (Cause.ECC, None, "None", BY_ITSELF),
    (Cause.RECOVERY_ACTION, None, "GPUReset", RESET),
    (Cause.RECOVERY_ACTION, None, "NodeReboot", "drain the node and reboot it"),
    (Cause.RECOVERY_ACTION, None, "DrainP2P", "end the pods on the GPUs that are linked with it"),
    (Cause.RECOVERY_ACTION, None, "DrainAndReset", "let its pods end"),
    (Cause.RECOVERY_ACTION, None, "RecoverIMEXDomain", "nvidia-imex"),
    (Cause.RECOVERY_ACTION, None, "BusReset", "resets the PCIe bus"),
    (Cause.RECOVERY_ACTION, None, "SystemReboot", "switch the whole machine off and on"),
    (Cause.RECOVERY_ACTION, None, "Unknown", "nvidia-smi -q -i 3"),
    (Cause.RECOVERY_ACTION, None, "None", BY_ITSELF),
    (Cause.RETIRED_PAGES_PENDING, None, "Unsupported", RESET),
    (Cause.RETIRED_PAGES_PENDING, None, "None", RESET),  # the pages are in use all the same
    (Cause.RETIRED_PAGES_PENDING, None, "NodeReboot", "drain the node and reboot it"),
    (Cause.FABRIC_DEGRADED, None, "None", "nvidia-smi nvlink -s -i 3"),
    (Cause.FABRIC_DEGRADED, None, "RecoverIMEXDomain", "nvidia-imex"),
    (Cause.ROW_REMAP_FAILURE, None, "GPUReset", "replace the card"),  # no reset ends that
    (Cause.NODES_MISSING, None, "", "nvidia-modprobe"),
    (Cause.NODES_MISSING, None, "GPUReset", "nvidia-modprobe"),
    (Cause.CDI_MISSING, None, "", "docs/troubleshoot.md#cdifailed"),
    (Cause.IMEX_MISSING, None, "", "nvidia-imex"),
    (Cause.LOST, None, "", "drain the node and reboot it; if the card is lost again"),
    (Cause.LOST, None, "Unsupported", BY_ITSELF),  # it was asked: it is back
    (Cause.LOST, None, "None", BY_ITSELF),
    (Cause.LOST, None, "NodeReboot", "drain the node and reboot it"),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "xid", "action", "told"), REMEDIES)
def test_the_remedy_is_the_drivers_word_then_the_catalogues_then_that_of_the_cause(cause, xid, action, told):
    (finding,) = diagnose(well(devices=(device(3, cause, "text", xid=xid, action=action),)))
    assert told in finding.remedy


def test_gpus_that_need_the_same_are_told_together_and_others_apart():
    same = [device(number, Cause.XID, "XID 95", xid=95, action="GPUReset") for number in (1, 3)]
    other = device(2, Cause.XID, "XID 95", xid=95, action="NodeReboot")
    findings = diagnose(well(devices=(same[0], other, same[1])))
    assert [finding.cause.partition(":")[0] for finding in findings] == ["GPUs 1, 3", f"GPU 2 ({uuid(2)}, 0000"]
    assert "--gpu-reset -i 1,3 on the node" in findings[0].remedy


def test_every_reason_for_withholding_has_a_remedy_of_its_own_or_the_common_one():
    sources = "".join((ROOT / f"nvdp/planning/{name}.py").read_text() for name in ("allotment", "fitting"))
    named = set(re.findall(r'reason="(\w+)"', sources)) | {"MIGInvalid", "MPSUnsupported"}
    assert set(remedies.WITHHELD) <= named


WALL = st.floats(min_value=0, max_value=2e9)
DAEMONS = st.builds(
    MpsDaemonStatus,
    phase=st.none() | st.sampled_from(Phase),
    text=st.sampled_from(["", NOT_FREE, "the driver is not there", "a change waits: pods still use it", "x"]),
    waits=st.booleans(),
    pending=st.sampled_from(["", "it ends"]),
    holders=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    waiting_users=st.lists(st.integers(0, 3), max_size=2).map(tuple),
)
STATUSES = st.builds(
    Status,
    ready=st.booleans(),
    reason=st.sampled_from(["", "Starting", "DriverLost", "NotRegistered", "ServiceRestarted"]),
    config=st.builds(ConfigStatus, pending_until=st.none() | WALL, refused=st.none() | st.text(max_size=20)),
    driver=st.from_type(DriverStatus),
    pause=st.none() | st.builds(Pause, since=WALL),
    unmatched=st.lists(st.text(max_size=20), max_size=3).map(tuple),
    troubles=st.lists(st.builds(Trouble, since=st.none() | WALL), max_size=3).map(tuple),
    waits=st.lists(st.builds(Wait, since=WALL, holders=st.lists(st.text()).map(tuple)), max_size=3).map(tuple),
    withheld=st.lists(st.from_type(Withheld), max_size=3).map(tuple),
    devices=st.lists(st.from_type(DeviceStatus), max_size=3).map(tuple),
    mps=st.builds(
        MpsStatus,
        problem=st.sampled_from(["", "silent"]),
        daemons=st.lists(DAEMONS, max_size=2).map(tuple),
        kept=st.dictionaries(st.sampled_from(["", "GPU-0"]), st.text()),
    ),
)


@given(STATUSES)
def test_any_status_can_be_diagnosed_and_what_is_not_ready_says_why(status):
    findings = diagnose(status)
    assert [one.gravity for one in findings] == sorted(one.gravity for one in findings)
    assert all(one.cause is not None and one.remedy for one in findings)
    if not status.ready:
        assert findings[0].gravity is Gravity.NOT_READY


@given(st.lists(st.text("abc", min_size=1), max_size=20))
def test_a_list_of_names_is_cut_to_five_and_counts_the_rest(names):
    text = join_some(names)
    assert (f"and {len(names) - 5} more" in text) == (len(names) > 5)


def test_a_text_that_a_trouble_has_is_not_repeated_for_the_devices_that_suffer_from_it():
    troubles = (Trouble(reason="CDIFailed", text="/var/run/cdi: read-only; no such hook"),)
    devices = tuple(device(number, Cause.CDI_MISSING, "/var/run/cdi: read-only") for number in range(2))
    why, whose = diagnose(well(troubles=troubles, devices=devices))
    assert (why.reason, why.cause) == ("CDIFailed", "/var/run/cdi: read-only; no such hook")
    assert (whose.reason, whose.cause) == ("DeviceUnhealthy", "GPUs 0, 1: CDIMissing; no new pods there")
    (alone,) = diagnose(well(devices=devices))
    assert alone.cause == "GPUs 0, 1: CDIMissing: /var/run/cdi: read-only; no new pods there"
