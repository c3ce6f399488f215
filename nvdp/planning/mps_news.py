"""What is worth telling of the daemons of MPS when they are seen anew: each change of state once, in a sentence."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from nvdp.model.mps import CLIENT_DIR, DaemonReport, DaemonSpec, MpsView, Phase
from nvdp.model.reasons import Reason
from nvdp.planning.mps_pending import Pending
from nvdp.planning.mps_verdicts import Sort, is_out_of_order, judge_text
from nvdp.planning.wording import Announcement, join_some


class _Daemon(msgspec.Struct, frozen=True):
    """What was told of one daemon."""

    phase: Phase
    pid: int | None
    restarts: int
    exit_code: int | None
    running: DaemonSpec | None


class Told(msgspec.Struct, frozen=True):
    """What was told: that nobody tells of the daemons, or how each one is, by resource."""

    silence: bool = False
    daemons: Mapping[str, _Daemon] = {}


_ORDERED: Final = frozenset({Phase.WAITING, Phase.STOPPING})  # no failure, and what comes after it is news


def announce_mps(told: Told, view: MpsView, needed: Collection[str]) -> tuple[Told, tuple[Announcement, ...]]:
    """What is told by now, and what is news: of the daemons of the resources that are ``needed``, in order of name.

    A silence of ``nvdp mps`` is told once for all of them, and after it each daemon that answers.
    """
    names = sorted(needed)
    if not names:
        return Told(), ()
    if view.problem:
        return Told(silence=True), () if told.silence else (_tell_silence(view.problem, names),)
    daemons: dict[str, _Daemon] = {}
    news: list[Announcement] = []
    for resource in names:
        before, report = told.daemons.get(resource), view.daemons.get(resource)
        if report is None or not _is_lasting(report):
            if before is not None and (report is None or report.phase not in _ORDERED):
                daemons[resource] = before
            continue
        daemons[resource] = _Daemon(report.phase, report.pid, report.restarts, report.exit_code, report.running)
        news += _compare(resource, before, report)
    return Told(daemons=daemons), tuple(news)


def announce_pending(before: Mapping[str, Pending], after: Mapping[str, Pending]) -> tuple[Announcement, ...]:
    """What daemons begin to wait with for pods, by resource. That it is over is told by the daemon's next start."""
    found = []
    for resource, one in sorted(after.items()):
        known = before.get(resource)
        if one.holders and (known is None or not known.holders or known.text != one.text):
            pods = join_some(one.holders)
            text = f"{resource}: MPS control daemon stays as it is while pods have shares ({pods}); then {one.text}"
            fields = {"resource": resource, "pods": list(one.holders)}
            found.append(Announcement(Reason.MODE_CHANGE_WAITING, text, fields))
    return tuple(found)


def _is_lasting(report: DaemonReport) -> bool:
    return report.phase is Phase.READY or is_out_of_order(report.phase, report.text)


def _compare(resource: str, before: _Daemon | None, report: DaemonReport) -> list[Announcement]:
    if report.phase is not Phase.READY:
        is_same = before is not None and (before.phase, before.exit_code) == (report.phase, report.exit_code)
        return [] if is_same else [_tell_failed(resource, report)]
    if before is None or before.phase is not Phase.READY:
        return [_tell_ready(resource, report)]
    if before.pid == report.pid:
        return []
    # It died and was back before anybody looked, unless it was started anew for a change, or by another nvdp mps.
    died = report.restarts > before.restarts and report.running == before.running
    return [*([_tell_failed(resource, report, "it has ended")] if died else []), _tell_ready(resource, report)]


def _tell_silence(problem: str, resources: list[str]) -> Announcement:
    text = f"{join_some(resources)}: {problem}; no new pods there, running ones are left alone"
    return Announcement(Reason.MPS_DAEMON_FAILED, text, {"resources": resources})


def _tell_ready(resource: str, report: DaemonReport) -> Announcement:
    gpus = list(report.running.gpus) if report.running is not None else []
    text = f"{resource}: the MPS control daemon answers on {CLIENT_DIR}/{resource}/pipe, for {join_some(gpus)}"
    return Announcement(Reason.MPS_DAEMON_READY, text, {"resource": resource, "devices": gpus})


def _tell_failed(resource: str, report: DaemonReport, text: str = "") -> Announcement:
    sort = judge_text(report.phase, text or report.text).sort
    reason = Reason.MPS_UNSUPPORTED if sort is Sort.UNSUPPORTED else Reason.MPS_DAEMON_FAILED
    if report.phase in {Phase.WAITING, Phase.REFUSED}:
        text = f"{resource}: no MPS control daemon: {report.text}"
    else:
        why = describe_end(text or report.text, report.exit_code, report.last_lines)
        text = f"{resource}: MPS control daemon is down: {why}"
    fields: dict[str, object] = {"resource": resource, "last_lines": list(report.last_lines)}
    if report.exit_code is not None:
        fields["exitCode"] = report.exit_code
    return Announcement(reason, text, fields)


def describe_end(text: str, exit_code: int | None, last_lines: Collection[str]) -> str:
    """Why a daemon does not answer, with its exit code and the last line of its log where the text has neither."""
    parts = [text or "it does not answer"]
    if exit_code is not None and not any(word in text for word in ("exit code", "signal ")):
        parts.append(f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}")
    last = next(iter(reversed([*last_lines])), "")
    if last and last not in text:
        parts.append(f"its log ends with: {last}")
    return "; ".join(parts)
