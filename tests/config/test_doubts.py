"""Words of options that nothing knows."""

from __future__ import annotations

from nvdp.config.doubts import find_doubts
from nvdp.config.options import parse_options
from nvdp.config.process import ProcessOptions


def test_a_hook_or_feature_that_nothing_knows_is_told_with_those_that_there_are():
    options, _ = parse_options(
        {"cdi-disable-hooks": ("chmod,update-ldcash",)}, {"CDI_FEATURE_FLAGS": "disable-nvsandboxutils,faster"}
    )
    (_, feature), (path, hook) = find_doubts(options)
    assert path == "--cdi-disable-hooks"
    assert feature.startswith("--cdi-feature-flags: faster is not known and has no effect; there are enable-explicit")
    assert hook.startswith("--cdi-disable-hooks: update-ldcash is not known and has no effect; there are all, create-")


def test_nothing_is_said_of_words_that_are_known():
    assert list(find_doubts(ProcessOptions())) == []
    options, _ = parse_options({"cdi-disable-hooks": ("all",), "cdi-feature-flags": ("disable-ipc-discoverer",)}, {})
    assert list(find_doubts(options)) == []
