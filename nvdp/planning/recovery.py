"""When a GPU that had a fault is trusted again: a state machine for each GPU, pure, with the time passed in.

A fault ends when probes have been clean without a break for the hold-off, and the last of them says so; the operator's
word ends it at once. Before that, the driver's recovery action must be none. Where the driver does not report one, a
fault that needs a reset ends only after evidence of one (the GPU gone and back, the driver reloaded, a reboot), or,
where the rules trust probes, after ten times the hold-off. Each relapse doubles the hold-off; 24 hours of health make
the next fault a first one again. A restart of the plugin is no cure: ``Record`` is kept, and the hold-off begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from nvdp.model.health import InstanceRef, Vitals
from nvdp.model.reasons import Cause
from nvdp.planning.course import FLAPPING_RELAPSES, Course, Fault, Record, RecoveryRules, find_wait
from nvdp.planning.vitals import Baseline, Examination, Finding, Nature, Surroundings, examine
from nvdp.planning.xids import describe_xid

FORGIVEN_AFTER_S: Final = 86400.0
# A contained memory error also counts as an uncorrected one, and is as a rule read there with the next probe.
_CONTAINED_XID: Final = 94
_EXPLAINED_FOR_S: Final = 120.0
# The more it tells, the earlier it is told: the driver's wish shows with every other cause anyway.
_BY_WEIGHT: Final = (
    Cause.XID,
    Cause.ECC,
    Cause.LOST,
    Cause.ROW_REMAP_FAILURE,
    Cause.RETIRED_PAGES_PENDING,
    Cause.FABRIC_DEGRADED,
    Cause.RECOVERY_ACTION,
)


class Cleared(msgspec.Struct, frozen=True):
    """The operator says that the GPU is well. What probes still read of it stays, the past is forgiven."""


class DriverReset(msgspec.Struct, frozen=True):
    """The driver was reloaded, or the GPU reset under our eyes."""


class FatalEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The driver reported a fault. ``xid`` is None for a double-bit ECC event, which needs a reset.

    Ignored XIDs never get here. ``instance`` is the MIG instance concerned, None for all of the GPU.
    """

    xid: int | None = None
    needs_reset: bool = True
    instance: InstanceRef | None = None


class Unanswered(msgspec.Struct, frozen=True):
    """The GPU could not be probed, for whatever reason: the driver is lost or paused, a call hangs or fails."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU was there and answered."""

    vitals: Vitals
    around: Surroundings = Surroundings()


class Gone(msgspec.Struct, frozen=True):
    """The GPU is lost or vanished; the next probe that it answers is evidence of a reset.

    ``is_lost``: the driver had it and lost it, which is a fault of its own. One that vanished may have been taken out.
    """

    is_lost: bool = False


Input: TypeAlias = Cleared | DriverReset | FatalEvent | Unanswered | Probe | Gone
# What comes together is taken in this order: nothing is over because of what may have come before it.
_ORDER: Final = (Cleared, DriverReset, FatalEvent, Unanswered, Probe, Gone)


class _Moment(msgspec.Struct, frozen=True):
    now: float
    wall: float
    rules: RecoveryRules


def resume_course(record: Record, *, boot_id: str) -> Course:
    """The state after a start of the plugin. Another boot than the record's is evidence of a reset.

    ``boot_id`` is empty where the host does not tell; that is evidence of nothing.
    """
    course = Course(record=msgspec.structs.replace(record, boot_id=boot_id or record.boot_id))
    return _note_reset(course) if boot_id and record.boot_id and boot_id != record.boot_id else course


def advance(course: Course, inputs: Iterable[Input], *, now: float, wall: float, rules: RecoveryRules) -> Course:
    """The state after ``inputs``, which came at one time, in whatever order; at most one of them is a Probe.

    ``now`` is monotonic and decides about recovery; ``wall`` is for people, and for what is kept over a reboot.
    """
    at = _Moment(now, wall, rules)
    for value in sorted(inputs, key=_rank):
        course = _step(course, value, at)
    return course


def _rank(value: Input) -> tuple[int, ...]:
    """Inputs of one time by their kind, events by what they say: any order of them is the same order."""
    rank = _ORDER.index(type(value))
    if not isinstance(value, FatalEvent):
        return (rank,)
    place = value.instance or InstanceRef(gpu=-1)
    compute = -1 if place.compute is None else place.compute
    return (rank, value.xid or 0, value.needs_reset, place.gpu, compute)


def _step(course: Course, value: Input, at: _Moment) -> Course:
    match value:
        case Cleared():
            return _clear(course)
        case DriverReset():
            return _note_reset(course)
        case FatalEvent():
            return _take_event(course, value, at)
        case Unanswered():
            return msgspec.structs.replace(course, clean_since=None)
        case Probe():
            return _take_probe(course, value, at)
        case Gone():
            return _take_leave(course, value, at)


def _take_leave(course: Course, gone: Gone, at: _Moment) -> Course:
    record = msgspec.structs.replace(course.record, is_gone=True)
    course = msgspec.structs.replace(course, record=record, clean_since=None)
    if not gone.is_lost:
        return course
    return _open(course, [Fault(cause=Cause.LOST, text="the driver had lost the GPU", since=at.wall)], at)


def _clear(course: Course) -> Course:
    """What stands stays, so that it is not Healthy until the next probe only; links that are up are those of now."""
    causes = {finding.cause for finding in course.standing}
    record = Record(
        boot_id=course.record.boot_id,
        faults=tuple(fault for fault in course.record.faults if fault.cause in causes),
        is_gone=course.record.is_gone,
        baseline=msgspec.structs.replace(course.record.baseline, links_up=(), links_missed=()),
    )
    return msgspec.structs.replace(course, record=record, clean_since=None)


def _note_reset(course: Course) -> Course:
    faults = tuple(msgspec.structs.replace(fault, was_reset=True) for fault in course.record.faults)
    record = msgspec.structs.replace(course.record, faults=faults, baseline=Baseline())
    return msgspec.structs.replace(course, record=record, clean_since=None)


def _take_event(course: Course, event: FatalEvent, at: _Moment) -> Course:
    course = msgspec.structs.replace(course, clean_since=None, action="", failing=())
    if event.xid is None:
        text = "the driver reports an uncorrectable memory error"
        fault = Fault(cause=Cause.ECC, text=text, since=at.wall, needs_reset=True, instance=event.instance)
    else:
        fault = Fault(
            cause=Cause.XID,
            text=describe_xid(event.xid),
            since=at.wall,
            xid=event.xid,
            instance=event.instance,
            needs_reset=event.needs_reset,
        )
    course = _open(course, [fault], at)
    return _note_contained(course, at) if event.xid == _CONTAINED_XID else course


def _note_contained(course: Course, at: _Moment) -> Course:
    """A contained error explains the memory errors that were counted a moment ago, and those that soon will be."""
    faults = tuple(
        fault for fault in course.record.faults if fault.cause is not Cause.ECC or not _is_near(fault.since, at.wall)
    )
    record = msgspec.structs.replace(course.record, faults=faults, contained_at=at.wall)
    return msgspec.structs.replace(course, record=record)


def _take_probe(course: Course, probe: Probe, at: _Moment) -> Course:
    if course.record.is_gone:
        course = _note_reset(course)
    found = examine(probe.vitals, course.record.baseline, probe.around)
    course = msgspec.structs.replace(
        course,
        record=msgspec.structs.replace(course.record, is_gone=False, baseline=found.baseline),
        action=found.action,
        standing=tuple(finding for finding in found.findings if finding.nature is Nature.STANDS),
        unready=_find_unready(course, found, at),
        failing=found.errors,
    )
    if not found.is_clean:
        faults = [_build_fault(finding, at) for finding in found.findings if finding.nature is not Nature.PASSING]
        return _open(msgspec.structs.replace(course, clean_since=None), faults if found.is_heeded else [], at)
    clean_since = at.now if course.clean_since is None else course.clean_since
    return _close(msgspec.structs.replace(course, clean_since=clean_since), at)


def _build_fault(finding: Finding, at: _Moment) -> Fault:
    """Memory errors need a reset; what stands is over when it is no longer read, and a link when it is up again."""
    needs_reset = finding.cause is Cause.ECC
    return Fault(cause=finding.cause, text=finding.text, since=at.wall, needs_reset=needs_reset)


def _find_unready(course: Course, found: Examination, at: _Moment) -> Fault | None:
    passing = [finding for finding in found.findings if finding.nature is Nature.PASSING and found.is_heeded]
    if not passing:
        return None
    since = at.wall if course.unready is None else course.unready.since
    return Fault(cause=passing[0].cause, text=passing[0].text, since=since)


def _open(course: Course, found: Iterable[Fault], at: _Moment) -> Course:
    """Add faults. A kind that is known already is as old as it was, and happened again."""
    record = course.record
    faults = {_kind(fault): fault for fault in record.faults}
    for fault in found:
        if fault.cause is Cause.ECC and record.contained_at is not None and _is_near(record.contained_at, at.wall):
            continue
        known = faults.get(_kind(fault))
        if known is None:
            faults[_kind(fault)] = fault
        elif fault.cause is Cause.XID:
            faults[_kind(fault)] = msgspec.structs.replace(known, was_reset=False)
        else:
            faults[_kind(fault)] = msgspec.structs.replace(fault, since=known.since)
    if faults and not record.faults:
        record = _count_relapse(record, at)
    record = msgspec.structs.replace(record, faults=tuple(sorted(faults.values(), key=_weigh)))
    return msgspec.structs.replace(course, record=record)


def _count_relapse(record: Record, at: _Moment) -> Record:
    if record.recovered_at is None or at.wall - record.recovered_at >= FORGIVEN_AFTER_S:
        return msgspec.structs.replace(record, relapses=0, relapsed_at=())
    newest = (*record.relapsed_at, at.wall)[-FLAPPING_RELAPSES:]
    return msgspec.structs.replace(record, relapses=record.relapses + 1, relapsed_at=newest)


def _close(course: Course, at: _Moment) -> Course:
    """End the faults for which it has been clean long enough."""
    assert course.clean_since is not None
    clean_s = at.now - course.clean_since
    waits = [(fault, find_wait(fault, course, at.rules)) for fault in course.record.faults]
    left = tuple(fault for fault, wait in waits if wait is None or clean_s < wait)
    if left == course.record.faults:
        return course
    recovered_at = course.record.recovered_at if left else at.wall
    record = msgspec.structs.replace(course.record, faults=left, recovered_at=recovered_at)
    return msgspec.structs.replace(course, record=record)


def _kind(fault: Fault) -> tuple[Cause, bool, InstanceRef | None]:
    return fault.cause, fault.needs_reset, fault.instance


def _weigh(fault: Fault) -> tuple[bool, int, float, bool, InstanceRef]:
    """What needs a reset comes first, then the cause that tells most, then the oldest."""
    place = fault.instance or InstanceRef(gpu=-1)
    return not fault.needs_reset, _BY_WEIGHT.index(fault.cause), fault.since, fault.instance is not None, place


def _is_near(one: float, other: float) -> bool:
    return abs(one - other) <= _EXPLAINED_FOR_S
