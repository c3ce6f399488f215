"""Names and values of labels (vector C5), whatever text they are made of."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.planning.label_text import build_part, build_value, find_family, sanitise

VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a space separated string", "a-space-separated-string"),
        ("some(thing)else", "somethingelse"),
        ("some ( thing )else", "some-thing-else"),
        ("NVIDIA-TITAN-X-(Pascal)", "NVIDIA-TITAN-X-Pascal"),
        (" input  with multiple   spaces   ", "input-with-multiple-spaces"),
        ("some [ / thing / ]else", "some-thing-else"),
        ("some / thing /else", "some-thing-else"),
        ("some-thing.else_new", "some-thing.else_new"),
        ("X9SRA/X9SRA-3", "X9SRAX9SRA-3"),
        ("product-name\n", "product-name"),
    ],
)
def test_c5_a_text_is_sanitised(text, expected):
    assert sanitise(text) == build_value(text) == expected


@pytest.mark.parametrize(
    ("text", "suffix", "expected"),
    [
        ("Standard PC (Q35 + ICH9, 2009)-…", "", "Standard-PC-Q35-ICH9-2009"),
        ("…", "", ""),
        ("-.x.-", "", "x"),
        ("m" * 90, "", "m" * 63),
        ("m" * 90, "-SHARED", "m" * 56 + "-SHARED"),
        ("m" * 44 + "-" * 20, "-MIG-1g.18gb-SHARED", "m" * 44 + "-MIG-1g.18gb-SHARED"),
        ("", "-MIG-INVALID", "MIG-INVALID"),
        ("model", "-" + "s" * 90, "s" * 63),
    ],
)
def test_a_value_is_cut_where_it_would_be_refused(text, suffix, expected):
    assert build_value(text, suffix) == expected


@given(st.text(max_size=100), st.sampled_from(["", "-SHARED", "-MIG-INVALID", "-MIG-1g.10gb-SHARED"]))
def test_every_value_is_valid_and_keeps_its_suffix(text, suffix):
    value = build_value(text, suffix)
    assert VALUE.fullmatch(value)
    assert value.endswith(suffix.lstrip("-"))
    assert build_value(value) == value


def test_a_part_that_is_cut_stays_distinct():
    same = "NVIDIA-" + "x" * 60
    one, other = build_part(same + "-80GB", room=45), build_part(same + "-40GB", room=45)
    assert one != other
    assert len(one) == len(other) == 45
    assert build_part("NVIDIA-H200", room=45) == "NVIDIA-H200"


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        ((1, 3), "tesla"),
        ((2, 1), "fermi"),
        ((3, 7), "kepler"),
        ((4, 0), "undefined"),
        ((5, 3), "maxwell"),
        ((6, 1), "pascal"),
        ((7, 0), "volta"),
        ((7, 4), "volta"),
        ((7, 5), "turing"),
        ((8, 0), "ampere"),
        ((8, 8), "ampere"),
        ((8, 9), "ada-lovelace"),
        ((9, 0), "hopper"),
        ((10, 3), "blackwell"),
        ((11, 0), "undefined"),
        ((12, 1), "blackwell"),
        ((13, 0), "rubin"),
        ((14, 0), "undefined"),
        ((0, 0), "undefined"),
    ],
)
def test_families_by_compute_capability(capability, family):
    assert find_family(capability) == family
