"""What waits for pods to end, as findings: mode changes, IDs that leave, GPUs that take no new pods for their index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nvdp.model.reasons import Cause, Reason
from nvdp.model.status import Status, Wait
from nvdp.planning import remedies
from nvdp.planning.findings import Finding, Gravity, describe_moment, join_some, name_devices


def find_waits(status: Status) -> Iterator[Finding]:
    by_uuid = {device.uuid: device for device in status.devices}
    groups: dict[tuple[str, str], list[Wait]] = {}
    for wait in status.waits:
        if wait.holders and not wait.text:  # the rest is a matter of seconds
            groups.setdefault((wait.before, wait.after), []).append(wait)
    for (before, after), waits in groups.items():
        pods = list(dict.fromkeys(pod for wait in waits for pod in wait.holders))
        devices = [by_uuid[wait.gpu_uuid] for wait in waits if wait.gpu_uuid in by_uuid]
        what = f"{before} → {after}" if after else f"{sum(wait.devices for wait in waits)} of {before} leave, and"
        verb = "waits" if after else "wait"
        since = describe_moment(min(wait.since for wait in waits))
        yield Finding(
            reason=Reason.MODE_CHANGE_WAITING.word if after else Cause.WITHDRAWING.value,
            gravity=Gravity.NOTE,
            cause=f"{name_devices(devices) or waits[0].gpu_uuid}: {what} {verb} for {join_some(pods)} since {since}",
            remedy=f"{remedies.DEVICE[Cause.HELD if after else Cause.WITHDRAWING]}{_hasten(pods)}",
        )


def find_renumbered(status: Status) -> Iterator[Finding]:
    by_uuid = {device.uuid: device for device in status.devices}
    for wait in status.waits:
        if wait.text:
            devices = [by_uuid[wait.gpu_uuid]] if wait.gpu_uuid in by_uuid else []
            name, since = name_devices(devices) or wait.gpu_uuid, describe_moment(wait.since)
            yield Finding(
                reason=Reason.DEVICE_UNHEALTHY.word,
                gravity=Gravity.DEGRADED,
                cause=f"{name}: {Cause.HELD.value}: {wait.text}; no new pods since {since}",
                remedy=f"{remedies.RENUMBERED}{_hasten(wait.holders) if wait.holders else ''}",
            )


def _hasten(pods: Sequence[str]) -> str:
    """The command for the first of them; from the kubelet's checkpoint no more than a pod's UID is known."""
    namespace, slash, pod = pods[0].partition("/")
    return f", or end them: kubectl -n {namespace} delete pod {pod}" if slash else ""
