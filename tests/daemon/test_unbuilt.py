"""Keys of a later version: what ignoring them would offer is withheld, and the rest of the file works."""

from __future__ import annotations

from typing import Any

from nvdp.config.unbuilt import LATER, Outcome
from tests.daemon.node import GPU, build_config, gpu_uuid, healthy, wait_healthy
from tests.daemon.process import LIMIT_S, wait_until

ALL = {0, 1, 2, 3}


def share(**entry: Any) -> dict[str, Any]:
    return {"resources": [{"name": GPU, "replicas": 2, **entry}]}


# What a file says, and the cards that are not on offer because of it.
WITHHELD: dict[str, tuple[dict[str, Any], set[int]]] = {
    "sharing.mps.resources[]": ({"sharing": {"mps": share(devices=[1, 2], rename="nvidia.com/gpu.mps")}}, {1, 2}),
}


def test_every_such_key_is_in_the_table():
    assert WITHHELD.keys() == {later.path for later in LATER if later.outcome is Outcome.WITHHOLD}


def test_what_the_file_keeps_back_is_not_offered(kubelet, start, config_map):
    daemon = start(build_config(), wait=True)
    for path, (blocks, cards) in WITHHELD.items():
        key = path.partition("[")[0]
        lines = len(daemon.log)
        config_map.publish(build_config(**blocks))

        wait_healthy(kubelet, [gpu_uuid(number) for number in ALL - cards])
        told = [daemon.log.wait_for("EntryWithheld", after=lines, text=gpu_uuid(number)) for number in cards]
        assert {line["path"].partition("[")[0] for line in told} == {key}
        assert daemon.log.wait_for("FeatureNotBuilt", text=key)["path"].startswith(key)
        daemon.wait_ready()  # what is withheld at plan time does not count
        cards_withheld = {gpu_uuid(number) for number in cards}
        wait_until(lambda shown=cards_withheld: _find_withheld(daemon) == shown, what=path)

        config_map.publish(build_config())
        wait_healthy(kubelet, [gpu_uuid(number) for number in ALL])
    assert len(kubelet.registrations) == 1


def _find_withheld(daemon) -> set[str]:
    return {dict(labels)["uuid"] for name, labels in daemon.metrics() if name == "nvdp_device_withheld"}


PATHS = {"flags.useNodeFeatureAPI", "flags.gfd.oneshot", "--node-condition"}
QUIET = {"useNodeFeatureAPI": False, "gfd": {"oneshot": True}}


def test_a_key_without_effect_on_what_is_offered_is_one_warning(kubelet, start, config_map):
    daemon = start(build_config(flags=QUIET), "--node-condition", wait=True)
    wait_healthy(kubelet, [gpu_uuid(number) for number in ALL])
    paths = {
        daemon.log.wait_for("FeatureNotBuilt", text=path)["path"] for path in ("FeatureAPI", "oneshot", "condition")
    }

    assert paths == PATHS
    config_map.publish(build_config(2, flags=QUIET))
    kubelet.wait_until(lambda: len(healthy(kubelet)) == 8, LIMIT_S)
    assert daemon.log.of("EntryWithheld") == []
