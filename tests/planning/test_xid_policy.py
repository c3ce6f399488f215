"""Which XIDs are fatal: NVIDIA's vectors for the two variables, the users' wishes, and who overrules whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.config.schema import HealthProfile, XidSet
from nvdp.errors import quote
from nvdp.planning.xid_policy import NVIDIA_IGNORES, Verdict, XidPolicy, XidRules, parse_xid_variables
from nvdp.planning.xids import CATALOGUE, XidClass

FATAL, IGNORED = Verdict.FATAL, Verdict.IGNORED
COMPAT, CATALOG = HealthProfile.COMPAT, HealthProfile.CATALOG

xids = st.sampled_from([1, 13, 31, 48, 63, 79, 94, 109, 154, 172, 555])
sets = st.builds(XidSet, numbers=st.lists(xids, unique=True).map(tuple)) | st.just(XidSet(every=True))
rules = st.builds(XidRules, ignored=sets, fatal=sets)
profiles = st.sampled_from(HealthProfile)
policies = st.builds(XidPolicy, profile=profiles, file=rules, variables=rules)


def some(*numbers: int) -> XidSet:
    return XidSet(numbers=numbers)


ALL = XidSet(every=True)


def environment(disable: str | None = None, enable: str | None = None) -> XidPolicy:
    return XidPolicy(variables=parse_xid_variables(disable=disable, enable=enable).rules)


def verdicts(policy: XidPolicy, *numbers: int) -> set[Verdict]:
    return {policy.judge(number).verdict for number in numbers}


# Vectors B4


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", ()),
        (",", ()),
        ("not-an-int", ()),
        ("68", (68,)),
        ("-68", ()),
        ("68  ", (68,)),
        ("68,", (68,)),
        (",68", (68,)),
        ("68,67", (67, 68)),
        ("68,not-an-int,67", (67, 68)),
    ],
)
def test_vector_b4_a_list_is_read_as_nvidias_plugin_reads_it(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_xid_variables(disable=text, enable=None).rules == XidRules(ignored=some(*numbers))
    assert parse_xid_variables(disable=None, enable=text).rules == XidRules(fatal=some(*numbers))


@pytest.mark.parametrize(
    ("disable", "enable", "is_off", "ignored", "fatal"),
    [
        ("", "", False, NVIDIA_IGNORES, {555}),
        ("all", "", True, NVIDIA_IGNORES | {555}, set()),
        ("xids", "", True, NVIDIA_IGNORES | {555}, set()),
        ("", "all", False, set(), NVIDIA_IGNORES | {555}),
        ("11", "11", False, NVIDIA_IGNORES, {11, 555}),
    ],
)
def test_vector_b4_both_variables_together(
    disable: str, enable: str, *, is_off: bool, ignored: set[int], fatal: set[int]
) -> None:
    policy = environment(disable, enable)
    assert verdicts(policy, *ignored) <= {IGNORED}
    assert verdicts(policy, *fatal) <= {FATAL}
    assert policy.heeds_vitals is not is_off


def test_vector_d8_what_is_enabled_by_number_counts_though_all_is_disabled() -> None:
    policy = environment("all", "79")
    assert verdicts(policy, 79) == {FATAL}
    assert verdicts(policy, 48, 31, 555) == {IGNORED}
    assert not policy.heeds_vitals


@pytest.mark.parametrize("disable", ["48", "13,48", "all", "48,all", "xids"])
@pytest.mark.parametrize("enable", ["all", "xids", "all,79"])
def test_what_is_enabled_altogether_wins_over_all_that_is_disabled_as_with_nvidias_plugin(
    disable: str, enable: str
) -> None:
    policy = environment(disable, enable)
    assert verdicts(policy, *NVIDIA_IGNORES, 48, 79, 555) == {FATAL}
    assert policy.heeds_vitals
    assert policy.heeds_memory_errors


def test_what_is_enabled_altogether_is_not_off_though_all_is_disabled() -> None:
    policy = environment("all", "all")
    assert verdicts(policy, 13, 79, 555) == {FATAL}
    assert policy.heeds_vitals


# What users asked for


def test_report_e4_compat_ignores_as_nvidias_plugin_does_and_catalog_as_the_documentation_does() -> None:
    compat, catalog = XidPolicy(profile=COMPAT), XidPolicy(profile=CATALOG)
    assert (verdicts(compat, 94), verdicts(compat, 109)) == ({FATAL}, {IGNORED})
    assert (verdicts(catalog, 94), verdicts(catalog, 109)) == ({IGNORED}, {FATAL})


def test_report_e5_xids_can_be_chosen_by_the_variables() -> None:
    chosen = environment("all", "48,79")
    assert (verdicts(chosen, 31), verdicts(chosen, 48, 79)) == ({IGNORED}, {FATAL})
    assert verdicts(environment("48", "48"), 48) == {FATAL}
    wrong = parse_xid_variables(disable="abc", enable=None)
    assert wrong.rules == XidRules()
    assert wrong.warnings == (
        'DP_DISABLE_HEALTHCHECKS: "abc" is not an XID and is left out; write numbers with commas, or all',
    )


def test_report_e5_and_by_the_file() -> None:
    policy = XidPolicy(file=XidRules(ignored=ALL, fatal=some(48, 79)))
    assert (verdicts(policy, 31, 13, 555), verdicts(policy, 48, 79)) == ({IGNORED}, {FATAL})
    assert policy.heeds_vitals


def test_report_e11_with_all_disabled_there_still_is_a_policy() -> None:
    policy = environment("all")
    assert verdicts(policy, *CATALOGUE, 555) == {IGNORED}
    assert not policy.heeds_vitals
    assert not policy.heeds_memory_errors


# The two variables in detail


@pytest.mark.parametrize("text", ["all", "ALL", " Xids ", "68,all", "all,abc"])
def test_all_may_be_written_in_any_way_and_makes_the_rest_of_a_list_idle(text: str) -> None:
    assert parse_xid_variables(disable=text, enable=None).rules.ignored == ALL


@pytest.mark.parametrize("token", ["-68", "+68", "6.8", "0x44", "6_8", "٦٨", "true", "0", "9" * 21, "9" * 5000, '"68"'])
def test_what_is_no_xid_is_left_out_with_a_warning_that_names_it(token: str) -> None:
    variables = parse_xid_variables(disable="13", enable=f"48, {token}")
    assert variables.rules == XidRules(ignored=some(13), fatal=some(48))
    (warning,) = variables.warnings
    assert warning.startswith(f"DP_ENABLE_HEALTHCHECKS: {quote(token)} is not an XID")
    assert len(warning) < 200


def test_one_wrong_word_warns_once_however_often_it_stands_there() -> None:
    assert len(parse_xid_variables(disable="abc,ABC, abc", enable="abc").warnings) == 2


def test_variables_that_are_not_set_say_nothing() -> None:
    assert parse_xid_variables(disable=None, enable=None).rules == XidRules()
    assert environment() == XidPolicy()


@given(st.text(), st.text())
def test_any_text_is_read_without_an_error(disable: str, enable: str) -> None:
    read = parse_xid_variables(disable=disable, enable=enable)
    for warning in read.warnings:
        assert "\n" not in warning


# Who overrules whom


@given(policies, xids)
def test_the_variables_overrule_the_file_and_that_overrules_the_profile(policy: XidPolicy, xid: int) -> None:
    said = [source.find_verdict(xid) for source in (policy.variables, policy.file)]
    expected = next((verdict for verdict in said if verdict is not None), None)
    expected = expected or XidPolicy(profile=policy.profile).judge(xid).verdict
    assert policy.judge(xid).verdict is expected


@given(rules, xids)
def test_within_a_source_a_number_wins_over_all_and_then_fatal_over_ignored(source: XidRules, xid: int) -> None:
    verdict = source.find_verdict(xid)
    if xid in source.fatal.numbers:
        assert verdict is FATAL
    elif xid in source.ignored.numbers:
        assert verdict is IGNORED
    elif source.fatal.every:
        assert verdict is FATAL
    elif source.ignored.every:
        assert verdict is IGNORED
    else:
        assert verdict is None


@given(policies, xids)
def test_the_class_is_the_catalogues_under_either_profile(policy: XidPolicy, xid: int) -> None:
    expected = CATALOGUE[xid].advice.xid_class if xid in CATALOGUE else XidClass.RESET
    assert policy.judge(xid).xid_class is expected


@given(profiles, xids.filter(lambda xid: xid not in CATALOGUE))
def test_an_unlisted_xid_is_fatal_unless_somebody_says_otherwise(profile: HealthProfile, xid: int) -> None:
    assert verdicts(XidPolicy(profile=profile), xid) == {FATAL}
    assert verdicts(XidPolicy(profile=profile, file=XidRules(ignored=some(xid))), xid) == {IGNORED}


def test_catalog_ignores_what_needs_no_reset_and_nothing_else() -> None:
    policy = XidPolicy(profile=CATALOG)
    for number, xid in CATALOGUE.items():
        assert (policy.judge(number).verdict is FATAL) is (xid.advice.xid_class is XidClass.RESET)


# Memory errors that are counted, and those that the driver reports as such


def test_memory_errors_count_only_where_every_xid_that_reports_them_does() -> None:
    assert XidPolicy(profile=COMPAT).heeds_memory_errors
    assert not XidPolicy(profile=CATALOG).heeds_memory_errors
    assert not XidPolicy(file=XidRules(ignored=some(94))).heeds_memory_errors
    assert not XidPolicy(file=XidRules(ignored=some(48))).heeds_memory_errors
    assert XidPolicy(profile=CATALOG, file=XidRules(fatal=some(94))).heeds_memory_errors


def test_the_event_of_a_double_bit_error_counts_where_its_xid_does_whatever_becomes_of_contained_ones() -> None:
    for profile in HealthProfile:
        assert XidPolicy(profile=profile).heeds_double_bit_events
        assert XidPolicy(profile=profile, file=XidRules(ignored=some(94))).heeds_double_bit_events
        assert not XidPolicy(profile=profile, file=XidRules(ignored=some(48))).heeds_double_bit_events
    assert not environment("all").heeds_double_bit_events
