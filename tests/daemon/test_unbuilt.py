"""Keys of a later version: each is one warning, and the rest of the file works."""

from __future__ import annotations

from tests.daemon.node import build_config, gpu_uuid, healthy, wait_healthy
from tests.daemon.process import LIMIT_S

PATHS = {"flags.gfd.machineTypeFile", "--node-condition"}
QUIET = {"gfd": {"machineTypeFile": "/x"}}


def test_a_key_without_effect_on_what_is_offered_is_one_warning(kubelet, start, config_map):
    daemon = start(build_config(flags=QUIET), "--node-condition", "Ready", wait=True)
    wait_healthy(kubelet, [gpu_uuid(number) for number in range(4)])
    paths = {daemon.log.wait_for("FeatureNotBuilt", text=path)["path"] for path in ("machineTypeFile", "condition")}

    assert paths == PATHS
    config_map.publish(build_config(2, flags=QUIET))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 8, LIMIT_S)
    assert daemon.log.of("EntryWithheld") == []
