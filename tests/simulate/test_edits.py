"""The edits of the tour: they change what they are to change, wherever it stands in the file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.config.load import parse_config
from nvdp.errors import ConfigError, UsageError
from nvdp.simulate.edits import parse_shared

TEXTS = {
    "block": "sharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: {}\n",
    "first key": "sharing:\n  timeSlicing:\n    resources:\n    - replicas: {}\n      name: nvidia.com/gpu\n",
    "flow": "sharing: {{timeSlicing: {{resources: [{{name: nvidia.com/gpu, replicas: {}}}]}}}}\n",
    "JSON": '{{"sharing": {{"timeSlicing": {{"resources": [{{"name": "gpu", "replicas": {}}}]}}}}}}',
    "comment": "sharing:\n  timeSlicing:\n    resources:\n    - name: gpu  # replicas: 3\n      replicas: {}\n",
    "other block": (
        "sharing:\n  timeSlicing:\n    resources:\n    - name: gpu\n      replicas: {}\n"
        "  mps:\n    resources: [{{name: gpu, rename: gpu.mps, devices: [1], replicas: 7}}]\n"
    ),
}


@given(kind=st.sampled_from(sorted(TEXTS)), before=st.integers(2, 2000), after=st.integers(2, 2000))
def test_sharing_by_more_changes_the_number_of_replicas_and_nothing_else(kind, before, after):
    text = TEXTS[kind].format(before)
    shared = parse_shared(text, name="f").share_by(after)
    assert shared.replicas == after
    assert shared.text == TEXTS[kind].format(after)
    assert shared.share_by(before).text == text


@pytest.mark.parametrize("kind", TEXTS)
def test_the_typo_is_refused_at_the_place_that_the_tour_expects(kind):
    shared = parse_shared(TEXTS[kind].format(4), name="f")
    with pytest.raises(ConfigError) as refused:
        parse_config(shared.build_typo(20), name="f")
    (problem,) = refused.value.problems
    assert (problem.line, problem.column) == (shared.line, shared.column)
    assert problem.message == "unknown key; did you mean replicas?"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}", "nvidia.com/gpu"),
        (
            "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 2}]}}",
            "nvidia.com/gpu.shared",
        ),
    ],
)
def test_pods_ask_for_the_name_that_is_offered(text, name):
    assert parse_shared(text, name="f").resource == name


@pytest.mark.parametrize(
    "text",
    ["", "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}"],
)
def test_a_file_that_shares_nothing_is_not_for_the_tour(text):
    with pytest.raises(UsageError, match="which must be 2 or more here"):
        parse_shared(text, name="f")


def test_a_number_that_stands_elsewhere_is_not_edited():
    text = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: *n}]}}\nflags: {mpsRoot: &n 4}\n"
    anchored = "sharing:\n  timeSlicing:\n    resources:\n    - name: gpu\n      replicas: &n 4\n"
    assert "alias" not in anchored
    with pytest.raises((UsageError, ConfigError)):
        parse_shared(text, name="f")
    with pytest.raises(UsageError, match="write it out"):
        parse_shared(anchored, name="f")
