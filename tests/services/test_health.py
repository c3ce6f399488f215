"""What file and variables say of health, as it reaches what the driver reports and what scans read."""

from __future__ import annotations

import msgspec
import pytest

from nvdp.config.schema import HealthProfile, XidSet
from nvdp.model.health import NvLink
from nvdp.model.inventory import Fault, MigMode, UnreadableGpu
from nvdp.model.reasons import Cause
from nvdp.planning.course import RecoveryRules
from nvdp.planning.xid_policy import XidPolicy, XidRules
from nvdp.services.health import HealthRules, build_rules
from tests.planning.values import gpu, inventory, parse, uuid
from tests.services.test_mig_health import Watched

A, B = uuid(0), uuid(1)
PAIR = inventory(gpu(0), gpu(1))
NOTHING_IS_CHECKED = XidRules(ignored=XidSet(every=True))
UP, DOWN = ((NvLink(number=0, up=up, peer=gpu(1).pci),) for up in (True, False))


def health(text=""):
    return parse(f"version: v1\nhealth: {{{text}}}").health


def watched(text="", **options):
    return Watched(*PAIR.gpus, settings=health(text), **options)


def test_every_key_of_the_file_and_the_variables_become_rules():
    settings = health(
        "profile: catalog, ignoredXIDs: [31], fatalXIDs: all, "
        "recovery: {holdOff: 5s, maxHoldOff: 7m, withoutRecoveryAction: probes}"
    )
    assert build_rules(settings, NOTHING_IS_CHECKED) == HealthRules(
        policy=XidPolicy(
            profile=HealthProfile.CATALOG,
            file=XidRules(ignored=XidSet(numbers=(31,)), fatal=XidSet(every=True)),
            variables=NOTHING_IS_CHECKED,
        ),
        recovery=RecoveryRules(hold_off_s=5.0, max_hold_off_s=420.0, trusts_probes=True),
    )
    assert build_rules(health(), XidRules()) == HealthRules()


@pytest.mark.parametrize(("profile", "ignored", "fatal"), [("compat", 109, 94), ("catalog", 94, 109)])
def test_report_e4_the_profile_of_the_file_decides_which_xids_are_fatal(profile, ignored, fatal):
    node = watched(f"profile: {profile}")
    assert not node.hear(ignored)
    assert node.ailing == {}
    assert node.hear(fatal)
    assert node.ailing == {A: Cause.XID}
    assert node.counts.seen == [(A, ignored, "ignored"), (A, fatal, "fatal")]


def test_report_e5_the_variables_overrule_the_file_before_and_after_it_is_read():
    chosen = XidRules(ignored=XidSet(every=True), fatal=XidSet(numbers=(79,)))
    for node in (Watched(*PAIR.gpus, variables=chosen), watched("fatalXIDs: [31]", variables=chosen)):
        assert not any(node.hear(xid) for xid in (31, 48))
        assert node.ailing == {}
        assert node.hear(79)
        assert node.ailing == {A: Cause.XID}


# Memory errors


@pytest.mark.parametrize("text", ["", "profile: catalog", "ignoredXIDs: [94]", "ignoredXIDs: all, fatalXIDs: [48]"])
def test_an_error_of_two_bits_is_fatal_where_its_xid_is(text):
    node = watched(text)
    assert node.hear_memory_error(double=True)
    assert node.ailing == {A: Cause.ECC}
    assert node.counts.seen == [(A, "double")]


def test_an_error_of_two_bits_whose_xid_is_ignored_is_only_counted():
    for node in (watched("ignoredXIDs: [48]"), watched(variables=NOTHING_IS_CHECKED)):
        assert not node.hear_memory_error(double=True)
        assert node.ailing == {}
        assert node.counts.seen == [(A, "double")]


def test_an_error_of_one_bit_is_only_counted():
    node = watched()
    assert not node.hear_memory_error(double=False)
    assert node.ailing == {}
    assert node.counts.seen == [(A, "single")]


@pytest.mark.parametrize(
    ("text", "ailing"),
    [("", {A: Cause.ECC}), ("ignoredXIDs: [48]", {}), ("ignoredXIDs: [94]", {}), ("profile: catalog", {})],
)
def test_counters_of_memory_errors_are_heeded_unless_an_xid_of_such_errors_is_ignored(text, ailing):
    node = watched(text)
    for count in (3, 4):
        node.scan(PAIR, uncorrected_memory=count)
    assert node.ailing == ailing


# What else reaches a probe


@pytest.mark.parametrize(
    ("variables", "ailing"), [(XidRules(), {A: Cause.ROW_REMAP_FAILURE}), (NOTHING_IS_CHECKED, {})]
)
def test_readings_are_heeded_unless_all_health_checks_are_off(variables, ailing):
    node = watched(variables=variables)
    node.scan(PAIR, row_remap_failure=True)
    assert node.ailing == ailing


NAMELESS = UnreadableGpu(index=1, pci=gpu(1).pci, fault=Fault(call="nvmlDeviceGetUUID", kind="Unknown", text="no"))
ALONE = msgspec.structs.replace(inventory(gpu(0)), unreadable=(NAMELESS,))


@pytest.mark.parametrize(
    ("before", "after", "ailing"),
    [
        (PAIR, PAIR, {A: Cause.FABRIC_DEGRADED}),
        (PAIR, inventory(gpu(0)), {B: Cause.VANISHED}),
        (PAIR, inventory(gpu(0), gpu(1, mig=MigMode.ENABLED)), {}),
        (PAIR, inventory(gpu(0, mig=MigMode.ENABLED), gpu(1)), {}),
        (ALONE, ALONE, {}),
    ],
    ids=["both are there", "the other is gone", "the other is in MIG mode", "it is in MIG mode", "the other is unread"],
)
def test_a_link_that_is_down_is_held_against_a_gpu_unless_one_end_is_away_or_in_mig_mode(before, after, ailing):
    node = Watched(*before.gpus)
    node.scan(before, nvlinks=UP)
    for _ in range(2):
        node.scan(after, nvlinks=DOWN)
    assert node.ailing == ailing


# One event that two sessions tell


def test_what_two_sessions_tell_a_moment_apart_counts_once():
    node = watched()
    for session in (1, 2):
        node.hear(31, session=session)
        node.hear_memory_error(double=False, session=session)
        node.now += 1.0
    assert node.counts.seen == [(A, 31, "ignored"), (A, "single")]


def test_what_one_session_tells_twice_counts_twice_and_so_does_what_another_tells_later():
    node = watched()
    node.hear(31)
    node.hear(31)
    node.now += 2.5
    node.hear(31, session=2)
    assert node.counts.seen == [(A, 31, "ignored")] * 3


def test_sessions_that_tell_of_different_things_are_both_heard():
    node = watched()
    node.hear(31, session=1)
    node.hear(13, session=2)
    node.hear(31, session=2, gpu_instance=1, compute_instance=0)
    node.hear_memory_error(double=False, session=1)
    node.hear_memory_error(double=True, session=2)
    assert len(node.counts.seen) == 5
