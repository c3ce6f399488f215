"""Options with words that nothing knows: each is one warning, and all else works."""

from __future__ import annotations

from tests.daemon.node import build_config, gpu_uuid, healthy, wait_healthy
from tests.daemon.process import LIMIT_S


def test_a_word_that_nothing_knows_is_one_warning(kubelet, start, config_map):
    daemon = start(build_config(), "--cdi-feature-flags", "faster", wait=True)
    wait_healthy(kubelet, [gpu_uuid(number) for number in range(4)])
    assert daemon.log.wait_for("FeatureNotBuilt", text="faster")["path"] == "--cdi-feature-flags"
    config_map.publish(build_config(2))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 8, LIMIT_S)
    assert daemon.log.of("EntryWithheld") == []
