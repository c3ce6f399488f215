"""Who is faulty: the faults of all GPUs over time, from the driver's events and from what each scan reads.

The rules are ``planning/recovery``'s; this keeps one course for each GPU, says what changed, and has what must outlive
the process. Whether a GPU is there and answers at all is ``planning/presence``'s, and comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from nvdp.config.schema import HealthSettings, WithoutRecoveryAction
from nvdp.log import Log
from nvdp.model.health import Ailment, InstanceRef, Vitals
from nvdp.model.inventory import Gpu, MigInstance, MigMode
from nvdp.model.reasons import Cause, Reason
from nvdp.nvml.frames import Ecc, Xid
from nvdp.planning.course import (
    Course,
    Record,
    RecoveryRules,
    compute_hold_off,
    describe_recovery,
    find_ailment,
    find_next_look,
    is_flapping,
)
from nvdp.planning.devices import list_instances
from nvdp.planning.presence import Presence, Sighting
from nvdp.planning.recovery import (
    Cleared,
    DriverReset,
    FatalEvent,
    Gone,
    Input,
    Probe,
    Unanswered,
    advance,
    resume_course,
)
from nvdp.planning.vitals import Surroundings
from nvdp.planning.xid_policy import Verdict, XidPolicy, XidRules
from nvdp.planning.xids import XidClass

_GONE = frozenset({Cause.LOST, Cause.VANISHED})
_ECHO_S = 2.0  # between the two tellings of one event, while sessions overlap
_MOST_HEARD = 256


class HealthObserver(Protocol):
    """Counts (metrics/)."""

    def xid_seen(self, uuid: str, xid: int, verdict: str) -> None: ...

    def memory_error_seen(self, uuid: str, kind: str) -> None:
        """``kind`` is single or double."""
        ...


class HealthRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the file and the two variables say about health."""

    policy: XidPolicy = XidPolicy()
    recovery: RecoveryRules = RecoveryRules()


def build_rules(settings: HealthSettings, variables: XidRules) -> HealthRules:
    """The rules of a file's ``health`` under the two environment variables."""
    recovery = settings.recovery
    return HealthRules(
        policy=XidPolicy(
            profile=settings.profile,
            file=XidRules(ignored=settings.ignored_xids, fatal=settings.fatal_xids),
            variables=variables,
        ),
        recovery=RecoveryRules(
            hold_off_s=recovery.hold_off.seconds,
            max_hold_off_s=recovery.max_hold_off.seconds,
            trusts_probes=recovery.without_recovery_action is WithoutRecoveryAction.PROBES,
        ),
    )


class KnownFaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a start begins with: ``records`` are a predecessor's, ``boot_id`` is the host's, empty if it tells none."""

    records: Mapping[str, Record] = {}
    boot_id: str = ""
    variables: XidRules = XidRules()


class HealthWatch:
    """Used by one thread at a time; nothing blocks. ``clock`` is monotonic, ``wall`` is for people and what is kept."""

    def __init__(
        self,
        known: KnownFaults,
        *,
        log: Log,
        observer: HealthObserver,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._boot_id = known.boot_id
        self._variables = known.variables
        self._log = log
        self._observer = observer
        self._clock = clock
        self._wall = wall
        self._rules = build_rules(HealthSettings(), known.variables)
        self._excluded: frozenset[str] = frozenset()
        self._courses = {uuid: resume_course(record, boot_id=known.boot_id) for uuid, record in known.records.items()}
        self._heard: dict[tuple[object, ...], tuple[int, float]] = {}
        self._recoveries: dict[str, str] = {}
        self._unread: dict[str, float] = {}  # MIG devices of which a call fails, since when

    @property
    def records(self) -> dict[str, Record]:
        """What is to be kept: of every GPU about which there is something to know."""
        return {uuid: course.record for uuid, course in sorted(self._courses.items()) if _is_telling(course.record)}

    @property
    def next_look_at(self) -> float | None:
        """When a scan, if it finds all well, may end a fault (monotonic seconds)."""
        times = [find_next_look(course, self._rules.recovery) for course in self._courses.values()]
        return min((at for at in times if at is not None), default=None)

    def configure(self, settings: HealthSettings, *, excluded: frozenset[str] = frozenset()) -> None:
        """New rules, for what happens from now on; faults that are open stay open, and recover by the new rules.

        What happens to ``excluded`` GPUs is remembered, should they be ours one day, but neither counted nor told.
        """
        self._rules = build_rules(settings, self._variables)
        self._excluded = excluded

    def hear(self, session: int, event: Xid | Ecc) -> bool:
        """The driver reported something. True if it is fatal: the GPU is to be looked at soon.

        While one session takes another's place both tell the same: what another session told a moment ago is known.
        """
        key: tuple[object, ...] = (
            (event.uuid, event.code, event.gpu_instance, event.compute_instance)
            if isinstance(event, Xid)
            else (event.uuid, event.double)
        )
        other, at = self._heard.get(key, (session, float("-inf")))
        self._heard[key] = (session, event.at)
        if other != session and abs(event.at - at) < _ECHO_S:
            return False
        if len(self._heard) > _MOST_HEARD:
            self._heard = {key: self._heard[key]}
        if isinstance(event, Ecc):
            return self._take_memory_error(event.uuid, double=event.double)
        instance = None
        if event.gpu_instance is not None:
            instance = InstanceRef(gpu=event.gpu_instance, compute=event.compute_instance)
        return self._take_xid(event.uuid, event.code, instance=instance)

    def _take_xid(self, uuid: str, xid: int, *, instance: InstanceRef | None) -> bool:
        judged = self._rules.policy.judge(xid)
        if uuid not in self._excluded:
            self._observer.xid_seen(uuid, xid, judged.verdict.value)
        if judged.verdict is Verdict.IGNORED:
            return False
        self._advance(uuid, FatalEvent(xid=xid, needs_reset=judged.xid_class is XidClass.RESET, instance=instance))
        return True

    def _take_memory_error(self, uuid: str, *, double: bool) -> bool:
        """Single-bit errors were corrected, and are only counted. Those of two bits count as XID 48 does."""
        if uuid not in self._excluded:
            self._observer.memory_error_seen(uuid, "double" if double else "single")
        if double and self._rules.policy.heeds_double_bit_events:
            self._advance(uuid, FatalEvent())
            return True
        return False

    def take_scan(self, presence: Presence, vitals: Mapping[str, Vitals]) -> None:
        """A scan is complete: every GPU answered, did not, or is gone."""
        slots = [sighting.gpu.pci for sighting in presence.sightings if _is_off(sighting)]
        slots += [gpu.pci for gpu in presence.unreadable]
        away = frozenset(pci for pci in slots if pci is not None)
        for sighting in presence.sightings:
            self._advance(sighting.gpu.uuid, self._read(sighting, vitals, away))
        instances = (one for sighting in presence.sightings for one in list_instances(sighting.gpu))
        self._unread = {
            one.uuid: self._unread.get(one.uuid, self._wall()) for one in instances if one.fault is not None
        }
        known = {sighting.gpu.uuid for sighting in presence.sightings}
        for uuid in self._courses.keys() - known:
            if self._courses[uuid].record.faults:
                self._advance(uuid, Gone())
            else:
                del self._courses[uuid]

    def clear(self, uuid: str) -> Ailment | None:
        """The operator's word that a GPU is well: what ails it still, because it is read with every probe."""
        self._advance(uuid, Cleared())
        self._recoveries[uuid] = "by nvdp health clear"
        return find_ailment(self._courses[uuid], self._rules.recovery)

    def lose_all(self) -> None:
        """The driver does not answer, or is let go of: nothing is known, and nothing recovers meanwhile."""
        for uuid in list(self._courses):
            self._advance(uuid, Unanswered())

    def note_driver_reset(self) -> None:
        """The driver was reloaded, which resets every GPU."""
        for uuid in list(self._courses):
            self._advance(uuid, DriverReset())

    def find_ailments(self, presence: Presence) -> dict[str, Ailment]:
        """What ails each GPU, that it is not there or does not answer, else its oldest heavy fault; and MIG devices.

        A fault of one MIG device is one of its GPU, and of none of its siblings. One that the driver ties to no MIG
        device is of all, and so is whatever ails the GPU as such.
        """
        found = {}
        for sighting in presence.sightings:
            gpu = sighting.gpu
            course = self._courses.get(gpu.uuid)
            faulty = find_ailment(course, self._rules.recovery) if course is not None else None
            ailment = sighting.ailment or faulty
            if ailment is not None:
                found[gpu.uuid] = ailment
            for instance in list_instances(gpu):
                part = sighting.ailment or self._find_part(course, instance)
                if part is not None:
                    found[instance.uuid] = part
        return found

    def _find_part(self, course: Course | None, instance: MigInstance) -> Ailment | None:
        """What ails one MIG device of a GPU that answers. Where its numbers are not known, every fault may be its."""
        if course is not None:
            ref = None
            if instance.gpu_instance is not None:
                ref = InstanceRef(gpu=instance.gpu_instance, compute=instance.compute_instance)
            if (ailment := find_ailment(course, self._rules.recovery, instance=ref)) is not None:
                return ailment
        if instance.fault is None:
            return None
        since = self._unread.get(instance.uuid, self._wall())
        return Ailment(cause=Cause.CALL_FAILED, text=instance.fault.text, since=since)

    def take_recoveries(self) -> dict[str, str]:
        """Why GPUs are well again, of those that are since the last time this was asked."""
        found, self._recoveries = self._recoveries, {}
        return found

    def _read(self, sighting: Sighting, vitals: Mapping[str, Vitals], away: frozenset[str]) -> Input:
        gpu: Gpu = sighting.gpu
        policy = self._rules.policy
        if sighting.ailment is not None:
            is_lost = sighting.ailment.cause is Cause.LOST and policy.heeds_vitals
            is_gone = sighting.ailment.cause in _GONE and not sighting.doubted
            return Gone(is_lost=is_lost) if is_gone else Unanswered()
        return Probe(
            vitals=vitals.get(gpu.uuid, Vitals()),
            around=Surroundings(
                peers_away=away - {gpu.pci or ""},
                in_mig_mode=gpu.mig is MigMode.ENABLED,
                heeds_vitals=policy.heeds_vitals,
                heeds_memory_errors=policy.heeds_memory_errors,
            ),
        )

    def _advance(self, uuid: str, value: Input) -> None:
        before = self._courses.get(uuid) or resume_course(Record(), boot_id=self._boot_id)
        now = self._clock()
        after = advance(before, [value], now=now, wall=self._wall(), rules=self._rules.recovery)
        self._courses[uuid] = after
        if is_flapping(before, after) and uuid not in self._excluded:
            hold_off_s = compute_hold_off(after.record, self._rules.recovery)
            text = f"{uuid}: the third relapse within an hour; recovers after {hold_off_s:g}s without a fault now"
            self._log(Reason.DEVICE_FLAPPING, text, device=uuid)
        if before.record.faults and not after.record.faults:
            self._recoveries[uuid] = describe_recovery(before, after, now=now)


def _is_off(sighting: Sighting) -> bool:
    """Whether nobody can be blamed for a link to it that is down."""
    return sighting.ailment is not None or sighting.gpu.mig is MigMode.ENABLED


def _is_telling(record: Record) -> bool:
    return msgspec.structs.replace(record, boot_id="") != Record()
