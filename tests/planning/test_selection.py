"""Which configuration a node gets: label, default, fallbacks, and a sentence where nothing can be chosen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.config.cluster import Fallback
from nvdp.model.chosen import Chosen
from nvdp.planning.selection import Rules, choose, is_entry, show_name

KEY = "nvidia.com/device-plugin.config"
THERE = ("base", "default", "mixed")
ALL = (Fallback.NAMED, Fallback.SINGLE, Fallback.EMPTY)


def rules(default="", *fallbacks):
    return Rules(default=default, fallbacks=fallbacks)


CHOSEN = {
    "the label names one": ("mixed", THERE, rules("base", *ALL), "mixed", f"label {KEY}=mixed"),
    "no label, and a default": ("", THERE, rules("base", *ALL), "base", f"no label {KEY}: --default-config"),
    "the one that is called default": ("", THERE, rules("", *ALL), "default", f"no label {KEY}: fallback named"),
    "the only one": ("", ["base", "..data"], rules("", *ALL), "base", f"no label {KEY}: fallback single"),
    "none at all": ("", ["a", "b"], rules("", *ALL), "", f"no label {KEY}: fallback empty"),
    "the order is that of the option": (
        "",
        ["default"],
        rules("", Fallback.EMPTY, Fallback.NAMED),
        "",
        f"no label {KEY}: fallback empty",
    ),
    "a label that is not known": (None, THERE, rules("base"), "base", f"label {KEY} not known yet: --default-config"),
}


@pytest.mark.parametrize(("label", "there", "options", "entry", "by"), CHOSEN.values(), ids=CHOSEN)
def test_what_is_chosen_and_by_what(label, there, options, entry, by):
    assert choose(label, there, options).chosen == Chosen(entry, by)


PROBLEMS = {
    "a label that names nothing": (
        "zzz",
        THERE,
        rules("base", *ALL),
        f"label {KEY}=zzz names no configuration; there are base, default, mixed",
    ),
    "a label that is nearly right": (
        "mixde",
        THERE,
        rules(),
        f"label {KEY}=mixde names no configuration, did you mean mixed?; there are base, default, mixed",
    ),
    "a default that names nothing": (
        "",
        ["a", "b"],
        rules("base", *ALL),
        f"--default-config base names no configuration; there are a, b (no label {KEY})",
    ),
    "nothing to go by": (
        "",
        ["a", "b"],
        rules(),
        f"no label {KEY}, no --default-config and no --fallback-strategies; there are a, b",
    ),
    "no fallback fits": (
        "",
        ["a", "b"],
        rules("", Fallback.NAMED, Fallback.SINGLE),
        f"no label {KEY}, no --default-config and no fallback fits (named, single); there are a, b",
    ),
    "nothing there": ("mixed", ["..data", ""], rules("", *ALL), "there are no configurations in it"),
    "a name of the kubelet": ("..data", ["..data", "a"], rules(), "there are a"),
    "too many to be named": ("zzz", [f"c{number:02}" for number in range(30)], rules(), "c18, c19 and 10 more"),
    "a name that is no word": ("x\ny", ["a b"], rules(), 'config="x\\ny" names no configuration; there are "a b"'),
}


@pytest.mark.parametrize(("label", "there", "options", "text"), PROBLEMS.values(), ids=PROBLEMS)
def test_where_nothing_can_be_chosen_the_sentence_names_what_there_is(label, there, options, text):
    choice = choose(label, there, options)
    assert choice.chosen is None
    assert text in choice.problem
    assert "\n" not in choice.problem


NAMES = st.text("ab.-", min_size=1, max_size=4)
OPTIONS = st.builds(
    Rules, default=st.just("") | NAMES, fallbacks=st.lists(st.sampled_from(Fallback), unique=True).map(tuple)
)


@given(st.none() | st.just("") | NAMES, st.frozensets(NAMES | st.just("default")), OPTIONS)
def test_a_choice_is_an_entry_or_a_sentence_and_never_against_a_label(label, there, options):
    choice = choose(label, there, options)
    assert (choice.chosen is None) is bool(choice.problem)
    if choice.chosen is None:
        return
    entry = choice.chosen.entry
    assert entry in there or (entry == "" and Fallback.EMPTY in options.fallbacks)
    assert any(map(is_entry, there))
    if label:
        assert entry == label
    elif options.default:
        assert entry == options.default


@given(st.none() | st.just("") | NAMES, st.frozensets(NAMES), OPTIONS, st.randoms())
def test_the_order_of_the_names_means_nothing_and_hidden_ones_are_not_there(label, there, options, rng):
    shuffled = [*there, "..2026", ""]
    rng.shuffle(shuffled)
    assert choose(label, shuffled, options) == choose(label, there, options)


@given(st.text())
def test_a_name_is_shown_on_one_line(name):
    shown = show_name(name)
    assert shown.isprintable()
    assert len(shown) < 1000
