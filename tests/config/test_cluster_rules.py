"""Options that exclude or demand each other: one line that says how each was given, and what to do."""

from __future__ import annotations

import pytest

from nvdp.config.cluster_rules import check_options
from nvdp.config.options import parse_options
from nvdp.config.process import ProcessOptions
from nvdp.errors import UsageError

WRONG = {
    "a file and a ConfigMap": (
        {"config-file": "/c", "config-map": "a", "node-name": "n"},
        {},
        "flag --config-file and flag --config-map exclude each other: one file for all, or one of several by label",
    ),
    "a file and a directory": (
        {"config-dir": "/c", "node-name": "n"},
        {"CONFIG_FILE": "/c/d"},
        "environment CONFIG_FILE and flag --config-dir exclude each other",
    ),
    "a ConfigMap without a node": (
        {},
        {"NVDP_CONFIG_MAP": "a"},
        "environment NVDP_CONFIG_MAP needs --node-name or NODE_NAME, the name of this node in the cluster; in a pod",
    ),
    "a directory without a node": ({"config-dir": "/c"}, {}, "flag --config-dir needs --node-name or NODE_NAME"),
    "labels without a node": (
        {},
        {"NVDP_WRITE_LABELS": "auto"},
        "environment NVDP_WRITE_LABELS needs --node-name or NODE_NAME",
    ),
    "events without a node": ({}, {"NVDP_EVENTS": "true"}, "environment NVDP_EVENTS needs --node-name or NODE_NAME"),
    "a condition without a node": ({"node-condition": "a/B"}, {}, "flag --node-condition needs --node-name"),
    "a taint without a node": ({"startup-taint": "a/b"}, {}, "flag --startup-taint needs --node-name"),
    "the kubelet's condition": (
        {"node-condition": "Ready", "node-name": "n"},
        {},
        "flag --node-condition: Ready is a condition of the cluster's own; choose another type",
    ),
    "the cluster's taint": (
        {"node-name": "n"},
        {"NVDP_STARTUP_TAINT": "node.kubernetes.io/not-ready"},
        "environment NVDP_STARTUP_TAINT: node.kubernetes.io/not-ready is a taint of the cluster's own; choose another",
    ),
    "a default of nothing": (
        {"default-config": "a"},
        {},
        "flag --default-config has no effect without --config-map or --config-dir",
    ),
    "fallbacks of nothing": (
        {},
        {"FALLBACK_STRATEGIES": "named"},
        "environment FALLBACK_STRATEGIES has no effect without --config-map or --config-dir",
    ),
    "a label of nothing": ({"node-label": "a", "node-name": "n"}, {}, "flag --node-label has no effect without"),
}


@pytest.mark.parametrize(("flags", "environment", "text"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_together_is_wrong_usage(flags, environment, text):
    options, _ = parse_options(flags, environment)
    with pytest.raises(UsageError) as caught:
        check_options(options)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"config-file": "/c"},
        {"node-name": "n"},
        {"write-labels": "file"},
        {"write-labels": "node", "node-name": "n"},
        {"events": "true", "node-condition": "a/B", "startup-taint": "a/b", "node-name": "n"},
        {"events": "false"},
        {"config-map": "a", "node-name": "n"},
        {"config-dir": "/c", "node-name": "n"},
        {
            "config-map": "a/b",
            "config-dir": "/c",
            "node-name": "n",
            "node-label": "l",
            "default-config": "d",
            "fallback-strategies": "named,single,empty",
        },
    ],
)
def test_what_fits_together_is_fine(flags):
    check_options(parse_options(flags, {})[0])


def test_options_that_were_made_otherwise_are_named_by_their_flags():
    with pytest.raises(UsageError, match=r"^--config-map needs --node-name"):
        check_options(ProcessOptions(config_map="a"))
