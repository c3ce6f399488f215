"""Durations read as Kubernetes reads them, and print as what reads back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.errors import FormatError
from nvdp.model.duration import INFINITE, Duration, build_duration, is_bare_number, parse_duration

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("5", 5 * SECOND),
        ("1.5", 1_500_000_000),
        ("500ms", SECOND // 2),
        ("10s", 10 * SECOND),
        ("1m30s", 90 * SECOND),
        ("1h", 3600 * SECOND),
        ("1.5h", 5400 * SECOND),
        (".5s", SECOND // 2),
        ("0.3s", 300_000_000),
        ("5ns", 5),
        ("5us", 5_000),
        ("5µs", 5_000),
        ("5μs", 5_000),
        ("1h1m1s1ms1us1ns", 3661 * SECOND + 1_001_001),
        ("1m1m", 120 * SECOND),
        ("infinite", 9223372036854775807),
    ],
)
def test_a_duration_is_exact_in_nanoseconds(text: str, nanoseconds: int):
    assert parse_duration(text) == Duration(nanoseconds)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 minute", '"1 minute" is not a duration; write 1m or 60s'),
        ("5min", '"5min" is not a duration; write 5m or 300s'),
        ("10 sec", '"10 sec" is not a duration; write 10s'),
        ("250 millis", '"250 millis" is not a duration; write 250ms'),
        ("2 Hours", '"2 Hours" is not a duration; write 2h or 120m'),
        ("1d", '"1d" is not a duration; write 24h'),
        ("2w", '"2w" is not a duration; write 336h'),
        ("1.5 minutes", '"1.5 minutes" is not a duration; write it like 10s, 1m30s or 500ms'),
        ("5 lightyears", '"5 lightyears" is not a duration; write it like 10s, 1m30s or 500ms'),
        ("soon", '"soon" is not a duration; write it like 10s, 1m30s or 500ms'),
        ("", '"" is not a duration; write it like 10s, 1m30s or 500ms'),
        (".", '"." is not a duration; write it like 10s, 1m30s or 500ms'),
        ("1h30", '"1h30" is not a duration; write it like 10s, 1m30s or 500ms'),
        (" 5s", '" 5s" is not a duration; write it like 10s, 1m30s or 500ms'),
        ("1e3", '"1e3" is not a duration; write it like 10s, 1m30s or 500ms'),
        ("Infinite", '"Infinite" is not a duration; write it like 10s, 1m30s or 500ms'),
        ("-5s", '"-5s" is negative; a duration is 0s or longer'),
        ("999999999999999h", '"999999999999999h" is too long; a duration is at most 292 years'),
        ("9223372036854775807ns", '"9223372036854775807ns" is not a duration; write it like 10s, 1m30s or 500ms'),
        ("9223372036s", None),
        ("9223372037s", '"9223372037s" is too long; a duration is at most 292 years'),
    ],
)
def test_what_is_no_duration_is_told_how_to_write_it(text: str, said: str | None):
    if said is None:
        assert parse_duration(text).seconds > 0
        return
    with pytest.raises(FormatError) as refused:
        parse_duration(text)
    assert str(refused.value) == said


@given(st.integers(min_value=0, max_value=2**63 - 2))
def test_a_duration_prints_as_what_reads_back(nanoseconds: int):
    duration = Duration(nanoseconds)
    assert parse_duration(str(duration)) == duration


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_refused_in_one_line(text: str):
    refusal = ""
    try:
        assert parse_duration(text).ns >= 0
    except FormatError as error:
        refusal = str(error)
    assert not refusal or refusal.isprintable()


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0s"), (90 * SECOND, "1m30s"), (3600 * SECOND, "1h"), (5, "5ns"), (SECOND // 2, "500ms")],
)
def test_a_duration_prints_as_short_as_it_can(nanoseconds: int, text: str):
    assert str(Duration(nanoseconds)) == text


def test_seconds_are_for_clocks_and_infinite_never_ends():
    assert parse_duration("1m30s").seconds == 90.0
    assert INFINITE.is_infinite
    assert INFINITE.seconds == float("inf")
    assert str(INFINITE) == "infinite"
    assert build_duration(seconds=10**9) < INFINITE


def test_a_bare_number_is_one_without_a_unit():
    assert [is_bare_number(text) for text in ("5", "1.5", "5s", "")] == [True, True, False, False]
