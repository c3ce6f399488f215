"""What is wrong, why, and what to do: the findings with which ``nvdp status`` begins, out of the daemon's state.

Pure, and for the side that asks: the daemon does not judge itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from nvdp.model.reasons import Cause, Reason
from nvdp.model.status import EXCLUDED, ConfigStatus, DeviceStatus, DriverState, Status, Trouble
from nvdp.planning import remedies
from nvdp.planning.diagnosis_mps import find_mps, list_down
from nvdp.planning.diagnosis_waits import find_renumbered, find_waits
from nvdp.planning.findings import Finding, Gravity, describe_moment, join_some, list_indices, name_devices

_PLACE: Final = re.compile(r"(?P<file>.+?):(?P<line>\d+):\d+: ")
_TOLD_ELSEWHERE: Final = frozenset(
    {Cause.DRIVER_LOST, Cause.DRIVER_PAUSED, Cause.CORDONED, Cause.HELD, Cause.WITHDRAWING}
)
_TOLD_AS_THEY_ARE: Final = frozenset({Reason.MIG_INVALID.word, Reason.MPS_UNSUPPORTED.word})  # of what is withheld
_DRIVER: Final = {
    DriverState.MISSING: Reason.DRIVER_MISSING,
    DriverState.MISMATCH: Reason.DRIVER_MISMATCH,
    DriverState.LOST: Reason.DRIVER_LOST,
}


def diagnose(status: Status) -> tuple[Finding, ...]:
    """Everything worth telling, the gravest first. A status that is not ready has at least one finding."""
    found = [finding for rule in _RULES for finding in rule(status)]
    if not status.ready and all(finding.gravity is not Gravity.NOT_READY for finding in found):
        found.append(_explain_start(status))
    return tuple(sorted(found, key=lambda finding: finding.gravity))


def _find_driver(status: Status) -> Iterator[Finding]:
    driver = status.driver
    if driver.state not in _DRIVER:
        return
    is_wanted = not status.ready or status.devices  # else a node without GPUs, and the file allows for it
    yield Finding(
        reason=_DRIVER[driver.state].word,
        gravity=_judge(status, Gravity.DEGRADED if is_wanted else Gravity.NOTE),
        cause=driver.text,
        remedy=remedies.DRIVER_ERRORS.get(driver.error) or remedies.DRIVER[driver.state],
    )


def _find_pause(status: Status) -> Iterator[Finding]:
    pause = status.pause
    if pause is None:
        return
    since = f" since {describe_moment(pause.since)}" if pause.since else ""
    file_too = status.config.paused and not pause.by.startswith(remedies.FILE_PAUSES)
    too = f", and by {remedies.FILE_PAUSES} of {status.config.source}" if file_too else ""
    yield Finding(
        reason=Reason.DRIVER_PAUSED.word,
        gravity=_judge(status),
        cause=f"{pause}{since}{too}: all devices Unhealthy, no new pods; the driver is let go of",
        remedy=remedies.find_pause_remedy(pause.by, file_too=file_too).format(file=status.config.source),
    )


def _find_config(status: Status) -> Iterator[Finding]:
    config = status.config
    in_force = f"{config.hash} stays in force" if config.hash else "nothing is in force"
    gravity = Gravity.DEGRADED if config.hash else Gravity.NOT_READY
    reason, remedy = _find_absence(config)
    if reason is not None:
        cause = f"{config.waiting or config.refused} ({in_force})"
        yield Finding(reason=reason.word, gravity=gravity, cause=cause, remedy=remedy)
    elif config.refused is not None:
        place = _PLACE.match(config.refused)
        count = f"the first of {config.problems} errors; " if config.problems > 1 else ""
        where = f"line {place['line']} of {place['file']}" if place else "the file"
        check = f"; nvdp config check {place['file']} shows all" if place and config.problems > 1 else ""
        yield Finding(
            reason=Reason.CONFIG_REFUSED.word,
            gravity=gravity,
            cause=f"{config.refused} ({count}{in_force})",
            remedy=f"correct {where}{check}. It is applied by itself",
        )
    if config.pending and config.pending_until is not None:
        cause = f"the edit {config.pending} waits until {describe_moment(config.pending_until)} (--apply-jitter)"
        remedy = "wait, or send SIGHUP to nvdp to have it now: kill -HUP 1 in its container"
        yield Finding(reason=Reason.CONFIG_APPLIED.word, gravity=Gravity.NOTE, cause=cause, remedy=remedy)


def _find_absence(config: ConfigStatus) -> tuple[Reason | None, str]:
    """Why there is no newest configuration to be judged, if so, and what to do."""
    if config.waiting:
        return Reason.CONFIG_MISSING, remedies.CONFIG_WAITING
    if config.unknown:
        return Reason.CONFIG_UNKNOWN, remedies.CONFIG_UNKNOWN
    return (Reason.CONFIG_MISSING, remedies.CONFIG_MISSING) if config.missing else (None, "")


def _find_registration(status: Status) -> Iterator[Finding]:
    waiting: dict[str, list[str]] = {}
    told = list_down(status)
    for resource in status.resources:
        is_given_out = bool(resource.healthy + resource.unhealthy)
        if not resource.registered and resource.planned and (is_given_out or resource.name not in told):
            waiting.setdefault(resource.missing or "not registered yet", []).append(resource.name)
    for missing, names in waiting.items():
        remedy = next((text for part, text in remedies.REGISTRATION if part in missing), remedies.REGISTRATION_ELSE)
        cause = f"{join_some(names)}: {missing}"
        yield Finding(reason=Reason.REGISTRATION_FAILED.word, gravity=_judge(status), cause=cause, remedy=remedy)


def _find_troubles(status: Status) -> Iterator[Finding]:
    for trouble in status.troubles:
        since = f" (since {describe_moment(trouble.since)})" if trouble.since is not None else ""
        yield Finding(
            reason=trouble.reason,
            gravity=_weigh(status, trouble),
            cause=f"{trouble.text}{since}",
            remedy=trouble.remedy or remedies.TROUBLE.get(trouble.reason, f"see {trouble.reason} in the log"),
        )


def _find_ailing(status: Status) -> Iterator[Finding]:
    users = _find_users(status)
    groups: dict[tuple[Cause, str, str, int | None], list[DeviceStatus]] = {}
    for device in status.devices:
        if device.cause is not None and device.cause not in _TOLD_ELSEWHERE and device.withheld != EXCLUDED:
            groups.setdefault((device.cause, device.text, device.action, device.xid), []).append(device)
    for (cause, text, action, xid), devices in groups.items():
        pods = sorted({pod for device in devices for pod in users.get(device.uuid, ())})
        used = f"; used by {join_some(pods)}" if pods else ""
        what = cause.value if any(text in trouble.text for trouble in status.troubles) else f"{cause.value}: {text}"
        yield Finding(
            reason=Reason.DEVICE_UNHEALTHY.word,
            gravity=Gravity.DEGRADED,
            cause=f"{name_devices(devices)}: {what}; no new pods there{used}",
            remedy=remedies.find_device_remedy(cause, action=action, xid=xid).format(index=list_indices(devices)),
        )


def _find_unreadable(status: Status) -> Iterator[Finding]:
    for gpu in status.unreadable:
        place = f" ({gpu.pci})" if gpu.pci else ""
        yield Finding(
            reason=Reason.DEVICE_UNHEALTHY.word,
            gravity=Gravity.DEGRADED,
            cause=f"GPU {gpu.index}{place} has no UUID, and cannot be on offer without: {gpu.fault.text}",
            remedy=remedies.DEVICE[Cause.CALL_FAILED].format(index=gpu.index),
        )


def _find_nameless(status: Status) -> Iterator[Finding]:
    for device in status.devices:
        for text in device.nameless if device.withheld != EXCLUDED else ():
            yield Finding(
                reason=Reason.MIG_INVALID.word,
                gravity=Gravity.DEGRADED,
                cause=f"{text}; it cannot be on offer without",
                remedy=remedies.DEVICE[Cause.CALL_FAILED].format(index=device.index),
            )


def _find_withheld(status: Status) -> Iterator[Finding]:
    by_uuid = {device.uuid: device for device in status.devices}
    groups: dict[tuple[str, str, str], list[DeviceStatus]] = {}
    for one in status.withheld:
        if one.reason != EXCLUDED and one.gpu_uuid in by_uuid:
            groups.setdefault((one.reason, one.path, one.text), []).append(by_uuid[one.gpu_uuid])
    for (reason, path, text), devices in groups.items():
        yield Finding(
            reason=reason if reason in _TOLD_AS_THEY_ARE else Reason.ENTRY_WITHHELD.word,
            gravity=Gravity.DEGRADED,
            cause=f"{path}: {text}; not on offer: {name_devices(devices)}",
            remedy=remedies.WITHHELD.get(reason, remedies.WITHHELD_ELSE).format(path=path, file=status.config.source),
        )


def _find_pending(status: Status) -> Iterator[Finding]:
    groups: dict[str, list[DeviceStatus]] = {}
    for device in status.devices:
        if device.mig_pending and device.withheld != EXCLUDED:
            groups.setdefault(device.mig_pending, []).append(device)
    for mode, devices in groups.items():
        yield Finding(
            reason=Reason.MIG_LAYOUT_CHANGED.word,
            gravity=Gravity.NOTE,
            cause=f"{name_devices(devices)}: MIG mode is {mode} after a reset of the GPU, and not before",
            remedy=remedies.PENDING.format(index=list_indices(devices)),
        )


def _find_unmatched(status: Status) -> Iterator[Finding]:
    for sentence in status.unmatched:
        yield Finding(
            reason=Reason.CONFIG_REFERENCE_UNMATCHED.word,
            gravity=Gravity.NOTE,
            cause=sentence,
            remedy=f"compare with nvdp devices; correct it in {status.config.source}, unless other nodes share that",
        )


def _find_cordoned(status: Status) -> Iterator[Finding]:
    groups: dict[str, list[DeviceStatus]] = {}
    for device in status.devices:
        if device.cause is Cause.CORDONED:
            groups.setdefault(device.cordon, []).append(device)
    for path, devices in groups.items():
        yield Finding(
            reason=Reason.DEVICE_CORDONED.word,
            gravity=Gravity.NOTE,
            cause=f"{name_devices(devices)}: no new pods there, as {path} says",
            remedy=remedies.DEVICE[Cause.CORDONED].format(path=path, file=status.config.source),
        )


def _find_faulty_cordoned(status: Status) -> Iterator[Finding]:
    groups: dict[tuple[Cause, str, str, int | None], list[DeviceStatus]] = {}
    for device in status.devices:
        if device.fault is not None and device.fault not in _TOLD_ELSEWHERE:
            groups.setdefault((device.fault, device.fault_text, device.action, device.xid), []).append(device)
    for (cause, text, action, xid), devices in groups.items():
        yield Finding(
            reason=Reason.DEVICE_UNHEALTHY.word,
            gravity=Gravity.NOTE,
            cause=f"{name_devices(devices)}: {cause.value}: {text}; cordoned, and it would not be Healthy without that",
            remedy=remedies.find_device_remedy(cause, action=action, xid=xid).format(index=list_indices(devices)),
        )


_RULES: Final[tuple[Callable[[Status], Iterator[Finding]], ...]] = (
    _find_driver,
    _find_pause,
    _find_config,
    _find_registration,
    find_mps,
    _find_troubles,
    _find_ailing,
    _find_unreadable,
    _find_nameless,
    _find_withheld,
    find_renumbered,
    find_waits,
    _find_pending,
    _find_unmatched,
    _find_cordoned,
    _find_faulty_cordoned,
)


def _explain_start(status: Status) -> Finding:
    """Not ready, and nothing is wrong: it has not come far enough."""
    if status.config.hash:
        what, remedy = "asking the driver for the first time", "wait; a driver may take a minute to start"
    else:
        what = "reading the configuration"
        remedy = "wait; where the node's label chooses it, the API server may be asked a minute later, by chance"
    return Finding(reason=status.reason, gravity=Gravity.NOT_READY, cause=f"nvdp is {what}", remedy=remedy)


def _judge(status: Status, otherwise: Gravity = Gravity.DEGRADED) -> Gravity:
    return otherwise if status.ready else Gravity.NOT_READY


def _weigh(status: Status, trouble: Trouble) -> Gravity:
    if not status.ready and trouble.reason == status.reason:
        return Gravity.NOT_READY
    return Gravity.NOTE if trouble.note else Gravity.DEGRADED


def _find_users(status: Status) -> Mapping[str, Iterable[str]]:
    """The pods on each GPU, by UUID."""
    users: dict[str, dict[str, None]] = {}
    for holding in status.holders:
        users.setdefault(holding.device_id.partition("::")[0], {})[holding.holder] = None
    return users
