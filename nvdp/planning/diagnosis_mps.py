"""What is wrong with the control daemons of MPS, and what they wait for, as findings."""

from __future__ import annotations

from collections.abc import Iterator

from nvdp.model.mps import Phase
from nvdp.model.reasons import Cause, Reason
from nvdp.model.status import DeviceStatus, DriverState, MpsDaemonStatus, Status
from nvdp.planning import remedies
from nvdp.planning.findings import Finding, Gravity, join_some, list_indices, name_devices
from nvdp.planning.mps_news import describe_end

_FAULT = "fault"
_IN_USE = "pods still use it"  # what a daemon waits for, in the words of daemon_course
_GPUS = "{gpus}"
_PASSING = frozenset({Phase.STARTING, Phase.STOPPING})


def find_mps(status: Status) -> Iterator[Finding]:
    """One finding for each thing. While the driver is not usable all of it follows from that."""
    if status.driver.state is not DriverState.READY:
        return
    yield from _find_kept(status)
    daemons = status.mps.daemons
    if status.mps.problem:
        yield Finding(
            reason=Reason.MPS_DAEMON_FAILED.word,
            gravity=_judge(status, Gravity.DEGRADED),
            cause=f"{join_some([one.resource for one in daemons])}: {status.mps.problem}; no new pods there",
            remedy=remedies.MPS_AWAY,
        )
        return
    for daemon in daemons:
        yield from _find_down(status, daemon) if not daemon.is_up else _find_wait(status, daemon)
        yield from _find_faults(daemon)
        yield from _find_users(status, daemon)


def list_down(status: Status) -> frozenset[str]:
    """The resources that are not given out for what ``find_mps`` tells."""
    if status.driver.state is not DriverState.READY:
        return frozenset()
    return frozenset(daemon.resource for daemon in status.mps.daemons if not daemon.is_up)


def _find_down(status: Status, daemon: MpsDaemonStatus) -> Iterator[Finding]:
    if daemon.phase is None:
        yield Finding(
            reason=Reason.MPS_DAEMON_FAILED.word,
            gravity=_judge(status, Gravity.DEGRADED),
            cause=f"{daemon.resource}: nvdp mps does not know that it needs an MPS control daemon; no new pods there",
            remedy=remedies.MPS_UNKNOWN,
        )
        return
    if daemon.phase is Phase.WAITING:
        yield from _find_start(status, daemon)
        return
    why = daemon.text
    if daemon.phase is Phase.FAILED:
        why = describe_end(daemon.text, daemon.exit_code, daemon.last_lines)
    told = ": ".join(filter(None, [daemon.phase.value, why]))
    yield Finding(
        reason=(Reason.MPS_UNSUPPORTED if daemon.phase is Phase.REFUSED else Reason.MPS_DAEMON_FAILED).word,
        gravity=_judge(status, Gravity.NOTE if daemon.phase in _PASSING else Gravity.DEGRADED),
        cause=f"{daemon.resource}: MPS control daemon {told}; no new pods there",
        remedy=remedies.MPS[daemon.phase].format(file=status.config.source),
    )


def _find_start(status: Status, daemon: MpsDaemonStatus) -> Iterator[Finding]:
    """It waits to be started; for pods that hold its GPUs otherwise, which is told of each GPU."""
    if all(wait.after.partition(" (")[0] != daemon.resource for wait in status.waits):
        yield Finding(
            reason=Reason.MODE_CHANGE_WAITING.word,
            gravity=_judge(status, Gravity.NOTE),
            cause=f"{daemon.resource}: MPS control daemon not started yet: {daemon.text or 'its GPUs are not free'}",
            remedy=remedies.MPS[Phase.WAITING],
        )


def _find_kept(status: Status) -> Iterator[Finding]:
    """What is to be offered otherwise than by MPS, and waits for ``nvdp mps``: once for all that wait for the same."""
    by_text: dict[str, list[DeviceStatus]] = {}
    for device in status.devices:
        if device.uuid in status.mps.kept:
            text = status.mps.kept[device.uuid].replace(device.parent_uuid or device.uuid, _GPUS)
            by_text.setdefault(text, []).append(device)
    for text, devices in by_text.items():
        told = text.replace(_GPUS, list_indices(devices))
        yield Finding(
            reason=Reason.MODE_CHANGE_WAITING.word,
            gravity=_judge(status, Gravity.NOTE),
            cause=f"{name_devices(devices)}: {Cause.HELD.value}: {told}; no new pods there",
            remedy=remedies.MPS_KEPT,
        )


def _find_wait(status: Status, daemon: MpsDaemonStatus) -> Iterator[Finding]:
    """It answers, and waits with a change. A GPU that could join it and does not is told of: it takes no pods."""
    if not daemon.text:
        return
    held = list(dict.fromkeys(one.holder for one in status.holders if one.resource == daemon.resource))
    waiting = {wait.gpu_uuid for wait in status.waits}  # for pods that have them otherwise
    mine = [device for device in status.devices if device.resource == daemon.resource]
    late = [one for one in mine if one.healthy and one.uuid not in waiting and one.uuid not in daemon.gpus]
    remedy, what = remedies.MPS[Phase.WAITING], daemon.text
    if late and held and _IN_USE in daemon.text:
        remedy = remedies.MPS_JOIN.format(file=status.config.source)
        what = f"{len(late)} of {len(mine)} GPUs join it once no pod has a share; now {join_some(held)}"
    yield Finding(
        reason=Reason.MODE_CHANGE_WAITING.word,
        gravity=Gravity.NOTE,
        cause=f"{daemon.resource}: MPS control daemon stays as it is: {what}",
        remedy=remedy,
    )


def _find_faults(daemon: MpsDaemonStatus) -> Iterator[Finding]:
    faulty = [str(server.pid) for server in daemon.servers if server.state == _FAULT]
    if faulty:
        yield Finding(
            reason=Reason.MPS_DAEMON_FAILED.word,
            gravity=Gravity.DEGRADED,
            cause=f"{daemon.resource}: MPS server in FAULT, which refuses new clients (PID {join_some(faulty)})",
            remedy=remedies.MPS_FAULT,
        )


def _find_users(status: Status, daemon: MpsDaemonStatus) -> Iterator[Finding]:
    if daemon.waiting_users:
        users = join_some([str(uid) for uid in daemon.waiting_users])
        yield Finding(
            reason=Reason.MPS_UNSUPPORTED.word,
            gravity=Gravity.DEGRADED,
            cause=f"{daemon.resource}: clients of user {users} wait until those of another user have ended",
            remedy=remedies.MPS_USERS.format(file=status.config.source),
        )


def _judge(status: Status, otherwise: Gravity) -> Gravity:
    return otherwise if status.ready else Gravity.NOT_READY
