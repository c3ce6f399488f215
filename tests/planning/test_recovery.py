"""When a GPU that had a fault is trusted again: the rules one by one, and what holds over every history."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nvdp.model.health import Ailment, InstanceRef, NvLink, Vitals
from nvdp.model.reasons import Cause
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
from nvdp.planning.recovery import (
    FORGIVEN_AFTER_S,
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

RULES = RecoveryRules()
BOOT, WALL = "boot-1", 1_700_000_000.0
GOOD, SILENT, RESET_ASKED = Vitals(recovery_action="None"), Vitals(), Vitals(recovery_action="GPUReset")
APPLICATIONS, RESETS = FatalEvent(xid=94, needs_reset=False), FatalEvent(xid=95)


class Patient:
    """One GPU, with a clock."""

    def __init__(self, rules: RecoveryRules = RULES) -> None:
        self.rules = rules
        self.now = 1000.0
        self.course = resume_course(Record(), boot_id=BOOT)
        self.before = self.course

    def meet(self, *inputs: Input) -> None:
        self.before = self.course
        wall = WALL + self.now
        self.course = advance(self.course, inputs, now=self.now, wall=wall, rules=self.rules)

    def probe(self, vitals: Vitals, *, after: float = 0.0) -> None:
        self.now += after
        self.meet(Probe(vitals=vitals))

    def probe_for(self, seconds: float, vitals: Vitals, *, every: float = 10.0) -> None:
        """Probes at once, then at this interval, the last one when the time is over."""
        end = self.now + seconds
        self.probe(vitals)
        while self.now < end:
            self.probe(vitals, after=min(every, end - self.now))

    def restart(self, *, boot_id: str = BOOT) -> None:
        """Of the plugin: what is kept is all that is left."""
        kept = msgspec.json.decode(msgspec.json.encode(self.course.record), type=Record)
        self.course = resume_course(kept, boot_id=boot_id)

    @property
    def ailment(self) -> Ailment | None:
        return find_ailment(self.course, self.rules)

    @property
    def is_healthy(self) -> bool:
        return self.ailment is None


@pytest.fixture
def gpu() -> Patient:
    return Patient()


# What makes it Unhealthy


def test_a_fatal_xid_marks_the_gpu_with_its_number_and_meaning(gpu: Patient) -> None:
    gpu.meet(FatalEvent(xid=79))
    assert gpu.ailment == Ailment(cause=Cause.XID, text="XID 79, fallen off the bus", since=WALL + gpu.now, xid=79)


def test_what_the_driver_asks_for_is_told_once_it_was_asked(gpu: Patient) -> None:
    gpu.meet(FatalEvent(xid=79))
    gpu.probe(Vitals(recovery_action="NodeReboot"), after=1.0)
    assert gpu.ailment == Ailment(
        cause=Cause.XID,
        text="XID 79, fallen off the bus; the driver asks for a reboot of the node",
        since=WALL + gpu.now - 1.0,
        xid=79,
        action="NodeReboot",
    )


@pytest.mark.parametrize(
    ("vitals", "cause"),
    [
        (RESET_ASKED, Cause.RECOVERY_ACTION),
        (Vitals(recovery_action="Unknown"), Cause.RECOVERY_ACTION),
        (Vitals(row_remap_failure=True), Cause.ROW_REMAP_FAILURE),
        (Vitals(retired_pages_pending=True), Cause.RETIRED_PAGES_PENDING),
        (Vitals(fabric_state="Completed", fabric_status="Timeout"), Cause.FABRIC_DEGRADED),
    ],
)
def test_an_unhealthy_reading_marks_the_gpu_and_ends_with_the_hold_off_after_it(vitals: Vitals, cause: Cause) -> None:
    gpu = Patient()
    gpu.probe(vitals)
    assert gpu.ailment is not None
    assert gpu.ailment.cause is cause
    well = GOOD if vitals.recovery_action else SILENT
    gpu.probe_for(59.0, well)
    assert not gpu.is_healthy
    gpu.probe(well, after=1.0)
    assert gpu.is_healthy


def test_a_gpu_that_is_being_set_up_is_unhealthy_only_so_long_and_has_no_history() -> None:
    gpu = Patient(RecoveryRules(hold_off_s=0.0))
    gpu.probe(Vitals(fabric_state="InProgress"))
    since = WALL + gpu.now
    gpu.probe(Vitals(fabric_state="InProgress"), after=10.0)
    assert gpu.ailment is not None
    assert (gpu.ailment.cause, gpu.ailment.since) == (Cause.FABRIC_DEGRADED, since)
    gpu.probe(Vitals(fabric_state="Completed", fabric_status="Success"), after=10.0)
    assert gpu.is_healthy
    assert gpu.course.record == Record(boot_id=BOOT)


def test_where_health_checks_are_off_readings_mark_nobody_but_still_hold_a_recovery_back(gpu: Patient) -> None:
    off = Surroundings(heeds_vitals=False)
    gpu.meet(Probe(vitals=RESET_ASKED, around=off))
    assert gpu.is_healthy
    gpu.meet(RESETS)
    for _ in range(30):
        gpu.now += 10.0
        gpu.meet(Probe(vitals=RESET_ASKED, around=off))
    assert not gpu.is_healthy
    gpu.probe_for(60.0, GOOD)
    assert gpu.is_healthy


def test_the_worst_fault_is_shown_and_since_when_the_gpu_ails(gpu: Patient) -> None:
    gpu.meet(APPLICATIONS)
    first = gpu.now
    gpu.now += 5.0
    gpu.meet(FatalEvent(xid=13, needs_reset=False), RESETS)
    gpu.probe(Vitals(recovery_action="GPUReset", row_remap_failure=True), after=5.0)
    assert gpu.ailment is not None
    assert (gpu.ailment.xid, gpu.ailment.since) == (95, WALL + first)


def test_a_reading_that_stays_bad_is_as_old_as_it_is(gpu: Patient) -> None:
    gpu.probe(Vitals(row_remap_failure=True))
    since = WALL + gpu.now
    gpu.probe(Vitals(row_remap_failure=True), after=100.0)
    assert gpu.ailment is not None
    assert gpu.ailment.since == since


def test_what_comes_at_one_time_may_come_in_any_order(gpu: Patient) -> None:
    gpu.meet(APPLICATIONS)
    gpu.probe_for(59.0, GOOD)
    gpu.now += 1.0
    together = (Cleared(), DriverReset(), RESETS, Unanswered(), Probe(vitals=SILENT), Gone())
    outcomes = [
        advance(gpu.course, order, now=gpu.now, wall=WALL + gpu.now, rules=RULES)
        for order in itertools.permutations(together)
    ]
    assert all(outcome == outcomes[0] for outcome in outcomes)
    (fault,) = outcomes[0].record.faults
    assert (fault.xid, fault.was_reset, outcomes[0].record.is_gone) == (95, False, True)


# Recovery where the driver says what it asks for


def test_report_e1_a_gpu_recovers_without_a_restart(gpu: Patient) -> None:
    gpu.meet(FatalEvent(xid=48))
    gpu.probe_for(59.0, GOOD)
    assert not gpu.is_healthy
    gpu.probe(GOOD, after=1.0)
    assert gpu.is_healthy
    assert describe_recovery(gpu.before, gpu.course, now=gpu.now) == "clean for 60s, the driver asks for nothing"


def test_report_e2_as_long_as_the_driver_asks_for_something_nothing_recovers(gpu: Patient) -> None:
    gpu.meet(FatalEvent(xid=48))
    gpu.probe_for(100_000.0, RESET_ASKED, every=600.0)
    assert not gpu.is_healthy
    gpu.probe_for(60.0, GOOD)
    assert gpu.is_healthy


def test_report_e2_a_failing_query_is_not_clean(gpu: Patient) -> None:
    gpu.meet(FatalEvent(xid=48))
    gpu.probe_for(10_000.0, Vitals(recovery_action="None", errors=("nvmlDeviceGetRemappedRows",)), every=100.0)
    assert gpu.ailment is not None
    assert gpu.ailment.text.endswith("; does not recover while nvmlDeviceGetRemappedRows fails")


@pytest.mark.parametrize("word", ["GPUReset", "NodeReboot", "DrainP2P", "Unknown", "SomethingNew"])
def test_an_action_that_is_not_none_begins_the_hold_off_anew(word: str) -> None:
    gpu = Patient()
    gpu.meet(APPLICATIONS)
    gpu.probe_for(50.0, GOOD)
    gpu.probe(Vitals(recovery_action=word), after=5.0)
    gpu.probe_for(59.0, GOOD)
    assert not gpu.is_healthy
    gpu.probe(GOOD, after=1.0)
    assert gpu.is_healthy


@pytest.mark.parametrize("spoiler", [APPLICATIONS, Unanswered(), Gone(), DriverReset()])
def test_whatever_happens_meanwhile_begins_the_hold_off_anew(spoiler: Input) -> None:
    gpu = Patient()
    gpu.meet(APPLICATIONS)
    gpu.probe_for(50.0, GOOD)
    gpu.meet(spoiler)
    gpu.probe_for(59.0, GOOD, every=1.0)
    assert not gpu.is_healthy
    gpu.probe(GOOD, after=1.0)
    assert gpu.is_healthy


def test_no_probe_no_recovery(gpu: Patient) -> None:
    gpu.meet(APPLICATIONS)
    gpu.probe(GOOD)
    assert find_next_look(gpu.course, RULES) == gpu.now + 60.0
    gpu.now += 1e6
    gpu.meet()
    assert not gpu.is_healthy


# Recovery where the driver does not


def test_a_fault_of_the_application_recovers_after_the_hold_off(gpu: Patient) -> None:
    gpu.meet(APPLICATIONS)
    gpu.probe(SILENT)
    assert gpu.ailment is not None
    assert gpu.ailment.text.endswith("; recovers after 60s without a fault")
    assert gpu.ailment.action == "Unsupported"
    gpu.probe_for(60.0, SILENT)
    assert gpu.is_healthy
    assert describe_recovery(gpu.before, gpu.course, now=gpu.now) == "clean for 60s"


def test_a_fault_that_needs_a_reset_does_not(gpu: Patient) -> None:
    gpu.meet(RESETS)
    gpu.probe_for(100_000.0, SILENT, every=600.0)
    assert gpu.ailment is not None
    assert gpu.ailment.text.endswith("; recovers after a reset of the GPU")
    assert find_next_look(gpu.course, RULES) is None


@pytest.mark.parametrize("evidence", ["gone and back", "driver reloaded", "reboot", "reboot while gone"])
def test_evidence_of_a_reset_lets_it_recover_after_the_hold_off(evidence: str) -> None:
    gpu = Patient()
    gpu.meet(RESETS)
    gpu.probe_for(600.0, SILENT)
    if "gone" in evidence:
        gpu.meet(Gone())
    if "driver" in evidence:
        gpu.meet(DriverReset())
    if "reboot" in evidence:
        gpu.restart(boot_id="boot-2")
    gpu.now += 100.0
    gpu.probe_for(59.0, SILENT)
    assert not gpu.is_healthy
    gpu.probe(SILENT, after=1.0)
    assert gpu.is_healthy


def test_a_gpu_that_was_gone_while_the_plugin_restarted_comes_back_as_reset(gpu: Patient) -> None:
    gpu.meet(FatalEvent(xid=79), Gone())
    gpu.restart()
    gpu.probe_for(60.0, SILENT)
    assert gpu.is_healthy


def test_a_gpu_that_the_driver_lost_is_trusted_after_the_hold_off_once_it_is_back(gpu: Patient) -> None:
    gpu.meet(Gone(is_lost=True))
    lost_at = gpu.now
    gpu.now += 500.0
    gpu.meet(Gone(is_lost=True))
    gpu.probe_for(59.0, SILENT)
    assert gpu.ailment is not None
    assert (gpu.ailment.cause, gpu.ailment.since) == (Cause.LOST, WALL + lost_at)
    assert gpu.ailment.text == "the driver had lost the GPU; recovers after 60s without a fault"
    gpu.probe(SILENT, after=1.0)
    assert gpu.is_healthy


def test_a_gpu_that_is_lost_again_and_again_relapses(gpu: Patient) -> None:
    outages = [fail_and_recover(gpu, Gone(is_lost=True)) for _ in range(4)]
    assert outages == [60, 120, 240, 480]
    assert is_flapping(Course(), gpu.course)


def test_where_nothing_recovers_by_itself_a_lost_gpu_does_not_either() -> None:
    gpu = Patient(RecoveryRules(hold_off_s=0.0))
    gpu.meet(Gone(is_lost=True))
    gpu.probe_for(100_000.0, GOOD, every=600.0)
    assert gpu.ailment is not None
    assert gpu.ailment.text.endswith("; recovers by `nvdp health clear` only")


def test_a_gpu_that_vanished_may_have_been_taken_out_and_is_trusted_at_once(gpu: Patient) -> None:
    gpu.meet(Gone())
    gpu.probe(SILENT, after=1.0)
    assert gpu.is_healthy


def test_a_gpu_that_is_gone_is_not_waited_for_with_probes(gpu: Patient) -> None:
    gpu.meet(APPLICATIONS)
    gpu.probe(SILENT)
    gpu.meet(Gone())
    assert find_next_look(gpu.course, RULES) is None


def test_a_gpu_is_still_gone_when_the_operator_calls_it_well(gpu: Patient) -> None:
    gpu.meet(Gone())
    gpu.meet(Cleared())
    gpu.meet(FatalEvent(xid=79))
    gpu.probe_for(60.0, SILENT)
    assert gpu.is_healthy


@pytest.mark.parametrize("evidence", [DriverReset(), Gone()])
def test_a_reset_before_the_fault_is_no_evidence_for_it(evidence: Input) -> None:
    gpu = Patient()
    gpu.meet(evidence)
    gpu.probe(SILENT, after=1.0)
    gpu.meet(RESETS)
    gpu.probe_for(10_000.0, SILENT, every=60.0)
    assert not gpu.is_healthy


def test_a_fault_that_comes_again_needs_another_reset(gpu: Patient) -> None:
    gpu.meet(RESETS, DriverReset())
    gpu.meet(DriverReset())
    gpu.probe(SILENT, after=1.0)
    gpu.meet(RESETS)
    gpu.probe_for(10_000.0, SILENT, every=60.0)
    assert not gpu.is_healthy


def test_where_probes_are_trusted_they_do_for_a_reset_after_ten_hold_offs() -> None:
    gpu = Patient(RecoveryRules(trusts_probes=True))
    gpu.meet(RESETS)
    gpu.probe_for(599.0, SILENT)
    assert gpu.ailment is not None
    assert gpu.ailment.text.endswith("; recovers after 600s without a fault")
    gpu.probe(SILENT, after=1.0)
    assert gpu.is_healthy


def test_the_next_look_is_when_the_first_fault_may_end_and_the_gpu_recovers_with_the_last() -> None:
    gpu = Patient(RecoveryRules(trusts_probes=True))
    gpu.meet(APPLICATIONS, RESETS)
    gpu.probe(SILENT)
    assert find_next_look(gpu.course, gpu.rules) == gpu.now + 60.0
    gpu.probe(SILENT, after=60.0)
    assert [fault.xid for fault in gpu.course.record.faults] == [95]
    assert gpu.course.record.recovered_at is None
    assert find_next_look(gpu.course, gpu.rules) == gpu.now + 540.0
    gpu.probe(SILENT, after=540.0)
    assert gpu.course.record.recovered_at == WALL + gpu.now


# The operator, restarts, the rules


def test_a_hold_off_of_zero_means_never_by_itself() -> None:
    gpu = Patient(RecoveryRules(hold_off_s=0.0, trusts_probes=True))
    gpu.meet(APPLICATIONS, DriverReset())
    gpu.probe_for(100_000.0, GOOD, every=600.0)
    assert gpu.ailment is not None
    assert gpu.ailment.text.endswith("; recovers by `nvdp health clear` only")
    gpu.meet(Cleared())
    assert gpu.is_healthy


def test_the_operators_word_ends_a_fault_at_once_and_forgives_the_past(gpu: Patient) -> None:
    for _ in range(3):
        gpu.meet(RESETS)
        gpu.probe_for(3600.0, GOOD, every=600.0)
    gpu.meet(RESETS)
    gpu.meet(Cleared())
    assert gpu.is_healthy
    assert describe_recovery(gpu.before, gpu.course, now=gpu.now) == ""
    gpu.meet(RESETS)
    assert compute_hold_off(gpu.course.record, RULES) == 60.0


def test_the_operators_word_does_not_hide_what_the_driver_still_says(gpu: Patient) -> None:
    gpu.meet(RESETS)
    gpu.probe(RESET_ASKED)
    gpu.meet(Cleared())
    assert gpu.ailment is not None
    assert gpu.ailment.cause is Cause.RECOVERY_ACTION
    assert gpu.ailment.text == "the driver asked for a reset of the GPU"


def test_the_operators_word_makes_the_links_that_are_up_the_ones_that_should_be(gpu: Patient) -> None:
    up, down = (Vitals(nvlinks=(NvLink(number=2, up=it),)) for it in (True, False))
    gpu.probe(up)
    gpu.probe_for(1000.0, down)
    assert gpu.ailment is not None
    assert gpu.ailment.text.startswith("NVLink 2 is down")
    gpu.meet(Cleared())
    gpu.probe_for(1000.0, down)
    assert gpu.is_healthy


def test_a_restart_is_no_cure_and_begins_the_hold_off_anew(gpu: Patient) -> None:
    gpu.meet(RESETS)
    gpu.probe_for(50.0, GOOD)
    ailment = gpu.ailment
    gpu.restart()
    assert gpu.ailment is not None
    assert ailment is not None
    assert (gpu.ailment.xid, gpu.ailment.since) == (ailment.xid, ailment.since)
    gpu.probe_for(59.0, GOOD)
    assert not gpu.is_healthy
    gpu.probe(GOOD, after=1.0)
    assert gpu.is_healthy


@pytest.mark.parametrize(("kept", "now"), [("", "boot-2"), ("boot-1", ""), ("boot-1", "boot-1")])
def test_a_boot_id_that_nobody_knows_is_no_evidence(kept: str, now: str) -> None:
    record = advance(resume_course(Record(), boot_id=kept), [RESETS], now=0.0, wall=WALL, rules=RULES).record
    resumed = resume_course(record, boot_id=now).record
    assert not resumed.faults[0].was_reset
    assert resumed.boot_id == (now or kept)


def test_other_rules_count_from_the_next_probe_on(gpu: Patient) -> None:
    gpu.meet(APPLICATIONS)
    gpu.probe_for(30.0, GOOD)
    gpu.rules = RecoveryRules(hold_off_s=20.0)
    gpu.probe(GOOD)
    assert gpu.is_healthy


# Relapses


def fail_and_recover(gpu: Patient, failure: Input = APPLICATIONS) -> float:
    """One fault, and how long it took to be over."""
    gpu.meet(failure)
    began = gpu.now
    gpu.probe(GOOD)
    while not gpu.is_healthy:
        look_at = find_next_look(gpu.course, gpu.rules)
        assert look_at is not None
        gpu.probe(GOOD, after=look_at - gpu.now)
    return gpu.now - began


def test_each_relapse_doubles_the_hold_off_up_to_the_limit(gpu: Patient) -> None:
    assert [fail_and_recover(gpu) for _ in range(9)] == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_a_limit_below_the_hold_off_does_not_shorten_it() -> None:
    gpu = Patient(RecoveryRules(hold_off_s=60.0, max_hold_off_s=10.0))
    assert [fail_and_recover(gpu) for _ in range(3)] == [60, 60, 60]


def test_more_of_the_same_while_unhealthy_is_no_relapse(gpu: Patient) -> None:
    for _ in range(5):
        gpu.meet(APPLICATIONS)
        gpu.probe(GOOD, after=10.0)
    assert fail_and_recover(gpu) == 60.0


def test_a_day_of_health_forgives(gpu: Patient) -> None:
    fail_and_recover(gpu)
    gpu.now += FORGIVEN_AFTER_S - 1.0
    assert fail_and_recover(gpu) == 120.0
    gpu.now += FORGIVEN_AFTER_S
    assert fail_and_recover(gpu) == 60.0


def test_relapses_are_remembered_over_a_restart_and_a_reboot(gpu: Patient) -> None:
    fail_and_recover(gpu)
    gpu.restart()
    assert fail_and_recover(gpu) == 120.0
    gpu.restart(boot_id="boot-2")
    assert fail_and_recover(gpu) == 240.0


def test_the_third_relapse_within_an_hour_is_flapping(gpu: Patient) -> None:
    flapped = []
    for _ in range(4):
        gpu.meet(APPLICATIONS)
        flapped.append(is_flapping(gpu.before, gpu.course))
        gpu.meet(APPLICATIONS)
        assert not is_flapping(gpu.before, gpu.course)
        gpu.probe_for(compute_hold_off(gpu.course.record, RULES), GOOD)
    assert flapped == [False, False, False, True]


def test_relapses_that_lie_apart_are_not_flapping(gpu: Patient) -> None:
    for _ in range(6):
        gpu.meet(APPLICATIONS)
        assert not is_flapping(gpu.before, gpu.course)
        gpu.probe_for(3600.0, GOOD, every=600.0)


# Memory errors and the XIDs that come with them


MORE = [Vitals(uncorrected_memory=1), Vitals(uncorrected_memory=2)]


def test_memory_errors_that_no_xid_explains_need_a_reset(gpu: Patient) -> None:
    gpu.probe(MORE[0])
    gpu.probe_for(10_000.0, MORE[1], every=60.0)
    assert gpu.ailment is not None
    assert gpu.ailment.cause is Cause.ECC
    assert gpu.ailment.text.endswith("; recovers after a reset of the GPU")


@pytest.mark.parametrize("ecc_event", [(), (FatalEvent(),)])
@pytest.mark.parametrize("xid_first", [True, False])
def test_a_contained_error_explains_them_whichever_is_seen_first(
    ecc_event: tuple[FatalEvent, ...], *, xid_first: bool
) -> None:
    gpu = Patient()
    gpu.probe(MORE[0])
    if xid_first:
        gpu.meet(APPLICATIONS)
        gpu.probe(MORE[1], after=10.0)
        gpu.meet(*ecc_event)
    else:
        gpu.meet(*ecc_event)
        gpu.probe(MORE[1])
        gpu.now += 10.0
        gpu.meet(APPLICATIONS)
    assert [fault.xid for fault in gpu.course.record.faults] == [94]
    gpu.probe_for(60.0, MORE[1])
    assert gpu.is_healthy


def test_a_contained_error_does_not_explain_what_came_long_before(gpu: Patient) -> None:
    gpu.meet(FatalEvent())
    gpu.now += 1000.0
    gpu.meet(APPLICATIONS)
    gpu.probe_for(1000.0, SILENT)
    assert gpu.ailment is not None
    assert gpu.ailment.text.startswith("the driver reports an uncorrectable memory error")


def test_errors_while_the_plugin_was_away_count_and_those_before_a_reset_do_not(gpu: Patient) -> None:
    gpu.probe(Vitals(uncorrected_memory=5))
    gpu.restart()
    gpu.probe(Vitals(uncorrected_memory=6))
    assert not gpu.is_healthy
    gpu.meet(Cleared())
    gpu.restart(boot_id="boot-2")
    gpu.probe(Vitals(uncorrected_memory=7))
    assert gpu.is_healthy


# MIG


def test_report_e3_an_event_is_of_the_instance_it_names_or_of_all(gpu: Patient) -> None:
    named, other = InstanceRef(gpu=3, compute=0), InstanceRef(gpu=4, compute=0)
    gpu.meet(FatalEvent(xid=48, instance=named))
    assert find_ailment(gpu.course, RULES, instance=named) is not None
    assert find_ailment(gpu.course, RULES, instance=other) is None
    assert gpu.ailment is not None
    gpu.meet(FatalEvent(xid=48))
    assert find_ailment(gpu.course, RULES, instance=other) is not None


def test_an_event_of_a_gpu_instance_is_of_all_its_compute_instances(gpu: Patient) -> None:
    gpu.meet(FatalEvent(xid=48, instance=InstanceRef(gpu=3)))
    ailing = [find_ailment(gpu.course, RULES, instance=InstanceRef(gpu=3, compute=it)) for it in (0, 1)]
    assert None not in ailing
    gpu.meet(Cleared(), FatalEvent(xid=48, instance=InstanceRef(gpu=3, compute=1)))
    assert find_ailment(gpu.course, RULES, instance=InstanceRef(gpu=3, compute=0)) is None


def test_one_instance_recovers_while_another_waits_for_a_reset(gpu: Patient) -> None:
    one, other = InstanceRef(gpu=1, compute=0), InstanceRef(gpu=2, compute=0)
    gpu.meet(FatalEvent(xid=94, needs_reset=False, instance=one), FatalEvent(xid=95, instance=other))
    gpu.probe_for(60.0, SILENT)
    assert find_ailment(gpu.course, RULES, instance=one) is None
    assert find_ailment(gpu.course, RULES, instance=other) is not None


# Every history

events = st.builds(
    FatalEvent,
    xid=st.sampled_from([None, 13, 48, 79, 94, 95, 154, 555]),
    needs_reset=st.booleans(),
    instance=st.sampled_from([None, InstanceRef(gpu=1, compute=0), InstanceRef(gpu=2)]),
)
signs = st.one_of(events, st.sampled_from([Gone(), Gone(is_lost=True), Unanswered(), DriverReset()]))
words = st.sampled_from([None, "None", "GPUReset", "Unknown"])
probes = st.builds(
    Probe,
    vitals=st.builds(
        Vitals,
        recovery_action=words,
        row_remap_failure=st.sampled_from([None, False, False, True]),
        uncorrected_memory=st.sampled_from([None, 1, 1, 1, 2]),
        nvlinks=st.sampled_from([None, (NvLink(number=0, up=True),), (NvLink(number=0, up=False),)]),
        fabric_state=st.sampled_from([None, "Completed", "Completed", "InProgress"]),
        errors=st.sampled_from([(), (), ("nvmlDeviceGetName",)]),
    ),
)
well = st.sampled_from([Probe(vitals=GOOD), Probe(vitals=SILENT)])
rules_of_files = st.builds(
    RecoveryRules,
    hold_off_s=st.sampled_from([0.0, 1.0, 60.0, 5000.0]),
    max_hold_off_s=st.sampled_from([0.0, 240.0, 3600.0]),
    trusts_probes=st.booleans(),
)


class AnyHistory(RuleBasedStateMachine):
    """One GPU through anything. What is checked is what an onlooker sees: inputs, and who is Healthy when."""

    @initialize(rules=rules_of_files)
    def begin(self, rules: RecoveryRules) -> None:
        self.gpu = Patient(rules)
        self.clean_from: float | None = None

    @rule(seconds=st.sampled_from([0.0, 0.5, 10.0, 60.0, 600.0, 4000.0, FORGIVEN_AFTER_S]))
    def wait(self, seconds: float) -> None:
        self.gpu.now += seconds

    @rule(inputs=st.lists(signs, min_size=1, max_size=4), probe=st.none() | probes | well, seed=st.randoms())
    def meet(self, inputs: list[Input], probe: Probe | None, seed: random.Random) -> None:
        self._meet([*inputs, *([] if probe is None else [probe])], seed)

    @rule(probe=probes | well)
    def look(self, probe: Probe) -> None:
        self._meet([probe], random.Random(0))

    @rule(count=st.integers(1, 12), probe=well)
    def look_often(self, count: int, probe: Probe) -> None:
        for _ in range(count):
            self.gpu.now += 10.0
            self._meet([probe], random.Random(0))

    @rule()
    def look_when_due(self) -> None:
        due_at = find_next_look(self.gpu.course, self.gpu.rules)
        if due_at is not None:
            self.gpu.now = max(self.gpu.now, due_at)
            self._meet([Probe(vitals=GOOD)], random.Random(0))

    @rule()
    def clear(self) -> None:
        self.gpu.meet(Cleared())
        self.clean_from = None
        assert {fault.cause for fault in self.gpu.course.record.faults} <= {it.cause for it in self.gpu.course.standing}
        assert self.gpu.course.record.relapses == 0

    @rule(reboots=st.booleans())
    def restart(self, *, reboots: bool) -> None:
        kept = self.gpu.course.record
        self.gpu.restart(boot_id=f"{kept.boot_id}'" if reboots else kept.boot_id)
        self.clean_from = None
        was, now = (msgspec.to_builtins(record.faults) for record in (kept, self.gpu.course.record))
        for fault in now:
            assert fault.pop("was_reset", False) or not reboots
        for fault in was:
            fault.pop("was_reset", None)
        assert now == was

    @rule(rules=rules_of_files)
    def edit_the_file(self, rules: RecoveryRules) -> None:
        self.gpu.rules = rules

    @precondition(lambda self: self.gpu.rules.hold_off_s)
    @rule(probe=well)
    def long_quiet_with_a_reset_cures_everything(self, probe: Probe) -> None:
        gpu = self.gpu
        course = gpu.course
        for inputs, pause in ([DriverReset()], 1.0), ([probe], 1.0), ([probe], 2.0**20):
            course = advance(course, inputs, now=gpu.now, wall=WALL + gpu.now, rules=gpu.rules)
            gpu.now += pause
        course = advance(course, [probe], now=gpu.now, wall=WALL + gpu.now, rules=gpu.rules)
        self.clean_from = gpu.now
        gpu.before = gpu.course = course
        assert gpu.is_healthy

    def _meet(self, inputs: list[Input], seed: random.Random) -> None:
        gpu, before = self.gpu, self.gpu.course
        gpu.meet(*inputs)
        shuffled = seed.sample(inputs, len(inputs))
        other = advance(before, shuffled, now=gpu.now, wall=WALL + gpu.now, rules=gpu.rules)
        assert other == gpu.course
        if not isinstance(inputs[-1], Probe) or not _is_good(inputs[-1].vitals):
            self.clean_from = None
        elif self.clean_from is None or len(inputs) > 1:
            self.clean_from = gpu.now
        ended = [fault for fault in before.record.faults if _kind(fault) not in map(_kind, gpu.course.record.faults)]
        for fault in ended:
            self._judge_end(fault, before, inputs)

    def _judge_end(self, fault, before: Course, inputs: list[Input]) -> None:
        gpu = self.gpu
        if fault.cause is Cause.ECC and any(isinstance(it, FatalEvent) and it.xid == 94 for it in inputs):
            return  # explained, and the XID is a fault itself
        assert gpu.rules.hold_off_s
        hold_off_s = compute_hold_off(before.record, gpu.rules)
        (probe,) = inputs
        assert isinstance(probe, Probe)
        assert self.clean_from is not None
        clean_s = gpu.now - self.clean_from
        assert clean_s >= hold_off_s
        if probe.vitals.recovery_action is None and fault.needs_reset and not fault.was_reset:
            assert gpu.rules.trusts_probes
            assert clean_s >= 10 * hold_off_s

    @invariant()
    def what_is_kept_can_be_read_again(self) -> None:
        record = self.gpu.course.record
        assert msgspec.json.decode(msgspec.json.encode(record), type=Record) == record

    @invariant()
    def there_is_one_fault_of_a_kind_and_the_worst_is_first(self) -> None:
        faults = self.gpu.course.record.faults
        kinds = [_kind(fault) for fault in faults]
        assert len(set(kinds)) == len(kinds)
        assert [fault.needs_reset for fault in faults] == sorted((it.needs_reset for it in faults), reverse=True)

    @invariant()
    def an_ailment_is_one_line_and_there_is_one_as_long_as_there_is_a_fault(self) -> None:
        ailment = self.gpu.ailment
        assert (ailment is not None) is bool(self.gpu.course.record.faults or self.gpu.course.unready)
        if ailment is not None:
            assert ailment.text.isprintable()
            assert ailment.since <= WALL + self.gpu.now

    @invariant()
    def the_hold_off_only_grows_until_it_is_forgiven(self) -> None:
        rules = RecoveryRules()
        now, before = (compute_hold_off(it.record, rules) for it in (self.gpu.course, self.gpu.before))
        assert now in {60.0, before, min(2 * before, 3600.0)}

    @invariant()
    def the_next_look_is_at_a_probe_that_may_end_something(self) -> None:
        due_at = find_next_look(self.gpu.course, self.gpu.rules)
        assert due_at is None or self.gpu.course.record.faults


def _is_good(vitals: Vitals) -> bool:
    """Whether readings are good, as far as they can be judged without those before."""
    bad = vitals.errors or vitals.row_remap_failure or vitals.fabric_state == "InProgress"
    return not bad and vitals.recovery_action in {None, "None"}


def _kind(fault) -> tuple[Cause, bool, object]:
    return fault.cause, fault.needs_reset, fault.instance


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
