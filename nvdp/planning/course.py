"""The health of one GPU over time, as far as faults go: what is known of it, and what follows from that now.

Values only; how they change is ``planning/recovery``'s. ``planning/presence`` has the other half of health: whether the
GPU is there and answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from nvdp.model.health import Ailment, InstanceRef
from nvdp.model.reasons import Cause
from nvdp.planning.vitals import NO_ACTION, Baseline, Finding, describe_action

FLAPPING_RELAPSES: Final = 3
FLAPPING_WITHIN_S: Final = 3600.0
_DISTRUST: Final = 10  # hold-offs, where probes must do for a reset
_MOST_DOUBLINGS: Final = 32


class RecoveryRules(msgspec.Struct, frozen=True, kw_only=True):
    """The file's ``health.recovery``, in seconds. A hold-off of 0 means that nothing recovers by itself."""

    hold_off_s: float = 60.0
    max_hold_off_s: float = 3600.0
    trusts_probes: bool = False


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to a GPU, or to one MIG instance of it, and is not over. ``since`` is wall time.

    ``was_reset``: there has been evidence of a reset since it last happened.
    """

    cause: Cause
    text: str
    since: float
    xid: int | None = None
    instance: InstanceRef | None = None
    needs_reset: bool = False
    was_reset: bool = False


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of a GPU over restarts, as JSON. All times are wall time.

    ``faults`` are in the order of their weight, one of a kind: the first XID of a class stands for those that follow
    it. ``relapsed_at`` are the newest relapses, ``contained_at`` is when a contained memory error was last reported.
    """

    boot_id: str = ""
    faults: tuple[Fault, ...] = ()
    is_gone: bool = False
    relapses: int = 0
    relapsed_at: tuple[float, ...] = ()
    recovered_at: float | None = None
    contained_at: float | None = None
    baseline: Baseline = Baseline()


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one GPU. ``clean_since`` is monotonic seconds, None unless the last probe was clean.

    ``action`` is the driver's word of the last probe, empty if the GPU was not asked since its last fault. ``standing``
    is what that probe found that has no end of itself, ``unready`` a stage that the GPU has to pass, ``failing`` the
    NVML calls that failed.
    """

    record: Record = Record()
    clean_since: float | None = None
    action: str = ""
    standing: tuple[Finding, ...] = ()
    unready: Fault | None = None
    failing: tuple[str, ...] = ()


def find_ailment(course: Course, rules: RecoveryRules, *, instance: InstanceRef | None = None) -> Ailment | None:
    """What ails the GPU (whatever instance of it), or that instance; None if it may be given to pods.

    The text says what happened, and what the driver asks for or what the recovery waits for.
    """
    faults = [fault for fault in course.record.faults if instance is None or _concerns(fault, instance)]
    if faults:
        first = faults[0]
        since = min(fault.since for fault in faults)
        rest = _describe_outlook(faults, course, rules)
        text = f"{first.text}; {rest}" if rest else first.text
        return Ailment(cause=first.cause, text=text, since=since, xid=first.xid, action=course.action)
    if course.unready is None:
        return None
    unready = course.unready
    return Ailment(cause=unready.cause, text=unready.text, since=unready.since, action=course.action)


def find_next_look(course: Course, rules: RecoveryRules) -> float | None:
    """When a probe, if it is clean, may end a fault: monotonic seconds. None while none would."""
    if course.clean_since is None:
        return None
    waits = (find_wait(fault, course, rules) for fault in course.record.faults)
    return min((course.clean_since + wait for wait in waits if wait is not None), default=None)


def find_wait(fault: Fault, course: Course, rules: RecoveryRules) -> float | None:
    """For how long probes must have been clean to end this fault, in seconds; None if they alone never do."""
    if not rules.hold_off_s:
        return None
    hold_off_s = compute_hold_off(course.record, rules)
    if course.action == NO_ACTION or not fault.needs_reset or fault.was_reset:
        return hold_off_s
    return _DISTRUST * hold_off_s if rules.trusts_probes else None


def compute_hold_off(record: Record, rules: RecoveryRules) -> float:
    """The hold-off now, in seconds: doubled with each relapse up to the limit, and never less than it is at first."""
    doubled = rules.hold_off_s * 2.0 ** min(record.relapses, _MOST_DOUBLINGS)
    return max(rules.hold_off_s, min(doubled, rules.max_hold_off_s))


def is_flapping(before: Course, after: Course) -> bool:
    """Whether the GPU relapsed between these two states, for the third time within an hour or more often."""
    times = after.record.relapsed_at
    if times == before.record.relapsed_at or len(times) < FLAPPING_RELAPSES:
        return False
    return times[-1] - times[-FLAPPING_RELAPSES] <= FLAPPING_WITHIN_S


def describe_recovery(before: Course, after: Course, *, now: float) -> str:
    """Why the GPU is Healthy again: ``clean for 120s, the driver asks for nothing``. Empty if nobody waited for it."""
    if before.clean_since is None:
        return ""
    clean = f"clean for {now - before.clean_since:.0f}s"
    return f"{clean}, the driver asks for nothing" if after.action == NO_ACTION else clean


def _concerns(fault: Fault, instance: InstanceRef) -> bool:
    """Whether a fault is of all the GPU, of the whole GPU instance, or of this very instance."""
    if fault.instance is None or fault.instance.gpu != instance.gpu:
        return fault.instance is None
    return None in {fault.instance.compute, instance.compute} or fault.instance.compute == instance.compute


def _describe_outlook(faults: Sequence[Fault], course: Course, rules: RecoveryRules) -> str:
    """What has to happen for all of these to end; empty while the GPU was not asked since."""
    if asked := describe_action(course.action):
        return "" if faults[0].cause is Cause.RECOVERY_ACTION else f"the driver asks for {asked}"
    if course.failing:
        return f"does not recover while {', '.join(course.failing)} fails"
    if not course.action:
        return ""
    waits = [find_wait(fault, course, rules) for fault in faults]
    known = [wait for wait in waits if wait is not None]
    if len(known) == len(waits):
        return f"recovers after {max(known):g}s without a fault"
    return "recovers after a reset of the GPU" if rules.hold_off_s else "recovers by `nvdp health clear` only"
