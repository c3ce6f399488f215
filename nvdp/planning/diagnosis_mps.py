"""What is wrong with the control daemons of MPS, and what they wait for, as findings."""

from __future__ import annotations

from collections.abc import Iterator

from nvdp.model.mps import Phase
from nvdp.model.reasons import Cause, Reason
from nvdp.model.status import DeviceStatus, DriverState, MpsDaemonStatus, Status
from nvdp.planning import remedies
from nvdp.planning.findings import Finding, Gravity, join_some, list_indices, name_devices
from nvdp.planning.mps_news import describe_end
from nvdp.planning.mps_verdicts import Sort, judge_text, split_option

_FAULT = "fault"
_GPUS = "{gpus}"
_REASONS = {Sort.PODS: Reason.MODE_CHANGE_WAITING, Sort.UNSUPPORTED: Reason.MPS_UNSUPPORTED}


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
    verdict = judge_text(daemon.phase, daemon.text)
    if daemon.waits and any(wait.after.partition(" (")[0] == daemon.resource for wait in status.waits):
        return  # it is told of each GPU, with the pods that it waits for
    why = daemon.text
    if daemon.phase is Phase.FAILED:
        why = describe_end(daemon.text, daemon.exit_code, daemon.last_lines)
    told = ": ".join(filter(None, ["not started yet" if daemon.phase is Phase.WAITING else daemon.phase.value, why]))
    is_note = daemon.waits or verdict.sort is Sort.MOMENT
    yield Finding(
        reason=_REASONS.get(verdict.sort, Reason.MPS_DAEMON_FAILED).word,
        gravity=_judge(status, Gravity.NOTE if is_note else Gravity.DEGRADED),
        cause=f"{daemon.resource}: MPS control daemon {told}; no new pods there",
        remedy=verdict.remedy.format(file=status.config.source),
    )


def _find_kept(status: Status) -> Iterator[Finding]:
    """What is to be offered otherwise than by MPS, and waits for ``nvdp mps``: once for all that wait for the same.

    What waits for the pods of a daemon is told of that daemon.
    """
    told = {gpu for daemon in status.mps.daemons if daemon.pending and daemon.holders for gpu in daemon.gpus}
    by_text: dict[str, list[DeviceStatus]] = {}
    for device in status.devices:
        gpu = device.parent_uuid or device.uuid
        if device.uuid in status.mps.kept and gpu not in told:
            by_text.setdefault(status.mps.kept[device.uuid].replace(gpu, _GPUS), []).append(device)
    for text, devices in by_text.items():
        yield Finding(
            reason=Reason.MODE_CHANGE_WAITING.word,
            gravity=_judge(status, Gravity.NOTE),
            cause=(
                f"{name_devices(devices)}: {Cause.HELD.value}: {text.replace(_GPUS, list_indices(devices))}; "
                "no new pods there"
            ),
            remedy=remedies.MPS_KEPT,
        )


def _find_wait(status: Status, daemon: MpsDaemonStatus) -> Iterator[Finding]:
    """It answers, and waits with a change, or does without something. A GPU that is to join or leave takes no pods."""
    text, lacks_option = split_option(daemon.text)
    if lacks_option:
        yield Finding(
            reason=Reason.MPS_UNSUPPORTED.word,
            gravity=Gravity.NOTE,
            cause=f"{daemon.resource}: this driver serves one user at a time: pods of others wait without an error",
            remedy=remedies.MPS_NO_OPTION.format(file=status.config.source),
        )
    if daemon.pending and daemon.holders:
        yield Finding(
            reason=Reason.MODE_CHANGE_WAITING.word,
            gravity=Gravity.NOTE,
            cause=(
                f"{daemon.resource}: MPS control daemon stays as it is while pods have shares "
                f"({join_some(daemon.holders)}); then {daemon.pending}"
            ),
            remedy=remedies.MPS_PENDING.format(file=status.config.source),
        )
    elif text:
        verdict = judge_text(Phase.READY, text)
        waits = verdict.sort in {Sort.PODS, Sort.MOMENT}
        yield Finding(
            reason=(Reason.MODE_CHANGE_WAITING if waits else Reason.MPS_UNSUPPORTED).word,
            gravity=Gravity.NOTE,
            cause=f"{daemon.resource}: MPS control daemon stays as it is: {text}",
            remedy=verdict.remedy.format(file=status.config.source),
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
        is_by_file = not daemon.multi_user and not split_option(daemon.text)[1]
        users = join_some([str(uid) for uid in daemon.waiting_users])
        yield Finding(
            reason=Reason.MPS_UNSUPPORTED.word,
            gravity=Gravity.DEGRADED,
            cause=f"{daemon.resource}: clients of user {users} wait until those of another user have ended",
            remedy=(remedies.MPS_USERS if is_by_file else remedies.MPS_USERS_OF_OLD).format(file=status.config.source),
        )


def _judge(status: Status, otherwise: Gravity) -> Gravity:
    return otherwise if status.ready else Gravity.NOT_READY
