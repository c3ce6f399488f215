"""What the readings of a probe mean: each row of the table in each state, and what must never be held against a GPU."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.health import NvLink, Vitals
from nvdp.model.reasons import Cause
from nvdp.planning.vitals import (
    ACTIONS,
    NO_ACTION,
    UNSUPPORTED,
    Baseline,
    Examination,
    Nature,
    Surroundings,
    describe_action,
    examine,
)

WORDS = ("GPUReset", "NodeReboot", "DrainP2P", "DrainAndReset", "RecoverIMEXDomain", "BusReset", "SystemReboot")
WORDS += ("Unknown",)
PEER, SWITCH = "0000:1b:00.0", "0000:c0:00.0"
DOWN = (NvLink(number=0, up=False, peer=SWITCH), NvLink(number=3, up=False))
ALONE = Surroundings()
UP = (NvLink(number=0, up=True, peer=SWITCH), NvLink(number=3, up=True, peer=PEER))
ONE_DOWN = (UP[0], DOWN[1])

links = st.lists(
    st.builds(NvLink, number=st.integers(0, 5), up=st.booleans(), peer=st.sampled_from([None, PEER, SWITCH])),
    unique_by=lambda link: link.number,
).map(lambda found: tuple(sorted(found, key=lambda link: link.number)))
readings = st.builds(
    Vitals,
    recovery_action=st.sampled_from([None, NO_ACTION, *WORDS]),
    row_remap_failure=st.none() | st.booleans(),
    retired_pages_pending=st.none() | st.booleans(),
    uncorrected_memory=st.none() | st.integers(0, 5),
    uncorrected_sram=st.none() | st.integers(0, 5),
    nvlinks=st.none() | links,
    fabric_state=st.sampled_from([None, "NotStarted", "InProgress", "Completed"]),
    fabric_status=st.sampled_from([None, "Success", "NotReady"]),
    fabric_faults=st.sampled_from([(), ("DegradedBandwidth",), ("Misconfigured",)]),
    errors=st.sampled_from([(), ("nvmlDeviceGetRemappedRows",)]),
)
surroundings = st.builds(
    Surroundings,
    peers_away=st.sampled_from([frozenset(), frozenset({PEER})]),
    in_mig_mode=st.booleans(),
    heeds_memory_errors=st.booleans(),
)


def look(*series: Vitals, around: Surroundings = ALONE) -> Examination:
    """Probe after probe; what the last one found."""
    found = examine(series[0], Baseline(), around)
    for vitals in series[1:]:
        found = examine(vitals, found.baseline, around)
    return found


def causes(found: Examination) -> list[Cause]:
    return [finding.cause for finding in found.findings]


HEALTHY = {
    "action": [Vitals(recovery_action="None")],
    "row remap": [Vitals(row_remap_failure=False)],
    "retired pages": [Vitals(retired_pages_pending=False)],
    "counters of a lifetime": [Vitals(uncorrected_memory=70, uncorrected_sram=3)],
    "counters that stand still": [Vitals(uncorrected_memory=70)] * 3,
    "counters set to zero": [Vitals(uncorrected_memory=70), Vitals(uncorrected_memory=2)],
    "links up": [Vitals(nvlinks=UP)] * 3,
    "links that never were up": [Vitals(nvlinks=DOWN)] * 3,
    "a link that was trained anew": [Vitals(nvlinks=UP), Vitals(nvlinks=ONE_DOWN), Vitals(nvlinks=UP)],
    "no links": [Vitals(nvlinks=())],
    "fabric complete": [Vitals(fabric_state="Completed", fabric_status="Success")],
    "fabric not used": [Vitals(fabric_state="NotStarted", fabric_status="NotReady")],
    "fabric told something wrong": [Vitals(fabric_state="Completed", fabric_faults=("Misconfigured",))],
}
BAD_LINK = [Vitals(nvlinks=UP), Vitals(nvlinks=ONE_DOWN), Vitals(nvlinks=ONE_DOWN)]
UNHEALTHY = [
    *([[Vitals(recovery_action=word)], Cause.RECOVERY_ACTION, Nature.STANDS, ACTIONS[word]] for word in WORDS),
    ([Vitals(row_remap_failure=True)], Cause.ROW_REMAP_FAILURE, Nature.STANDS, "should be replaced"),
    ([Vitals(retired_pages_pending=True)], Cause.RETIRED_PAGES_PENDING, Nature.STANDS, "until the GPU is reset"),
    (
        [Vitals(uncorrected_memory=70, uncorrected_sram=1), Vitals(uncorrected_memory=72, uncorrected_sram=1)],
        Cause.ECC,
        Nature.HAPPENED,
        "new uncorrected memory errors: 2 in the device memory",
    ),
    (
        [Vitals(uncorrected_sram=0), Vitals(), Vitals(uncorrected_sram=1)],
        Cause.ECC,
        Nature.HAPPENED,
        "new uncorrected memory errors: 1 in caches and registers",
    ),
    (BAD_LINK, Cause.FABRIC_DEGRADED, Nature.HAPPENED, "NVLink 3 is down"),
    (
        [Vitals(nvlinks=UP), Vitals(nvlinks=DOWN), Vitals(), Vitals(nvlinks=DOWN)],
        Cause.FABRIC_DEGRADED,
        Nature.HAPPENED,
        "NVLinks 0, 3 are down",
    ),
    ([Vitals(fabric_state="InProgress")], Cause.FABRIC_DEGRADED, Nature.PASSING, "not set up the GPU yet"),
    (
        [Vitals(fabric_state="Completed", fabric_status="NotReady")],
        Cause.FABRIC_DEGRADED,
        Nature.STANDS,
        "could not set up the GPU (NotReady)",
    ),
    (
        [Vitals(fabric_state="Completed", fabric_faults=("DegradedBandwidth", "Misconfigured", "RouteUnhealthy"))],
        Cause.FABRIC_DEGRADED,
        Nature.STANDS,
        "has less bandwidth than it should, has unhealthy routes",
    ),
]


@pytest.mark.parametrize("series", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_reading_is_clean(series: list[Vitals]) -> None:
    for end in range(1, len(series) + 1):
        assert look(*series[:end]).is_clean


@pytest.mark.parametrize(("series", "cause", "nature", "text"), UNHEALTHY)
def test_an_unhealthy_reading_is_one_finding_that_says_what_is_wrong(
    series: list[Vitals], cause: Cause, nature: Nature, text: str
) -> None:
    (finding,) = look(*series).findings
    assert (finding.cause, finding.nature) == (cause, nature)
    assert text in finding.text
    assert not look(*series).is_clean


def test_what_is_not_supported_says_nothing() -> None:
    found = look(Vitals())
    assert (found.findings, found.action, found.is_clean) == ((), UNSUPPORTED, True)


def test_a_reading_that_failed_says_nothing_but_the_probe_is_not_clean() -> None:
    found = look(Vitals(errors=("nvmlDeviceGetFieldValues",)))
    assert (found.findings, found.action, found.is_clean) == ((), "", False)


def test_readings_that_failed_keep_what_was_read_before() -> None:
    before = look(Vitals(uncorrected_memory=1, uncorrected_sram=2, nvlinks=UP)).baseline
    assert examine(Vitals(errors=("nvmlDeviceGetNvLinkState",)), before, ALONE).baseline == before


def test_every_word_of_the_driver_is_known_and_none_but_none_is_good() -> None:
    assert tuple(ACTIONS) == WORDS
    assert describe_action("NodeReboot") == "a reboot of the node"
    assert describe_action("SomethingNew") == describe_action("Unknown")
    assert [describe_action(word) for word in ("", NO_ACTION, UNSUPPORTED)] == ["", "", ""]
    assert causes(look(Vitals(recovery_action="SomethingNew"))) == [Cause.RECOVERY_ACTION]


def test_each_row_is_judged_whatever_the_others_say() -> None:
    everything = Vitals(
        recovery_action="GPUReset",
        row_remap_failure=True,
        retired_pages_pending=True,
        uncorrected_memory=2,
        nvlinks=ONE_DOWN,
        fabric_state="InProgress",
        errors=("nvmlDeviceGetName",),
    )
    before = Baseline(uncorrected_memory=1, links_up=UP, links_missed=(3,))
    assert causes(examine(everything, before, ALONE)) == [
        Cause.RECOVERY_ACTION,
        Cause.ROW_REMAP_FAILURE,
        Cause.RETIRED_PAGES_PENDING,
        Cause.ECC,
        Cause.FABRIC_DEGRADED,
        Cause.FABRIC_DEGRADED,
    ]


# Nobody is blamed for another's trouble


def test_a_link_to_a_gpu_that_is_out_of_order_is_not_held_against_this_one() -> None:
    away = Surroundings(peers_away=frozenset({PEER}))
    assert look(*BAD_LINK, around=away).findings == ()
    back = examine(Vitals(nvlinks=UP), look(*BAD_LINK, around=away).baseline, ALONE)
    assert back.findings == ()


def test_a_link_that_stays_down_when_the_other_gpu_is_back_is_told_after_two_probes() -> None:
    baseline = look(*BAD_LINK, around=Surroundings(peers_away=frozenset({PEER}))).baseline
    first = examine(Vitals(nvlinks=ONE_DOWN), baseline, ALONE)
    assert first.findings == ()
    assert causes(examine(Vitals(nvlinks=ONE_DOWN), first.baseline, ALONE)) == [Cause.FABRIC_DEGRADED]


def test_the_other_end_of_a_link_is_remembered_from_when_it_was_up() -> None:
    unnamed = NvLink(number=3, up=True)
    baseline = look(Vitals(nvlinks=UP), Vitals(nvlinks=(UP[0], unnamed))).baseline
    assert baseline.links_up == UP


def test_mig_mode_puts_links_down_and_they_are_forgotten_with_it() -> None:
    in_mig = Surroundings(in_mig_mode=True)
    found = examine(Vitals(nvlinks=DOWN, uncorrected_memory=4), look(*BAD_LINK).baseline, in_mig)
    assert found.is_clean
    assert found.baseline == Baseline(uncorrected_memory=4)


def test_memory_errors_that_are_the_applications_affair_are_counted_and_not_held_against_the_gpu() -> None:
    lenient = Surroundings(heeds_memory_errors=False)
    found = look(Vitals(uncorrected_memory=1), Vitals(uncorrected_memory=2), around=lenient)
    assert found.is_clean
    assert found.baseline.uncorrected_memory == 2


# Properties


@given(readings, surroundings)
def test_the_first_probe_holds_no_counter_and_no_link_against_a_gpu(vitals: Vitals, around: Surroundings) -> None:
    assert all(finding.nature is not Nature.HAPPENED for finding in examine(vitals, Baseline(), around).findings)


@given(st.lists(readings, min_size=1, max_size=6), surroundings)
def test_the_same_readings_again_have_no_new_memory_errors(series: list[Vitals], around: Surroundings) -> None:
    found = look(*series, series[-1], around=around)
    assert Cause.ECC not in causes(found)


@given(st.lists(readings, min_size=1, max_size=6), readings, surroundings)
def test_a_failed_call_never_makes_a_gpu_unhealthy(series: list[Vitals], last: Vitals, around: Surroundings) -> None:
    before = look(*series, around=around).baseline
    clean, failed = (examine(msgspec.structs.replace(last, errors=it), before, around) for it in ((), ("nvmlX",)))
    assert failed.findings == clean.findings
    assert not failed.is_clean


@given(st.lists(readings, min_size=1, max_size=6), surroundings)
def test_findings_are_one_line_each_and_baselines_can_be_kept(series: list[Vitals], around: Surroundings) -> None:
    found = look(*series, around=around)
    for finding in found.findings:
        assert finding.text
        assert finding.text.isprintable()
    assert msgspec.json.decode(msgspec.json.encode(found.baseline), type=Baseline) == found.baseline


@given(readings)
def test_readings_survive_the_way_from_the_nvml_child(vitals: Vitals) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(vitals), type=Vitals) == vitals
