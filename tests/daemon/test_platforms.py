"""A node of WSL2, then of a Tegra system: its one device, from the list to the container, over edits and restarts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.daemon.node import GPU, build_config, healthy, wait_healthy
from tests.daemon.process import LIMIT_S
from tests.daemon.test_status import run_status

WSL, TEGRA = {"all::0", "all::1"}, {"tegra::0", "tegra::1"}


@pytest.fixture
def machine(root: Path) -> SimpleNamespace:
    path = root / "node.yaml"
    path.write_text("platform: wsl\ngpus: [{model: t4, count: 3}]\n")
    return SimpleNamespace(path=path, flags=("--simulated-node", path))


def share(**flags):
    return build_config(2, flags={**flags, "plugin": {"passDeviceSpecs": True}})


def test_the_one_device_is_offered_held_and_handed_out_as_any_other(kubelet, start, machine, config_map, root):
    daemon = start(share(), wait=True)
    assert kubelet.devices(GPU).keys() == WSL
    pod = kubelet.admit("team/a", {"main": {GPU: 1}})
    response = pod.response(GPU)
    assert dict(response.envs) == {"NVIDIA_VISIBLE_DEVICES": "all"}
    assert [node.host_path for node in response.devices] == ["/dev/dxg"]
    daemon.wait_metric(1, "nvdp_gpu_info", uuid="all", gpu="0", pci_bus_id="", product="Tesla T4", mig="unsupported")
    told = json.loads(run_status(root, "--json").stdout)
    assert [(one["uuid"], one["memoryBytes"], one["healthy"]) for one in told["devices"]] == [("all", None, True)]

    # The file now says that this is a Tegra system: it waits for the pod, and knows it again after a restart.
    config_map.publish(share(deviceDiscoveryStrategy="tegra"))
    kubelet.wait_until(lambda: kubelet.devices(GPU).keys() >= TEGRA and not healthy(kubelet), LIMIT_S)
    daemon.stop()
    again = start()
    kubelet.wait_until(lambda: len(kubelet.registrations) == 2 and kubelet.devices(GPU).keys() >= TEGRA, LIMIT_S)
    assert (pod.ids(GPU) <= kubelet.devices(GPU).keys(), healthy(kubelet)) == (True, set())
    kubelet.delete(pod)
    wait_healthy(kubelet, TEGRA)
    other = kubelet.admit("team/b", {"main": {GPU: 1}})
    assert dict(other.response(GPU).envs) == {"NVIDIA_VISIBLE_DEVICES": "tegra"}
    assert list(other.response(GPU).devices) == []
    again.wait_ready()

    # NVML alone is to be asked, and this machine has none: what was found otherwise is not gone on with.
    machine.path.write_text("platform: tegra\n")
    config_map.publish(share(deviceDiscoveryStrategy="nvml"))
    again.log.wait_for("DriverLost", text="libnvidia-ml.so.1 not found")
    kubelet.wait_until(lambda: not healthy(kubelet), LIMIT_S)
