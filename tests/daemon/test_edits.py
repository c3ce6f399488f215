"""What an edit may take away is told, and a fleet need not apply it in one moment."""

from __future__ import annotations

from tests.daemon.node import (
    GPU,
    build_config,
    build_sliced,
    gpu_uuid,
    healthy,
    wait_healthy,
)
from tests.daemon.process import LIMIT_S

ALL = {gpu_uuid(number) for number in range(4)}


def test_an_edit_that_leaves_a_resource_with_nothing_is_told(kubelet, start, config_map):
    daemon = start(build_config(), wait=True)
    for emptied in (
        build_config(devices={"cordon": [0, 1, 2, 3]}),
        build_config(devices={"exclude": [0, 1, 2, 3]}),
        build_sliced({"devices": "all"}),
    ):
        lines = len(daemon.log)
        config_map.publish(emptied)
        line = daemon.log.wait_for("ResourceEmptied", after=lines)
        assert line["resource"] == GPU
        assert "4 healthy devices → 0" in line["msg"]
        kubelet.wait_until(lambda: not healthy(kubelet), LIMIT_S)  # or what it has would be taken for what is to come
        config_map.publish(build_config())
        wait_healthy(kubelet, ALL)

    # That all cards wait for pods is told as such.
    for _ in range(4):
        kubelet.admit(f"team/{_}", {"main": {GPU: 1}})
    lines = len(daemon.log)
    config_map.publish(build_config(share=2))
    kubelet.wait_until(lambda: not healthy(kubelet), LIMIT_S)
    daemon.log.wait_for("ModeChangeWaiting", after=lines)
    assert daemon.log.of("ResourceEmptied", after=lines) == []


def test_an_edit_waits_as_long_as_the_fleet_wants_unless_it_is_hurried_or_refused(kubelet, start, config_map):
    daemon = start(build_config(), "--apply-jitter", "10h", wait=True)  # the first configuration waits for nobody
    wait_healthy(kubelet, ALL)

    config_map.publish(build_config(share=2))
    daemon.wait_scans(1)
    assert healthy(kubelet) == ALL
    daemon.look()
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 8, LIMIT_S)

    config_map.publish(build_config(share=3))
    daemon.look()  # whichever of the two is seen first
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 12, LIMIT_S)

    config_map.publish("sharing: [")
    daemon.log.wait_for("ConfigRefused")
    assert len(healthy(kubelet)) == 12
    daemon.wait_metric(0, "nvdp_config_valid")
    assert daemon.stop().code == 0

    daemon = start(build_config(share=4), "--apply-jitter", "1s")
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 16, LIMIT_S)
    config_map.publish(build_config(share=5))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 20, LIMIT_S)
