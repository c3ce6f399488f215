"""What follows from what is seen of the label and of the configurations: when to wait, what counts, what is said."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.config.cluster import Fallback
from nvdp.planning.selecting import Kind, Sight, Source, decide
from nvdp.planning.selection import Rules

KEY = "nvidia.com/device-plugin.config"
PLACE, DIRECTORY = "configmap nvdp/configs", "/configs"
MAP = Source(PLACE, frozenset({"base", "mixed"}))
GONE = Source(PLACE, problem=f"{PLACE}: there is no such ConfigMap", missing=True)
FILES = Source(DIRECTORY, frozenset({"base", "old"}))
RULES = Rules(default="base")

ONLY_MAP = Sight(node="node a", config_map_place=PLACE)
ONLY_FILES = Sight(node="node a", directory_place=DIRECTORY)
BOTH = Sight(node="node a", config_map_place=PLACE, directory_place=DIRECTORY)


def see(sight, **changes):
    return decide(msgspec.structs.replace(sight, **changes), RULES)


def entry(verdict):
    assert verdict.kind is Kind.CHOSEN, verdict
    return verdict.place, verdict.chosen.entry


# in time


@pytest.mark.parametrize(
    ("sight", "changes"),
    {
        "nothing is known": (ONLY_MAP, {}),
        "the label is not": (ONLY_MAP, {"config_map": MAP}),
        "the ConfigMap is not": (ONLY_MAP, {"label": "mixed"}),
        "the server fails": (ONLY_MAP, {"node_problem": "x", "config_map_problem": "x"}),
        "the label is not, and there are files": (ONLY_FILES, {"directory": FILES, "node_problem": "x"}),
        "the ConfigMap is not, and there are files": (BOTH, {"directory": FILES, "label": "old"}),
        "one request for the ConfigMap fails": (BOTH, {"directory": FILES, "label": "old", "config_map_problem": "x"}),
        "a last one does not hurry": (BOTH, {"directory": FILES, "keeps_one": True, "node_problem": "x"}),
    }.values(),
)
def test_the_server_is_given_time(sight, changes):
    assert see(sight, **changes) is None


def test_with_label_and_configurations_it_is_decided_at_once():
    assert entry(see(ONLY_MAP, label="mixed", config_map=MAP)) == (PLACE, "mixed")
    assert entry(see(ONLY_MAP, label="", config_map=MAP)) == (PLACE, "base")
    assert entry(see(ONLY_FILES, label="old", directory=FILES)) == (DIRECTORY, "old")


def test_the_config_map_counts_before_the_directory_and_that_while_the_server_fails():
    assert entry(see(BOTH, label="", config_map=MAP, directory=FILES)) == (PLACE, "base")
    assert entry(see(BOTH, label="old", is_late=True, directory=FILES)) == (DIRECTORY, "old")
    later = see(BOTH, label="mixed", config_map=MAP, config_map_problem="lost", directory=FILES, is_late=True)
    assert entry(later) == (PLACE, "mixed")


def test_what_is_not_there_is_said_at_once():
    verdict = see(ONLY_MAP, config_map=GONE)
    assert (verdict.kind, verdict.problem) == (Kind.MISSING, GONE.problem)
    assert see(BOTH, label="mixed", config_map=GONE, directory=FILES).kind is Kind.MISSING


def test_what_cannot_be_read_is_refused():
    unreadable = Source(DIRECTORY, problem="/configs: cannot be read: Permission denied")
    assert see(ONLY_FILES, directory=unreadable) is None
    verdict = see(ONLY_FILES, label="", directory=unreadable)
    assert (verdict.kind, verdict.problem) == (Kind.REFUSED, unreadable.problem)


def test_a_label_that_names_nothing_is_unknown_whatever_default_there_is():
    verdict = see(ONLY_MAP, label="zzz", config_map=MAP)
    assert (verdict.kind, verdict.chosen) == (Kind.UNKNOWN, None)
    assert verdict.problem == f"{PLACE}: label {KEY}=zzz names no configuration; there are base, mixed"


# late


def test_late_the_last_one_applied_comes_before_any_default():
    verdict = see(ONLY_FILES, is_late=True, keeps_one=True, directory=FILES, node_problem="refused")
    assert (verdict.kind, verdict.chosen) == (Kind.WAITING, None)
    assert verdict.problem == f"node a: its label {KEY} is not known yet (refused); nvdp goes on by itself once it is"


def test_late_the_last_one_applied_comes_before_files_that_may_be_older_until_something_changes():
    seen = {"is_late": True, "keeps_one": True, "directory": FILES, "label": "old", "config_map_problem": "denied"}
    assert see(BOTH, **seen).kind is Kind.WAITING
    assert entry(see(BOTH, **seen, has_news=True)) == (DIRECTORY, "old")
    assert entry(see(ONLY_FILES, **seen)) == (DIRECTORY, "old")


def test_late_and_without_a_last_one_it_is_the_default_of_the_directory_which_says_so():
    verdict = see(BOTH, is_late=True, directory=FILES)
    assert entry(verdict) == (DIRECTORY, "base")
    assert verdict.chosen.by == f"label {KEY} not known yet: --default-config"


WAITS = {
    "for the label": (
        {},
        ONLY_MAP,
        f"node a: its label {KEY} is not known yet (the API server has not answered yet); ",
    ),
    "for the label, with the ConfigMap": ({"config_map": MAP, "node_problem": "denied"}, ONLY_MAP, "yet (denied); "),
    "for the ConfigMap": ({"label": "a", "config_map_problem": "x"}, ONLY_MAP, f"{PLACE} is not known yet (x); "),
    "for the directory": ({"label": "a"}, ONLY_FILES, f"{DIRECTORY}: not looked at yet"),
}


@pytest.mark.parametrize(("changes", "sight", "text"), WAITS.values(), ids=WAITS)
def test_else_it_waits_and_says_for_what(changes, sight, text):
    verdict = see(sight, is_late=True, **changes)
    assert verdict.kind is Kind.WAITING
    assert text in verdict.problem


NAMES = st.frozensets(st.sampled_from(["base", "default", "mixed", "old"]))
SIGHTS = st.builds(
    Sight,
    node=st.just("node a"),
    label=st.sampled_from([None, "", "mixed", "zzz"]),
    node_problem=st.sampled_from(["", "x"]),
    config_map_place=st.just(PLACE),
    config_map=st.none() | st.just(GONE) | NAMES.map(lambda names: Source(PLACE, names)),
    config_map_problem=st.sampled_from(["", "x"]),
    directory_place=st.just(DIRECTORY),
    directory=st.none() | NAMES.map(lambda names: Source(DIRECTORY, names)),
    is_late=st.booleans(),
    keeps_one=st.booleans(),
    has_news=st.booleans(),
)
OPTIONS = st.builds(
    Rules, default=st.sampled_from(["", "base"]), fallbacks=st.lists(st.sampled_from(Fallback), unique=True).map(tuple)
)


@given(SIGHTS, OPTIONS)
def test_no_node_has_another_configuration_than_its_label_says_because_the_server_is_slow(sight, options):
    verdict = decide(sight, options)
    if verdict is None:
        assert not sight.is_late
        return
    if verdict.kind is not Kind.CHOSEN:
        assert verdict.problem
        return
    assert verdict.chosen is not None
    if sight.label:
        assert verdict.chosen.entry == sight.label
    if sight.label is None:
        assert sight.is_late
        assert not sight.keeps_one
        assert verdict.place == DIRECTORY
    if sight.config_map is not None:
        assert verdict.place == PLACE
    else:
        assert sight.is_late
        assert sight.has_news or not sight.keeps_one


@given(SIGHTS, OPTIONS)
def test_what_was_decided_in_time_stands_when_time_is_over_and_the_server_is_lost(sight, options):
    verdict = decide(msgspec.structs.replace(sight, is_late=False), options)
    lost = msgspec.structs.replace(sight, is_late=True, node_problem="lost", config_map_problem="lost")
    if verdict is not None:
        assert decide(lost, options) == verdict
