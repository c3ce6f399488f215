"""Options of a later version: each is one warning, and all else works."""

from __future__ import annotations

from tests.daemon.node import build_config, gpu_uuid, healthy, wait_healthy
from tests.daemon.process import LIMIT_S


def test_an_option_without_effect_on_what_is_offered_is_one_warning(kubelet, start, config_map):
    daemon = start(build_config(), "--node-condition", "Ready", wait=True)
    wait_healthy(kubelet, [gpu_uuid(number) for number in range(4)])
    assert daemon.log.wait_for("FeatureNotBuilt", text="condition")["path"] == "--node-condition"
    config_map.publish(build_config(2))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 8, LIMIT_S)
    assert daemon.log.of("EntryWithheld") == []
