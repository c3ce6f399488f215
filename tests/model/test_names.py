"""Names of resources as Kubernetes allows them, and patterns that match whole texts."""

from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.errors import FormatError
from nvdp.model.names import Pattern, ResourceName, check_name_length, parse_resource_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nvidia.com/gpu", "nvidia.com/gpu"),
        ("gpu", "nvidia.com/gpu"),
        ("gpu.shared", "nvidia.com/gpu.shared"),
        ("mig-1g.10gb.me", "nvidia.com/mig-1g.10gb.me"),
        ("example.org/a100", "example.org/a100"),
        ("nvidia.com/A100_80", "nvidia.com/A100_80"),
        ("nvidia.com/" + "x" * 52, "nvidia.com/" + "x" * 52),
    ],
)
def test_a_name_has_a_domain_nvidias_unless_it_says_another(text: str, name: str):
    parsed = parse_resource_name(text)
    assert parsed == name
    assert isinstance(parsed, ResourceName)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("$invalid$", "is not a resource name; write one like nvidia.com/gpu"),
        ("nvidia.com/", "is not a resource name; write one like nvidia.com/gpu"),
        ("", "is not a resource name"),
        ("nvidia.com/a/b", "is not a resource name"),
        ("nvidia.com/-gpu", "is not a resource name"),
        ("nvidia.com/gpu.", "is not a resource name"),
        ("Nvidia.com/gpu", 'before "/" stands a domain'),
        ("/gpu", 'before "/" stands a domain'),
        ("-x.org/gpu", 'before "/" stands a domain'),
        ("kubernetes.io/gpu", "is in a domain that Kubernetes keeps for itself"),
        ("a.kubernetes.io/gpu", "is in a domain that Kubernetes keeps for itself"),
        ("requests.nvidia.com/gpu", "is in a domain that Kubernetes keeps for itself"),
        ("x" * 53, f'"nvidia.com/{"x" * 53}" has 64 characters; 63 are allowed'),
    ],
)
def test_a_name_that_kubernetes_would_refuse_is_refused(text: str, said: str):
    with pytest.raises(FormatError, match=re.escape(said)):
        parse_resource_name(text)


def test_the_shared_name_may_be_too_long():
    shared = parse_resource_name("x" * 46).build_shared()
    assert shared == "nvidia.com/" + "x" * 46 + ".shared"
    with pytest.raises(FormatError, match="has 64 characters"):
        check_name_length(shared)


LETTERS = st.text(alphabet="ab*", max_size=8)


@given(LETTERS, st.text(alphabet="ab", max_size=10))
def test_a_pattern_matches_as_a_glob_whose_only_sign_is_the_star(pattern: str, text: str):
    assert Pattern(pattern).matches(text) is fnmatch.fnmatchcase(text, pattern)


@given(LETTERS, LETTERS, st.text(alphabet="abc", max_size=8))
def test_what_a_covered_pattern_matches_the_covering_one_matches(covering: str, covered: str, text: str):
    if Pattern(covering).covers(Pattern(covered)) and Pattern(covered).matches(text):
        assert Pattern(covering).matches(text)


@given(LETTERS, LETTERS)
def test_a_pattern_that_does_not_cover_another_misses_something_that_it_matches(first: str, second: str):
    if not Pattern(first).covers(Pattern(second)):
        witness = second.replace("*", "c")  # a letter that no pattern holds
        assert Pattern(second).matches(witness)
        assert not Pattern(first).matches(witness)


def test_signs_of_other_pattern_languages_stand_for_themselves():
    assert Pattern("a?[b].").matches("a?[b].")
    assert not Pattern("a?").matches("ab")
    assert not Pattern("NVIDIA a100*").matches("NVIDIA A100-SXM4-80GB")


def test_a_pattern_of_many_stars_takes_no_time():
    assert not Pattern("*a" * 5000 + "b").matches("a" * 100_000)
